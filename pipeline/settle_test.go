package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func TestQ2_StaleBatchedAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		gate := make(chan struct{})
		h := does(func(context.Context, event.Envelope) error { <-gate; return nil })
		b := newBench(store, h)
		b.launch(t)
		synctest.Wait()
		jobs := store.lease(b.lanes["h"].sub, 11, b.lease)
		b.reserve("h", 11)
		b.accept(jobs)
		synctest.Wait()
		// Worker 2 takes one of them over.
		stolen, token := jobs[4].id, uuid.New()
		store.mu.Lock()
		store.rows[stolen].lease(token, b.lease)
		store.mu.Unlock()
		settles := store.called("settle")
		b.mu.Lock() // so that the outcomes come together
		close(gate)
		b.mu.Unlock()
		elapse(time.Second)
		if got := store.states(); got[delivery.Succeeded] != 10 {
			t.Errorf("states %v, want 10 SUCCEEDED", got)
		}
		if got := store.row(stolen); got.token != token || got.state != delivery.Pending {
			t.Errorf("the stolen row changed: %+v", got)
		}
		if got := b.obs.count(CountStale); got != 1 || b.health().stale != 1 {
			t.Errorf("%d stale outcomes counted, health says %d", got, b.health().stale)
		}
		elapse(30 * time.Second)
		if got := store.called("settle") - settles; got > 11 {
			t.Errorf("%d statements for 11 outcomes: the stale one was tried again", got)
		}
		settled, err := store.Settle(t.Context(), []delivery.Outcome{{ID: stolen, Token: token}})
		if err != nil || len(settled) != 1 {
			t.Errorf("worker 2 acknowledged %v, %v", settled, err)
		}
	})
}

func TestSettle_UnansweredStatementIsUnknownNotStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		var cut atomic.Bool
		cut.Store(true)
		store.after = func(_ context.Context, op string) error {
			if op == "settle" && cut.Swap(false) {
				return errors.New("connection reset after the commit")
			}
			return nil
		}
		store.add("h", 50)
		b.launch(t)
		elapse(10 * time.Second)
		if got := store.states()[delivery.Succeeded]; got != 50 {
			t.Errorf("%d succeeded", got)
		}
		unknown, stale := b.obs.count(CountUnknown), b.obs.count(CountStale)
		if unknown == 0 || stale != 0 {
			t.Errorf("%d unknown and %d stale", unknown, stale)
		}
		if got := len(b.obs.attempts); got != 50 {
			t.Errorf("%d attempts reported", got)
		}
	})
}

func TestSettle_OneBadOutcomeBlocksNoOther(t *testing.T) {
	for _, tt := range []struct {
		name string
		// hopeless outcomes are refused even without their text.
		hopeless bool
		// isolates: the store writes the good ones of a batch itself.
		isolates bool
	}{
		{"the text is at fault", false, false}, {"nothing helps", true, false},
		{"the text is at fault, and the store isolates it", false, true}, {"nothing helps, and the store isolates it", true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				var victim string
				h := does(func(_ context.Context, e event.Envelope) error {
					if e.DeliveryID == victim {
						return errors.New("bad text")
					}
					return nil
				})
				h.Retry = RetryEkbatan()
				b := newBench(store, h)
				b.judge.messages = true
				if tt.isolates {
					b.handlingConfig.store = isolatingStore{store}
				}
				bad := store.add("h", 1)[0]
				victim = bad.String()
				store.bad = func(o delivery.Outcome) bool {
					return o.ID == bad && (tt.hopeless || strings.Contains(o.Message, "bad"))
				}
				store.add("h", 1500)
				b.launch(t)
				elapse(500 * time.Millisecond)
				if got := store.states()[delivery.Succeeded]; got != 1500 {
					t.Errorf("%d of 1500 good outcomes were written", got)
				}
				elapse(2 * time.Second) // counts are reported on a tick
				got := store.row(bad)
				switch {
				case tt.hopeless && (got.attempts != 0 || b.obs.count(CountUnwritten) != 1):
					t.Errorf("hopeless: %+v, %d counted", got, b.obs.count(CountUnwritten))
				case !tt.hopeless && (got.attempts != 1 || got.message != "" || b.obs.count(CountUnwritten) != 0):
					t.Errorf("reduced: %+v", got)
				}
				if n := b.obs.count(CountSettleError); n != 0 {
					t.Errorf("%d errors counted: isolation is no outage", n)
				}
				if n := b.obs.count(CountStale); n != 0 {
					t.Errorf("%d outcomes are taken for stale", n)
				}
			})
		})
	}
}

