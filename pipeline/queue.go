package pipeline

import (
	"context"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// reserve implements slots.
func (h *handling) reserve(handler string, want int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lanes[handler]
	if l == nil {
		return 0
	}
	n := max(min(want, h.roomFor(l)), 0)
	h.hold(l, n)
	return n
}

// release implements slots.
func (h *handling) release(handler string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lanes[handler]; l != nil {
		h.unhold(l, n)
	}
}

// wake implements slots.
func (h *handling) wake(handler string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lanes[handler]; l != nil {
		l.more = true
		signal(h.claimable)
	}
}

// breatheFor bounds how long a fan-out waits for outcomes to be written. Other processes could handle what it creates.
const breatheFor = 500 * time.Millisecond

// breathe implements slots. A database that takes no outcomes is not waited for: what it does take is fanned out
// meanwhile.
func (h *handling) breathe(ctx context.Context) {
	if _, err := h.settles.present(); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, breatheFor)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.space.Broadcast()
	})()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.crowded() && h.state == stateRunning && ctx.Err() == nil {
		h.space.Wait()
	}
}

// crowded says that too many outcomes wait to be written for more to be leased. Called with mu held.
func (h *handling) crowded() bool { return len(h.ended) > maxEnded/2 }

// accept implements slots.
func (h *handling) accept(jobs []job) {
	now := time.Now()
	attempts := make([]*attempt, len(jobs))
	for i := range jobs {
		attempts[i] = &attempt{
			job:      jobs[i],
			lane:     h.lanes[jobs[i].sub.Name],
			queuedAt: now,
			size:     int64(len(jobs[i].ev.Payload)),
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range attempts {
		h.unhold(a.lane, 1)
		h.admit(a)
		h.pump(a.lane, now)
	}
}

// admit puts a leased delivery where it belongs. Called with mu held.
func (h *handling) admit(a *attempt) {
	if h.state == stateClosed {
		// Too late to write anything: the lease runs out, and the delivery is
		// attempted then.
		h.count(CountUnwritten, a.sub.Name, 1)
		return
	}
	if old := h.flight[a.id]; old != nil {
		// This process had lost the lease of an attempt that is still here. Two live
		// attempts are never started; this claim is put off until that one is gone. One that has ended is gone
		// before this is written: its outcome is sent first, unless it waits for a lock that was there a moment ago. Until then it is
		// not attempted again, so that a database that takes no outcomes does not cause an attempt per lease.
		delay := h.lease / 3
		if old.phase == phaseEnded {
			delay = max(time.Until(old.notBefore), 0)
		}
		h.giveBack(a, delay)
		return
	}
	h.flight[a.id] = a
	a.tracked = true
	a.lane.pace.carried(a.size)
	switch reason := h.refusal(a); {
	case reason != "":
		a.outcome = delivery.Outcome{ID: a.id, Token: a.token, Attempt: a.claims, Verdict: delivery.Block, Reason: reason}
		h.end(a)
	case h.state == stateStopping || a.lane.paused != nil:
		h.giveBack(a, 0)
	default:
		a.lane.queue = append(a.lane.queue, a)
		h.queuedBytes += a.size
	}
}

// refusal is why a delivery must not reach its handler, or "". Fan-out refuses
// the same events; rows that another product's fan-out made come here
// unchecked.
func (h *handling) refusal(a *attempt) string {
	switch {
	case a.ev.Payload == nil:
		h.count(CountNullPayload, a.sub.Name, 1)
		return delivery.ReasonNullPayload
	case len(a.ev.Payload) > h.maxPayload:
		h.count(CountOversize, a.sub.Name, 1)
		return delivery.ReasonOversize
	}
	return ""
}

// roomFor is how many deliveries a lane may lease now. Called with mu held.
func (h *handling) roomFor(l *lane) int {
	if h.state != stateRunning || l.paused != nil || h.crowded() {
		return 0
	}
	return l.room(maxQueuedBytes - h.queuedBytes - h.reservedBytes)
}

// hold reserves n slots. Called with mu held.
func (h *handling) hold(l *lane, n int) {
	guess := int64(n) * l.pace.bytes()
	l.reserved += n
	l.reservedBytes += guess
	h.reservedBytes += guess
}

// unhold gives up to n reserved slots back. Called with mu held.
func (h *handling) unhold(l *lane, n int) {
	n = min(n, l.reserved)
	if n <= 0 {
		return
	}
	guess := l.reservedBytes / int64(l.reserved) * int64(n)
	if n == l.reserved {
		guess = l.reservedBytes
	}
	l.reserved -= n
	l.reservedBytes -= guess
	h.reservedBytes -= guess
}

// giveBackTail gives back the n youngest queued deliveries. Called with mu held.
func (h *handling) giveBackTail(l *lane, n int) {
	keep := len(l.queue) - n
	for i, a := range l.queue[keep:] {
		l.queue[keep+i] = nil
		h.queuedBytes -= a.size
		h.giveBack(a, 0)
	}
	l.queue = l.queue[:keep]
}

// giveBack ends an attempt that never started: due again after delay, its claim
// not counted. Called with mu held.
func (h *handling) giveBack(a *attempt, delay time.Duration) {
	a.outcome = delivery.Outcome{ID: a.id, Token: a.token, Attempt: a.claims, Verdict: delivery.GiveBack, Delay: delay}
	h.count(CountGivenBack, a.sub.Name, 1)
	h.end(a)
}

// end hands an attempt with an outcome to the writer. Called with mu held.
func (h *handling) end(a *attempt) {
	a.phase = phaseEnded
	// The payload is not needed any more, the outcome may have to wait.
	a.ev = event.Event{}
	h.ended = append(h.ended, a)
	signal(h.writable)
}
