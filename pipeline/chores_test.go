package pipeline

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A step that waits for a lock, or is too long for its time, holds up neither the start nor anything that runs.
func TestChoresHoldNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.store.gate = func(ctx context.Context, op string, _ []string) error {
			if op == "unblock" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		e.store.unblocked = 3
		e.launch(t)
		synctest.Wait()
		e.commit(1)
		elapse(15 * time.Second)
		if len(e.got) != 1 {
			t.Errorf("%d events handled", len(e.got))
		}
		// What was freed before it failed is told nevertheless.
		if n := e.obs.count(CountUnblocked); n != 3 {
			t.Errorf("%d deliveries counted as freed", n)
		}
		beats := e.store.noted("sync")
		elapse(10 * time.Minute)
		if ready, why := e.Health().Ready(); !ready || len(why) != 0 {
			t.Errorf("ready %t, %v", ready, why)
		}
		if n := e.store.noted("sync") - beats; n < 50 {
			t.Errorf("%d heartbeats in ten minutes", n)
		}
		for _, op := range []string{"unblock", "orphans", "shorten"} {
			if e.store.noted(op) == 0 {
				t.Errorf("no %s", op)
			}
		}
		if n := e.book.lines("freeing deliveries that had no handler failed"); n != 1 {
			t.Errorf("log:\n%s", e.book)
		}
		e.halt(t)
	})
}

// After an outage the handlers of this process look as if nobody served them, until a heartbeat says otherwise.
func TestChoresWaitForAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		var away atomic.Bool
		e.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "sync" && away.Load() {
				return errAway
			}
			return nil
		}
		e.launch(t)
		elapse(5 * time.Minute)
		away.Store(true)
		done := e.store.noted("orphans")
		if done == 0 {
			t.Error("nothing was looked for")
		}
		elapse(10 * time.Minute)
		if n := e.store.noted("orphans"); n != done {
			t.Errorf("looked for orphans %d times without a heartbeat", n-done)
		}
		away.Store(false)
		elapse(2 * time.Minute)
		if n := e.store.noted("orphans"); n == done {
			t.Error("not looked for again")
		}
		e.halt(t)
	})
}