// isolatingStore writes what it can of a batch with a bad outcome.
type isolatingStore struct{ *fakeStore }

func (s isolatingStore) Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	good := slices.DeleteFunc(slices.Clone(outcomes), s.bad)
	settled, err := s.fakeStore.Settle(ctx, good)
	if err == nil && len(good) < len(outcomes) {
		err = errRejected
	}
	return settled, err
}

func TestSettle_BatchesUnderLoadAndNotWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = func(ctx context.Context, op string) error {
			if op == "settle" {
				<-time.After(5 * time.Millisecond)
			}
			return nil
		}
		b := newBench(store, does(succeed))
		b.launch(t)
		synctest.Wait()
		b.fanOut("h", 1)
		before := time.Now()
		elapse(5 * time.Millisecond)
		if got := store.states()[delivery.Succeeded]; got != 1 {
			t.Errorf("a single outcome was not written after %v", time.Since(before))
		}
		settles := store.called("settle")
		store.add("h", 10_000)
		b.wake("h")
		elapse(time.Second)
		if got := store.states()[delivery.Succeeded]; got != 10_001 {
			t.Errorf("%d succeeded", got)
		}
		if got := store.called("settle") - settles; got > 25 {
			t.Errorf("%d statements for 10,000 outcomes", got)
		}
		if got := store.largest["settle"]; got > maxBatch {
			t.Errorf("%d outcomes in one statement", got)
		}
	})
}

func TestSettle_TimeOutsMakeBatchesSmaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		slow := slowStore{fakeStore: store, most: 400}
		b.handlingConfig.store = slow
		store.add("h", 8000)
		b.launch(t)
		elapse(5 * time.Minute)
		if got := store.states()[delivery.Succeeded]; got != 8000 {
			t.Errorf("%d succeeded on a server that cannot write %d outcomes in time", got, slow.most+1)
		}
	})
}

// slowStore times out when a statement has too many outcomes.
type slowStore struct {
	*fakeStore
	most int
}

func (s slowStore) Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	if len(outcomes) > s.most {
		<-ctx.Done()
		return nil, fmt.Errorf("settle: %w", ctx.Err())
	}
	return s.fakeStore.Settle(ctx, outcomes)
}

func TestSettle_RetryIsClaimedAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		var at []time.Time
		h := does(func(context.Context, event.Envelope) error {
			at = append(at, time.Now())
			if len(at) == 1 {
				return event.RetryAfter(errors.New("busy"), 2345*time.Millisecond)
			}
			if len(at) == 2 {
				return event.Snooze(777 * time.Millisecond)
			}
			return nil
		})
		h.Retry = RetryPolicy{Base: time.Millisecond}
		b := newBench(store, h)
		id := store.add("h", 1)[0]
		b.launch(t)
		elapse(10 * time.Second)
		got := store.row(id)
		if got.state != delivery.Succeeded || got.attempts != 1 || got.claims != 2 {
			t.Errorf("ended as %+v, want one failure and the snooze given back", got)
		}
		for i, want := range []time.Duration{2345 * time.Millisecond, 777 * time.Millisecond} {
			if d := at[i+1].Sub(at[i]); d < want || d > want+2*lookSoonest {
				t.Errorf("attempt %d came after %v, want %v", i+2, d, want)
			}
		}
	})
}

