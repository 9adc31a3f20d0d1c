package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/doctor"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// benchHandler is the handler of a bench, which does nothing with its events.
const benchHandler = "bench"

// benchmark is one run of bench.
type benchmark struct {
	app *app
	benchOptions
	cfg     *config.Config
	source  config.Source
	scratch *scratch
	// reason is why the log is not read; empty when it is.
	reason string
	result benchResult

	wiring   *wiring
	sessions *benchSessions
	writers  ledger.Writers
	receipts *ledger.Recorder
	seen     benchObserver
}

// benchObserver counts what the tables do not tell.
type benchObserver struct {
	pipeline.NopObserver
	viaLog, viaPoller, ended atomic.Int64
}

// FannedOut implements pipeline.Observer.
func (o *benchObserver) FannedOut(s pipeline.FanOutStats) {
	n := int64(s.Events - s.Repeated)
	if s.Via == "log" {
		o.viaLog.Add(n)
	} else {
		o.viaPoller.Add(n)
	}
}

// Attempted implements pipeline.Observer.
func (o *benchObserver) Attempted(s pipeline.AttemptStats) {
	if s.State.Open() || s.State == "" {
		return
	}
	o.ended.Add(1)
}

// run measures, and removes what it made whatever has happened.
func (b *benchmark) run(ctx context.Context) (_ *benchResult, err error) {
	if b.scratch, err = openScratch(b.source, b.limits); err != nil {
		return nil, err
	}
	defer func() {
		if len(b.scratch.remains) > 0 {
			b.app.say("removing %s (at most %s)", b.scratch.name, span(b.limits.clean))
		}
		interrupted := ctx.Err() != nil
		unclean := b.scratch.remove(ctx)
		switch {
		case unclean != nil && err != nil && !interrupted:
			b.app.explain(err) // both must be told, and what remains comes last
			err = unclean
		case unclean != nil:
			err = unclean
		case interrupted:
			err = failed(codeInterrupted, "run it again, with fewer --events if it took too long", "interrupted; everything that was made is removed")
		}
	}()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if err := b.measure(ctx); err != nil {
		return nil, err
	}
	return &b.result, nil
}

// prepare looks at the server, and makes what the run needs.
func (b *benchmark) prepare(ctx context.Context) error {
	if err := b.scratch.ping(ctx); err != nil {
		return err
	}
	if err := b.tellLeftovers(ctx); err != nil {
		return err
	}
	if err := b.examine(ctx); err != nil {
		return err
	}
	b.app.say("working in %s, which is new and is removed at the end; nothing else is touched", b.scratch.name)
	b.app.say("should this process be killed, run: %s;", strings.Join(b.scratch.all(b.scratch.name), "; "))
	if err := b.scratch.makeSchema(ctx); err != nil {
		return err
	}
	m, err := b.scratch.db.migrator()
	if err != nil {
		return err
	}
	if _, err := m.Up(ctx); err != nil {
		return err
	}
	if b.reason == "" && !b.source.Database.IsMySQL() {
		if err := b.scratch.makeLog(ctx); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			b.reason = oneLine(innermostOf(err))
		}
	}
	return b.wire()
}

// innermostOf is what the server said, or the error as it is.
func innermostOf(err error) string {
	if f := databaseFailure("", err); f != nil {
		return f.message
	}
	return err.Error()
}

// tellLeftovers lists what runs that were killed have left: a slot keeps WAL until it is dropped.
func (b *benchmark) tellLeftovers(ctx context.Context) error {
	names, err := b.scratch.leftovers(ctx)
	for _, name := range names {
		b.app.words(fmt.Sprintf("warning: %s is there. If no other bench runs now, it was killed, and this removes what it left: %s;\n",
			name, strings.Join(b.scratch.all(name), "; ")))
	}
	return err
}

