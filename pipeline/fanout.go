package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// The paths that bring an event to the fan-out, as observers see them.
const (
	viaLog  = "log"
	viaPoll = "poll"
)

const (
	// statementTimeout bounds a small statement, so that a dead connection or a lock
	// does not hold a loop for good.
	statementTimeout = 10 * time.Second
	// fanOutTimeout bounds the first try of a fan-out, which takes milliseconds, and
	// partTimeout that of a part of one that has failed: the search for a locked row should
	// be quick. Each further try of the same events has twice as long, up to
	// fanOutTimeoutMost, so that a slow database gets there in the end.
	fanOutTimeout     = 5 * time.Second
	partTimeout       = time.Second
	fanOutTimeoutMost = 4 * time.Minute
	// waitsInVain is how often the statement of a single event of the log runs out of time
	// before it is tried without the event's row.
	waitsInVain = 2
	// pollPatience is after how many failures on end the poller's events are left alone.
	pollPatience = splitAfter + splitsOnEnd
)

// fanOut turns routed events into delivery rows. It is the one code path for
// the log and the poller, and may be used by both at the same time.
//
// Where does the event go if this fails? A database that is away is waited for, and the
// log's position waits too. A row that the database refuses is found by halving the
// batch, and a reduced BLOCKED delivery stands for it. A row that cannot be written while
// the database answers, for instance because a session holds its lock, must hold up
// nothing else. If it came from the log, its deliveries are made of the log's image without touching the
// row: whoever holds the row may delete it, and then the image is all there is of the event. If it
// came from the poller, it is left undelivered in its table, for a later look.
type fanOut struct {
	store      FanOutStore
	deliveries settler
	slots      slots
	source     string
	lease      delivery.Lease // without a token: each statement draws its own
	aside      *aside
	// timeout and partTimeout are the constants, but for tests.
	timeout, partTimeout time.Duration
	log                  *slog.Logger
	obs                  Observer
	warn                 seldom
	// viaLog and viaPoll are the troubles of the two paths.
	viaLog, viaPoll *trouble

	mu     sync.Mutex
	lastOK time.Time
	oks    int
}

// settler is what fan-out asks of the handling side of a store.
type settler interface {
	Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error)
}

// errLeftAlone says that the poller's events were given up for now: they are
// undelivered in their table, and the next look finds them, together with newer ones.
var errLeftAlone = errors.New("fan-out keeps failing, the events are looked for again")

// deliver fans the events out. It returns nil when each has its delivery rows, or is one of
// the poller that has been set aside, or one that the database refuses in every form. Events of
// the log are tried until then; those of the
// poller are left alone after a few failures on end (errLeftAlone). When run ends, the
// statement in flight may finish until work ends, and deliver gives up. end goes with the
// last statement.
func (f *fanOut) deliver(run, work context.Context, events []routed, via string, end place) error {
	todo := worklist{parts: []part{{events: events}}}
	wait := pause{base: 100 * time.Millisecond, cap: 5 * time.Second}
	// unsure are the leases of tries that failed: they may have committed nevertheless.
	var unsure []leasedTarget
	// locks says that an event of the log waited in vain for its row: where there is one, there are more.
	locks := false
	for !todo.empty() {
		p := todo.next()
		at := end
		if !todo.empty() {
			at = place{}
		}
		leased, err := f.attempt(work, &p, via, at)
		rejected := err != nil && f.store.Rejected(err)
		if !rejected {
			unsure = append(unsure, leased...)
		}
		if rejected && len(p.events) == 1 {
			rejected, err = false, f.quarantine(work, p.events[0], err)
		}
		switch {
		case err == nil:
			todo.succeeded()
			wait.reset()
			f.giveBack(work, unsure)
			unsure = nil
			continue
		case rejected:
			todo.split(p)
			continue
		case ended(run):
			return err
		}
		f.failed(&p, err, via)
		if f.stuck(&p, err) {
			fan := &p.events[0].fan
			if !fan.FromLog {
				f.setAside(p.events[0], err)
				continue
			}
			// In turn with the ordinary way, which may be the one that opens.
			fan.ImageOnly = !fan.ImageOnly
			locks = true
		} else if locks && errors.Is(err, context.DeadlineExceeded) {
			p.turn()
		}
		todo.again(p)
		if via == viaPoll && (wait.n >= pollPatience || todo.onlyStuck() && p.tries > 1) {
			return errLeftAlone
		}
		if !sleep(run, wait.next()) {
			return run.Err()
		}
	}
	f.troubleOf(via).recovered()
	return nil
}

