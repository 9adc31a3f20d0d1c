package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

const (
	// lookTimeout bounds one look at the event table.
	lookTimeout = time.Minute
	// downAfter is how long the log may not be read before the poller takes over.
	downAfter = 3 * time.Second
	// settleTimeout is how long the first sweep waits for the source to say what it
	// will do.
	settleTimeout = 5 * time.Second
	// behindGrace is the grace while the log is read but far behind: what the poller
	// took then, the log would bring once more.
	behindGrace = time.Minute
	// pollerTick is how often the poller looks at the state of the source.
	pollerTick = time.Second
	// firstLook is the size of the first look. It grows while looks come back full
	// and light, so that a table of large payloads does not fill the memory.
	firstLook = 16
)

// poller finds the events that the log did not bring (DESIGN 9). One goroutine.
type poller struct {
	store  PollStore
	gaps   GapStore
	source string
	types  delivery.Match
	config PollerConfig
	// bytes is the most payload that one look should bring.
	bytes  int
	router *router
	fanOut *fanOut
	aside  *aside
	log    *slog.Logger
	obs    Observer
	// state of the source; nil in poll-only mode.
	state func() sourceState
	// settled is closed once it is known whether the source reads.
	settled <-chan struct{}
	// gapped asks for a sweep because of a gap, asked for any other reason.
	gapped, asked chan struct{}

	trouble *trouble
	warn    seldom

	// Only the poller's goroutine uses these.
	limit int
	// seen holds when an event that was not taken was first seen.
	seen map[string]time.Time
	// taken holds the events of the last look: one that comes back was not marked.
	taken map[string]struct{}
	// crowded says that the last look brought nothing but events that could not even be set aside.
	crowded bool
	sweep   sweep

	mu   sync.Mutex
	last lookResult

	// closing orders the closing of gaps and their arrival; arrived counts the latter.
	closing sync.Mutex
	arrived int
}

// sweep is a plan to look through the whole table without any grace.
type sweep struct {
	// at is when, zero when none is planned.
	at     time.Time
	reason Counter
	// closes says that this one closes the gaps of the source: those that had arrived
	// when the one before began.
	closes  bool
	arrived int
}

// lookResult is what health shows of the poller.
type lookResult struct {
	at time.Time
	// found is how many undelivered events the last look saw, more that there were
	// as many as it could see.
	found int
	more  bool
}

// view is how the poller looks at the table now.
type view struct {
	reason Counter
	grace  time.Duration
	pace   time.Duration
}

// viewOf decides how to look, by what the source does. It is pure.
func viewOf(c PollerConfig, hasLog bool, s sourceState) view {
	switch {
	case !hasLog:
		return view{CountPolledPollMode, 0, c.ActiveInterval}
	case s.reading == notReading && (s.permanent || s.notReadingFor >= downAfter):
		return view{CountPolledLogDown, 0, c.ActiveInterval}
	case s.reading == readingBehind:
		return view{CountPolledBehind, max(behindGrace, c.Grace), c.Interval}
	default:
		return view{CountPolledMissed, c.Grace, c.Interval}
	}
}

// gap asks for a full sweep now and another one later. It does not block.
func (p *poller) gap() {
	select {
	case p.gapped <- struct{}{}:
	default: // one is already asked for, and it has not begun
	}
}

// soon asks for a full sweep now and another one later, because the log does not carry
// all rows. It does not block.
func (p *poller) soon() {
	select {
	case p.asked <- struct{}{}:
	default: // one is already asked for, and it has not begun
	}
}

// gapFound is called before a gap is recorded: a sweep that has begun does not close it.
func (p *poller) gapFound() {
	p.closing.Lock()
	defer p.closing.Unlock()
	p.arrived++
}

