package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/nemesis"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

const (
	// lease of the dispatchers, and the timeout of an attempt.
	lease   = 6 * time.Second
	timeout = 2 * time.Second
	// window is how late an outcome may be written after its handler returned, on a busy
	// machine, and before it is on disk: acknowledgements commit asynchronously.
	window = 5 * time.Second
	// reconnect is how long a pool may need to be of use again after an outage, and statement
	// how long a dispatcher waits for an answer that will never come.
	reconnect, statement = 5 * time.Second, 10 * time.Second
)

var handlers = []string{"steady", "moody"}

// arena is one server with everything around it that a plan breaks.
type arena struct {
	t       testing.TB
	db      engine
	binary  string
	seed    uint64
	pulse   pulse
	writers ledger.Writers
	// receiver is what both handlers deliver to; modes say what it does, per handler.
	receiver  *testbed.Receiver
	modes     map[string]*mode
	processes []*process
	operator  string // a configuration file that leads straight to the server
	// primaryLost says that another server took over, and that nothing more is heard of the first one.
	primaryLost bool

	mu       sync.Mutex
	faults   []ledger.Fault
	injected []string
	columns  int
}

// mode is how the receiver treats one handler.
type mode struct {
	refuse atomic.Bool
	// hang, when it is not nil, is closed when the receiver wakes up.
	hang atomic.Pointer[chan struct{}]
}

// process is a place for one dispatcher after the other, with its own ways to the server.
// Only one fault at a time concerns its program, and one its connections.
type process struct {
	number    int
	pool, log *faultproxy.Proxy
	life      int
	program   *testbed.Program
}

var errMoody = errors.New("the receiver is in a mood")

// newArena makes the tables and starts the receiver.
func newArena(t testing.TB, db engine, binary string, seed uint64) *arena {
	t.Helper()
	a := &arena{t: t, db: db, binary: binary, seed: seed, modes: map[string]*mode{}}
	for _, name := range handlers {
		a.modes[name] = &mode{}
	}
	if err := db.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.receiver = testbed.Receive(t, a.receive)
	a.operator = testbed.WriteConfig(t, a.config(db.DSN(), db.DSN(), "operator"))
	a.pulse.watch(t)
	return a
}

// receive is one attempt at the receiver. The handler moody fails the first attempt of every
// eighth event.
func (a *arena) receive(ctx context.Context, p ledger.Pair, attempt int) error {
	m := a.modes[p.Handler]
	if m == nil {
		return fmt.Errorf("nobody asked for handler %q", p.Handler)
	}
	if m.refuse.Load() {
		return errMoody
	}
	if hang := m.hang.Load(); hang != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-*hang:
			return errMoody
		}
	}
	if p.Handler == "moody" && attempt == 1 && strings.ContainsAny(p.Event[:1], "07") {
		return errMoody
	}
	return nil
}

func (a *arena) config(poolDSN, logDSN, process string) string {
	return fmt.Sprintf(`version: 1
log: {level: warn, format: text}
server: {listen: none}
shutdown_timeout: 5s
defaults: {lease: %s}
sources:
  - {name: main, dsn: %q, max_connections: 6, poller: {interval: 1s, active_interval: 200ms, grace: 3s, sweep_again: 3s}, %s}
handlers:
%s`, lease, poolDSN, a.db.settings(logDSN),
		a.receiver.Webhooks(process, fmt.Sprintf("    concurrency: 8\n    timeout: %s\n", timeout), handlers...))
}

// populate starts the dispatchers, each behind two proxies.
func (a *arena) populate(n int) {
	a.t.Helper()
	for i := range n {
		p := &process{number: i, pool: faultproxy.New(a.t, a.db.target()), log: faultproxy.New(a.t, a.db.target())}
		a.processes = append(a.processes, p)
		a.start(p)
	}
}

func (p *process) name() string { return fmt.Sprintf("process-%d-%d", p.number, p.life) }

// start begins the next life of a process.
func (a *arena) start(p *process) {
	a.mu.Lock()
	p.life++
	a.mu.Unlock()
	config := a.config(a.db.through(p.pool.Addr()), a.db.through(p.log.Addr()), p.name())
	p.program = testbed.Run(a.t, a.binary, config)
}

// patience bounds what must end by itself. It is for a broken program, not for a slow machine.
const patience = 3 * time.Minute

// stop ends a life the polite way, and returns how it ended.
func (a *arena) stop(p *process) error {
	if err := p.program.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("it had ended by itself: %w\n%s", err, p.program.Output())
	}
	late := time.AfterFunc(patience, func() {
		a.t.Errorf("seed %d: %s did not stop in %s", a.seed, p.name(), patience)
		_ = p.program.Signal(syscall.SIGQUIT) // says where it hangs; it may be gone now
	})
	defer late.Stop()
	err := p.program.Wait()
	a.say(p)
	return err
}

// say logs what a program said that has ended.
func (a *arena) say(p *process) {
	if out := p.program.Output(); out != "" {
		a.t.Logf("%s said:\n%s", p.name(), out)
	}
}

// note adds faults to the account.
func (a *arena) note(faults ...ledger.Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, faults...)
}

// lives are the names of all lives of a process so far.
func (a *arena) lives(p *process) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for life := 1; life <= p.life; life++ {
		names = append(names, fmt.Sprintf("process-%d-%d", p.number, life))
	}
	return names
}

