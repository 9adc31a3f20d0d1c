package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// pump starts workers for what is queued, up to the handler's concurrency. A
// worker lives as long as its lane's queue is not empty: an idle handler has no
// goroutine, and a busy one passes deliveries on without a channel. Called with mu held.
func (h *handling) pump(l *lane, now time.Time) {
	for h.state == stateRunning && l.workers < l.sub.Concurrency && len(l.queue) > 0 {
		l.workers++
		a := h.next(l, now)
		if a == nil {
			return
		}
		h.workers.Go(func() { h.work(a) })
	}
}

// next starts the lane's next attempt in the calling worker's place, or returns
// nil and retires the worker. Called with mu held.
func (h *handling) next(l *lane, now time.Time) *attempt {
	for h.state == stateRunning {
		a := l.pop()
		if a == nil {
			break
		}
		h.queuedBytes -= a.size
		if !now.Before(a.trustedUntil(h.lease)) {
			// Never started late: another process may hold it by now.
			h.count(CountLeaseLost, l.sub.Name, 1)
			h.giveBack(a, 0)
			continue
		}
		h.start(a, now)
		return a
	}
	l.workers--
	h.askForMore(l)
	return nil
}

// start makes an attempt a running one. Called with mu held.
func (h *handling) start(a *attempt, now time.Time) {
	a.phase = phaseRunning
	a.startedAt = now
	a.ctx, a.cancel = context.WithCancelCause(h.base)
	h.active++
	a.lane.progress = now
	h.askForMore(a.lane)
}

// askForMore wakes the claim loop when the lane has room for what is known to
// wait in the database. Called with mu held.
func (h *handling) askForMore(l *lane) {
	if l.more && l.worthClaiming(h.roomFor(l)) {
		signal(h.claimable)
	}
}

// work runs attempts until the lane has none left.
func (h *handling) work(a *attempt) {
	done := false
	defer func() {
		if done {
			return
		}
		// Only runtime.Goexit leads here: it ends this goroutine whatever we do, so the
		// lane's next attempt gets a new one.
		h.judgeAttempt(a, goexitError{}, context.Cause(a.ctx))
		if next := h.finish(a); next != nil {
			h.workers.Go(func() { h.work(next) })
		}
	}()
	for a != nil {
		h.attempt(a)
		a = h.finish(a)
	}
	done = true
}

// attempt calls the handler once and judges what came of it.
func (h *handling) attempt(a *attempt) {
	deadline := a.startedAt.Add(a.sub.Timeout)
	ctx, cancel := context.WithDeadline(a.ctx, deadline)
	defer cancel()
	since := a.commitTime
	if since.IsZero() {
		since = a.ev.Date
	}
	// The producer's clock may be ahead of ours.
	a.wait = max(a.startedAt.Sub(since), 0)
	err := invoke(ctx, a.sub.Handler.Handler, event.Envelope{
		Event:      a.ev,
		Handler:    a.sub.Name,
		DeliveryID: a.id.String(),
		// By the stored name: a rename must not change the key of older rows.
		IdempotencyKey: event.IdempotencyKey(a.ev.ID, a.stored),
		Attempt:        a.claims,
		Deadline:       deadline,
	})
	h.judgeAttempt(a, err, context.Cause(ctx))
}

func (h *handling) judgeAttempt(a *attempt, err, cause error) {
	a.took = max(time.Since(a.startedAt), 0)
	a.outcome = h.judge.outcome(&a.job, err, cause)
	a.outcome.Took = a.took
	if a.outcome.Error == codePanic || a.outcome.Error == codeGoexit {
		h.reportPanic(a, err)
	}
}

// invoke calls a handler and turns a panic into an error.
func invoke(ctx context.Context, handler event.Handler, e event.Envelope) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return handler.Handle(ctx, e)
}

// reportPanic logs where a handler panicked; the value only when messages may
// be stored, because it may carry personal data.
func (h *handling) reportPanic(a *attempt, err error) {
	h.mu.Lock()
	h.count(CountPanic, a.sub.Name, 1)
	h.mu.Unlock()
	held, log := h.seldom.allow("panic " + a.sub.Name)
	if !log {
		return
	}
	attrs := []any{
		slog.String("handler", a.sub.Name), slog.String("event_id", a.ev.ID), slog.String("delivery_id", a.id.String()),
		slog.String("code", a.outcome.Error), slog.Int("more", held),
	}
	if p := (*panicError)(nil); errors.As(err, &p) {
		attrs = append(attrs, slog.String("type", fmt.Sprintf("%T", p.value)), slog.String("stack", string(p.stack)))
		if h.storeErrorMessages {
			attrs = append(attrs, slog.String("value", clip(redact(fmt.Sprint(p.value)), maxMessage)))
		}
	}
	h.logger.Error("handler panicked; counted as a failed attempt", attrs...)
}

// finish hands the outcome to the writer and returns the worker's next attempt,
// nil when it may go. When too many outcomes wait, so does the worker: a database
// that cannot acknowledge slows handlers down and loses nothing (queues 21).
func (h *handling) finish(a *attempt) *attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := a.lane
	now := time.Now()
	l.pace.ended(a.took)
	l.progress = now
	h.active--
	if h.state == stateStopping && h.active == 0 {
		close(h.idle)
	}
	if h.state == stateClosed {
		// Left behind by the stop; nobody writes any more.
		h.count(CountUnwritten, l.sub.Name, 1)
		return nil
	}
	h.end(a)
	for len(h.ended) > maxEnded && h.state != stateClosed {
		h.space.Wait()
		now = time.Now()
	}
	return h.next(l, now)
}
