package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func TestQ20_StopWhileHandlersFinishLosesNoOutcome(t *testing.T) {
	const handlers = 500
	runs := 1000
	if testing.Short() {
		runs = 50
	}
	for range runs {
		var started sync.WaitGroup
		started.Add(handlers)
		gate := make(chan struct{})
		store := newFakeStore()
		h := does(func(context.Context, event.Envelope) error {
			started.Done()
			<-gate
			return nil
		})
		h.Concurrency = handlers
		b := newBench(store, h)
		b.accept(store.lease(b.lanes["h"].sub, handlers, b.lease))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- b.run(ctx) }()
		started.Wait()
		go cancel()
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := store.states()[delivery.Succeeded]; got != handlers {
			t.Fatalf("%d of %d outcomes were written: %v", got, handlers, store.states())
		}
	}
}

func TestQ23_SoftStopDuringTheLastAttemptGivesItBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := does(func(ctx context.Context, _ event.Envelope) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, ErrStopping) {
				t.Errorf("cause is %v", cause)
			}
			return fmt.Errorf("call the shop: %w", ctx.Err())
		})
		h.Timeout = 50 * time.Second
		h.Retry = RetryVernac()
		b := newBench(store, h)
		id := store.add("h", 1)[0]
		store.rows[id].claims, store.rows[id].attempts = 4, 4
		b.launch(t)
		synctest.Wait()
		before := time.Now()
		if err := b.halt(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took != b.shutdownTimeout {
			t.Errorf("handlers were given %v", took)
		}
		got := store.row(id)
		if got.claims != 4 || got.attempts != 4 || got.state != delivery.Pending || got.due.After(time.Now()) || got.code != "" {
			t.Errorf("after the stop: %+v", got)
		}
	})
}

func TestStop_GivesBackAtOnceWhatHasNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		gate := make(chan struct{})
		h := does(func(context.Context, event.Envelope) error { <-gate; return nil })
		h.Concurrency = 2
		b := newBench(store, h)
		b.launch(t)
		synctest.Wait()
		if got := b.fanOut("h", 100); got != 4 {
			t.Fatalf("leased %d for 2 workers of unknown pace", got)
		}
		synctest.Wait()
		b.stop()
		synctest.Wait()
		due := 0
		store.mu.Lock()
		for _, r := range store.rows {
			if r.claims == 0 && !r.due.After(time.Now()) {
				due++
			}
		}
		store.mu.Unlock()
		if due != 2 {
			t.Errorf("%d deliveries are due again while handlers still run, want 2", due)
		}
		if got := b.reserve("h", 1); got != 0 {
			t.Errorf("reserved %d while stopping", got)
		}
		late := store.lease(b.lanes["h"].sub, 1, b.lease)
		b.accept(late)
		synctest.Wait()
		if got := store.row(late[0].id); got.claims != 0 || got.due.After(time.Now()) {
			t.Errorf("a delivery that came after the stop began: %+v", got)
		}
		close(gate)
		synctest.Wait()
		if err := b.halt(); err != nil {
			t.Error(err)
		}
		if got := store.states()[delivery.Succeeded]; got != 2 {
			t.Errorf("%d running attempts ended in success, want 2", got)
		}
	})
}

func TestStop_LeavesAHandlerBehindThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		gate := make(chan struct{})
		b := newBench(store, does(func(context.Context, event.Envelope) error { <-gate; return nil }))
		id := store.add("h", 1)[0]
		b.launch(t)
		synctest.Wait()
		before := time.Now()
		err := b.halt()
		if err == nil || !strings.Contains(err.Error(), "1 handlers ignored") {
			t.Errorf("stop reported %v", err)
		}
		if took := time.Since(before); took != b.shutdownTimeout+defaultAbandonAfter {
			t.Errorf("the stop took %v", took)
		}
		// It does run: its lease must protect it as long as it lasts.
		if got := store.row(id); !got.until.After(time.Now()) {
			t.Errorf("the lease of a running handler was given up: %+v", got)
		}
		close(gate)
	})
}

func TestStop_GivesUpOnADatabaseThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		down := errors.New("connection refused")
		store.before = func(_ context.Context, op string) error {
			if op == "settle" {
				return down
			}
			return nil
		}
		b := newBench(store, does(func(context.Context, event.Envelope) error { return nil }))
		store.add("h", 10)
		b.launch(t)
		synctest.Wait()
		before := time.Now()
		err := b.halt()
		if !errors.Is(err, down) || !strings.Contains(err.Error(), "10 outcomes") {
			t.Errorf("stop reported %v", err)
		}
		if took := time.Since(before); took > defaultFlushFor {
			t.Errorf("the stop took %v", took)
		}
	})
}

func TestStop_CutsOffAClaimThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = func(ctx context.Context, op string) error {
			if op == "claim" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		b := newBench(store, does(func(context.Context, event.Envelope) error { return nil }))
		b.launch(t)
		synctest.Wait()
		before := time.Now()
		if err := b.halt(); err != nil {
			t.Error(err)
		}
		if took := time.Since(before); took > defaultAbandonAfter {
			t.Errorf("the stop took %v", took)
		}
	})
}

func TestPause_GivesBackAndResumeClaimsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		gate := make(chan struct{})
		h := does(func(context.Context, event.Envelope) error { <-gate; return nil })
		h.Concurrency = 1
		b := newBench(store, h)
		ids := store.add("h", 5)
		b.launch(t)
		synctest.Wait()
		b.setPaused(map[string]delivery.Pause{"h": {By: "eve", Reason: "shop is down"}})
		synctest.Wait()
		leased := 0
		for _, id := range ids {
			if r := store.row(id); r.until.After(time.Now()) {
				leased++
			}
		}
		if leased != 1 {
			t.Errorf("%d leased while paused, want the one that runs", leased)
		}
		if got := b.health().handlers[0]; got.Running != 1 || got.Paused == nil || got.Paused.By != "eve" {
			t.Errorf("health: %+v", got)
		}
		claims := store.called("claim")
		close(gate)
		elapse(time.Minute)
		if got := store.called("claim"); got != claims || b.reserve("h", 1) != 0 {
			t.Errorf("%d claims while paused", got-claims)
		}
		b.setPaused(nil)
		synctest.Wait()
		if got := store.states()[delivery.Succeeded]; got != 5 {
			t.Errorf("%d succeeded right after the resume, want 5", got)
		}
	})
}

func TestQ21_AcksThatTimeOutSlowHandlersAndLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deliveries = 16_000
		store := newFakeStore()
		healthyAt := time.Now().Add(30 * time.Second)
		store.before = func(ctx context.Context, op string) error {
			if op == "settle" && time.Now().Before(healthyAt) {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		var ran atomic.Int64
		b := newBench(store, does(func(context.Context, event.Envelope) error { ran.Add(1); return nil }))
		b.launch(t)
		synctest.Wait()
		for created := 0; created < deliveries; {
			if got := b.fanOut("h", 2000); got > 0 {
				created += got
			} else {
				created += len(store.add("h", 2000))
				b.wake("h")
			}
			synctest.Wait()
		}
		settles := store.called("settle")
		elapse(29 * time.Second)
		if got := ran.Load(); got > maxEnded+defaultConcurrency {
			t.Errorf("%d deliveries ran although nothing could be acknowledged", got)
		}
		b.mu.Lock()
		waiting := len(b.ended)
		b.mu.Unlock()
		if waiting > maxEnded+defaultConcurrency+maxBatch {
			t.Errorf("%d outcomes wait in memory", waiting)
		}
		if got := store.called("settle") - settles; got > 10 {
			t.Errorf("%d statements in 29 s of time-outs: a spin", got)
		}
		elapse(time.Minute)
		states := store.states()
		if states[delivery.Succeeded] != len(store.rows) || b.obs.count(CountStale) != 0 {
			t.Errorf("after recovery: %v, %d stale", states, b.obs.count(CountStale))
		}
		if got := b.book.lines("recovered"); got != 1 {
			t.Errorf("recovery was logged %d times", got)
		}
	})
}

// A fan-out that is faster than the outcomes are written waits for them, a moment at most, and not at all for a
// database that takes none.
func TestBreathe(t *testing.T) {
	const more = maxEnded/2 + maxBatch + 1 // than may wait, and one statement of them
	crowd := func(t *testing.T, settle func(ctx context.Context) error) *bench {
		t.Helper()
		store := newFakeStore()
		store.before = func(ctx context.Context, op string) error {
			if op == "settle" {
				return settle(ctx)
			}
			return nil
		}
		b := newBench(store, does(succeed))
		b.launch(t)
		synctest.Wait()
		b.accept(b.store.lease(b.lanes["h"].sub, more, b.lease))
		synctest.Wait()
		return b
	}
	breath := func(b *bench) time.Duration {
		begun := time.Now()
		b.breathe(context.Background())
		return time.Since(begun)
	}
	slow := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { sleep(ctx, d); return ctx.Err() }
	}
	synctest.Test(t, func(t *testing.T) {
		b := crowd(t, slow(100*time.Millisecond))
		if got := breath(b); got == 0 || got > 200*time.Millisecond {
			t.Errorf("waited %s for a statement that takes 100 ms", got)
		}
		if got := b.reserve("h", 10); got != 10 {
			t.Errorf("%d slots are free after the wait", got)
		}
		b.release("h", 10)
	})
	synctest.Test(t, func(t *testing.T) {
		b := crowd(t, slow(3*time.Second))
		if got := breath(b); got != breatheFor {
			t.Errorf("waited %s", got)
		}
		elapse(time.Minute)
	})
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		b := crowd(t, func(context.Context) error {
			if back.Load() {
				return nil
			}
			return errors.New("away")
		})
		if got := breath(b); got != 0 {
			t.Errorf("waited %s for a database that is away", got)
		}
		back.Store(true)
		elapse(time.Minute)
	})
}

func TestQ19_EveryLoopComesBackFromABlackHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var hole atomic.Bool
		store.before = func(ctx context.Context, _ string) error {
			if hole.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		h := does(func(context.Context, event.Envelope) error { return nil })
		b := newBench(store, h)
		b.launch(t)
		synctest.Wait()
		hole.Store(true)
		b.fanOut("h", 10)
		store.add("h", 10)
		b.wake("h")
		elapse(45 * time.Second)
		for _, op := range []string{"settle", "claim"} {
			if store.called(op) < 3 {
				t.Errorf("%s was tried %d times in 45 s", op, store.called(op))
			}
		}
		if since := b.health().since; since.IsZero() {
			t.Error("health does not tell")
		}
		hole.Store(false)
		elapse(30 * time.Second)
		if got := store.states(); got[delivery.Succeeded] != 20 {
			t.Errorf("after the hole: %v", got)
		}
		if health := b.health(); health.err != nil {
			t.Errorf("health still tells of %v", health.err)
		}
	})
}
