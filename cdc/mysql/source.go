package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Source reads the inserts of registered tables from the server's binlog. It
// implements [cdc.Source] and [cdc.Reporter].
type Source struct {
	cfg Config
	log *slog.Logger

	running atomic.Bool
	status  status

	// mu guards what Ack and the stream share.
	mu      sync.Mutex
	confirm confirmRule
	saved   cdc.Position // what the keeper has from us

	// What follows belongs to the goroutine of Run.

	memory   memory
	warned   map[string]struct{}
	attempts int // failures in a row
	// failing is the kind of the failure that was logged last, quietTill until when
	// no more of its kind are logged, and reported whether its end is to be logged.
	failing   string
	quietTill time.Time
	reported  bool
}

// memory is what one life of a connection leaves to the next.
type memory struct {
	epoch uint64 // of the tenure that the rest is of
	// resume is where the next stream starts; empty when only the keeper knows.
	resume   cdc.Position
	identity string
	refusal  refusal
	// undecodable is the transaction that could not be decoded; skip what to do about one
	// that the library itself cannot read.
	undecodable string
	skip        *skipped
	// certain are large transactions that are known to be committed.
	certain []string
	foreign int64
}

// skipped is a transaction that is left out: reading goes on after it, if it has a name,
// or else at the end of the log.
type skipped struct {
	at     cdc.Position
	to     place
	known  bool
	detail string
}

var (
	_ cdc.Source   = (*Source)(nil)
	_ cdc.Reporter = (*Source)(nil)
)

// New checks the configuration and returns a Source that does nothing until Run.
// The error lists every problem found; it never quotes the DSN.
func New(cfg Config) (*Source, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, fmt.Errorf("mysql reader: %w", err)
	}
	s := &Source{cfg: cfg, log: cfg.Logger, warned: map[string]struct{}{}}
	s.status.mode = cdc.ModeStopped
	return s, nil
}

// Ack implements [cdc.Source]: it notes the position and returns. Positions that wait for
// no acknowledgement are ignored. The store keeps acknowledged positions itself; what the reader
// makes of them is where to go on after a lost connection, and what to save beside them.
func (s *Source) Ack(pos cdc.Position) {
	if pos == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirm.ack(pos)
}

func (s *Source) begin(at cdc.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirm = startConfirm(at)
}

func (s *Source) handedOver(at cdc.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirm.handOver(at)
}

// worthSaving is the position to save now, and empty when there is no reason to save any. Reasons are that
// the log moved beside what was handed over, and that something was acknowledged: a store keeps positions with
// the deliveries that it makes, but not those of a gap, or of rows that made none. After a long time our own writes are
// a reason too.
func (s *Source) worthSaving(a *assembler, long bool) (at cdc.Position, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	settled = s.confirm.settled(a.group.open)
	if !s.confirm.acked && (!settled || !a.counts.moved && !long) {
		return "", settled
	}
	s.confirm.acked = false
	if at = s.confirm.answer(a.group.open, a.position); at == s.saved {
		at = ""
	}
	return at, settled
}

func (s *Source) answer(open bool, end func() cdc.Position) cdc.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirm.answer(open, end)
}

// positions are those for Status: the last acknowledged, and the last that is kept.
func (s *Source) positions() (durable, confirmed cdc.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.confirm.acked {
		return s.confirm.durable, s.confirm.durable
	}
	return s.confirm.durable, s.saved
}

// Run implements [cdc.Source]. Lost connections, a restarting server and another process
// that is the reader are dealt with inside; after ctx ended Run saves what was acknowledged,
// closes its connections and returns nil. It returns an error only when somebody has to act;
// the error then is permanent and carries a hint. Run may be called again, but not twice at a
// time.
func (s *Source) Run(ctx context.Context, out chan<- cdc.Transaction) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("mysql reader: Run is running already")
	}
	defer s.running.Store(false)
	err := s.supervise(ctx, out)
	if ctx.Err() != nil {
		err = nil
	}
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	s.status.setMode(cdc.ModeStopped, detail)
	return err
}

