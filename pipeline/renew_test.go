package pipeline

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func TestQ5_HandlerOfTenLeasesRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var runs atomic.Int64
		h := does(func(context.Context, event.Envelope) error {
			runs.Add(1)
			<-time.After(10 * time.Minute) // whatever its context says
			return nil
		})
		b := newBench(store, h)
		other := newBench(store, h)
		id := store.add("h", 1)[0]
		b.launch(t)
		synctest.Wait()
		other.launch(t)
		elapse(11 * time.Minute)
		if got := store.row(id); got.state != delivery.Succeeded || got.claims != 1 || runs.Load() != 1 {
			t.Errorf("ran %d times: %+v", runs.Load(), got)
		}
		if got := store.called("renew"); got < 25 || got > 35 {
			t.Errorf("%d renewals of one lease in ten leases, want about 30", got)
		}
	})
}

func TestQ3_RenewalAloneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = func(_ context.Context, op string) error {
			if op == "renew" {
				return errors.New("no route to host")
			}
			return nil
		}
		var ended time.Duration
		var cause error
		h := does(func(ctx context.Context, e event.Envelope) error {
			if e.Attempt > 1 {
				return nil
			}
			start := time.Now()
			<-ctx.Done()
			ended, cause = time.Since(start), context.Cause(ctx)
			<-time.After(time.Minute)
			return nil // in spite of all
		})
		h.Timeout = 10 * time.Minute // longer than the registry would allow
		b := newBench(store, h)
		id := store.add("h", 1)[0]
		b.launch(t)
		elapse(5 * time.Minute)
		if !errors.Is(cause, ErrLeaseLost) || ended >= b.lease || ended < b.lease/2 {
			t.Errorf("the handler was told after %v: %v", ended, cause)
		}
		if got := store.row(id); got.state != delivery.Succeeded {
			t.Errorf("ended as %+v", got)
		}
		if lost := b.obs.count(CountLeaseLost); lost != 1 {
			t.Errorf("%d lost leases counted", lost)
		}
	})
}

func TestQ18_CancelledByAnotherSessionIsNoticedByRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var cause error
		h := does(func(ctx context.Context, _ event.Envelope) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		})
		h.Timeout = 59 * time.Second
		b := newBench(store, h)
		id := store.add("h", 1)[0]
		b.launch(t)
		synctest.Wait()
		store.mu.Lock()
		store.rows[id].state = delivery.Discarded
		store.rows[id].unlease()
		store.mu.Unlock()
		elapse(b.lease/3 + 2*b.tick)
		if !errors.Is(cause, ErrLeaseLost) {
			t.Errorf("cause is %v one renewal interval after the discard", cause)
		}
		if got := store.row(id); got.state != delivery.Discarded || got.attempts != 0 {
			t.Errorf("the discarded delivery changed: %+v", got)
		}
	})
}

func TestRenew_NothingIsSentForYoungLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := does(func(context.Context, event.Envelope) error { <-time.After(25 * time.Second); return nil })
		h.Concurrency = 1000
		b := newBench(store, h)
		store.add("h", 1000)
		b.launch(t)
		elapse(19 * time.Second)
		if got := store.called("renew"); got != 0 {
			t.Errorf("%d renewals before a third of the lease", got)
		}
		elapse(5 * time.Second)
		if got := store.called("renew"); got != 1 {
			t.Errorf("%d statements for 1000 leases, want 1", got)
		}
	})
}

func TestQueuedDeliveryOnAnExpiredLeaseNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var healthy atomic.Bool
		store.before = func(_ context.Context, op string) error {
			if !healthy.Load() && op != "claim" && op != "next" {
				return errors.New("no route to host")
			}
			return nil
		}
		var mu sync.Mutex
		started := map[string]time.Time{}
		h := does(func(_ context.Context, e event.Envelope) error {
			mu.Lock()
			started[e.DeliveryID] = time.Now()
			mu.Unlock()
			<-time.After(50 * time.Second)
			return nil
		})
		h.Concurrency = 1
		b := newBench(store, h)
		b.launch(t)
		synctest.Wait()
		leasedAt := time.Now()
		jobs := store.lease(b.lanes["h"].sub, 3, b.lease)
		b.accept(jobs)
		elapse(3 * time.Minute)
		mu.Lock()
		for _, j := range jobs[1:] {
			if at, ran := started[j.id.String()]; ran && at.Sub(leasedAt) > b.lease-b.lease/10 && at.Sub(leasedAt) < b.lease {
				t.Errorf("started %v after it was leased", at.Sub(leasedAt))
			}
		}
		if len(started) > 2 {
			t.Errorf("%d started", len(started))
		}
		mu.Unlock()
		healthy.Store(true)
		elapse(5 * time.Minute)
		if got := store.states()[delivery.Succeeded]; got != 3 {
			t.Errorf("states after recovery: %v", store.states())
		}
	})
}

func TestSecondClaimOfARunningDeliveryIsPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var running, most atomic.Int64
		h := does(func(context.Context, event.Envelope) error {
			most.Store(max(most.Load(), running.Add(1)))
			<-time.After(90 * time.Second)
			running.Add(-1)
			return nil
		})
		b := newBench(store, h)
		id := store.add("h", 1)[0]
		b.launch(t)
		synctest.Wait()
		// Somebody cleared the lease by hand; this process claims the row again while
		// its first attempt still runs.
		store.mu.Lock()
		store.rows[id].unlease()
		store.rows[id].due = time.Now()
		store.mu.Unlock()
		elapse(5 * time.Minute)
		if most.Load() != 1 {
			t.Errorf("%d attempts of one delivery ran at once in one process", most.Load())
		}
		if got := store.row(id); got.state != delivery.Succeeded {
			t.Errorf("ended as %+v", got)
		}
	})
}