// run polls until run ends; a statement in flight may take until work ends.
func (p *poller) run(run, work context.Context) error {
	p.awaitSource(run)
	p.sweep = sweep{at: time.Now(), reason: CountPolledStartup}
	wait := pause{base: 250 * time.Millisecond, cap: 10 * time.Second}
	notBefore := time.Now()
	for run.Err() == nil {
		now := time.Now()
		v := p.view()
		next := later(notBefore, p.last.at.Add(jittered(v.pace)))
		var act func(run, work context.Context, v view) error
		switch {
		case p.sweep.due(now) && !now.Before(notBefore):
			act = p.sweepNow
		case !now.Before(next):
			act = p.steady
		default:
			p.await(run, next)
			continue
		}
		switch err := act(run, work, v); {
		case ended(run):
			return nil
		case errors.Is(err, errLeftAlone):
			notBefore = time.Now().Add(wait.next()) // fan-out has told of it
		case err != nil:
			p.obs.Count(CountPollError, "", 1)
			p.trouble.failed(err)
			notBefore = time.Now().Add(wait.next())
		default:
			p.trouble.recovered()
			wait.reset()
		}
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// awaitSource lets the source find its place in the log first, so that nothing is
// committed unseen between the sweep and the stream. A source that cannot say
// is not waited for.
func (p *poller) awaitSource(run context.Context) {
	if p.state == nil {
		return
	}
	timer := time.NewTimer(settleTimeout)
	defer timer.Stop()
	select {
	case <-p.settled:
	case <-timer.C:
	case <-run.Done():
	}
}

// await waits for the next look or sweep, a gap, or a change of the source's state.
func (p *poller) await(run context.Context, next time.Time) {
	timer := time.NewTimer(min(time.Until(next), pollerTick))
	defer timer.Stop()
	select {
	case <-p.gapped:
		p.sweep = sweep{at: time.Now(), reason: CountPolledGap}
	case <-p.asked:
		// One that is planned already comes later than what asks, so it finds that too.
		if p.sweep.at.IsZero() {
			p.sweep = sweep{at: time.Now(), reason: CountPolledAsked}
		}
	case <-timer.C:
	case <-run.Done():
	}
}

func (p *poller) view() view {
	if p.state == nil {
		return viewOf(p.config, false, sourceState{})
	}
	return viewOf(p.config, true, p.state())
}

func (s *sweep) due(now time.Time) bool { return !s.at.IsZero() && !now.Before(s.at) }

// sweepNow looks through the table until nothing is left. The first sweep plans
// a second one, for rows that were committed but not yet visible during the first; that
// one closes the gaps.
func (p *poller) sweepNow(run, work context.Context, _ view) error {
	if !p.sweep.closes {
		p.closing.Lock()
		p.sweep.arrived = p.arrived
		p.closing.Unlock()
	}
	if err := p.drain(run, work, p.sweep.reason); err != nil {
		return err
	}
	if !p.sweep.closes {
		p.sweep.at, p.sweep.closes = time.Now().Add(p.config.SweepAgain), true
		return nil
	}
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.arrived != p.sweep.arrived {
		p.sweep = sweep{at: time.Now(), reason: CountPolledGap}
		return nil
	}
	ctx, cancel := context.WithTimeout(work, statementTimeout)
	defer cancel()
	if err := p.gaps.CloseGaps(ctx, p.source); err != nil {
		return err
	}
	p.sweep = sweep{}
	return nil
}

// errCrowded says that the table holds more events that stay undelivered than the poller can
// leave out, and that what is behind them is out of its sight.
var errCrowded = fmt.Errorf("more than %d events stay undelivered although they were looked at, and hide those behind them: "+
	"no handler takes them, or the table has no mark (mark: none) and keeps no trace of events that every condition (when) declines; "+
	"give the table a mark, or look_back a value", asideLimit)

// drain takes everything there is, without grace. It goes on while looks bring something
// new: what comes back and cannot be set aside would come for ever.
func (p *poller) drain(run, work context.Context, reason Counter) error {
	for run.Err() == nil {
		full, _, err := p.look(run, work, view{reason: reason})
		if err != nil || !full {
			return err
		}
		if p.crowded {
			return errCrowded
		}
	}
	return run.Err()
}

// steady looks once. A look that comes back full of events that were all to be
// taken means that the log misses many: the rest is taken without grace.
func (p *poller) steady(run, work context.Context, v view) error {
	full, all, err := p.look(run, work, v)
	switch {
	case err == nil && full && p.crowded:
		return errCrowded
	case err != nil || !full || !all:
		return err
	}
	return p.drain(run, work, v.reason)
}

// look takes what it finds: full says that there may be more, all that
// everything found was old enough to be taken.
func (p *poller) look(run, work context.Context, v view) (full, all bool, err error) {
	if !p.types.All && len(p.types.Exact) == 0 && len(p.types.Prefixes) == 0 {
		p.looked(time.Now(), 0, false)
		return false, false, nil // nobody listens to anything (A44)
	}
	now := time.Now()
	limit := p.limit
	found, err := p.undelivered(work, limit, now)
	if err != nil {
		return false, false, err
	}
	full = len(found) >= limit
	p.looked(now, len(found), full)
	p.resize(found, full)
	ripe := p.ripe(found, v.grace, now)
	events, suspects := p.route(ripe, now)
	if n := len(events) + len(suspects); n > 0 {
		p.obs.Captured(viaPoll, n, 0)
		p.obs.Count(v.reason, "", n)
	}
	for _, batch := range [...][]routed{events, suspects} {
		if len(batch) == 0 {
			continue
		}
		if err := p.fanOut.deliver(run, work, batch, viaPoll, place{}); err != nil {
			p.taken = nil // it is no wonder if they come back
			return false, false, err
		}
	}
	return full, len(ripe) == len(found), nil
}

func (p *poller) undelivered(work context.Context, limit int, now time.Time) ([]event.Event, error) {
	ctx, cancel := context.WithTimeout(work, lookTimeout)
	defer cancel()
	return p.store.Undelivered(ctx, delivery.Undelivered{Types: p.types, Limit: limit, Skip: p.aside.skip(now)})
}

func (p *poller) looked(at time.Time, found int, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = lookResult{at: at, found: found, more: more}
}

// resize adapts the next look to the weight of this one.
func (p *poller) resize(found []event.Event, full bool) {
	bytes := 0
	for i := range found {
		bytes += len(found[i].Payload)
	}
	switch {
	case bytes > p.bytes:
		p.limit = max(p.limit*p.bytes/bytes, 1)
	case full && bytes <= p.bytes/2:
		p.limit = min(p.limit*2, p.config.Batch)
	}
}

// ripe returns the events that may be taken: those that an earlier look, at least
// grace before, had seen already. That asks no producer's clock, and gives the log the time
// to bring them itself.
func (p *poller) ripe(found []event.Event, grace time.Duration, now time.Time) []event.Event {
	if grace == 0 {
		clear(p.seen)
		return found
	}
	seen := make(map[string]time.Time, len(found))
	var ripe []event.Event
	for _, ev := range found {
		first, known := p.seen[ev.ID]
		if known && now.Sub(first) >= grace {
			ripe = append(ripe, ev)
			continue
		}
		if !known {
			first = now
		}
		seen[ev.ID] = first
	}
	p.seen = seen
	return ripe
}

// route finds the targets. Events that were set aside before come apart from the
// others, so that they hold nothing up if they fail again. An event that was taken by the
// look before and is still there, or that nobody takes although the store brings it,
// would fill every look to come: it is set aside for a while.
func (p *poller) route(ripe []event.Event, now time.Time) (events, suspects []routed) {
	taken := make(map[string]struct{}, len(ripe))
	room := false
	for _, ev := range ripe {
		r, ok := p.router.route(ev)
		_, again := p.taken[ev.ID]
		switch {
		case again || !ok:
			if p.setAside(ev, now) {
				room = true
				continue
			}
			// It comes back at once, and is to be known then.
		case p.aside.known(ev.ID):
			suspects = append(suspects, r)
		default:
			events = append(events, r)
		}
		taken[ev.ID] = struct{}{}
	}
	p.crowded = len(ripe) > 0 && len(events)+len(suspects) == 0 && !room
	p.taken = taken
	return events, suspects
}

func (p *poller) setAside(ev event.Event, now time.Time) (fits bool) {
	fits = p.aside.put(ev.ID, now)
	if held, ok := p.warn.allow("aside"); ok {
		p.log.Warn("an event stays undelivered although it was fanned out; the poller leaves it out for a while",
			slog.String("event", ev.ID), slog.String("type", ev.Type), slog.Int("set_aside", p.aside.size(now)), slog.Bool("room", fits), slog.Int("held_back", held))
	}
	return fits
}
