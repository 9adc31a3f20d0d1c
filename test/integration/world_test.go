package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// world is one database, the application that writes to it, every dispatcher
// that ever read from it, and the faults that the test made.
type world struct {
	t    testing.TB
	db   testbed.Database
	seed uint64
	rng  *rand.Rand

	writers     ledger.Writers
	subscribers func(eventType string) []string
	recorders   []*ledger.Recorder
	receiver    *testbed.Receiver // nil without the program
	files       []string
	faults      []ledger.Fault
	lives       int
	here        []*dispatcher // those that ran in this process
	children    []*child      // the others
	lapsed      bool          // a child reported that leases ran out
	unanswered  string        // the last error of a question
	// wrecked says in words what the test broke, for the table at the end.
	wrecked []string
}

// newWorld makes the product's tables in a database that has none.
func newWorld(t testing.TB, db testbed.Database) *world {
	t.Helper()
	w := &world{t: t, db: db, seed: rand.Uint64()}
	w.rng = rand.New(rand.NewPCG(w.seed, 0))
	w.subscribers = func(string) []string { return []string{"steady", "moody"} }
	t.Logf("seed %d", w.seed)
	if err := db.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// postgres is the database, for what only PostgreSQL has.
func (w *world) postgres() *postgres { return w.db.(*postgres) }

// exec runs SQL and fails the test on an error.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%v\nin: %s", err, sql)
	}
}

// number reads one number, -1 while the server does not answer.
func (w *world) number(sql string, args ...any) int64 {
	n, err := strconv.ParseInt(w.text(sql, args...), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// text reads one text, empty while the server does not answer.
func (w *world) text(sql string, args ...any) string {
	rows, err := w.db.Table(w.t.Context(), sql, args...)
	if err != nil && err.Error() != w.unanswered {
		// A test that waits for an answer should not wait in silence.
		w.unanswered = err.Error()
		w.t.Logf("no answer: %v", err)
	}
	if err != nil || len(rows) == 0 || rows[0][0] == "NULL" {
		return ""
	}
	return rows[0][0]
}

// pairs reads two columns, the second by the first.
func (w *world) pairs(sql string, args ...any) map[string]string {
	w.t.Helper()
	rows, err := w.db.Table(w.t.Context(), sql, args...)
	if err != nil {
		w.t.Fatalf("%v\nin: %s", err, sql)
	}
	out := map[string]string{}
	for _, row := range rows {
		out[row[0]] = row[1]
	}
	return out
}

// write starts the application. The returned function ends it.
func (w *world) write(c workload.Config) (end func()) {
	w.t.Helper()
	c.Ledger, c.Seed = &w.writers, w.seed
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.db.Write(ctx, c) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("the application failed: %v", err)
		}
	}
	w.t.Cleanup(end)
	return end
}

// emit commits n events of one type in one transaction, and returns their ids.
func (w *world) emit(n int, eventType, payload string) []string {
	w.t.Helper()
	tx := w.begin()
	events := w.insert(tx, n, eventType, payload)
	w.commit(tx, events)
	ids := make([]string, n)
	for i, e := range events {
		ids[i] = e.ID
	}
	return ids
}

// begin opens a transaction that ends with the test at the latest.
func (w *world) begin() testbed.Transaction {
	w.t.Helper()
	tx, err := w.db.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	// Does nothing after a commit; otherwise the pool could not be closed.
	w.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(w.t.Context())) })
	return tx
}

// insert writes n event rows in an open transaction. An empty payload is NULL.
func (w *world) insert(tx testbed.Transaction, n int, eventType, payload string) []ledger.Event {
	w.t.Helper()
	events := make([]ledger.Event, n)
	ids := make([]string, n)
	for i := range events {
		ids[i] = newID()
		events[i] = ledger.Event{ID: ids[i], Type: eventType}
	}
	if err := tx.Insert(w.t.Context(), ids, eventType, payload); err != nil {
		w.t.Fatal(err)
	}
	return events
}

// commit commits what insert wrote.
func (w *world) commit(tx testbed.Transaction, events []ledger.Event) {
	w.t.Helper()
	now := time.Now()
	for i := range events {
		events[i].At = now
	}
	if err := tx.Commit(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.writers.Committed(events...)
}

// rollback undoes what insert wrote.
func (w *world) rollback(tx testbed.Transaction, events []ledger.Event) {
	w.t.Helper()
	if err := tx.Rollback(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.writers.RolledBack(events...)
}

// handle is a handler for all events with a retry policy that suits a test.
func handle(name string, h event.HandlerFunc) pipeline.Handler {
	return pipeline.Handler{
		Name: name, On: []string{"*"}, Handler: h,
		Retry: pipeline.RetryPolicy{Base: 50 * time.Millisecond, Cap: time.Second},
	}
}

// steadyAndMoody are the handlers of most tests: one that succeeds, and one that
// fails its first attempt of every eighth event.
func steadyAndMoody() []pipeline.Handler {
	return []pipeline.Handler{
		handle("steady", func(context.Context, event.Envelope) error { return nil }),
		handle("moody", func(_ context.Context, e event.Envelope) error {
			if e.Attempt == 1 && strings.ContainsAny(e.ID[:1], "07") {
				return errMoody
			}
			return nil
		}),
	}
}

// life is a dispatcher that runs in this process.
type life struct {
	*dispatcher
	process string
	stop    func() // idempotent; waits until Run returned
}

// dispatch starts a dispatcher in this process.
func (w *world) dispatch(o options, handlers []pipeline.Handler, h hooks) *life {
	w.t.Helper()
	o = w.fill(o)
	rec := ledger.NewRecorder(o.Process)
	w.recorders = append(w.recorders, rec)
	for i := range handlers {
		handlers[i].Handler = rec.Wrap(handlers[i].Handler)
	}
	d, err := newDispatcher(w.t.Context(), o, handlers, rec, w.logger(o.Process), h)
	if err != nil {
		w.t.Fatal(err)
	}
	w.here = append(w.here, d)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx) }()
	l := &life{dispatcher: d, process: o.Process}
	stopped := false
	l.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("%s ended: %v", o.Process, err)
		}
	}
	w.t.Cleanup(l.stop)
	return l
}

