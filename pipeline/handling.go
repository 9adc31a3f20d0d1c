package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

const (
	// maxEnded bounds the outcomes that wait to be written. Beyond it workers wait
	// before they take their next delivery; beyond half of it none are leased.
	maxEnded = 10_000
	// maxStatement bounds every statement of handling, so that a half-open
	// connection costs seconds and not the tcp timeout (queues 19).
	maxStatement = 10 * time.Second
	// defaultAbandonAfter is how long a handler may ignore the end of its context while
	// the pipeline stops, and defaultFlushFor how long the last outcomes may take. With the
	// default ShutdownTimeout of 20 s the sum is 28 s, and 31 s when a claim hangs as well. A stop takes
	// that long when a handler ignores its context and the database hangs. The feeding ends before it, in milliseconds unless a
	// fan-out or a callback hangs: then it takes up to finishTimeout and callbackPatience. So a stop on which all of that comes
	// together ends after 38 s; whoever kills sooner loses nothing, because leases cover what is cut off.
	defaultAbandonAfter = 3 * time.Second
	defaultFlushFor     = 5 * time.Second
)

// outcomeStore is what handling asks of the database.
type outcomeStore interface {
	HandlingStore
	// Rejected is FanOutStore's: the data is at fault.
	Rejected(err error) bool
}

// handlingConfig is what handling is made from. Everything but random is required.
type handlingConfig struct {
	store outcomeStore
	subs  []*subscriber
	// lease, shutdownTimeout, maxPayload, storeErrorMessages and owner as in Config.
	lease, shutdownTimeout time.Duration
	maxPayload             int
	storeErrorMessages     bool
	owner                  string
	observer               Observer
	logger                 *slog.Logger
	// random returns numbers in [0, 1) for jitter; nil means math/rand.
	random func() float64
}

// handling runs leased deliveries and settles them. Its memory is one lock: lanes
// with their queues, the in-flight set, and the outcomes that wait to be written.
//
// Goroutines, all owned by run: one claims, one writes outcomes and renews
// leases (a single one, so that the two statements never wait for each other's row
// locks), one watches trust and stuck handlers in memory, and one per worker.
type handling struct {
	handlingConfig
	judge judge
	// tick paces watching and renewal; statement bounds a statement.
	tick, statement time.Duration
	// abandonAfter and flushFor bound a stop. They are fields so that a test that is not about these bounds
	// does not depend on the pace of its machine.
	abandonAfter, flushFor time.Duration

	// Set once, read-only: lanes by canonical name, and in order of registration.
	lanes map[string]*lane
	order []*lane

	claims, settles, renewals *trouble
	// What happens often is logged seldom.
	seldom seldom

	// claimable and writable wake the claim loop and the writer.
	claimable, writable chan struct{}
	// stopped is closed when the stop begins, idle when no handler runs any more after
	// that, closing when no further outcome will be accepted.
	stopped, idle, closing chan struct{}
	workers                sync.WaitGroup

	mu    sync.Mutex
	state state
	// base is the parent of the handlers' contexts: run's context without its end.
	base context.Context
	// flight holds every tracked attempt until its outcome is written.
	flight map[uuid.UUID]*attempt
	// active counts handlers that run.
	active int
	// ended holds the attempts whose outcomes wait to be written; space is signalled
	// when it shrinks.
	ended []*attempt
	space *sync.Cond
	// queuedBytes and reservedBytes are the payloads in, and promised to, all queues.
	queuedBytes, reservedBytes int64
	// due is when a delivery that this process put off is due again; zero for unknown.
	due time.Time
	// tally collects counts made under the lock until the watcher reports them.
	tally map[tallied]int
	stale int64
}

type state uint8

const (
	stateNew state = iota
	stateRunning
	stateStopping
	stateClosed
)

type tallied struct {
	counter Counter
	handler string
}

func newHandling(c handlingConfig) *handling {
	if c.random == nil {
		c.random = rand.Float64
	}
	h := &handling{
		handlingConfig: c,
		judge:          judge{messages: c.storeErrorMessages, random: c.random},
		tick:           min(max(c.lease/20, 10*time.Millisecond), time.Second),
		statement:      min(c.lease/3, maxStatement),
		abandonAfter:   defaultAbandonAfter,
		flushFor:       defaultFlushFor,
		lanes:          make(map[string]*lane, len(c.subs)),
		claims:         newTrouble(c.logger, "claiming deliveries"),
		settles:        newTrouble(c.logger, "writing outcomes"),
		renewals:       newTrouble(c.logger, "renewing leases"),
		seldom:         seldom{every: remindEvery},
		claimable:      make(chan struct{}, 1),
		writable:       make(chan struct{}, 1),
		stopped:        make(chan struct{}),
		idle:           make(chan struct{}),
		closing:        make(chan struct{}),
		flight:         make(map[uuid.UUID]*attempt),
		tally:          make(map[tallied]int),
	}
	h.space = sync.NewCond(&h.mu)
	for _, sub := range c.subs {
		// What waited in the database before this process started is unknown.
		l := &lane{sub: sub, more: true}
		h.lanes[sub.Name] = l
		h.order = append(h.order, l)
	}
	return h
}