// supervise goes from tenure to tenure until ctx ends or somebody has to act.
func (s *Source) supervise(ctx context.Context, out chan<- cdc.Transaction) error {
	for {
		s.status.setMode(cdc.ModeConnecting, "")
		tenure, err := s.acquire(ctx)
		if err != nil {
			return err
		}
		err = s.reign(ctx, tenure, out)
		s.release(ctx, tenure)
		if ctx.Err() != nil || cdc.IsPermanent(err) {
			return err
		}
		if err := s.pause(ctx, err, true); err != nil {
			return err
		}
	}
}

// acquire waits until this process is the reader.
func (s *Source) acquire(ctx context.Context) (Tenure, error) {
	for {
		tenure, holder, err := s.cfg.Keeper.Acquire(ctx)
		switch {
		case ctx.Err() != nil:
			if tenure != nil {
				s.release(ctx, tenure)
			}
			return nil, ctx.Err()
		case err != nil:
			if err := s.pause(ctx, retryable(reasonTenure, fmt.Errorf("become the reader: %w", err), ""), false); err != nil {
				return nil, err
			}
		case tenure == nil:
			s.attempts = 0
			s.status.setMode(cdc.ModeStandby, "the reader is "+holder)
			if err := sleep(ctx, s.cfg.StandbyPoll); err != nil {
				return nil, err
			}
		default:
			s.inherit(tenure)
			return tenure, nil
		}
	}
}

// inherit decides what of the memory still counts in a new tenure. Between two tenures
// that follow each other nobody else was the reader, so that what this process knows to be
// durable counts even if no store kept it; otherwise what was kept counts.
func (s *Source) inherit(tenure Tenure) {
	kept, identity := tenure.Saved()
	saved, known := cdc.Position(kept), s.memory
	resume := cdc.Position("")
	if known.epoch != 0 && known.epoch+1 == tenure.Epoch() {
		// Acknowledgements may have come after the last stream ended.
		if known.resume = s.answer(false, func() cdc.Position { return known.resume }); known.resume != "" {
			resume = later(known.resume, saved)
		}
	}
	s.memory = memory{
		epoch: tenure.Epoch(), resume: resume, identity: identity,
		refusal: known.refusal, undecodable: known.undecodable, certain: known.certain, foreign: known.foreign,
	}
	if resume == "" {
		s.memory.resume = saved
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = saved
}

// later is ours if it is certain to contain theirs.
func later(ours, theirs cdc.Position) cdc.Position {
	if theirs == "" {
		return ours
	}
	a, err := parsePlace(ours)
	b, err2 := parsePlace(theirs)
	if err == nil && err2 == nil && a.contains(b) {
		return ours
	}
	return theirs
}

// release ends a tenure, after a clean end with the last position saved.
func (s *Source) release(ctx context.Context, tenure Tenure) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.StopTimeout)
	defer cancel()
	if err := tenure.Release(ctx); err != nil {
		s.log.Debug("ending the tenure failed; the server ends it with its connection", slog.Any("err", err))
	}
}

// reign makes one connection after the other until ctx ends, which then is the error, the
// tenure ends, or somebody has to act.
func (s *Source) reign(ctx context.Context, tenure Tenure, out chan<- cdc.Transaction) error {
	for {
		progress, err := s.live(ctx, tenure, out)
		if ctx.Err() != nil || cdc.IsPermanent(err) || errors.Is(err, errTenure) {
			return err
		}
		if large := new(largeCommit); errors.As(err, &large) {
			continue // nothing is wrong
		}
		s.status.reconnects.Add(1)
		switch reasonOf(err) {
		case reasonServerID, reasonDecode, reasonRefused: // may come again however much was read before
		default:
			if progress {
				s.attempts = 0
			}
		}
		if err := s.pause(ctx, err, false); err != nil {
			return err
		}
		s.status.setMode(cdc.ModeConnecting, err.Error())
		if err := s.check(ctx, tenure); err != nil {
			return err
		}
	}
}