// turn gives all events of the log that are in the part the other way, so that two hundred rows that
// one session holds are not searched for one by one. The poller marks those that were not held.
func (p *part) turn() {
	for i := range p.events {
		if fan := &p.events[i].fan; fan.FromLog {
			fan.ImageOnly = !fan.ImageOnly
		}
	}
}

func (f *fanOut) failed(p *part, err error, via string) {
	f.mu.Lock()
	p.failed(f.oks)
	f.mu.Unlock()
	f.obs.Count(CountFanOutRetry, "", 1)
	f.troubleOf(via).failed(err, slog.Int("events", len(p.events)))
}

func (f *fanOut) troubleOf(via string) *trouble {
	if via == viaLog {
		return f.viaLog
	}
	return f.viaPoll
}

// stuck says that a single event seems to fail for a reason of its own, such as a lock
// that a session holds on its row: others succeed meanwhile, or its statement waits in
// vain although there is nothing else to compare it with.
func (f *fanOut) stuck(p *part, err error) bool {
	if len(p.events) > 1 {
		return false
	}
	return p.suspect >= 1 || p.events[0].fan.FromLog && p.tries >= waitsInVain && errors.Is(err, context.DeadlineExceeded)
}

// attempt runs one statement. Leases are asked for on the first try only: a
// worker slot must not stand idle while a broken database is waited for. With an error
// it returns the leases that the statement has taken if it committed after all.
func (f *fanOut) attempt(work context.Context, p *part, via string, at place) (unsure []leasedTarget, err error) {
	batch := delivery.FanOut{Source: f.source, Position: at.position, Epoch: at.epoch, Lease: f.lease, Fans: make([]delivery.Fan, len(p.events))}
	batch.Lease.Token = uuid.New()
	for i := range p.events {
		batch.Fans[i] = p.events[i].fan
	}
	if p.failures == 0 {
		f.slots.breathe(work)
	}
	reserved := f.reserve(p, batch.Fans)
	ctx, cancel := context.WithTimeout(work, f.timeoutOf(p))
	defer cancel()
	begun := time.Now()
	result, err := f.store.FanOut(ctx, batch)
	if err != nil {
		f.release(reserved)
		return leasedTargets(&batch), err
	}
	f.succeeded(begun)
	f.handOver(p, &batch, &result, reserved, begun)
	f.report(&batch, &result, via, time.Since(begun))
	return nil, nil
}

func (f *fanOut) timeoutOf(p *part) time.Duration {
	first := f.timeout
	if p.failures > p.tries {
		first = f.partTimeout
	}
	return min(first<<min(p.tries, 10), fanOutTimeoutMost)
}

func (f *fanOut) succeeded(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastOK = at
	f.oks++
}

// reserve asks for worker slots, and marks as many targets as it got to be
// created already leased. It returns the reserved slots by handler.
func (f *fanOut) reserve(p *part, fans []delivery.Fan) map[string]int {
	want := make(map[string]int)
	for i := range fans {
		for j := range fans[i].Targets {
			t := &fans[i].Targets[j]
			t.Lease = false
			if t.Blocked == "" && p.failures == 0 {
				want[t.Handler]++
			}
		}
	}
	reserved := make(map[string]int, len(want))
	for handler, n := range want {
		if got := f.slots.reserve(handler, n); got > 0 {
			reserved[handler], want[handler] = got, got
		} else {
			delete(want, handler)
		}
	}
	for i := range fans {
		for j := range fans[i].Targets {
			t := &fans[i].Targets[j]
			if t.Blocked == "" && want[t.Handler] > 0 {
				t.Lease = true
				want[t.Handler]--
			}
		}
	}
	return reserved
}

