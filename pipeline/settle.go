package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

const (
	// maxBatch bounds the outcomes of one statement, minBatch what a server that times
	// out is asked for at least.
	maxBatch = 2000
	minBatch = 50
	// lockedPause is how long an outcome waits whose row another session has locked.
	lockedPause = 250 * time.Millisecond
)

// writer writes outcomes and renews leases, one statement at a time, so that the
// two never wait for each other's row locks. Outcomes are written as soon as the
// writer is free: one at a time when little happens, and in batches of what
// came together meanwhile under load. Owned by one goroutine.
//
// A statement that failed may have taken effect. It is sent again until it
// succeeds, which the fence makes harmless, but outcomes that are not confirmed
// then cannot be told from stale ones, and are counted as unknown instead.
//
// A row that another session has locked holds up its own outcome only, which goes to the end
// of those that wait, for as long as the lock lasts or until the stop has no more time.
type writer struct {
	h *handling
	// limit is the size of the next batch. It is halved when a statement times out, and
	// grows slowly again, because finding out that it is too large costs a time-out.
	limit  int
	errors pause
	// renewAfter bars renewals until then after one failed: while statements hang,
	// outcomes get their turn too.
	renewAfter time.Time
}

func newWriter(h *handling) *writer { return &writer{h: h, limit: maxBatch, errors: storePause()} }

// storePause paces the repetition of statements that fail.
func storePause() pause { return pause{base: 100 * time.Millisecond, cap: 5 * time.Second} }

// run writes until the last outcome after handling.close, or until ctx ends.
func (w *writer) run(ctx context.Context) {
	tick := time.NewTicker(w.h.tick)
	defer tick.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	writable := w.h.writable
	for {
		select {
		case <-writable:
		case <-again.C:
		case <-tick.C:
			w.renew(ctx)
			continue
		case <-w.h.closing:
			w.flush(ctx)
			return
		}
		if pause := w.settle(ctx); pause > 0 {
			// Until the pause is over, new outcomes are no reason to try.
			writable = nil
			again.Reset(pause)
			continue
		}
		writable = w.h.writable
		// Also when one may be written by now: its time may have come during the statement, and then nobody wakes
		// the writer for it.
		if wait, some := w.h.untilWritable(time.Now()); some {
			again.Reset(wait)
		}
	}
}

// flush writes what is left, and gives up when ctx ends.
func (w *writer) flush(ctx context.Context) {
	for ctx.Err() == nil {
		pause := w.settle(ctx)
		wait, some := w.h.untilWritable(time.Now())
		if !some {
			return
		}
		if pause = max(pause, wait); pause > 0 && !sleep(ctx, pause) {
			return
		}
	}
}

// settle writes one batch and returns how long to wait before the next try if
// it failed.
func (w *writer) settle(ctx context.Context) (pause time.Duration) {
	batch := w.h.takeEnded(w.limit)
	if len(batch) == 0 {
		return 0
	}
	err := w.write(ctx, batch)
	if err == nil {
		w.limit = min(w.limit+minBatch, maxBatch)
		w.h.settles.recovered()
		w.errors.reset()
		return 0
	}
	if errors.Is(err, context.DeadlineExceeded) {
		w.limit = max(w.limit/2, minBatch)
	}
	w.h.observer.Count(CountSettleError, "", 1)
	w.h.settles.failed(err)
	return w.errors.next()
}

// write sends a batch. What the database refuses because of its data is sent
// again in halves until the outcome at fault is alone, so that it stops no other. After any
// other error what is not known to be written goes back to the waiting outcomes.
func (w *writer) write(ctx context.Context, batch []*attempt) error {
	settled, err := w.send(ctx, batch)
	if locked, others, written := splitLocked(batch, settled); len(locked) > 0 {
		w.h.putLast(locked, time.Now().Add(lockedPause))
		batch, settled = others, written
	}
	if err == nil {
		w.h.settled(batch, settled)
		return nil
	}
	written, rest := split(batch, settled)
	w.h.settled(written, settled)
	switch {
	case !w.h.store.Rejected(err):
		for _, a := range rest {
			a.ambiguous = true
		}
		w.h.putBack(rest)
		return err
	case len(rest) > 1:
		half := len(rest) / 2
		if err := w.write(ctx, rest[:half]); err != nil {
			w.h.putBack(rest[half:])
			return err
		}
		return w.write(ctx, rest[half:])
	case len(rest) == 1 && !rest[0].reduced:
		reduce(rest[0])
		return w.write(ctx, rest)
	case len(rest) == 1:
		w.h.dropOutcome(rest[0], err)
	}
	return nil
}

// splitLocked separates the attempts whose rows are locked, and their entries in settled, from the others.
func splitLocked(batch []*attempt, settled []delivery.Settled) (locked, others []*attempt, written []delivery.Settled) {
	waits := make(map[uuid.UUID]bool)
	for _, s := range settled {
		if s.Locked {
			waits[s.ID] = true
		} else {
			written = append(written, s)
		}
	}
	for _, a := range batch {
		if waits[a.id] {
			locked = append(locked, a)
		} else {
			others = append(others, a)
		}
	}
	return locked, others, written
}

// split separates what took effect from the rest.
func split(batch []*attempt, settled []delivery.Settled) (written, rest []*attempt) {
	done := make(map[uuid.UUID]bool, len(settled))
	for _, s := range settled {
		done[s.ID] = true
	}
	for _, a := range batch {
		if done[a.id] {
			written = append(written, a)
		} else {
			rest = append(rest, a)
		}
	}
	return written, rest
}

