package pipeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func succeed(context.Context, event.Envelope) error { return nil }

func TestClaim_IdleProcessAsksOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		b.launch(t)
		elapse(10 * time.Second)
		claims, looks := store.called("claim"), store.called("next")
		elapse(time.Minute)
		if got := store.called("claim") - claims; got != 0 {
			t.Errorf("%d claims in an idle minute", got)
		}
		if got := store.called("next") - looks; got < 50 || got > 70 {
			t.Errorf("%d looks in an idle minute", got)
		}
		if got := store.called("renew") + store.called("settle"); got != 0 {
			t.Errorf("%d writes without any delivery", got)
		}
	})
}

func TestClaim_NeverSpinsOnWhatItCannotHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := does(succeed)
		h.Aliases = []string{"old"}
		b := newBench(store, h)
		// Due, but locked by somebody: NextDue sees it, Claim skips it.
		b.store.add("old", 1)
		b.lanes["h"].sub.names = []string{"h", "old"}
		locked := lockedStore{fakeStore: store, names: []string{"h"}}
		b.handlingConfig.store = locked
		b.launch(t)
		elapse(time.Minute)
		if got := store.called("claim") + store.called("next"); got > 150 {
			t.Errorf("%d statements in a minute", got)
		}
		if got := store.called("claim"); got < 30 {
			t.Errorf("only %d claims in a minute: it should keep trying", got)
		}
	})
}

// lockedStore claims only under some names, as if other rows were locked.
type lockedStore struct {
	*fakeStore
	names []string
}

func (s lockedStore) Claim(ctx context.Context, lease delivery.Lease, claims []delivery.Claim) (delivery.ClaimResult, error) {
	for i := range claims {
		claims[i].Names = s.names
	}
	return s.fakeStore.Claim(ctx, lease, claims)
}

func TestClaim_WakesAtTheNextDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var at []time.Time
		b := newBench(store, does(func(context.Context, event.Envelope) error { at = append(at, time.Now()); return nil }))
		b.launch(t)
		elapse(10 * time.Second)
		// Another process put it off; nobody wakes this one.
		due := time.Now().Add(3300 * time.Millisecond)
		id := store.add("h", 1)[0]
		store.mu.Lock()
		store.rows[id].due = due
		store.mu.Unlock()
		elapse(10 * time.Second)
		if len(at) != 1 || at[0].Before(due) || at[0].Sub(due) > 2*lookSoonest {
			t.Errorf("ran at %v, due at %v", at, due)
		}
	})
}

func TestClaim_FullResultIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		store.add("h", 6000)
		b.launch(t)
		before := time.Now()
		synctest.Wait()
		if got := store.states()[delivery.Succeeded]; got != 6000 || !time.Now().Equal(before) {
			t.Errorf("%d succeeded without time passing", got)
		}
		if got := store.called("claim"); got > 6000/maxClaim+20 {
			t.Errorf("%d claims for 6,000 deliveries", got)
		}
	})
}

func TestClaim_WakeFindsWhatFanOutLeftUnleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		b.launch(t)
		elapse(10*time.Second + 500*time.Microsecond)
		before := time.Now()
		store.add("h", 1)
		b.wake("h")
		b.wake("nobody")
		synctest.Wait()
		if got := store.states()[delivery.Succeeded]; got != 1 || !time.Now().Equal(before) {
			t.Errorf("%d succeeded without time passing", got)
		}
	})
}

// A fan-out wakes the claim loop after its deliveries are in the table, so another claim may have taken them by then. What
// comes next does not wait for that.
func TestClaim_AWakeThatFindsNothingDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		b.launch(t)
		elapse(10*time.Second + 500*time.Microsecond)
		before, claims := time.Now(), store.called("claim")
		const wakes = 10
		for range wakes {
			b.wake("h")
			synctest.Wait()
		}
		store.add("h", 1)
		b.wake("h")
		synctest.Wait()
		if got := store.states()[delivery.Succeeded]; got != 1 || !time.Now().Equal(before) {
			t.Errorf("%d succeeded without time passing", got)
		}
		if got := store.called("claim") - claims; got != wakes+1 {
			t.Errorf("%d claims for %d wakes", got, wakes+1)
		}
	})
}

func TestC64_C65_A101_ClaimEndsWhatIsTooOldOrUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := does(succeed)
		h.Retry = RetryPolicy{MaxAttempts: 3, Window: time.Hour}
		b := newBench(store, h)
		old, used, fine := store.add("h", 40)[0], store.add("h", 1)[0], store.add("h", 1)[0]
		for _, r := range store.rows {
			r.ev.Date = time.Now().Add(-2 * time.Hour)
		}
		store.rows[used].ev.Date, store.rows[fine].ev.Date = time.Now(), time.Now()
		store.rows[used].claims = 3
		b.launch(t)
		elapse(2 * time.Second)
		if got := store.row(old); got.state != delivery.Expired || got.attempts != 0 {
			t.Errorf("too old: %+v", got)
		}
		if got := store.row(used); got.state != delivery.Dead || got.claims != 3 {
			t.Errorf("used up: %+v", got)
		}
		if got := store.row(fine); got.state != delivery.Succeeded {
			t.Errorf("behind a claim full of ended ones: %+v", got)
		}
		if e, d := b.obs.count(CountExpiredUnattempted), b.obs.count(CountDeadUnattempted); e != 40 || d != 1 {
			t.Errorf("counted %d expired and %d dead", e, d)
		}
	})
}

func TestClaim_FailuresAreLoggedOnceAndPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		healthyAt := time.Now().Add(time.Minute)
		store.before = func(_ context.Context, op string) error {
			if op == "claim" && time.Now().Before(healthyAt) {
				return errors.New("too many connections")
			}
			return nil
		}
		b := newBench(store, does(succeed))
		store.add("h", 10)
		b.launch(t)
		for range 550 {
			elapse(100 * time.Millisecond)
			b.wake("h")
		}
		if got := store.called("claim"); got < 10 || got > 30 {
			t.Errorf("%d claims in 55 s of failure and 550 wake-ups", got)
		}
		elapse(10 * time.Second)
		if got := store.states()[delivery.Succeeded]; got != 10 {
			t.Errorf("%d succeeded after recovery", got)
		}
		if failed, recovered := b.book.lines("claiming deliveries failed"), b.book.lines("claiming deliveries recovered"); failed != 1 || recovered != 1 {
			t.Errorf("%d failures and %d recoveries logged:\n%s", failed, recovered, b.book)
		}
	})
}

func TestPrefetch_FastHandlersLeaseWholeBatchesAndSlowOnesHoardLittle(t *testing.T) {
	for _, tt := range []struct {
		name     string
		takes    time.Duration
		min, max int
	}{
		{"no-op", 0, 2000, 2000},
		{"20 ms", 20 * time.Millisecond, 100, 216},
		{"1 s", time.Second, 16, 20},
		{"20 s", 20 * time.Second, 16, 16},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				b := newBench(store, does(func(context.Context, event.Envelope) error { <-time.After(tt.takes); return nil }))
				b.launch(t)
				synctest.Wait()
				b.fanOut("h", 64)
				elapse(5 * time.Minute)
				if got := b.reserve("h", 2000); got < tt.min || got > tt.max {
					t.Errorf("an idle process leases %d of 2000, want %d to %d", got, tt.min, tt.max)
				}
			})
		})
	}
}

func TestPrefetch_HandlerThatBecomesSlowGivesItsHoardBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		takes := time.Duration(0)
		b := newBench(store, does(func(context.Context, event.Envelope) error { <-time.After(takes); return nil }))
		b.launch(t)
		synctest.Wait()
		b.fanOut("h", 64)
		elapse(time.Second)
		takes = 20 * time.Second
		if got := b.fanOut("h", 2000); got != 2000 {
			t.Fatalf("leased %d", got)
		}
		elapse(5 * time.Second)
		free := 0
		for id := range store.rows {
			if r := store.row(id); r.state == delivery.Pending && r.claims == 0 && !r.due.After(time.Now()) {
				free++
			}
		}
		if free < 2000-16-16 {
			t.Errorf("%d of 2000 are free for other processes after 5 s", free)
		}
		if got := store.called("claim") + store.called("settle"); got > 50 {
			t.Errorf("%d statements: it claims what it gives back", got)
		}
	})
}

func TestReserve_BoundsAndUnknownNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(newFakeStore(), does(succeed))
		if got := b.reserve("h", 5); got != 0 {
			t.Errorf("reserved %d before run", got)
		}
		b.launch(t)
		synctest.Wait()
		first, second := b.reserve("h", 20), b.reserve("h", 20)
		if first != 20 || second != 12 || b.reserve("h", 1) != 0 {
			t.Errorf("reserved %d and %d of 32", first, second)
		}
		b.release("h", 32)
		b.release("h", 32)
		b.release("nobody", 1)
		if got := b.reserve("h", 100); got != 32 {
			t.Errorf("reserved %d after the release", got)
		}
		if got := b.reserve("nobody", 1); got != 0 {
			t.Errorf("reserved %d for nobody", got)
		}
		if got := b.reserve("h", -1); got != 0 {
			t.Errorf("reserved %d for -1", got)
		}
	})
}

// When there is nobody to claim for any more, nothing fails.
func TestClaim_TroubleEndsWithTheLastHandlerPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = func(_ context.Context, op string) error {
			if op == "claim" {
				return errAway
			}
			return nil
		}
		b := newBench(store, does(succeed))
		store.add("h", 1)
		b.launch(t)
		elapse(10 * time.Second)
		if b.health().err == nil {
			t.Error("no claim failed")
		}
		b.setPaused(map[string]delivery.Pause{"h": {}})
		elapse(10 * time.Second)
		if err := b.health().err; err != nil {
			t.Errorf("paused, and still failing: %v", err)
		}
	})
}
