package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// finishTimeout is how long a fan-out that is in flight when the stop begins may
// take. Its events are not lost if it is cut off: they are not acknowledged.
const finishTimeout = 5 * time.Second

// warnEvery is how often the same kind of bad row is logged.
const warnEvery = 30 * time.Second

// Pipeline carries the events of one source to their handlers.
type Pipeline struct {
	plan    *plan
	started atomic.Bool
	running atomic.Bool

	slots     slots
	handling  *handling
	fanOut    *fanOut
	poller    *poller
	heartbeat *heartbeat
	chores    *chores
	// stream and supervisor are nil in poll-only mode.
	stream     *stream
	supervisor *supervisor
}

// New checks the configuration and prepares a pipeline; it connects to nothing
// and starts nothing. The error is a [ConfigError] with everything that is wrong.
func New(c Config) (*Pipeline, error) {
	plan, err := c.prepare()
	if err != nil {
		return nil, err
	}
	p := &Pipeline{plan: plan}
	p.handling = newHandling(handlingConfig{
		store:              plan.Store,
		subs:               plan.registry.subs,
		lease:              plan.Lease,
		shutdownTimeout:    plan.ShutdownTimeout,
		maxPayload:         plan.MaxPayload,
		storeErrorMessages: plan.StoreErrorMessages,
		owner:              plan.Owner,
		observer:           plan.Observer,
		logger:             plan.Logger,
	})
	p.slots = p.handling
	router := &router{subs: plan.registry.subs, maxPayload: plan.MaxPayload, markUnsubscribed: plan.FanOut.MarkUnsubscribed, newID: newRowID}
	p.fanOut = newFanOut(plan, p.slots)
	p.poller = newPoller(plan, router, p.fanOut)
	p.heartbeat = newHeartbeat(plan, p.slots)
	p.chores = newChores(plan, p.slots, p.heartbeat.beaten)
	if plan.Log != nil {
		p.stream = newStream(plan, newFanOutTrigger(plan, router, p.fanOut), p.poller.gapFound, p.poller.gap, p.poller.soon)
		p.supervisor = newSupervisor(plan.Log, p.stream.in, p.stream.calm, plan.Logger, plan.Observer)
		p.poller.state, p.poller.settled = p.supervisor.state, p.supervisor.settled
	}
	return p, nil
}

// Run works until ctx ends, and then stops in order: no new events are taken, the
// fan-out in flight finishes and is acknowledged, the source confirms its position,
// and the handlers that run are waited for up to ShutdownTimeout. It returns nil after a clean
// stop. An error says what a stop left behind; leases and positions make sure that
// it is done again, not lost.
//
// A database that is away never ends Run. Run must be called once; a second
// call is an error. To stop at once, end the process: nothing is lost by that.
func (p *Pipeline) Run(ctx context.Context) error {
	if p.started.Swap(true) {
		return errors.New("a pipeline runs once; make a new one")
	}
	p.running.Store(true)
	defer p.running.Store(false)

	if !p.heartbeat.register(ctx) {
		return nil
	}
	p.plan.Logger.Info("pipeline started", slog.String("source", p.plan.Source), slog.Int("handlers", len(p.plan.registry.subs)),
		slog.Int("triggers", len(p.plan.triggers)), slog.Bool("log", p.plan.Log != nil), slog.String("owner", p.plan.Owner))

	// The source and the handlers outlive ctx: they stop after what feeds them, or
	// is fed by them, has.
	rest := context.WithoutCancel(ctx)
	reading, stopReading := context.WithCancel(rest)
	defer stopReading()
	delivering, stopHandling := context.WithCancel(rest)
	defer stopHandling()

	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return p.handling.run(delivering) })
	if p.supervisor != nil {
		g.Go(func() error { return p.supervisor.run(reading) })
		g.Go(func() error { return p.supervisor.watch(reading) })
	}
	g.Go(func() error {
		// The source goes on sending status until the last batch is acknowledged, and
		// handling takes in what the last fan-out leased.
		defer stopHandling()
		defer stopReading()
		err := p.feed(run)
		p.running.Store(false)
		return err
	})
	err := g.Wait()
	p.plan.Logger.Info("pipeline stopped", slog.String("source", p.plan.Source))
	return err
}

// feed runs everything that creates deliveries, until run ends.
func (p *Pipeline) feed(run context.Context) error {
	work, cancel := outlive(run, finishTimeout)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return p.poller.run(run, work) })
	g.Go(func() error { return p.heartbeat.run(run) })
	g.Go(func() error { return p.chores.run(run) })
	if p.stream != nil {
		g.Go(func() error { return p.stream.run(run, work) })
	}
	return g.Wait()
}

// outlive returns a context that ends d after ctx has, or when cancel is called.
func outlive(ctx context.Context, d time.Duration) (work context.Context, cancel context.CancelFunc) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep(work, d)
		end()
	})
	return work, func() {
		stop()
		end()
	}
}

func newFanOut(p *plan, slots slots) *fanOut {
	return &fanOut{
		store: p.Store, deliveries: p.Store, slots: slots, source: p.Source,
		lease: delivery.Lease{Owner: p.Owner, For: p.Lease},
		aside: &aside{}, timeout: fanOutTimeout, partTimeout: partTimeout,
		log: p.Logger, obs: p.Observer, warn: seldom{every: warnEvery},
		viaLog:  newTrouble(p.Logger, "fan-out"),
		viaPoll: newTrouble(p.Logger, "fan-out of what the poller found"),
	}
}

func newFanOutTrigger(p *plan, router *router, f *fanOut) *fanOutTrigger {
	return &fanOutTrigger{
		source: p.Source, table: p.Table, decode: p.Decode, router: router, fanOut: f,
		log: p.Logger, obs: p.Observer, warn: seldom{every: warnEvery},
	}
}

// marked is what this process looks for and marks.
func (p *plan) marked() delivery.Match {
	if p.FanOut.MarkUnsubscribed {
		return delivery.Match{All: true}
	}
	return p.registry.types()
}

func newPoller(p *plan, router *router, f *fanOut) *poller {
	return &poller{
		store: p.Store, gaps: p.Store, source: p.Source, types: p.marked(), config: p.Poller,
		bytes: p.FanOut.BatchBytes, limit: min(firstLook, p.Poller.Batch),
		router: router, fanOut: f, aside: f.aside, log: p.Logger, obs: p.Observer,
		gapped:  make(chan struct{}, 1),
		asked:   make(chan struct{}, 1),
		trouble: newTrouble(p.Logger, "looking for undelivered events"),
		warn:    seldom{every: warnEvery},
	}
}

func newHeartbeat(p *plan, slots slots) *heartbeat {
	return &heartbeat{
		store: p.Store, owner: p.Owner, handlers: p.registry.rows(), names: p.registry.allNames(), marked: p.marked(),
		slots: slots, log: p.Logger, obs: p.Observer,
		trouble: newTrouble(p.Logger, "registering the handlers"),
		warn:    seldom{every: foreignEvery},
		beaten:  make(chan struct{}, 1),
	}
}

func newChores(p *plan, slots slots, beaten <-chan struct{}) *chores {
	return &chores{
		store: p.Store, handlers: p.registry.rows(), names: p.registry.allNames(), grace: p.OrphanGrace,
		slots: slots, log: p.Logger, obs: p.Observer, beaten: beaten,
	}
}