// write starts the application. The returned function ends it.
func (a *arena) write() (end func()) {
	ctx, cancel := context.WithCancel(a.t.Context())
	done := make(chan error, 1)
	c := workload.Config{Ledger: &a.writers, Seed: a.seed, Writers: 6, Rate: 80, Faults: true, Rough: true}
	go func() { done <- a.db.Write(ctx, c) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			a.t.Errorf("the application failed: %v", err)
		}
	})
	a.t.Cleanup(end)
	return end
}

// pass waits until the writers have committed n more events.
func (a *arena) pass(n int) {
	a.t.Helper()
	before, _, _ := a.writers.Counts()
	testdb.WaitFor(a.t, "more commits", func() bool {
		now, _, _ := a.writers.Counts()
		return now >= before+n
	})
}

// number reads one number, -1 while the server does not answer.
func (a *arena) number(query string) int64 {
	rows, err := a.db.Table(a.t.Context(), query)
	if err != nil || len(rows) == 0 {
		return -1
	}
	n, err := strconv.ParseInt(rows[0][0], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// result is what one plan came to on one server.
type result struct {
	title    string
	report   ledger.Report
	injected []string
	recovery time.Duration
}

// recovered waits until everything is delivered and the log is read again, and returns how
// long the deliveries took.
func (a *arena) recovered(since time.Time) time.Duration {
	a.t.Helper()
	testbed.Progress(a.t, "every delivery to end", func() int64 { return a.number(testbed.Open) }, 0)
	took := time.Since(since)
	testdb.WaitFor(a.t, "the log to be read again", func() bool { return a.db.Streaming(a.t.Context()) })
	return took
}

// verdict compares the accounts and fails the test for every broken promise.
func (a *arena) verdict() ledger.Report {
	a.t.Helper()
	ctx := a.t.Context()
	stored, err := a.db.Stored(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	rows, err := a.db.Rows(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	still, worst := a.pulse.faults()
	writers := a.writers.Snapshot().Resolve(stored)
	if a.primaryLost {
		writers = a.writers.Snapshot().ResolveAfterLoss(stored)
	}
	in := ledger.Input{
		Writers: writers, Rows: rows, Receipts: a.receiver.Receipts(),
		Subscribers: func(string) []string { return handlers }, Faults: append(still, a.faults...),
	}
	report := ledger.Compare(in)
	a.t.Logf("%s; the machine stood still %d times, at most for %s", report, len(still), worst.Round(time.Millisecond))
	broken := report.Broken()
	if n := report.States[delivery.Succeeded]; n != report.Deliveries {
		broken = append(broken, fmt.Sprintf("%d of %d deliveries have not succeeded: %v", report.Deliveries-n, report.Deliveries, report.States))
	}
	if early := tooEarly(in.Receipts); len(early) > 0 {
		broken = append(broken, fmt.Sprintf("delivered again within a lease: %d, %v", len(early), early[:min(5, len(early))]))
	}
	if report.Events == 0 {
		broken = append(broken, "the application committed nothing: this shows nothing")
	}
	for _, one := range broken {
		a.t.Errorf("seed %d: %s", a.seed, one)
	}
	if len(broken) > 0 {
		a.explain(report, in)
	}
	return report
}

// explain logs the receipts and faults around what was broken.
func (a *arena) explain(report ledger.Report, in ledger.Input) {
	for _, pairs := range [][]ledger.Pair{report.Lost, report.Phantom, report.Unexplained, report.Overlaps, tooEarly(in.Receipts)} {
		for _, p := range pairs[:min(3, len(pairs))] {
			for _, r := range in.Receipts {
				if r.Pair == p {
					a.t.Logf("%s: %s from %s to %s: %s", p, r.Process, r.Start.Format(clock), r.End.Format(clock), r.Outcome)
				}
			}
		}
	}
	for _, f := range in.Faults {
		a.t.Logf("fault of %q from %s to %s, frozen %t", f.Process, f.At.Format(clock), f.Until.Format(clock), f.Frozen)
	}
}

const clock = "15:04:05.000"

// carryOut runs a plan to its end and gives the verdict.
func (a *arena) carryOut(plan nemesis.Plan) result {
	a.t.Helper()
	a.populate(plan.Processes)
	end := a.write()
	a.pass(20)
	began := time.Now()
	for _, step := range plan.Steps {
		a.pass(step.Commits)
		var wg sync.WaitGroup
		for _, f := range step.Faults {
			a.t.Logf("%s %s", time.Now().Format(clock), f)
			wg.Go(func() {
				if err := a.inject(a.t.Context(), f); err != nil {
					a.t.Errorf("seed %d: %s: %v", a.seed, f, err)
				}
			})
		}
		wg.Wait()
	}
	healed := time.Now()
	a.t.Logf("%d steps took %s", len(plan.Steps), healed.Sub(began).Round(time.Millisecond))
	a.pass(20)
	end()
	return a.finish(healed)
}

// finish waits until everything is delivered, stops the programs, and gives the verdict.
func (a *arena) finish(healed time.Time) result {
	a.t.Helper()
	took := a.recovered(healed)
	a.t.Logf("the rest was delivered in %s", took.Round(time.Millisecond))
	for _, p := range a.processes {
		if err := a.stop(p); err != nil {
			a.t.Errorf("seed %d: %s did not stop cleanly: %v", a.seed, p.name(), err)
		}
	}
	r := result{title: a.db.Title(), report: a.verdict(), injected: a.injected, recovery: took}
	testbed.Record(a.t, r.title, r.report, r.injected)
	return r
}