func (f *fanOut) release(reserved map[string]int) {
	for handler, n := range reserved {
		if n > 0 {
			f.slots.release(handler, n)
		}
	}
}

// handOver gives the leased deliveries to their workers, returns the slots that
// were not used, and wakes the handlers that have more to claim. begun was read
// before the statement was sent, so the lease ends here first.
func (f *fanOut) handOver(p *part, batch *delivery.FanOut, result *delivery.FanOutResult, reserved map[string]int, begun time.Time) {
	var jobs []job
	wake := make(map[string]bool)
	for _, c := range result.Created {
		r := &p.events[c.Fan]
		t := &batch.Fans[c.Fan].Targets[c.Target]
		ev, stored := result.Stored[c.Fan]
		if !stored {
			ev = r.fan.Event
		}
		switch {
		case c.Leased:
			reserved[t.Handler]--
			jobs = append(jobs, job{
				id: t.ID, token: batch.Lease.Token, sub: r.subs[c.Target], stored: t.Handler,
				ev: ev, claims: 1, leasedAt: begun, commitTime: r.commitTime,
			})
		case t.Blocked == "":
			wake[t.Handler] = true
		}
	}
	f.release(reserved)
	if len(jobs) > 0 {
		f.slots.accept(jobs)
	}
	for handler := range wake {
		f.slots.wake(handler)
	}
}

// leasedTarget is a delivery that was to be created leased.
type leasedTarget struct {
	id, token uuid.UUID
	handler   string
}

func leasedTargets(batch *delivery.FanOut) []leasedTarget {
	var leased []leasedTarget
	for i := range batch.Fans {
		for _, t := range batch.Fans[i].Targets {
			if t.Lease {
				leased = append(leased, leasedTarget{t.ID, batch.Lease.Token, t.Handler})
			}
		}
	}
	return leased
}

// giveBack ends the leases of tries whose end was never learned. If such a try had committed,
// its rows are leased to nobody who knows, and would be due only when the lease
// runs out; given back by their token they are due at once. For a try that had
// not, it changes nothing. It is a matter of latency only: if it fails, the lease runs out.
func (f *fanOut) giveBack(work context.Context, unsure []leasedTarget) {
	if len(unsure) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(work, statementTimeout)
	defer cancel()
	handlers := make(map[uuid.UUID]string, len(unsure))
	outcomes := make([]delivery.Outcome, len(unsure))
	for i, l := range unsure {
		handlers[l.id] = l.handler
		outcomes[i] = delivery.Outcome{ID: l.id, Token: l.token, Verdict: delivery.GiveBack}
	}
	settled, err := f.deliveries.Settle(ctx, outcomes)
	if err != nil {
		f.log.Info("leases of an interrupted fan-out could not be given back; they run out by themselves",
			slog.Int("deliveries", len(unsure)), slog.Any("error", err))
		return
	}
	for _, s := range settled {
		f.slots.wake(handlers[s.ID])
	}
}

