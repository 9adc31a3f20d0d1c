package postgres

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) {
	cdctest.Crowd()
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
	*cdctest.Reader
	src *Source
}

// start runs a reader until the test ends or Stop is called.
func start(t *testing.T, cfg Config, options ...func(*reader)) *reader {
	t.Helper()
	r := &reader{Reader: cdctest.NewReader(t)}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(r.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
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

// run starts Run and the consumer, also a second time after Stop.
func (r *reader) run() { r.Run(r.src) }

func held(r *reader)  { r.Hold() }
func noAck(r *reader) { r.Ack(false) }

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