func TestRenew_QueuedDeliveryThatWasTakenIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		ran := map[string]bool{}
		h := does(func(_ context.Context, e event.Envelope) error {
			ran[e.DeliveryID] = true
			<-time.After(25 * time.Second)
			return nil
		})
		h.Concurrency = 1
		b := newBench(store, h)
		b.launch(t)
		synctest.Wait()
		b.mu.Lock()
		b.lanes["h"].pace.mean = 1 // so that the queue is no surplus at first
		b.mu.Unlock()
		jobs := store.lease(b.lanes["h"].sub, 2, b.lease)
		store.mu.Lock()
		store.rows[jobs[1].id].lease(uuid.New(), time.Hour)
		store.mu.Unlock()
		b.accept(jobs)
		elapse(2 * time.Minute)
		if ran[jobs[1].id.String()] || !ran[jobs[0].id.String()] {
			t.Errorf("ran: %v", ran)
		}
		if b.queuedBytes != 0 || len(b.flight) != 0 {
			t.Errorf("%d bytes and %d deliveries are left over", b.queuedBytes, len(b.flight))
		}
	})
}

// A lease whose row is locked is neither held nor lost: the handler runs on while the lease can be trusted,
// and is told when it cannot.
func TestRenew_ALockedLeaseIsJudgedByItsTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		ended := map[string]time.Duration{}
		var mu sync.Mutex
		h := does(func(ctx context.Context, e event.Envelope) error {
			if e.Attempt > 1 {
				return nil
			}
			start := time.Now()
			select {
			case <-ctx.Done():
			case <-time.After(3 * time.Minute):
			}
			mu.Lock()
			defer mu.Unlock()
			ended[e.DeliveryID] = time.Since(start)
			return ctx.Err()
		})
		h.Timeout = 10 * time.Minute // longer than the registry would allow
		h.Concurrency = 2
		b := newBench(store, h)
		ids := store.add("h", 2)
		var free atomic.Bool
		store.locked = func(id uuid.UUID) bool { return id == ids[0] && !free.Load() }
		b.launch(t)
		elapse(4 * time.Minute)
		free.Store(true)
		elapse(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if got := ended[ids[0].String()]; got >= b.lease || got < b.lease/2 {
			t.Errorf("the handler whose lease is locked was told after %v", got)
		}
		if got := ended[ids[1].String()]; got != 3*time.Minute {
			t.Errorf("its neighbour ended after %v", got)
		}
	})
}

// A delivery whose outcome waited for a lock until its lease was over is claimed again once it is free. Until the outcome is written,
// that claim waits too, and is not made again and again.
func TestRenew_ClaimThatOvertakesAnOutcomeBehindALockDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var attempts atomic.Int64
		b := newBench(store, does(func(context.Context, event.Envelope) error {
			attempts.Add(1)
			return errors.New("not yet")
		}))
		id := store.add("h", 1)[0]
		var claimed atomic.Int64
		store.locked = func(uuid.UUID) bool { return claimed.Load() == 0 }
		store.before = func(_ context.Context, op string) error {
			if op == "claim" && store.called("claim") > 200 {
				return errors.New("time has to pass, or this test hangs")
			}
			return nil
		}
		store.after = func(_ context.Context, op string) error {
			// The lock is gone as soon as the row is claimed again: what gives it back is written at once.
			if op == "claim" && store.row(id).claims > 1 {
				claimed.Add(1)
			}
			return nil
		}
		b.launch(t)
		elapse(b.lease + 2*lookEvery)
		if attempts.Load() < 2 || claimed.Load() > 20 {
			t.Errorf("%d attempts, claimed %d times after the first", attempts.Load(), claimed.Load())
		}
	})
}

// A delivery that is claimed again before the answer that its outcome is written is put off for that answer only: nothing of it
// runs here.
func TestRenew_ClaimThatOvertakesItsOwnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var attempts atomic.Int64
		var answers atomic.Bool
		h := does(func(context.Context, event.Envelope) error {
			if attempts.Add(1) == 1 {
				return errors.New("not yet")
			}
			return nil
		})
		h.Retry = RetryPolicy{Base: time.Millisecond, Cap: time.Millisecond}
		b := newBench(store, h)
		id := store.add("h", 1)[0]
		store.after = func(_ context.Context, op string) error {
			switch overtaken := store.row(id).claims == 2; {
			case op == "claim" && overtaken:
				answers.Store(true)
			case op == "settle" && !answers.Load():
				return errAway // it took effect, and the answer is lost
			}
			return nil
		}
		b.launch(t)
		elapse(15 * time.Second)
		if got := store.row(id); attempts.Load() != 2 || got.state != delivery.Succeeded {
			t.Errorf("%d attempts, %+v", attempts.Load(), got)
		}
		if n := b.obs.count(CountGivenBack); n != 1 {
			t.Errorf("given back %d times", n)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.flight) != 0 || len(b.ended) != 0 || b.queuedBytes != 0 {
			t.Errorf("%d deliveries, %d outcomes, %d bytes are left over", len(b.flight), len(b.ended), b.queuedBytes)
		}
	})
}