// report tells the observer and the log what one statement did.
func (f *fanOut) report(batch *delivery.FanOut, result *delivery.FanOutResult, via string, took time.Duration) {
	stats := FanOutStats{Via: via, Events: len(batch.Fans), Deliveries: len(result.Created),
		Repeated: result.Repeated, Absent: result.Absent, Took: took}
	for _, c := range result.Created {
		t := &batch.Fans[c.Fan].Targets[c.Target]
		if c.Leased {
			stats.Leased++
		}
		if counter, ok := blockedCounter(t.Blocked); ok {
			f.obs.Count(counter, t.Handler, 1)
			if held, ok := f.warn.allow(t.Blocked + "\x00" + t.Handler); ok {
				ev := &batch.Fans[c.Fan].Event
				f.log.Warn("delivery created as BLOCKED", slog.String("handler", t.Handler), slog.String("reason", t.Blocked), slog.String("detail", t.Detail),
					slog.String("event", ev.ID), slog.String("type", ev.Type), slog.Int("held_back", held))
			}
		}
	}
	for i := range batch.Fans {
		if len(batch.Fans[i].Targets) == 0 {
			stats.Unmatched++
		}
	}
	if n := len(result.Deferred); n > 0 {
		f.obs.Count(CountDeferred, "", n)
	}
	if n := len(result.DuplicateIDs); n > 0 {
		f.obs.Count(CountDuplicateID, "", n)
		if held, ok := f.warn.allow("duplicate"); ok {
			f.log.Warn("event ids that more than one row carries; each has one delivery per handler",
				slog.Any("ids", result.DuplicateIDs[:min(n, 5)]), slog.Int("count", n), slog.Int("held_back", held))
		}
	}
	f.obs.FannedOut(stats)
}

// quarantine puts a reduced BLOCKED delivery in the place of an event that the
// database refuses. The error it returns is of the database, not of the event, but for one: an event of the log that
// is refused in every form, and whose row is gone from its table, is nowhere but in the log. The
// log stays before it until somebody mends the database; the poller and the handlers go on.
func (f *fanOut) quarantine(work context.Context, r routed, cause error) error {
	if len(r.fan.Targets) == 0 {
		// No handler takes it, and only its mark is refused: there is nothing to lose.
		f.setAside(r, cause)
		return nil
	}
	ctx, cancel := context.WithTimeout(work, statementTimeout)
	defer cancel()
	err := f.store.Quarantine(ctx, r.fan, cause)
	switch {
	case err == nil:
		f.obs.Count(CountQuarantined, "", 1)
		f.log.Error("the database refuses an event as it is; a reduced BLOCKED delivery stands for it",
			slog.String("event", r.fan.Event.ID), slog.String("type", r.fan.Event.Type), slog.Int("handlers", len(r.subs)), slog.String("code", codeOf(cause)))
		return nil
	case f.store.Rejected(err) && r.fan.FromLog && errors.Is(err, delivery.ErrAbsent):
		return f.hold(r, err)
	case f.store.Rejected(err):
		f.setAside(r, err)
		return nil
	}
	return err
}

// errHeld is what health says while the log waits for such an event.
var errHeld = errors.New("the database refuses every form of a delivery for an event that is nowhere but in the log; " +
	"the log stays before it, and only the poller brings events, until the database takes it: look for constraints and triggers of yours on the delivery table")

// hold makes the event be tried again.
func (f *fanOut) hold(r routed, err error) error {
	code := codeOf(err)
	if held, ok := f.warn.allow("hold\x00" + r.fan.Event.ID); ok {
		f.log.Error("an event whose row is gone is refused in every form; the log stays before it",
			slog.String("event", r.fan.Event.ID), slog.String("type", r.fan.Event.Type), slog.String("code", code), slog.Int("held_back", held))
	}
	return fmt.Errorf("%w (event %s, %s)", errHeld, r.fan.Event.ID, code)
}

// setAside leaves the event undelivered in its table, for the poller.
func (f *fanOut) setAside(r routed, err error) {
	f.obs.Count(CountSetAside, "", 1)
	f.aside.fail(r.fan.Event.ID, time.Now())
	if held, ok := f.warn.allow("aside\x00" + r.fan.Event.ID); ok {
		f.log.Error("an event cannot be fanned out; it stays undelivered in its table and is tried again later",
			slog.String("event", r.fan.Event.ID), slog.String("type", r.fan.Event.Type), slog.String("code", codeOf(err)), slog.Int("held_back", held))
	}
}

// codeOf is what may be logged of an error about one event: the SQLSTATE or the class. The
// database's message quotes values of the row.
func codeOf(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return "sqlstate_" + state.SQLState()
	}
	return event.Code(err)
}
