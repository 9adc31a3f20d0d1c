package integration

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// The tests of files mysql_*_test.go are named by the number of the failure in our list of
// reports against readers of the binlog, see docs/guarantees.md. Each ends in the ledger.

// mysql is the database, for what only MySQL and MariaDB have.
func (w *world) mysql() *mysql { return w.db.(*mysql) }

// onMySQL runs fn with a fresh database on the shared server of one kind.
func onMySQL(t *testing.T, kind testdb.Kind, fn func(t *testing.T, w *world)) {
	t.Helper()
	t.Run(kind.String(), func(t *testing.T) {
		t.Parallel()
		db := testdb.MySQL(t, kind)
		fn(t, newWorld(t, &mysql{Kind: kind, Server: db.Server(), Name: db.Name(), Pool: db.Pool()}))
	})
}

// neverPoll leaves all events that the log brings, or asks to be looked for, to the log.
var neverPoll = options{Grace: time.Hour, PollInterval: time.Hour}

// seldomPoll does the same, but for an event that the server shows long after it has logged it: fan-out defers
// that to the poller, which takes it when two looks have seen it. That the log brought the others is for leftToLog
// to say, or for a test that counts what the log brings.
var seldomPoll = options{Grace: 40 * time.Second, PollInterval: 45 * time.Second}

// leftToLog fails the test when the poller's ordinary looks took more than was deferred to them.
func (w *world) leftToLog(d *life) {
	w.t.Helper()
	got := d.counts.totals()
	if took := got.Other[pipeline.CountPolledMissed]; took > got.Other[pipeline.CountDeferred] {
		w.t.Errorf("the poller took %d events that the log was to bring: %s", took, got)
	}
}

// through is the DSN of the log through a new proxy.
func (w *world) through() (*faultproxy.Proxy, string) {
	w.t.Helper()
	cfg, err := driver.ParseDSN(w.db.DSN())
	if err != nil {
		w.t.Fatal(err)
	}
	proxy := faultproxy.New(w.t, cfg.Addr)
	cfg.Addr = proxy.Addr()
	return proxy, cfg.FormatDSN()
}

// setGlobal changes a setting of the server until the test ends.
func (w *world) setGlobal(name, value string) {
	w.t.Helper()
	before := w.text("SELECT @@GLOBAL." + name)
	w.exec("SET GLOBAL " + name + " = " + value)
	w.t.Cleanup(func() {
		if err := w.db.Exec(context.WithoutCancel(w.t.Context()), "SET GLOBAL "+name+" = "+before); err != nil {
			w.t.Errorf("put %s back: %v", name, err)
		}
	})
}

// dump is the server's thread that sends the binlog, 0 while there is none.
func (w *world) dump() int64 {
	return max(0, w.number(`SELECT coalesce(max(id), 0) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'`))
}

// position is what is kept of how far the log was read.
func (w *world) position() string {
	return w.text(`SELECT position FROM eventlog.sources WHERE name = 'main'`)
}

// byLog counts the events that the log brought to a dispatcher.
func (l *life) byLog() int { return l.counts.totals().Captured["log"] }

// logBrings commits one more event and waits until the log has brought it.
func (w *world) logBrings(d *life) {
	w.t.Helper()
	before := d.byLog()
	w.emit(1, "order.probe", `{}`)
	testdb.WaitFor(w.t, "the log to bring an event", func() bool { return d.byLog() > before })
}

// succeed waits until both deliveries of an event have succeeded.
func (w *world) succeed(id string) {
	w.t.Helper()
	testdb.WaitFor(w.t, "the deliveries of "+id, func() bool {
		return w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE event_id = $1 AND state = 'SUCCEEDED'`, id) == 2
	})
}

// session is one connection of the application, with settings of its own.
type session struct {
	w    *world
	conn *sql.Conn
}

func (w *world) session(statements ...string) *session {
	w.t.Helper()
	conn, err := w.mysql().Pool.Conn(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		// Its settings must not reach the next user of the pool.
		_ = conn.Raw(func(any) error { return sql.ErrConnDone })
		_ = conn.Close()
	})
	s := &session{w, conn}
	for _, statement := range statements {
		s.exec(statement)
	}
	return s
}

func (s *session) exec(statement string) {
	s.w.t.Helper()
	if _, err := s.conn.ExecContext(s.w.t.Context(), s.w.mysql().Rewrite(statement)); err != nil {
		s.w.t.Fatalf("%v\nin: %s", err, statement)
	}
}

// insert writes n event rows with one statement that has no parameters.
func (s *session) insert(n int, eventType, payload string) []ledger.Event {
	s.w.t.Helper()
	events := make([]ledger.Event, n)
	rows := make([]string, n)
	for i := range events {
		events[i] = ledger.Event{ID: newID(), Type: eventType, At: time.Now()}
		rows[i] = fmt.Sprintf(`('%s', 'it', '%s', 'Test', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'm', 'Model', '%s', '%s', UTC_TIMESTAMP(6), 0)`,
			events[i].ID, newID(), eventType, strings.ReplaceAll(payload, `\`, `\\`))
	}
	s.exec(`INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date,
		completion_date, model_id, model_type, event_type, payload, event_date, delivered) VALUES ` + strings.Join(rows, ","))
	return events
}

// emit is insert on a session that commits each statement.
func (s *session) emit(n int, eventType, payload string) []string {
	s.w.t.Helper()
	events := s.insert(n, eventType, payload)
	s.w.writers.Committed(events...)
	ids := make([]string, n)
	for i, e := range events {
		ids[i] = e.ID
	}
	return ids
}