func (w *writer) send(ctx context.Context, batch []*attempt) ([]delivery.Settled, error) {
	outcomes := make([]delivery.Outcome, len(batch))
	for i, a := range batch {
		outcomes[i] = a.outcome
	}
	ctx, cancel := context.WithTimeout(ctx, w.h.statement)
	defer cancel()
	return w.h.store.Settle(ctx, outcomes)
}

// reduce leaves out of an outcome everything that came from the handler.
func reduce(a *attempt) {
	a.reduced = true
	o := &a.outcome
	o.Message, o.Error = "", ""
	if o.Verdict == delivery.Discard {
		o.Reason = delivery.ReasonRejected
	}
}

// takeEnded takes up to limit outcomes to be written, no two for one delivery:
// the result of a statement names deliveries, not tokens. Those whose rows were found locked
// wait for their time.
func (h *handling) takeEnded(limit int) []*attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	batch := make([]*attempt, 0, min(limit, len(h.ended)))
	taken := make(map[uuid.UUID]bool, min(limit, len(h.ended)))
	var left []*attempt
	ready := false
	for i, a := range h.ended {
		if len(batch) == limit {
			left = append(left, h.ended[i:]...)
			ready = true
			break
		}
		switch {
		case now.Before(a.notBefore):
			left = append(left, a)
		case taken[a.id]:
			left = append(left, a)
			ready = true
		default:
			taken[a.id] = true
			batch = append(batch, a)
		}
	}
	h.ended = left
	if ready {
		signal(h.writable)
	}
	return batch
}

// untilWritable is how long it is until the first of the waiting outcomes may be written, 0 when one may be
// now. some is false when none waits.
func (h *handling) untilWritable(now time.Time) (wait time.Duration, some bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, a := range h.ended {
		if left := max(a.notBefore.Sub(now), 0); i == 0 || left < wait {
			wait = left
		}
	}
	return wait, len(h.ended) > 0
}

// putLast returns outcomes to the end of those that wait, not to be tried before then.
func (h *handling) putLast(batch []*attempt, then time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range batch {
		a.notBefore = then
	}
	h.ended = append(h.ended, batch...)
}

// putBack returns outcomes to the front of those that wait.
func (h *handling) putBack(batch []*attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = append(slices.Clone(batch), h.ended...)
}

// settled removes written outcomes from the in-flight set and reports them.
func (h *handling) settled(batch []*attempt, settled []delivery.Settled) {
	states := make(map[uuid.UUID]delivery.State, len(settled))
	for _, s := range settled {
		states[s.ID] = s.State
	}
	lines := h.forget(batch, states)
	for _, a := range batch {
		if a.startedAt.IsZero() {
			continue // given back or refused before it started: no attempt
		}
		h.observer.Attempted(AttemptStats{
			Handler: a.sub.Name, Verdict: a.outcome.Verdict, State: states[a.id],
			Wait: a.wait, Took: a.took, Attempt: a.claims,
		})
	}
	for _, l := range lines {
		l.log(h.logger)
	}
}

// settledLine is a thinned-out log line about outcomes that came to no success. a
// is an example, more counts the like since the last line, and state is empty for
// an outcome that changed nothing.
type settledLine struct {
	a     *attempt
	state delivery.State
	more  int
}

func (l settledLine) log(logger *slog.Logger) {
	attrs := []any{
		slog.String("handler", l.a.sub.Name), slog.String("delivery_id", l.a.id.String()),
		slog.Int("attempt", l.a.claims), slog.Int("more", l.more),
	}
	if l.state == "" {
		logger.Warn("outcome changed nothing: this process does not hold the delivery any more", attrs...)
		return
	}
	attrs = append(attrs, slog.String("state", string(l.state)), slog.String("code", l.a.outcome.Error))
	logger.Warn("delivery ended without success", attrs...)
}

// forget is settled's part under the lock. It returns what to log.
func (h *handling) forget(batch []*attempt, states map[uuid.UUID]delivery.State) (lines []settledLine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for _, a := range batch {
		h.untrack(a)
		state, written := states[a.id]
		switch {
		case !written && a.ambiguous:
			h.count(CountUnknown, a.sub.Name, 1)
		case !written:
			h.stale++
			h.count(CountStale, a.sub.Name, 1)
			if held, log := h.seldom.allow("stale " + a.sub.Name); log {
				lines = append(lines, settledLine{a, "", held})
			}
		case state.Open() && a.outcome.Delay == 0:
			a.lane.more = true
		case state.Open():
			h.dueAt(now.Add(a.outcome.Delay))
		case state != delivery.Succeeded && state != delivery.Discarded:
			if held, log := h.seldom.allow("ended " + a.sub.Name); log {
				lines = append(lines, settledLine{a, state, held})
			}
		}
	}
	h.space.Broadcast()
	for _, l := range h.order {
		// Outcomes that piled up may have been all that kept it from leasing more.
		h.askForMore(l)
	}
	return lines
}

// untrack removes an attempt from the in-flight set. Called with mu held.
func (h *handling) untrack(a *attempt) {
	a.phase = phaseGone
	if a.tracked {
		delete(h.flight, a.id)
		a.tracked = false
	}
}

// dropOutcome gives an outcome up that the database refuses in every form: the
// lease runs out, and the delivery is attempted again.
func (h *handling) dropOutcome(a *attempt, err error) {
	h.mu.Lock()
	h.untrack(a)
	h.count(CountUnwritten, a.sub.Name, 1)
	h.mu.Unlock()
	h.logger.Error("database refuses an outcome; the delivery is attempted again when its lease ends",
		slog.String("handler", a.sub.Name), slog.String("delivery_id", a.id.String()),
		slog.String("verdict", a.outcome.Verdict.String()), slog.Any("error", err))
}
