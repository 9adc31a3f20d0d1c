package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) {
	cdctest.Crowd()
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
	*cdctest.Reader
	t    *testing.T
	src  *Source
	bank *bank
}

// start runs a reader until the test ends or Stop is called.
func start(t *testing.T, cfg Config, options ...func(*reader)) *reader {
	t.Helper()
	r := &reader{Reader: cdctest.NewReader(t), t: t}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(r.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
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

// run starts Run and the consumer, also a second time after Stop.
func (r *reader) run() { r.Run(r.src) }

func noAck(r *reader) { r.Ack(false) }

// upTo makes the consumer stop for good after n rows.
func upTo(n int) func(*reader) { return func(r *reader) { r.Limit(n) } }

func (r *reader) waitSweep(reason string) {
	r.t.Helper()
	r.Wait("a sweep "+reason, func() bool { return slices.Contains(r.Sweeps(), reason) })
}

func (r *reader) waitStreaming() {
	r.t.Helper()
	r.WaitMode(cdc.ModeStreaming, cdc.ModeCatchingUp)
}

// ends stops the reader as a process does that shuts down, and checks how it ends.
func (r *reader) ends() {
	r.t.Helper()
	r.Stop()
	if err := r.Failed(); err != nil {
		r.t.Errorf("Run returned %v after its context ended, want nil", err)
	}
}

// onceEach checks that exactly the ids from until until, exclusive, arrived, each once.
func (r *reader) onceEach(from, until int) {
	r.t.Helper()
	for i := from; i < until; i++ {
		if n := r.Count(fmt.Sprint(i)); n != 1 {
			r.t.Errorf("row %d arrived %d times", i, n)
		}
	}
	if n := r.Distinct(); n != until-from {
		r.t.Errorf("%d different rows arrived, want %d", n, until-from)
	}
}

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