// fill completes the options of the next life.
func (w *world) fill(o options) options {
	w.lives++
	o.DSN = w.db.DSN()
	o.Process = fmt.Sprintf("life-%d", w.lives)
	return o
}

// logger writes a dispatcher's warnings into the test's output.
func (w *world) logger(process string) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{w.t}, &slog.HandlerOptions{Level: slog.LevelWarn})).With("process", process)
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// streaming waits until a dispatcher reads the log.
func (w *world) streaming() {
	w.t.Helper()
	testdb.WaitFor(w.t, "the reader to stream", func() bool { return w.db.Streaming(w.t.Context()) })
}

// fault notes that a process was killed or told to stop, or with an empty name that
// the server crashed, just now.
func (w *world) fault(process string) {
	f := ledger.Fault{Process: process, At: time.Now()}
	if process == "" {
		f.Window = crashWindow
	}
	w.faults = append(w.faults, f)
}

// crashWindow bounds how late an acknowledgement that was committed
// asynchronously reaches the disk: three times wal_writer_delay (200 ms) by the server's
// documentation, and plenty for a busy machine.
const crashWindow = 10 * time.Second

// receiptsFile is a path for the receipts of a process.
func (w *world) receiptsFile(process string) string {
	path := filepath.Join(w.t.TempDir(), process+".receipts")
	w.files = append(w.files, path)
	return path
}

// settle waits until every committed event is fanned out and no delivery is open.
// It fails when nothing moves any more.
func (w *world) settle() {
	w.t.Helper()
	w.progress("every delivery to end", testbed.Open, 0)
}

// progress waits until the query returns want.
func (w *world) progress(what, query string, want int64) {
	w.t.Helper()
	w.progressOf(what, func() int64 { return w.number(query) }, want)
}

// progressOf waits until a number is what is wanted.
func (w *world) progressOf(what string, ask func() int64, want int64) {
	w.t.Helper()
	testbed.Progress(w.t, what, ask, want)
}

// accounts reads the three accounts.
func (w *world) accounts() ledger.Input {
	w.t.Helper()
	ctx := w.t.Context()
	stored, err := w.db.Stored(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	rows, err := w.db.Rows(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	in := ledger.Input{
		Writers: w.writers.Snapshot().Resolve(stored), Subscribers: w.subscribers, Rows: rows, Faults: w.faults,
	}
	lapsed := w.lapsed
	for _, d := range w.here {
		lapsed = lapsed || d.counts.totals().lapsed()
	}
	if lapsed {
		w.t.Log("leases ran out: this machine was too busy to renew them")
		in.Lease = shortLease
	}
	for _, r := range w.recorders {
		in.Receipts = append(in.Receipts, r.Receipts()...)
	}
	if w.receiver != nil {
		in.Receipts = append(in.Receipts, w.receiver.Receipts()...)
	}
	for _, path := range w.files {
		receipts, err := ledger.ReadReceipts(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // killed before it could begin
		} else if err != nil {
			w.t.Fatal(err)
		}
		in.Receipts = append(in.Receipts, receipts...)
	}
	return in
}

// verdict compares the accounts and fails the test for every broken promise, but
// for those that the test has dealt with itself and forgives. Children that still run are stopped
// first: only then do they tell whether leases ran out.
func (w *world) verdict(forgive ...func(*ledger.Report)) ledger.Report {
	w.t.Helper()
	for _, c := range w.children {
		if !c.ended {
			w.t.Logf("%s: %s", c.process, c.stop())
		}
	}
	accounts := w.accounts()
	report := ledger.Compare(accounts)
	for _, f := range forgive {
		f(&report)
	}
	w.t.Logf("%s", report)
	if report.Events == 0 {
		w.t.Error("the application committed nothing: the test shows nothing")
	}
	for _, broken := range report.Broken() {
		w.t.Errorf("seed %d: %s", w.seed, broken)
	}
	for _, list := range [][]ledger.Pair{report.Unexplained, report.Overlaps, report.RepeatedClaims} {
		for _, pair := range list[:min(3, len(list))] {
			w.t.Logf("starts of %s: %s", pair, accounts.Story(pair))
		}
	}
	testbed.Record(w.t, w.db.Title(), report, w.wrecked)
	return report
}