// run handles deliveries until ctx ends, and then stops softly: what had not
// started is given back and due at once, running handlers get the shutdown
// timeout and then ErrStopping, and outcomes are written last. It must be called
// once.
//
// No failure of the database ends it. The error is about a stop that was not
// clean: handlers that were left running, outcomes that could not be written. In
// both cases leases run out and the deliveries are attempted again.
func (h *handling) run(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	claiming, stopClaiming := context.WithCancel(base)
	defer stopClaiming()
	writing, stopWriting := context.WithCancel(base)
	defer stopWriting()

	h.begin(base)
	var claims, writes, watch sync.WaitGroup
	claims.Go(func() { newClaimer(h).run(claiming) })
	writes.Go(func() { newWriter(h).run(writing) })
	watch.Go(h.watch)

	<-ctx.Done()
	h.beginStop()
	abandoned := h.awaitHandlers()
	// A claim under way is let finish, so that its rows can be given back; one that
	// hangs is cut off, and its rows wait for their lease to end.
	cutOff := time.AfterFunc(h.abandonAfter, stopClaiming)
	claims.Wait()
	cutOff.Stop()
	h.close()
	watch.Wait()
	giveUp := time.AfterFunc(h.flushFor, stopWriting)
	writes.Wait()
	giveUp.Stop()
	if abandoned == 0 {
		h.workers.Wait()
	}
	h.reportTally()
	return errors.Join(abandonedError(abandoned), h.unwrittenError())
}

func (h *handling) begin(base context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.base = base
	h.state = stateRunning
	now := time.Now()
	for _, l := range h.order {
		h.pump(l, now)
	}
}

func (h *handling) beginStop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = stateStopping
	close(h.stopped)
	for _, l := range h.order {
		h.giveBackTail(l, len(l.queue))
	}
	if h.active == 0 {
		close(h.idle)
	}
}

// awaitHandlers waits for running handlers: first patiently, then with their
// contexts ended. It returns how many it left behind.
func (h *handling) awaitHandlers() int {
	patience := time.NewTimer(h.shutdownTimeout)
	defer patience.Stop()
	select {
	case <-h.idle:
		return 0
	case <-patience.C:
	}
	h.cancelRunning(ErrStopping)
	last := time.NewTimer(h.abandonAfter)
	defer last.Stop()
	select {
	case <-h.idle:
		return 0
	case <-last.C:
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.active
}

func (h *handling) cancelRunning(cause error) {
	h.mu.Lock()
	var cancels []context.CancelCauseFunc
	for _, a := range h.flight {
		if a.phase == phaseRunning {
			cancels = append(cancels, a.cancel)
		}
	}
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel(cause)
	}
}

// close ends the acceptance of outcomes and releases workers that wait for
// space.
func (h *handling) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = stateClosed
	close(h.closing)
	h.space.Broadcast()
}

func abandonedError(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("stop: %d handlers ignored the end of their context and were left running; their deliveries are attempted again when the leases end", n)
}

func (h *handling) unwrittenError() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ended) == 0 {
		return nil
	}
	_, err := h.settles.present()
	if err == nil {
		err = errors.New("another session has their rows locked")
	}
	return fmt.Errorf("stop: %d outcomes were not written; their deliveries are attempted again when the leases end: %w", len(h.ended), err)
}

// count notes an occurrence under the lock; the watcher tells the observer.
func (h *handling) count(c Counter, handler string, n int) {
	if n > 0 {
		h.tally[tallied{c, handler}] += n
	}
}

func (h *handling) reportTally() {
	h.mu.Lock()
	var tally map[tallied]int
	if len(h.tally) > 0 {
		tally, h.tally = h.tally, make(map[tallied]int)
	}
	h.mu.Unlock()
	for t, n := range tally {
		h.observer.Count(t.counter, t.handler, n)
	}
}

// signal wakes a loop that will look at the state itself.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// health implements slots.
func (h *handling) health() handlingHealth {
	var out handlingHealth
	for _, t := range []*trouble{h.claims, h.settles, h.renewals} {
		if since, err := t.present(); err != nil && (out.err == nil || since.Before(out.since)) {
			out.err, out.since = err, since
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out.stale = h.stale
	running := make(map[*lane]int, len(h.order))
	for _, a := range h.flight {
		if a.phase == phaseRunning {
			running[a.lane]++
		}
	}
	for _, l := range h.order {
		hh := HandlerHealth{Name: l.sub.Name, Running: running[l], Limit: l.sub.Concurrency}
		if l.paused != nil {
			p := *l.paused
			hh.Paused = &p
		}
		out.handlers = append(out.handlers, hh)
	}
	return out
}

var _ slots = (*handling)(nil)

// setPaused implements slots. A handler that becomes paused gives back what it
// has not started; one that is resumed claims at once.
func (h *handling) setPaused(paused map[string]delivery.Pause) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.order {
		p, now := paused[l.sub.Name]
		switch {
		case now:
			l.paused = &p
			h.giveBackTail(l, len(l.queue))
		case l.paused != nil:
			l.paused = nil
			l.more = true
			signal(h.claimable)
		}
	}
}
