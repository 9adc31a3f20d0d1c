package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of these tests wait for a server, so more of them than there are
	// processors can run at once.
	if explicit := flag.Lookup("test.parallel"); explicit.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := flag.Set("test.parallel", "6"); err != nil {
			panic(err)
		}
	}
	testdb.Main(m)
}

// eventsTable is the table of most tests.
const eventsTable = "CREATE TABLE events (id bigint PRIMARY KEY, payload longtext)"

// newDB makes a database with the events table.
func newDB(t testing.TB, kind testdb.Kind) *testdb.MyDB {
	t.Helper()
	db := testdb.MySQL(t, kind)
	db.Exec(eventsTable)
	return db
}

// testConfig is for the table events of a database; marginal times are short.
func testConfig(dsn, database string) Config {
	return Config{
		DSN: dsn, Tables: []Table{{database, "events"}}, Keeper: &bank{},
		Own:       []Table{{database, "deliveries"}},
		Heartbeat: 500 * time.Millisecond, ReadTimeout: 10 * time.Second,
		SaveInterval: 100 * time.Millisecond, CheckInterval: 100 * time.Millisecond,
		ProbeInterval: 500 * time.Millisecond, StandbyPoll: 50 * time.Millisecond,
		BackoffMin: 20 * time.Millisecond, BackoffMax: 500 * time.Millisecond,
	}
}

func configOf(db *testdb.MyDB) Config { return testConfig(db.DSN(), db.Name()) }

// reader runs a Source and keeps account of what it hands over.
type reader struct {
	t    *testing.T
	src  *Source
	bank *bank
	log  *logBuffer
	out  chan cdc.Transaction
	stop func() // ends the reader and the consumer, and waits

	mu      sync.Mutex
	counts  map[string]int // by id
	ids     []string       // in order of arrival
	records []cdc.Record
	txs     []cdc.Transaction // without records
	noAck   bool
	limit   int // the consumer stops for good after so many rows; 0 means never
	runErr  error
	ended   bool
}

// start runs a reader until the test ends or stop is called.
func start(t *testing.T, cfg Config, options ...func(*reader)) *reader {
	t.Helper()
	r := &reader{t: t, log: new(logBuffer), out: make(chan cdc.Transaction), counts: map[string]int{}}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r.bank, _ = cfg.Keeper.(*bank)
	src, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.src = src
	for _, o := range options {
		o(r)
	}
	r.run()
	return r
}

// streaming is start, and waits until the reader streams.
func streaming(t *testing.T, cfg Config, options ...func(*reader)) *reader {
	t.Helper()
	r := start(t, cfg, options...)
	r.waitStreaming()
	return r
}

// run starts Run and the consumer, also a second time after stop.
func (r *reader) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	r.ended, r.runErr = false, nil
	r.mu.Unlock()
	var group sync.WaitGroup
	group.Go(func() {
		err := r.src.Run(ctx, r.out)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.runErr, r.ended = err, true
	})
	group.Go(func() { r.consume(ctx) })
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			group.Wait()
		})
	}
	r.t.Cleanup(r.stop)
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("log of the reader:\n%s", r.log.String())
		}
	})
}

func (r *reader) consume(ctx context.Context) {
	for {
		r.mu.Lock()
		full := r.limit > 0 && len(r.ids) >= r.limit
		r.mu.Unlock()
		if full {
			<-ctx.Done()
			return
		}
		select {
		case tx := <-r.out:
			r.account(tx)
		case <-ctx.Done():
			return
		}
	}
}

func (r *reader) account(tx cdc.Transaction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range tx.Records {
		id := text(record, "id")
		r.counts[id]++
		r.ids = append(r.ids, id)
		if len(r.records) < 10000 {
			r.records = append(r.records, record)
		}
	}
	if !r.noAck {
		r.src.Ack(tx.Position)
	}
	tx.Records = nil
	r.txs = append(r.txs, tx)
}

func text(r cdc.Record, column string) string {
	v, ok := r.Value(column)
	switch {
	case !ok:
		return "absent"
	case v.Null:
		return "null"
	}
	return string(v.Data)
}

func noAck(r *reader) { r.noAck = true }

// upTo makes the consumer stop for good after n rows.
func upTo(n int) func(*reader) { return func(r *reader) { r.limit = n } }

// distinct is how many different ids arrived.
func (r *reader) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.counts)
}

func (r *reader) count(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[id]
}

func (r *reader) arrived() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ids)
}

