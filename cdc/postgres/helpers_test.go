package postgres

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
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

// eachPostgres runs fn in parallel on each major version, with a fresh database
// that has the events table.
func eachPostgres(t *testing.T, fn func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		db := testdb.Postgres(t, major)
		db.Exec(eventsTable)
		fn(t, db)
	})
}

// eachServer runs fn in parallel on a server of its own of each major version,
// with the events table in its database "postgres".
func eachServer(t *testing.T, settings map[string]string, fn func(t *testing.T, server *localserver.Postgres)) {
	t.Helper()
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		server := testdb.Dedicated(t, major, settings)
		exec(t, server.DSN("postgres"), eventsTable)
		fn(t, server)
	})
}

// eventsTable is the table of most tests.
const eventsTable = `CREATE TABLE events (id bigint PRIMARY KEY, payload text, status text NOT NULL DEFAULT 'new')`

// testConfig is a reader of public.events, with a slot named after the database,
// because slots of all databases share one set of names.
func testConfig(db *testdb.DB) Config { return configFor(db.DSN(), db.Name()) }

func configFor(dsn, name string) Config {
	return Config{
		DSN:           dsn,
		Slot:          "s_" + name,
		Publication:   "p_" + name,
		Tables:        []Table{{Schema: "public", Name: "events"}},
		Create:        true,
		BackoffMin:    20 * time.Millisecond,
		BackoffMax:    500 * time.Millisecond,
		StandbyPoll:   50 * time.Millisecond,
		WatchInterval: 200 * time.Millisecond,
		StopGrace:     500 * time.Millisecond,
	}
}

// reader is a running Source with a consumer that keeps account of what it got.
type reader struct {
	t    *testing.T
	src  *Source
	log  *logBuffer
	out  chan cdc.Transaction
	stop func() // ends Run and the consumer; checks that Run returned nil

	mu      sync.Mutex
	counts  map[string]int // by id
	ids     []string       // in order of arrival
	records []cdc.Record
	txs     []cdc.Transaction // without records
	gaps    []cdc.Gap
	last    cdc.Position
	held    chan struct{} // not nil: the consumer waits for its close
	limit   int           // the consumer stops for good after so many rows; 0 means never
	noAck   bool
	lag     int // acknowledge a transaction only after so many more came
	queue   []cdc.Transaction
	durable map[string]int // ids of transactions that were acknowledged
	runErr  error
	ended   bool
}

// start runs a reader until the test ends or stop is called.
func start(t *testing.T, cfg Config, options ...func(*reader)) *reader {
	t.Helper()
	r := &reader{t: t, log: new(logBuffer), out: make(chan cdc.Transaction), counts: map[string]int{}, durable: map[string]int{}}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
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
		held := r.held
		if r.limit > 0 && len(r.ids) >= r.limit {
			held = make(chan struct{})
		}
		r.mu.Unlock()
		if held != nil {
			select {
			case <-held:
			case <-ctx.Done():
				return
			}
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
		id, _ := record.Value("id")
		r.counts[string(id.Data)]++
		r.ids = append(r.ids, string(id.Data))
		if len(r.records) < 10000 {
			r.records = append(r.records, record)
		}
	}
	if tx.Gap != nil {
		r.gaps = append(r.gaps, *tx.Gap)
	}
	if tx.Position != "" {
		r.last = tx.Position
	}
	r.queue = append(r.queue, tx)
	for !r.noAck && len(r.queue) > r.lag {
		for _, record := range r.queue[0].Records {
			r.durable[text(record, "id")]++
		}
		r.src.Ack(r.queue[0].Position)
		r.queue = r.queue[1:]
	}
	tx.Records = nil
	r.txs = append(r.txs, tx)
}

// hold stops the consumer before its next receive; release lets it go on.
func (r *reader) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = make(chan struct{})
}

func (r *reader) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.held)
	r.held = nil
}

func held(r *reader)  { r.held = make(chan struct{}) }
func noAck(r *reader) { r.noAck = true }

// distinct is how many different ids arrived.
func (r *reader) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.counts)
}

func (r *reader) gapReasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	reasons := []string{}
	for _, g := range r.gaps {
		reasons = append(reasons, g.Reason)
	}
	return reasons
}

