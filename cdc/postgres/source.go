package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Source reads the inserts of registered tables from the server's log by
// logical replication. It implements [cdc.Source] and [cdc.Reporter].
type Source struct {
	cfg        Config
	log        *slog.Logger
	patience   time.Duration // first wait for one open transaction in slot creation
	queryLimit time.Duration // of one statement or command of the set-up

	running atomic.Bool
	// acked is the latest acknowledgement; written by Ack on any goroutine, read by
	// the stream.
	acked  atomic.Pointer[mark]
	status status

	// What follows belongs to the goroutine that supervises inside Run.

	memory   memory
	drift    map[string]struct{}
	attempts int // failures in a row
	// failing is the kind of the failure that was logged last, quietTill until when
	// no more of its kind are logged, and reported whether its end is to be logged.
	failing   string
	quietTill time.Time
	reported  bool
}

var (
	_ cdc.Source   = (*Source)(nil)
	_ cdc.Reporter = (*Source)(nil)
)

// New checks the configuration and returns a Source that does nothing until Run.
// The error lists every problem found; it never quotes the DSN.
func New(cfg Config) (*Source, error) {
	cfg, err := cfg.validate()
	if err == nil {
		_, err = cfg.parseDSN()
	}
	if err != nil {
		return nil, fmt.Errorf("postgres reader: %w", err)
	}
	log := cfg.Logger.With(slog.String("slot", cfg.Slot))
	s := &Source{cfg: cfg, log: log, patience: firstPatience, queryLimit: queryTimeout, drift: map[string]struct{}{}}
	s.status.init()
	return s, nil
}

// Ack implements [cdc.Source]: it stores the position and returns. The stream
// confirms it on its own beat, within a second or so.
func (s *Source) Ack(pos cdc.Position) {
	m, err := parseMark(pos)
	if err != nil || m.at == 0 {
		return // not a position that this source gave out, so it proves nothing
	}
	for {
		last := s.acked.Load()
		if last != nil && m.before(*last) {
			return
		}
		if s.acked.CompareAndSwap(last, &m) {
			return
		}
	}
}

// Run implements [cdc.Source]. Lost connections, a restarting server and a slot
// that another replica holds are dealt with inside; after ctx ended Run confirms
// what was acknowledged, closes its connections and returns nil. It returns an
// error only when somebody has to act; the error then is permanent and carries a
// hint. Run may be called again, but not twice at a time.
func (s *Source) Run(ctx context.Context, out chan<- cdc.Transaction) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("postgres reader: Run is running already")
	}
	defer s.running.Store(false)
	err := s.run(ctx, out)
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	s.status.setMode(cdc.ModeStopped, detail)
	return err
}

func (s *Source) run(ctx context.Context, out chan<- cdc.Transaction) error {
	g, inner := errgroup.WithContext(ctx)
	w := newWatcher(s)
	g.Go(func() error {
		w.run(inner)
		return nil
	})
	g.Go(func() error { return s.supervise(inner, w, out) }) // its error ends the watcher
	err := g.Wait()
	if errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// supervise makes one connection after the other until ctx ends, which then is
// the error, or somebody has to act.
func (s *Source) supervise(ctx context.Context, w *watcher, out chan<- cdc.Transaction) error {
	for {
		s.status.setMode(cdc.ModeConnecting, "")
		progress, err := s.live(ctx, w, out)
		if ended := ctx.Err(); ended != nil {
			return ended
		}
		if cdc.IsPermanent(err) {
			return err
		}
		s.status.reconnects.Add(1)
		pause := s.pauseAfter(err, progress)
		s.report(err, pause)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// live is the life of one connection. progress says that the stream brought
// something that could be confirmed.
func (s *Source) live(ctx context.Context, w *watcher, out chan<- cdc.Transaction) (progress bool, err error) {
	c, err := s.dial(ctx, forStream)
	if err != nil {
		return false, classifySetup(err)
	}
	defer c.close()
	a, err := s.prepare(ctx, c)
	if err != nil {
		return false, classifySetup(err)
	}
	st, err := newStream(s, c, w, a, out)
	if err != nil {
		return false, err
	}
	if err := st.start(ctx); err != nil {
		return false, classifySetup(err)
	}
	s.recovered(st)
	w.watch(st)
	err = st.run(ctx)
	w.watch(nil)
	s.learn(st, err)
	return st.progressed(), classifyStream(err)
}

// learn keeps what the next connection needs to know about this one.
func (s *Source) learn(st *stream, err error) {
	s.memory.confirmed = max(s.memory.confirmed, st.sent)
	s.memory.durable = max(s.memory.durable, st.confirm.durable)
	s.memory.reached = max(s.memory.reached, st.confirm.received)
	s.memory.floor = s.memory.floor.raised(mark{s.memory.epoch, st.sent})
	switch state := sqlState(err); {
	case errors.Is(err, errPublication), state == stateUndefinedObject:
		s.memory.broken = gapPublication
	case state == stateUndefinedFile:
		s.memory.broken = gapSlotLost
	}
}

// pauseAfter doubles with each failure that follows another one. A connection
// that was cut while it worked is replaced at once; one that failed by what it
// read is not, because it may read the same again.
func (s *Source) pauseAfter(err error, progress bool) time.Duration {
	switch reason := reasonOf(err); {
	case sqlState(err) == stateInUse:
		s.attempts = 0
		return s.cfg.StandbyPoll
	case progress && (reason == reasonConnection || reason == reasonServerDown || reason == reasonStalled):
		s.attempts = 0
	}
	s.attempts++
	return backoff(s.attempts, s.cfg.BackoffMin, s.cfg.BackoffMax)
}

// backoff is least × 2^(n−1), at most most, less a random part of up to a fifth
// so that replicas do not come in step.
func backoff(n int, least, most time.Duration) time.Duration {
	d := most
	if shift := n - 1; shift < 63 && least <= most>>shift { // least<<shift itself might overflow
		d = least << shift
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// report logs a failure when it is the first of its kind, and then once a
// minute.
func (s *Source) report(err error, pause time.Duration) {
	s.status.setMode(cdc.ModeConnecting, err.Error())
	if sqlState(err) == stateInUse {
		return // a standby, which says so itself
	}
	kind, now := reasonOf(err), time.Now()
	switch kind {
	case reasonServerDown, reasonStalled:
		kind = reasonConnection // one outage shows itself in several ways
	}
	if kind == s.failing && now.Before(s.quietTill) {
		return
	}
	s.failing, s.quietTill, s.reported = kind, now.Add(time.Minute), true
	s.log.Warn("the log is not being read", slog.String("reason", reasonOf(err)), slog.Any("err", err),
		slog.Duration("retry_in", pause.Round(time.Millisecond)))
}

// recovered closes what report opened.
func (s *Source) recovered(st *stream) {
	position := slog.String("position", st.confirm.received.String())
	switch {
	case s.reported:
		s.log.Info("reading the log again", position, slog.String("after", s.failing))
	case s.failing == "":
		s.log.Info("reading the log", position)
	}
	s.reported = false
}