// examine asks the doctor about the server, before anything is made.
func (b *benchmark) examine(ctx context.Context) error {
	report := examine(ctx, b.source)
	for _, res := range report.Results {
		advice := strings.Join(append(res.Fix, nonEmpty(res.Hint)...), "; ")
		switch {
		case res.Code == doctor.CodeConnect && res.Status == doctor.OK:
			b.result.Server = res.Value
			b.app.say("%s, %s", res.Message, res.Value)
		case res.Status == doctor.Fail && (res.Code == doctor.CodeConnect || res.Code == doctor.CodeVersion):
			return &failure{exit: exitDatabase, code: codeDatabase, message: res.Message, try: advice}
		case res.Status == doctor.Fail && res.Code == doctor.CodePrimary:
			return &failure{exit: exitDatabase, code: codeReadOnly, message: res.Message, try: advice}
		case res.Status == doctor.Warn && res.Code == doctor.CodeConnections:
			return &failure{exit: exitDatabase, code: codeBusy, message: fmt.Sprintf("%s (%s), and a bench takes up to 20", res.Message, res.Value), try: "run it at another time, or: " + advice}
		}
	}
	if b.source.Mode == config.ModePoll {
		b.reason = "the configuration says mode: poll"
	} else if cause, ok := report.LogProblem(); ok {
		b.reason = cause.Code + " " + cause.Message
		if cause.Value != "" {
			b.reason += " (" + cause.Value + ")"
		}
		if advice := strings.Join(append(cause.Fix, nonEmpty(cause.Hint)...), "; "); advice != "" {
			b.reason += "; mend it with: " + advice
		}
	}
	return nil
}

func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// wire builds the pipeline just as "run" does, with one handler of our own.
func (b *benchmark) wire() error {
	b.source.Postgres.Create = false // the slot is ours to make and to remove
	b.source.Mode = config.ModeAuto
	if b.reason != "" {
		b.app.say("the log is not read, the poller does the work: %s", b.reason)
		b.source.Mode = config.ModePoll
	}
	var err error
	if b.sessions, err = openBenchSessions(b.source); err != nil {
		return err
	}
	b.receipts = ledger.NewRecorder(benchHandler)
	b.wiring = &wiring{source: b.source}
	b.cfg.Sources = []config.Source{b.source}
	log := b.app.logger(config.Log{Level: config.LevelWarn, Format: config.FormatText})
	if err := b.wiring.build(b.cfg, "sources[0]", log, func(config.Source, []config.Handler) pipeline.Observer { return &b.seen }); err != nil {
		return errors.Join(err, b.wiring.close(), b.sessions.close())
	}
	b.wiring.pipeline.Handlers = []pipeline.Handler{{
		Name: benchHandler, On: []string{benchType},
		Handler: b.receipts.Wrap(event.HandlerFunc(func(context.Context, event.Envelope) error { return nil })),
	}}
	return nil
}

// measure runs both parts, and compares the accounts.
func (b *benchmark) measure(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, b.sessions.close(), b.wiring.close()) }()
	if err := b.latency(ctx); err != nil {
		return err
	}
	if err := b.drain(ctx); err != nil {
		return err
	}
	return b.count(ctx)
}

// running is the dispatcher at work.
type running struct {
	*supervisor
	stop context.CancelFunc
	done chan error
}

// start begins to dispatch, until end.
func (b *benchmark) start(ctx context.Context) *running {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{supervisor: newSupervisor(b.wiring, b.wiring.pipeline.Logger), stop: stop, done: make(chan error, 1)}
	go func() { r.done <- r.work(ctx) }()
	return r
}

// end stops softly, as a signal stops "run".
func (r *running) end() error {
	r.stop()
	return <-r.done
}

// latency inserts events at a rate, each in a transaction of its own, beside a running dispatcher.
func (b *benchmark) latency(ctx context.Context) (err error) {
	r := b.start(ctx)
	defer func() { err = errors.Join(err, r.end()) }()
	if err := b.ready(ctx, r); err != nil {
		return err
	}
	// The first connections, plans and looks are not what is measured.
	warm := min(b.rate, 100)
	if err := b.offer(ctx, warm); err != nil {
		return err
	}
	if err := b.settled(ctx, int64(warm)); err != nil {
		return err
	}
	n := b.offered()
	b.app.say("latency: %s events at %s/s, for %s", thousands(n), thousands(b.rate), span(b.length))
	begun, used := time.Now(), clientCPU()
	if err := b.offer(ctx, n); err != nil {
		return err
	}
	took := time.Since(begun)
	if err := b.settled(ctx, int64(warm+n)); err != nil {
		return err
	}
	b.result.measuredLatency(b.measured(begun), n, b.rate, took, clientCPU()-used)
	return nil
}