// live is the life of one connection. progress says that the stream brought something.
func (s *Source) live(ctx context.Context, tenure Tenure, out chan<- cdc.Transaction) (progress bool, err error) {
	cfg, err := s.endpoint(ctx)
	if err != nil {
		return false, err
	}
	side, err := s.openSide(ctx, cfg)
	if err != nil {
		return false, err
	}
	defer func() { _ = side.Close() }() // nothing is left in it
	f, err := s.look(ctx, func() (facts, error) { return probe(ctx, side, cfg, s.cfg.Tables) })
	if err != nil {
		return false, err
	}
	start, gap := s.place(f)
	if s.memory.resume == "" {
		// The first time ever: what comes from now on must not be lost to a crash.
		if err := s.save(ctx, tenure, start.position(), f.identity); err != nil {
			return false, err
		}
	}
	st := newStream(s, cfg, side, f, tenure, out)
	err = st.open(ctx, start, gap)
	if err == nil {
		s.recovered(start)
		watching, stop := context.WithCancel(ctx)
		var group sync.WaitGroup
		group.Go(func() { st.watch(watching) })
		err = st.run(ctx)
		stop()
		group.Wait()
	}
	st.close()
	st.learn(err)
	if ctx.Err() != nil {
		s.saveLast(ctx, st)
		return st.progress, ctx.Err()
	}
	return st.progress, classifyStream(err)
}

// look probes, and again while the server does not seem to have what was read: the log is
// sent a moment before it counts as executed (mysql-cdc.md section 4.2).
func (s *Source) look(ctx context.Context, probe func() (facts, error)) (facts, error) {
	at, unreadable := parsePlace(s.memory.resume)
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		f, err := probe()
		if err != nil || unreadable != nil || at.mode != f.mode || f.current.contains(at) || wait > visibleWithin {
			return f, err
		}
		if err := sleep(ctx, wait); err != nil {
			return f, err
		}
	}
}

// visibleWithin bounds that moment.
const visibleWithin = 2 * time.Second

// place decides where to start.
func (s *Source) place(f facts) (start place, gap *cdc.Gap) {
	start, gap = decide(s.memory.resume, f, s.memory.refusal)
	if skip := s.memory.skip; skip != nil && gap == nil && skip.at == s.memory.resume {
		if start = f.current; skip.known {
			start = skip.to
		}
		gap = &cdc.Gap{Reason: gapDecode, Detail: skip.detail, From: s.memory.resume, To: start.position()}
	}
	return start, gap
}

// save keeps a position. Every failure ends the tenure.
func (s *Source) save(ctx context.Context, tenure Tenure, at cdc.Position, identity string) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := tenure.Save(ctx, string(at), identity); err != nil {
		return fmt.Errorf("%w: save the position: %w", errTenure, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = at
	return nil
}

// saveLast saves, when Run stops, what may be saved.
func (s *Source) saveLast(ctx context.Context, st *stream) {
	at := s.memory.resume
	s.mu.Lock()
	known := at == s.saved
	s.mu.Unlock()
	if at == "" || known {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.StopTimeout)
	defer cancel()
	if err := s.save(ctx, st.tenure, at, st.facts.identity); err != nil {
		s.log.Debug("the last position was not saved; what follows the one before comes again", slog.Any("err", err))
	}
}

// check makes sure that this process still is the reader.
func (s *Source) check(ctx context.Context, tenure Tenure) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := tenure.Check(ctx); err != nil {
		return fmt.Errorf("%w: %w", errTenure, err)
	}
	return nil
}

// pause reports a failure and waits, longer with each that follows another. soon is for
// those that say nothing about the server.
func (s *Source) pause(ctx context.Context, err error, soon bool) error {
	s.attempts++
	wait := backoff(s.attempts, s.cfg.BackoffMin, s.cfg.BackoffMax)
	if soon {
		s.attempts = 0
	}
	s.report(err, wait)
	return sleep(ctx, wait)
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

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// report logs a failure when it is the first of its kind, and then once a minute.
func (s *Source) report(err error, pause time.Duration) {
	s.status.setMode(cdc.ModeConnecting, err.Error())
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
func (s *Source) recovered(start place) {
	position := slog.String("position", string(start.position()))
	switch {
	case s.reported:
		s.log.Info("reading the log again", position, slog.String("after", s.failing))
	case s.failing == "":
		s.log.Info("reading the log", position)
	}
	s.reported = false
}

// warnOnce tells an operator once per reason and table what makes rows take the long
// way. The sweeps themselves are counted by the pipeline.
func (s *Source) warnOnce(reason string, table Table, why string) {
	key := reason + " " + table.String()
	if _, told := s.warned[key]; told {
		return
	}
	s.warned[key] = struct{}{}
	s.log.Warn("rows are left to the poller", slog.String("reason", reason), slog.String("table", table.String()),
		slog.String("detail", why))
}
