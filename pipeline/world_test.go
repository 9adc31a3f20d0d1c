package pipeline_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	cdcpg "github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	store "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

var _ pipeline.Store = (*store.Store)(nil)

// world is a database with our tables, and everybody's account of what happened
// on it: the writers', the tables', and the handlers'.
type world struct {
	t       *testing.T
	dsn     string
	pool    *pgxpool.Pool
	writers ledger.Writers
	// handlers are those of every pipeline of this world.
	handlers  []pipeline.Handler
	recorders []*ledger.Recorder
	processes []*process
	faults    []ledger.Fault
	// via, when set, is the address that pipelines connect to instead of the server's.
	via string
	// hurry shortens the timeouts of fan-out, see HurryFanOut.
	hurry time.Duration
}

func newWorld(t *testing.T, major int, handlers ...pipeline.Handler) *world {
	t.Helper()
	db := testdb.Postgres(t, major)
	return worldOn(t, db.DSN(), db.Pool(), handlers...)
}

func worldOn(t *testing.T, dsn string, pool *pgxpool.Pool, handlers ...pipeline.Handler) *world {
	t.Helper()
	w := &world{t: t, dsn: dsn, pool: pool, handlers: handlers}
	m, err := migrate.Postgres(pool, migrate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := workload.Setup(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return w
}

// on is a handler that succeeds.
func on(name string, types ...string) pipeline.Handler {
	return pipeline.Handler{Name: name, On: types, Handler: event.HandlerFunc(func(context.Context, event.Envelope) error { return nil })}
}

// inserter writes event rows; a pool, a connection and a transaction do.
type inserter interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const insertEvent = `INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date,
	completion_date, model_id, model_type, event_type, payload, event_date, delivered)
SELECT $1::uuid, 'test', gen_random_uuid(), 'act', '{}', now, now, 'm', 'M', $2, $3::jsonb, now, false
FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS c RETURNING id::text`

// insert writes n events of a type, each in its own transaction, and enters them
// as committed.
func (w *world) insert(typ string, n int) []string {
	w.t.Helper()
	var ids []string
	for i := range n {
		id := w.insertBy(w.pool, typ, fmt.Sprintf(`{"n": %d}`, i))
		w.writers.Committed(ledger.Event{ID: id, Type: typ, At: time.Now()})
		ids = append(ids, id)
	}
	return ids
}

// insertBy writes an event; who commits it has to enter it. An empty typ or payload is null.
func (w *world) insertBy(by inserter, typ, payload string) (id string) {
	w.t.Helper()
	null := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	if err := by.QueryRow(w.t.Context(), insertEvent, uuid.NewString(), null(typ), null(payload)).Scan(&id); err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// count runs a query that returns one number; -1 while the database is away.
func (w *world) count(sql string, args ...any) (n int) {
	if err := w.pool.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		return -1
	}
	return n
}

// process is one running pipeline.
type process struct {
	*pipeline.Pipeline
	obs   *observer
	log   *logBook
	lease time.Duration // 0 is the default of the product
	stop  func()        // soft, waits; idempotent
}

type option func(*pipeline.Config)

// pollOnly runs without a log.
func pollOnly(c *pipeline.Config) { c.Log, c.Poller.ActiveInterval = nil, 50*time.Millisecond }

// start runs a pipeline until the test ends or stop is called.
func (w *world) start(name string, options ...option) *process {
	w.t.Helper()
	p := &process{obs: &observer{counts: map[pipeline.Counter]int{}}, log: &logBook{}}
	logger := slog.New(slog.NewTextHandler(p.log, nil))
	dsn, pool := w.route()
	src, err := cdcpg.New(cdcpg.Config{
		DSN: dsn, Slot: w.slot(), Publication: "events", Create: true,
		Tables: []cdcpg.Table{{Schema: "eventlog", Name: "events"}}, StandbyPoll: 100 * time.Millisecond, Logger: logger,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	st, err := store.New(pool, store.Config{Logger: logger})
	if err != nil {
		w.t.Fatal(err)
	}
	table := schema.Eventlog("")
	rec := ledger.NewRecorder(name)
	c := pipeline.Config{
		Source: "test", Log: src, Store: telling{st, rec}, Table: table.QualifiedName(), Decode: table.Decoder(),
		Owner: name, Logger: logger, Observer: p.obs,
		Poller: pipeline.PollerConfig{SweepAgain: 500 * time.Millisecond},
	}
	w.recorders = append(w.recorders, rec)
	for _, h := range w.handlers {
		h.Handler = rec.Wrap(h.Handler)
		c.Handlers = append(c.Handlers, h)
	}
	for _, o := range options {
		o(&c)
	}
	p.lease = c.Lease
	if p.Pipeline, err = pipeline.New(c); err != nil {
		w.t.Fatal(err)
	}
	// Every stop in these tests has to be a clean one, however slow the machine.
	p.AwaitLastWrites(time.Minute)
	if w.hurry > 0 {
		p.HurryFanOut(w.hurry)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
		if w.t.Failed() {
			w.t.Logf("log of %s:\n%s", name, p.log)
		}
	})
	w.t.Cleanup(p.stop)
	w.processes = append(w.processes, p)
	return p
}

// route returns what a pipeline connects with.
func (w *world) route() (dsn string, pool *pgxpool.Pool) {
	w.t.Helper()
	if w.via == "" {
		return w.dsn, w.pool
	}
	u, err := url.Parse(w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = w.via
	pool, err = pgxpool.New(w.t.Context(), u.String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	return u.String(), pool
}

// slot is a name that no other database of the server uses.
func (w *world) slot() string {
	cfg, err := pgx.ParseConfig(w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	return "s_" + cfg.Database
}

// streaming waits until the pipeline reads the log and the first sweeps are over, so
// that what follows comes by the log.
func (p *process) streaming(w *world) {
	w.t.Helper()
	testdb.WaitFor(w.t, "the pipeline streams", func() bool { return p.Health().Mode == cdc.ModeStreaming })
}

// settled waits until every committed event has been fanned out and every
// delivery has come to its end, and then checks the ledger (DESIGN 14).
func (w *world) settled() ledger.Report {
	w.t.Helper()
	committed := w.resolved().Committed
	testdb.WaitFor(w.t, "every event is fanned out and every delivery ended", func() bool {
		rows, err := ledger.ReadRows(w.t.Context(), w.pool)
		if err != nil {
			return false
		}
		have := make(map[ledger.Pair]bool, len(rows))
		for _, r := range rows {
			if r.State.Open() {
				return false
			}
			have[r.Pair] = true
		}
		for id, e := range committed {
			for _, h := range w.subscribers(e.Type) {
				if !have[ledger.Pair{Event: id, Handler: h}] {
					return false
				}
			}
		}
		return true
	})
	return w.check()
}

// resolved is the writers' account, with open questions answered by the table.
func (w *world) resolved() ledger.Snapshot {
	w.t.Helper()
	stored, err := ledger.ReadStored(w.t.Context(), w.pool, "eventlog.events")
	if err != nil {
		w.t.Fatal(err)
	}
	return w.writers.Snapshot().Resolve(stored)
}

// check compares the accounts as they are now.
func (w *world) check() ledger.Report {
	w.t.Helper()
	rows, err := ledger.ReadRows(w.t.Context(), w.pool)
	if err != nil {
		w.t.Fatal(err)
	}
	in := ledger.Input{Writers: w.resolved(), Subscribers: w.subscribers, Rows: rows, Faults: w.faults, Lease: w.lapsed()}
	for _, r := range w.recorders {
		in.Receipts = append(in.Receipts, r.Receipts()...)
	}
	report := ledger.Compare(in)
	for _, broken := range report.Broken() {
		w.t.Error(broken)
	}
	w.t.Log(report)
	return report
}

// lapsed is the shortest lease of those processes that lost deliveries to the end of their lease, 0 without one.
func (w *world) lapsed() (lease time.Duration) {
	for _, p := range w.processes {
		if p.obs.count(pipeline.CountStale) == 0 && p.obs.count(pipeline.CountLeaseLost) == 0 {
			continue
		}
		w.t.Log("leases ran out: this machine was too busy to renew them")
		if l := cmp.Or(p.lease, pipeline.DefaultLease); lease == 0 || l < lease {
			lease = l
		}
	}
	return lease
}

// telling is a store that tells the recorder which outcomes have been written: none of those may be repeated
// because of a lease that ran out.
type telling struct {
	pipeline.Store
	receipts *ledger.Recorder
}

// Settle implements pipeline.HandlingStore.
func (s telling) Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	settled, err := s.Store.Settle(ctx, outcomes)
	kept := make(map[uuid.UUID]bool, len(outcomes))
	for _, o := range outcomes {
		kept[o.ID] = o.Verdict != delivery.GiveBack // which leaves no trace of the attempt
	}
	var ids []string
	for _, one := range settled {
		if kept[one.ID] && !one.Locked {
			ids = append(ids, one.ID.String())
		}
	}
	return settled, errors.Join(err, s.receipts.Settled(ids...))
}

func (w *world) subscribers(typ string) []string {
	var names []string
	for _, h := range w.handlers {
		if slices.ContainsFunc(h.On, func(p string) bool {
			prefix, wild := strings.CutSuffix(p, "*")
			return p == typ || wild && strings.HasPrefix(typ, prefix)
		}) {
			names = append(names, h.Name)
		}
	}
	return names
}

// write runs the workload until at least n events are committed.
func (w *world) write(n int, faults bool) {
	w.t.Helper()
	stop := w.writing(faults)
	testdb.WaitFor(w.t, "the writers' events", func() bool { c, _, _ := w.writers.Counts(); return c >= n })
	stop()
}

// writing runs the workload until the returned function is called.
func (w *world) writing(faults bool) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- workload.Run(ctx, workload.Config{DSN: w.dsn, Ledger: &w.writers, Writers: 8, Seed: 7, Faults: faults})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// observer adds up.
type observer struct {
	pipeline.NopObserver
	mu     sync.Mutex
	counts map[pipeline.Counter]int
	viaLog atomic.Int64
}

func (o *observer) Count(c pipeline.Counter, _ string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[c] += n
}

func (o *observer) FannedOut(s pipeline.FanOutStats) {
	if s.Via == "log" {
		o.viaLog.Add(int64(s.Events))
	}
}

func (o *observer) count(c pipeline.Counter) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[c]
}

type logBook struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lines counts the lines that contain all parts.
func (b *logBook) lines(parts ...string) (n int) {
	for line := range strings.Lines(b.String()) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			n++
		}
	}
	return n
}

// states counts the deliveries of an event by state and reason.
func (w *world) states(eventID string) map[string]int {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(),
		`SELECT handler_name, state || COALESCE(':' || reason, '') FROM eventlog.event_notifications WHERE event_id = $1`, eventID)
	if err != nil {
		w.t.Fatal(err)
	}
	got := map[string]int{}
	var handler, state string
	if _, err := pgx.ForEachRow(rows, []any{&handler, &state}, func() error { got[handler+" "+state]++; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return got
}