// measured are the latencies of what was committed since a moment, sorted.
func (b *benchmark) measured(since time.Time) []time.Duration {
	all := b.writers.Snapshot()
	for id, e := range all.Committed {
		if e.At.Before(since) {
			delete(all.Committed, id)
		}
	}
	return ledger.Latencies(all, b.receipts.Receipts())
}

// ready waits until the log is read and the poller has looked once. A log that is not read in time
// is left to the poller, as "run" leaves it.
func (b *benchmark) ready(ctx context.Context, r *running) error {
	until := time.Now().Add(b.limits.ready)
	for {
		h := r.report().Health
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !h.PolledAt.IsZero() && (h.Mode == cdc.ModeStreaming || b.reason != ""):
			return nil
		case time.Now().Before(until):
		case h.PolledAt.IsZero():
			_, reasons := h.Ready()
			return failed(codeDatabase, "cdc-dispatcher doctor", "the dispatcher did not begin to work within %s: %s", span(b.limits.ready), strings.Join(reasons, "; "))
		default:
			b.reason = fmt.Sprintf("the log was not read within %s", span(b.limits.ready))
			if h.LogTrouble.Present() {
				b.reason += ": " + oneLine(innermostOf(h.LogTrouble.Err))
			}
			b.app.say("%s; the poller does the work", b.reason)
			return nil
		}
		sleep(ctx, 10*time.Millisecond)
	}
}

// drain lets a backlog arise while no dispatcher runs, and starts one.
func (b *benchmark) drain(ctx context.Context) (err error) {
	b.app.say("drain: inserting %s events", thousands(b.events))
	before := b.seen.ended.Load()
	if err := b.backlog(ctx, b.events); err != nil {
		return err
	}
	if b.limits.backlogAge > 0 {
		b.app.say("drain: waiting %s, as a backlog after a restart is older than that", span(b.limits.backlogAge))
		sleep(ctx, b.limits.backlogAge)
	}
	b.app.say("drain: starting the dispatcher")
	begun, used := time.Now(), clientCPU()
	r := b.start(ctx)
	err = b.settled(ctx, before+int64(b.events))
	b.result.measuredDrain(int(b.seen.ended.Load()-before), time.Since(begun), clientCPU()-used)
	return errors.Join(err, r.end())
}

// settled waits until so many deliveries have ended in all. When none ends for long it
// returns nevertheless: what is missing is counted.
func (b *benchmark) settled(ctx context.Context, n int64) error {
	last, since := int64(-1), time.Now()
	for ctx.Err() == nil {
		now := b.seen.ended.Load()
		if now >= n {
			return nil
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > b.limits.stall {
			b.app.say("no delivery has ended for %s: %s of %s", span(b.limits.stall), thousands(int(now)), thousands(int(n)))
			return nil
		}
		sleep(ctx, 2*time.Millisecond)
	}
	return ctx.Err()
}

// count compares what was committed, what the tables say, and what the handler received.
func (b *benchmark) count(ctx context.Context) error {
	stored, rows, err := b.sessions.accounts(ctx)
	if err != nil {
		return err
	}
	b.result.Mode, b.result.Reason, b.result.Schema = "log", b.reason, b.scratch.name
	if b.reason != "" {
		b.result.Mode = "poll"
	}
	b.result.EventsViaLog, b.result.EventsViaPoller = int(b.seen.viaLog.Load()), int(b.seen.viaPoller.Load())
	b.result.compared(ledger.Compare(ledger.Input{
		Writers: b.writers.Snapshot().Resolve(stored), Rows: rows, Receipts: b.receipts.Receipts(),
		Subscribers: func(string) []string { return []string{benchHandler} },
	}))
	return nil
}