func (r *reader) record(id string) cdc.Record {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range r.records {
		if text(record, "id") == id {
			return record
		}
	}
	r.t.Fatalf("row %s did not arrive", id)
	return cdc.Record{}
}

// transactions are those that arrived, without their records.
func (r *reader) transactions() []cdc.Transaction {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.txs)
}

func (r *reader) gaps() []string {
	reasons := []string{}
	for _, tx := range r.transactions() {
		if tx.Gap != nil {
			reasons = append(reasons, tx.Gap.Reason)
		}
	}
	return reasons
}

func (r *reader) sweeps() []string {
	reasons := []string{}
	for _, tx := range r.transactions() {
		if tx.Sweep != "" {
			reasons = append(reasons, tx.Sweep)
		}
	}
	return reasons
}

func (r *reader) waitGap(reason string) {
	r.t.Helper()
	r.wait("a gap "+reason, func() bool { return slices.Contains(r.gaps(), reason) })
}

func (r *reader) waitSweep(reason string) {
	r.t.Helper()
	r.wait("a sweep "+reason, func() bool { return slices.Contains(r.sweeps(), reason) })
}

// wait waits for a condition, and fails at once when Run has ended.
func (r *reader) wait(what string, condition func() bool) {
	r.t.Helper()
	testdb.WaitFor(r.t, what, func() bool {
		if condition() {
			return true
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ended {
			r.t.Fatalf("Run ended with %v while waiting for %s", r.runErr, what)
		}
		return false
	})
}

// waitFor waits until n different ids arrived.
func (r *reader) waitFor(n int) {
	r.t.Helper()
	r.wait(fmt.Sprintf("%d events", n), func() bool { return r.distinct() >= n })
}

func (r *reader) waitStreaming() {
	r.t.Helper()
	r.wait("the reader to stream", func() bool {
		mode := r.src.Status().Mode
		return mode == cdc.ModeStreaming || mode == cdc.ModeCatchingUp
	})
}

func (r *reader) waitMode(mode cdc.Mode) {
	r.t.Helper()
	r.wait("mode "+string(mode), func() bool { return r.src.Status().Mode == mode })
}

// failed waits until Run returns and gives its error.
func (r *reader) failed() error {
	r.t.Helper()
	testdb.WaitFor(r.t, "the end of Run", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.ended
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runErr
}

// ends stops the reader as a process does that shuts down, and checks how it ends.
func (r *reader) ends() {
	r.t.Helper()
	r.stop()
	if err := r.failed(); err != nil {
		r.t.Errorf("Run returned %v after its context ended, want nil", err)
	}
}

// onceEach checks that exactly the ids from until until, exclusive, arrived, each once.
func (r *reader) onceEach(from, until int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := from; i < until; i++ {
		if n := r.counts[fmt.Sprint(i)]; n != 1 {
			r.t.Errorf("row %d arrived %d times", i, n)
		}
	}
	if len(r.counts) != until-from {
		r.t.Errorf("%d different rows arrived, want %d", len(r.counts), until-from)
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) count(text string) int { return strings.Count(b.String(), text) }

// insert makes rows with the ids from until until, exclusive, in one statement.
func insert(from, until int) string {
	var b strings.Builder
	b.WriteString("INSERT INTO events (id, payload) VALUES ")
	for i := from; i < until; i++ {
		if i > from {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "(%d, 'payload %d')", i, i)
	}
	return b.String()
}

// session is a connection of its own.
type session struct {
	t    testing.TB
	conn *sql.Conn
}

func newSession(t testing.TB, pool *sql.DB) *session {
	t.Helper()
	conn, err := pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &session{t, conn}
}

func (s *session) exec(statements ...string) {
	s.t.Helper()
	for _, q := range statements {
		if _, err := s.conn.ExecContext(context.Background(), q); err != nil {
			s.t.Fatalf("%v\nin: %.200s", err, q)
		}
	}
}

// query is a scalar from a pool.
func query[T any](t testing.TB, pool *sql.DB, q string, args ...any) T {
	t.Helper()
	var value T
	if err := pool.QueryRowContext(context.Background(), q, args...).Scan(&value); err != nil {
		t.Fatalf("%v\nin: %s", err, q)
	}
	return value
}

// dumps are the sessions that the server streams its log to.
func dumps(t testing.TB, pool *sql.DB) []int64 {
	t.Helper()
	rows, err := pool.QueryContext(context.Background(),
		"SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}

func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
}