func (r *reader) waitGap(reason string) {
	r.t.Helper()
	testdb.WaitFor(r.t, "a gap "+reason, func() bool { return slices.Contains(r.gapReasons(), reason) })
}

func (r *reader) gap(i int) cdc.Gap {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gaps[i]
}

func (r *reader) count(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[id]
}

// transactions are those that arrived, without their records.
func (r *reader) transactions() []cdc.Transaction {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]cdc.Transaction(nil), r.txs...)
}

// positions are those of the transactions that have one.
func (r *reader) positions() []cdc.Position {
	var all []cdc.Position
	for _, tx := range r.transactions() {
		if tx.Position != "" {
			all = append(all, tx.Position)
		}
	}
	return all
}

func (r *reader) lastPosition() cdc.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *reader) arrived() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.ids...)
}

func (r *reader) received() []cdc.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]cdc.Record(nil), r.records...)
}

// waitFor waits until n different ids arrived.
func (r *reader) waitFor(n int) {
	r.t.Helper()
	testdb.WaitFor(r.t, fmt.Sprintf("%d events", n), func() bool { return r.distinct() >= n })
}

func (r *reader) waitMode(mode cdc.Mode) {
	r.t.Helper()
	testdb.WaitFor(r.t, "mode "+string(mode), func() bool { return r.src.Status().Mode == mode })
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

// exec runs SQL on a connection of its own. Without arguments the text may hold
// several statements.
func exec(t testing.TB, dsn, sql string, args ...any) {
	t.Helper()
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol}
	}
	conn := connect(t, dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%v\nin: %s", err, sql)
	}
}

// query is a scalar from the database, on a connection of its own.
func query[T any](t testing.TB, dsn, sql string, args ...any) T {
	t.Helper()
	var value T
	conn := connect(t, dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%v\nin: %s", err, sql)
	}
	return value
}

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// confirmedLSN is the slot's confirmed position; "" when there is no slot.
func confirmedLSN(t testing.TB, dsn, slot string) resumePoint {
	t.Helper()
	text := query[string](t, dsn, `SELECT coalesce((SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1), '')`, slot)
	if text == "" {
		return 0
	}
	at, err := parsePoint(text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func point(t testing.TB, p cdc.Position) resumePoint {
	t.Helper()
	m, err := parseMark(p)
	if err != nil {
		t.Fatal(err)
	}
	return m.at
}

// waitIdle waits until no session holds the slot. A reader that stopped waits for the
// server's end of the session only for a while.
func waitIdle(t testing.TB, dsn, slot string) {
	t.Helper()
	testdb.WaitFor(t, "the slot to be free", func() bool {
		return query[int](t, dsn, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active", slot) == 0
	})
}

// insertEvents inserts ids from to until (exclusive) in one statement.
const insertEvents = `INSERT INTO events (id, payload) SELECT i, 'payload ' || i FROM generate_series($1::bigint, $2::bigint - 1) i`

// walsender is the state of the session that streams from a slot.
type walsender struct {
	pid          int
	write, flush resumePoint
}

// sender returns the session that streams from the slot; its pid is 0 when there
// is none.
func sender(t testing.TB, dsn, slot string) walsender {
	t.Helper()
	conn := connect(t, dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	var w walsender
	var write, flush string
	err := conn.QueryRow(context.Background(), `
		SELECT r.pid, coalesce(r.write_lsn, '0/0')::text, coalesce(r.flush_lsn, '0/0')::text
		FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = $1`,
		slot).Scan(&w.pid, &write, &flush)
	if errors.Is(err, pgx.ErrNoRows) {
		return walsender{}
	}
	var err1, err2 error
	w.write, err1 = parsePoint(write)
	w.flush, err2 = parsePoint(flush)
	if err := errors.Join(err, err1, err2); err != nil {
		t.Fatal(err)
	}
	return w
}

// currentLSN is the end of the server's log.
func currentLSN(t testing.TB, dsn string) resumePoint {
	t.Helper()
	at, err := parsePoint(query[string](t, dsn, "SELECT pg_current_wal_lsn()::text"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// soak says whether the long versions of the tests are wanted.
func soak() bool { return os.Getenv("SOAK") != "" }
