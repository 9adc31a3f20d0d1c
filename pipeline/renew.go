package pipeline

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

const (
	// maxRenewals bounds the leases of one renewal statement.
	maxRenewals = 5000
	// stuckAfter is how long a handler may run on after its context ended before it is
	// reported as stuck. Its slot stays taken and its lease renewed: it does run, and a
	// second attempt beside it is what leases are there to prevent.
	stuckAfter = 10 * time.Second
)

// renew extends the leases that are older than a third of their length, whether
// the delivery is queued, running or waiting to be written. Nothing is sent when
// there is none.
func (w *writer) renew(ctx context.Context) {
	if time.Now().Before(w.renewAfter) {
		return
	}
	aging := w.h.aging(time.Now())
	if len(aging) == 0 {
		// What could not be renewed has ended some other way.
		w.h.renewals.recovered()
		return
	}
	for some := range slices.Chunk(aging, maxRenewals) {
		if !w.renewSome(ctx, some) {
			w.renewAfter = time.Now().Add(w.h.tick)
			return
		}
	}
}

func (w *writer) renewSome(ctx context.Context, attempts []*attempt) bool {
	leases := make([]delivery.LeaseRef, len(attempts))
	for i, a := range attempts {
		leases[i] = delivery.LeaseRef{ID: a.id, Token: a.token}
	}
	ctx, cancel := context.WithTimeout(ctx, w.h.statement)
	defer cancel()
	from := time.Now()
	renewal, err := w.h.store.Renew(ctx, leases, w.h.lease)
	if err != nil {
		w.h.observer.Count(CountRenewError, "", 1)
		w.h.renewals.failed(err)
		return false
	}
	w.h.renewals.recovered()
	w.h.renewed(attempts, renewal, from)
	return true
}

// aging returns the attempts whose leases want renewal.
func (h *handling) aging(now time.Time) []*attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	var aging []*attempt
	for _, a := range h.flight {
		if !a.gone && now.Sub(a.leasedAt) >= h.lease/3 {
			aging = append(aging, a)
		}
	}
	return aging
}

// renewed notes which leases are held since from. An attempt whose lease is not
// held is told so, or never started. Of a row that another session has locked nothing is known: it is
// asked for again at the next tick, and trusted no longer than it was.
func (h *handling) renewed(attempts []*attempt, renewal delivery.Renewal, from time.Time) {
	holds := make(map[uuid.UUID]bool, len(renewal.Held))
	for _, id := range renewal.Held {
		holds[id] = true
	}
	unknown := make(map[uuid.UUID]bool, len(renewal.Locked))
	for _, id := range renewal.Locked {
		unknown[id] = true
	}
	h.mu.Lock()
	var cancels []context.CancelCauseFunc
	for _, a := range attempts {
		if holds[a.id] {
			a.leasedAt = from
			continue
		}
		if unknown[a.id] {
			continue
		}
		a.gone = true
		switch a.phase {
		case phaseQueued:
			h.count(CountLeaseLost, a.sub.Name, 1)
			h.unqueue(a)
			h.untrack(a)
		case phaseRunning:
			cancels = h.lose(a, cancels)
		}
	}
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel(ErrLeaseLost)
	}
}

// lose notes that a running attempt has lost its lease and collects the cancel
// function of its context. Called with mu held.
func (h *handling) lose(a *attempt, cancels []context.CancelCauseFunc) []context.CancelCauseFunc {
	if a.lost {
		return cancels
	}
	a.lost = true
	h.count(CountLeaseLost, a.sub.Name, 1)
	return append(cancels, a.cancel)
}

// unqueue takes an attempt out of the middle of its queue. Called with mu held.
func (h *handling) unqueue(a *attempt) {
	a.lane.queue = slices.DeleteFunc(a.lane.queue, func(q *attempt) bool { return q == a })
	h.queuedBytes -= a.size
}

// watch looks at what is in flight on every tick, in memory only, so that no
// slow statement delays it. It ends when the stop is complete.
func (h *handling) watch() {
	tick := time.NewTicker(h.tick)
	defer tick.Stop()
	for {
		select {
		case <-h.closing:
			return
		case <-tick.C:
			h.inspect(time.Now())
			h.reportTally()
		}
	}
}

// inspect ends what runs on a lease that cannot be trusted any more, reports
// handlers that are stuck, and gives back what slow handlers hoard.
func (h *handling) inspect(now time.Time) {
	h.mu.Lock()
	var cancels []context.CancelCauseFunc
	var stuck []*attempt
	for _, a := range h.flight {
		if a.phase != phaseRunning {
			continue
		}
		if !now.Before(a.trustedUntil(h.lease)) {
			cancels = h.lose(a, cancels)
		}
		if !a.stuck && now.Sub(a.startedAt) >= a.sub.Timeout+stuckAfter {
			a.stuck = true
			h.count(CountStuck, a.sub.Name, 1)
			stuck = append(stuck, a)
		}
	}
	for _, l := range h.order {
		h.thinOut(l, now)
	}
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel(ErrLeaseLost)
	}
	for _, a := range stuck {
		h.logger.Error("handler ignores the end of its context; its slot stays taken until it returns",
			slog.String("handler", a.sub.Name), slog.String("delivery_id", a.id.String()), slog.Duration("timeout", a.sub.Timeout))
	}
}

// thinOut gives back what the lane will not start soon, or may not start any
// more. Called with mu held.
func (h *handling) thinOut(l *lane, now time.Time) {
	distrusted := func(a *attempt) bool { return !now.Before(a.trustedUntil(h.lease)) }
	if slices.ContainsFunc(l.queue, distrusted) {
		kept := l.queue[:0:0]
		for _, a := range l.queue {
			if !distrusted(a) {
				kept = append(kept, a)
				continue
			}
			h.queuedBytes -= a.size
			h.count(CountLeaseLost, l.sub.Name, 1)
			h.giveBack(a, 0)
		}
		l.queue = kept
	}
	// While outcomes pile up, workers wait for the database and not for handlers.
	if len(h.ended) > maxEnded/2 || l.workers < l.sub.Concurrency {
		return
	}
	l.pace.stalled(now.Sub(l.progress))
	h.giveBackTail(l, l.surplus(now))
}