func TestSettle_ReportsAttemptsWithWhatTheyLedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		ends := map[string]error{}
		h := does(func(_ context.Context, e event.Envelope) error {
			<-time.After(3 * time.Second)
			return ends[e.DeliveryID]
		})
		h.Retry = RetryPolicy{Base: time.Hour}
		b := newBench(store, h)
		want := map[delivery.State]error{
			delivery.Succeeded: nil,
			delivery.Failed:    errors.New("no"),
			delivery.Dead:      event.Permanent(errors.New("never")),
			delivery.Blocked:   event.Undecodable(errors.New("what?")),
			delivery.Discarded: event.Cancel("withdrawn"),
			delivery.Pending:   event.Snooze(time.Hour),
		}
		for _, err := range want {
			id := store.add("h", 1)[0]
			store.rows[id].ev.Date = time.Now().Add(-2 * time.Second)
			ends[id.String()] = err
		}
		b.launch(t)
		elapse(4 * time.Second)
		if len(b.obs.attempts) != len(want) {
			t.Fatalf("%d attempts reported, want %d", len(b.obs.attempts), len(want))
		}
		for state := range want {
			i := slices.IndexFunc(b.obs.attempts, func(s AttemptStats) bool { return s.State == state })
			if i < 0 {
				t.Errorf("no attempt led to %s: %+v", state, b.obs.attempts)
				continue
			}
			if s := b.obs.attempts[i]; s.Wait != 2*time.Second || s.Took != 3*time.Second || s.Attempt != 1 || s.Handler != "h" {
				t.Errorf("reported %+v", s)
			}
		}
		store.mu.Lock()
		defer store.mu.Unlock()
		for _, r := range store.rows {
			if r.state == delivery.Discarded && r.reason != "withdrawn" {
				t.Errorf("discarded because of %q", r.reason)
			}
		}
	})
}

// A session that locks one delivery row holds up its own outcome, and no other.
func TestSettle_ALockedRowHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		ids := store.add("h", 300)
		var free atomic.Bool
		store.locked = func(id uuid.UUID) bool { return id == ids[0] && !free.Load() }
		b.launch(t)
		elapse(10 * time.Minute)
		if got := store.states(); got[delivery.Succeeded] != 299 {
			t.Fatalf("states %v with one row locked", got)
		}
		store.add("h", 1)
		b.wake("h")
		elapse(20 * time.Millisecond)
		if got := store.states(); got[delivery.Succeeded] != 300 {
			t.Errorf("states %v: a new outcome waits for the locked one", got)
		}
		if stale, errs := b.obs.count(CountStale), b.obs.count(CountSettleError); stale != 0 || errs != 0 {
			t.Errorf("%d stale, %d errors", stale, errs)
		}
		free.Store(true)
		elapse(10 * time.Minute)
		if got := store.states(); got[delivery.Succeeded] != 301 {
			t.Errorf("states %v after the lock", got)
		}
	})
}

// Two outcomes are put off at different times, and the time of the second comes while the first is written: it is
// written all the same, although nothing else happens in this process that would have the writer look.
func TestSettle_AnOutcomeWhoseTimeComesDuringAStatementIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		var takes atomic.Int64
		store.before = func(_ context.Context, op string) error {
			if op == "settle" {
				<-time.After(time.Duration(takes.Load()))
			}
			return nil
		}
		var free atomic.Bool
		store.locked = func(uuid.UUID) bool { return !free.Load() }
		b.launch(t)
		synctest.Wait()
		b.fanOut("h", 1)
		elapse(lockedPause / 2)
		b.fanOut("h", 1)
		synctest.Wait()
		free.Store(true)
		takes.Store(int64(lockedPause))
		elapse(time.Minute)
		if got := store.states(); got[delivery.Succeeded] != 2 {
			t.Errorf("states %v a minute after the rows were free again", got)
		}
	})
}

// A lock that never ends does not outlast the stop.
func TestSettle_ALockedRowDoesNotKeepTheStopFromEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(succeed))
		store.add("h", 3)
		store.locked = func(uuid.UUID) bool { return true }
		b.launch(t)
		elapse(time.Second)
		begun := time.Now()
		err := b.halt()
		if took := time.Since(begun); took > defaultFlushFor+time.Second {
			t.Errorf("the stop took %v", took)
		}
		if err == nil {
			t.Error("three outcomes are not written, and the stop says nothing")
		}
	})
}
