package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
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
	// passes counts the passes over the table.
	passes int
	// seen holds when an event that was not taken was first seen.
	seen map[string]sighting
	// taken holds the events of the last look: one that comes back was not marked.
	taken map[string]struct{}
	// declined are events that no handler takes, of a table that keeps no trace of that.
	declined aside
	cover    cover
	sweep    sweep
	// rest is how long the last pass, which had many pages, wants to be the last.
	rest time.Duration

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
	// from is when the first of the two began, by the database's clock.
	from time.Time
}

// lookResult is what health shows of the poller.
type lookResult struct {
	// at is when it began; the pause until the next one counts from when it ended.
	at, ended time.Time
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
		p.heed()
		now := time.Now()
		v := p.view()
		next := later(notBefore, p.last.ended.Add(max(jittered(v.pace), p.rest)))
		var act func(run, work context.Context, v view) error
		switch {
		case p.sweep.due(now) && !p.sweep.leftToLog(v, now) && !now.Before(notBefore):
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

// heed plans the sweep that was asked for, if any. It does not block: looks that take long follow each other
// without a wait between them.
func (p *poller) heed() {
	select {
	case <-p.gapped:
		p.plan(CountPolledGap)
	case <-p.asked:
		p.plan(CountPolledAsked)
	default:
	}
}

// await waits for the next look or sweep, a gap, or a change of the source's state.
func (p *poller) await(run context.Context, next time.Time) {
	timer := time.NewTimer(min(time.Until(next), pollerTick))
	defer timer.Stop()
	select {
	case <-p.gapped:
		p.plan(CountPolledGap)
	case <-p.asked:
		p.plan(CountPolledAsked)
	case <-timer.C:
	case <-run.Done():
	}
}

// plan makes a sweep the next thing to do. One that is planned already comes later than what asks for one, so it finds
// that too; only a gap begins anew.
func (p *poller) plan(reason Counter) {
	if reason == CountPolledGap || p.sweep.at.IsZero() {
		p.sweep = sweep{at: time.Now(), reason: reason}
	}
}

func (p *poller) view() view {
	if p.state == nil {
		return viewOf(p.config, false, sourceState{})
	}
	return viewOf(p.config, true, p.state())
}

func (s *sweep) due(now time.Time) bool { return !s.at.IsZero() && !now.Before(s.at) }

// leftToLog says that the sweep of a start waits, for a while, for a log that is being read and is behind: after
// an outage of this process the log brings nearly all there is, and two that fan out the same events
// wait for each other's row locks all the time. What only the sweep can find waits that much longer.
func (s *sweep) leftToLog(v view, now time.Time) bool {
	return s.reason == CountPolledStartup && v.reason == CountPolledBehind && now.Sub(s.at) < behindGrace
}

// sweepNow looks through the table until nothing is left. The first sweep plans
// a second one, for rows that were committed but not yet visible during the first; that
// one closes the gaps, unless there are events of a table without a mark that could not be fanned out:
// the table is then looked through from where it is until they are.
func (p *poller) sweepNow(run, work context.Context, _ view) error {
	if !p.sweep.closes {
		p.closing.Lock()
		p.sweep.arrived = p.arrived
		p.closing.Unlock()
	}
	done, err := p.pass(run, work, view{reason: p.sweep.reason}, true)
	if err != nil {
		return err
	}
	if !p.sweep.closes {
		p.sweep.from = done.at
	}
	if !p.sweep.closes || !done.covers {
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
	if err := p.gaps.CloseGaps(ctx, p.source, p.sweep.from); err != nil {
		return err
	}
	p.sweep = sweep{}
	return nil
}

// steady looks through the table once.
func (p *poller) steady(run, work context.Context, v view) error {
	if p.nobodyListens() {
		now := time.Now()
		p.looked(lookResult{at: now, ended: now}) // A44
		return nil
	}
	_, err := p.pass(run, work, v, false)
	return err
}

func (p *poller) nobodyListens() bool {
	return !p.types.All && len(p.types.Exact) == 0 && len(p.types.Prefixes) == 0
}

func (p *poller) looked(result lookResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = result
}
