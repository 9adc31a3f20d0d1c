package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func TestFanOutLeasesAsManyAsThereAreFreeSlots(t *testing.T) {
	b := newFanBench(t, map[string]int{"a": 2, "b": 100}, on("a", []string{"*"}, ""), on("b", []string{"*"}, ""), on("c", []string{"*"}, ""))
	events := b.eventsOf(t, "x", 5)
	// Somebody else fanned one out before, so its slot is not used.
	b.store.find("x-003").delivered = true
	before := time.Now()
	b.deliver(t, events)
	b.balanced(t)
	if b.slots.breaths != 1 {
		t.Errorf("%d waits for outcomes before one statement", b.slots.breaths)
	}
	if got := b.slots.accepts; got["a"] != 2 || got["b"] != 4 || got["c"] != 0 {
		t.Errorf("accepted %v", got)
	}
	if got := b.slots.released; got["a"] != 0 || got["b"] != 1 {
		t.Errorf("released %v", got)
	}
	if diff := cmp.Diff(map[string]int{"a": 1, "c": 1}, b.slots.woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
	for _, j := range b.slots.jobs {
		row := b.store.row(j.id)
		if row.token != j.token || row.handler != j.sub.Name || j.stored != j.sub.Name || j.ev.ID != row.ev.ID || j.claims != 1 || j.attempts != 0 {
			t.Errorf("job %+v does not fit row %+v", j, row)
		}
		if j.leasedAt.Before(before) || j.leasedAt.After(row.until.Add(-time.Minute)) {
			t.Errorf("the lease counts from %s, the row's from %s: ours must not end later", j.leasedAt, row.until.Add(-time.Minute))
		}
	}
	want := FanOutStats{Via: viaLog, Events: 5, Deliveries: 12, Leased: 6, Repeated: 1, Took: b.obs.fanned[0].Took}
	if diff := cmp.Diff([]FanOutStats{want}, b.obs.fanned); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestFanOutDoesNotLeaseOrWakeForBlockedTargets(t *testing.T) {
	b := newFanBench(t, map[string]int{"a": 10}, on("a", []string{"*"}, ""))
	ev := event.Event{ID: "e", Type: "x"}
	b.store.commit(ev)
	r, _ := b.router.route(ev)
	b.deliver(t, []routed{r})
	if len(b.slots.reserved) != 0 || len(b.slots.woken) != 0 || len(b.slots.jobs) != 0 {
		t.Errorf("slots were touched: %+v", b.slots)
	}
	if b.obs.count(CountNullPayload) != 1 || b.book.lines("reason=null_payload") != 1 {
		t.Errorf("not counted or not logged:\n%s", b.book)
	}
	b.ledger(t, 1)
}

func TestFanOutWaitsForADatabaseThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, map[string]int{"a": 10}, on("a", []string{"*"}, ""))
		back := time.Now().Add(10 * time.Minute)
		b.store.gate = func(context.Context, string, []string) error {
			if time.Now().Before(back) {
				return errAway
			}
			return nil
		}
		b.deliver(t, b.eventsOf(t, "x", 8))
		b.ledger(t, 8)
		if late := time.Since(back); late > 5*time.Second {
			t.Errorf("noticed %s after the database was back", late)
		}
		if b.book.lines("fan-out failed") != 1 || b.book.lines("fan-out recovered") != 1 {
			t.Errorf("a lasting failure is logged once, and its end once:\n%s", b.book)
		}
		if b.obs.count(CountFanOutRetry) == 0 || b.obs.count(CountSetAside)+b.obs.count(CountQuarantined) != 0 {
			t.Errorf("counts %v", b.obs.counts)
		}
		// Only the first try may hold worker slots.
		if got := b.slots.reserved["a"]; got != 8 {
			t.Errorf("%d slots reserved over all tries, want 8", got)
		}
	})
}

func TestQ25_ARefusedRowIsIsolatedByHalving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, map[string]int{"a": 1000}, on("a", []string{"*"}, ""))
		events := b.eventsOf(t, "x", 256)
		b.store.refused["x-077"], b.store.refused["x-200"] = true, true
		b.deliver(t, events)
		if diff := cmp.Diff([]string{"x-077", "x-200"}, b.store.quarantine); diff != "" {
			t.Errorf("quarantined (-want +got):\n%s", diff)
		}
		b.ledger(t, 254)
		if n := b.store.noted("fanout"); n > 1+2*2*8 {
			t.Errorf("%d statements for 2 bad rows of 256", n)
		}
		if n := b.store.called("settle"); n != 0 {
			t.Errorf("leases of refused statements, which took none, are given back: %d statements that lock rows of running deliveries", n)
		}
		if b.obs.count(CountQuarantined) != 2 || b.obs.count(CountFanOutRetry) != 0 {
			t.Errorf("counts %v", b.obs.counts)
		}
		if b.book.lines("event=x-077") != 1 {
			t.Errorf("the log does not name the bad row once:\n%s", b.book)
		}
		if b.book.lines("code=sqlstate_22P02") != 2 || b.book.lines("secret value") != 0 {
			t.Errorf("C70: the log must name the code and quote nothing:\n%s", b.book)
		}
	})
}

func TestFanOutSetsAsideWhatIsRefusedInEveryForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, nil, on("a", []string{"*"}, ""))
		events := b.eventsOf(t, "x", 16)
		b.store.hopeless["x-005"] = true
		b.deliver(t, events)
		if n := b.store.undelivered(); n != 1 {
			t.Errorf("%d undelivered, want the bad one", n)
		}
		if diff := cmp.Diff([]string{"x-005"}, b.aside.skip(time.Now())); diff != "" {
			t.Errorf("set aside (-want +got):\n%s", diff)
		}
		if b.obs.count(CountSetAside) != 1 || b.book.lines("event=x-005") != 1 {
			t.Errorf("not counted or not logged:\n%s", b.book)
		}
		if b.book.lines("code=sqlstate_22P02") != 1 || b.book.lines("secret value") != 0 {
			t.Errorf("C70: the log must name the code and quote nothing:\n%s", b.book)
		}
		elapse(asideFirst)
		if len(b.aside.skip(time.Now())) != 0 {
			t.Error("its time never comes again")
		}
	})
}

// An event that no handler takes has no delivery that could stand for it: the log does not wait for its mark.
func TestFanOutSetsAsideAnUnwantedEventWhoseMarkIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, nil, on("a", []string{"x"}, ""))
		b.router.markUnsubscribed = true
		events := append(b.eventsOf(t, "x", 2), b.eventsOf(t, "unwanted", 1)...)
		b.store.refused["unwanted-000"] = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := b.fanOut.deliver(ctx, ctx, events, viaLog, place{position: "0/1"}); err != nil {
			t.Errorf("the log waits: %v", err)
		}
		if n := b.store.deliveries(); n != 2 || b.obs.count(CountSetAside) != 1 || b.obs.count(CountQuarantined) != 0 {
			t.Errorf("%d deliveries, counts %v", n, b.obs.counts)
		}
	})
}

// A session that holds the lock of one row may be about to delete it: the event is
// delivered from the log's image, and its row is left to the poller.
func TestFanOutDeliversALockedRowFromItsImage(t *testing.T) {
	for _, n := range []int{1, 64} {
		synctest.Test(t, func(t *testing.T) {
			b := newFanBench(t, map[string]int{"a": 1000}, on("a", []string{"*"}, ""))
			events := b.eventsOf(t, "x", n)
			locked := events[n/2].fan.Event.ID
			b.lock(locked)
			begun := time.Now()
			b.deliver(t, events)
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("of %d: took %s", n, took)
			}
			if got := b.store.deliveries(); got != n || b.store.undelivered() != 1 || b.store.find(locked).delivered {
				t.Errorf("of %d: %d deliveries, %d rows not marked", n, got, b.store.undelivered())
			}
			if b.obs.count(CountSetAside) != 0 || len(b.store.quarantine) != 0 {
				t.Errorf("of %d: an event that is only locked was given up: %v", n, b.obs.counts)
			}
			// The poller comes once the lock is gone.
			b.store.gate = nil
			found, err := b.store.Undelivered(t.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 10})
			if err != nil || len(found.Events) != 1 {
				t.Fatalf("of %d: found %d, %v", n, len(found.Events), err)
			}
			r, _ := b.router.route(found.Events[0])
			if err := b.fanOut.deliver(t.Context(), t.Context(), []routed{r}, viaPoll, place{}); err != nil {
				t.Fatal(err)
			}
			b.ledger(t, n)
		})
	}
}

// The log may be the only record of an event: it is tried, with its row and without,
// until it has its delivery.
func TestFanOutNeverGivesUpAnEventOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, nil, on("a", []string{"*"}, ""))
		ok := time.Now().Add(30 * time.Minute)
		b.store.gate = func(_ context.Context, _ string, ids []string) error {
			if slices.Contains(ids, "x-001") && time.Now().Before(ok) {
				return errAway
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b.trickle(ctx, t)
		b.deliver(t, b.eventsOf(t, "x", 3))
		if time.Now().Before(ok) || b.obs.count(CountSetAside) != 0 || b.store.noted("image") < 10 {
			t.Errorf("the event was given up, or not tried from its image: %d times", b.store.noted("image"))
		}
		if _, done := b.store.keys["x-001\x00a"]; !done {
			t.Error("the event was not delivered in the end")
		}
		cancel()
		synctest.Wait()
	})
}

// A read-only or full database answers every question and takes no row: nothing
// may be given up, however long it lasts.
func TestFanOutThatNothingGetsThroughIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, nil, on("a", []string{"*"}, ""))
		free := time.Now().Add(time.Hour)
		b.store.gate = func(context.Context, string, []string) error {
			if time.Now().Before(free) {
				return errAway
			}
			return nil
		}
		b.deliver(t, b.eventsOf(t, "x", 40))
		b.ledger(t, 40)
		if b.obs.count(CountSetAside) != 0 {
			t.Error("events were set aside although nothing worked")
		}
	})
}

// The statement commits, and the answer is lost: nothing is lost or doubled, and
// the deliveries do not wait for the end of a lease that nobody knows of.
func TestFanOutWhoseAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, map[string]int{"a": 3}, on("a", []string{"*"}, ""))
		first := true
		b.store.lost = func(context.Context, string, []string) error {
			if first {
				first = false
				return errAway
			}
			return nil
		}
		b.deliver(t, b.eventsOf(t, "x", 5))
		b.ledger(t, 5)
		if len(b.slots.jobs) != 0 {
			t.Errorf("%d jobs run on leases whose grant was never heard", len(b.slots.jobs))
		}
		claimed, err := b.store.Claim(t.Context(), delivery.Lease{For: time.Minute}, []delivery.Claim{{Handler: "a", Names: []string{"a"}, Limit: 10}})
		if err != nil || len(claimed.Claimed) != 5 {
			t.Errorf("%d of 5 are due at once, %v", len(claimed.Claimed), err)
		}
		for _, c := range claimed.Claimed {
			if c.Claims != 1 {
				t.Errorf("delivery of %s was claimed %d times, the lost one must not count", c.Event.ID, c.Claims)
			}
		}
		if b.slots.woken["a"] == 0 {
			t.Error("nobody was woken")
		}
	})
}

func TestFanOutPositionGoesWithTheLastStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, nil, on("a", []string{"*"}, ""))
		b.store.refused["x-000"] = true
		b.deliver(t, b.eventsOf(t, "x", 8))
		var at []cdc.Position
		for _, batch := range b.store.batches {
			at = append(at, batch.Position)
		}
		if diff := cmp.Diff([]cdc.Position{"", "", "0/1"}, at); diff != "" {
			t.Errorf("positions (-want +got):\n%s", diff)
		}
		for _, batch := range b.store.batches {
			if batch.Source != "test" || batch.Lease.Owner != "me" || batch.Lease.For != time.Minute {
				t.Errorf("batch of %q with lease %+v", batch.Source, batch.Lease)
			}
		}
	})
}

func TestFanOutStopsTryingWhenThePipelineStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, map[string]int{"a": 9}, on("a", []string{"*"}, ""))
		b.store.gate = func(context.Context, string, []string) error { return errAway }
		run, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := b.fanOut.deliver(run, t.Context(), b.eventsOf(t, "x", 4), viaLog, place{position: "0/1"}); err == nil {
			t.Error("no error, so the position would be acknowledged")
		}
		b.balanced(t)
	})
}

// Whatever mixture of bad events a batch holds, delivering it comes to an end, and
// every good event has its delivery.
func TestFanOutAnyMixtureOfBadEvents(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			b := newFanBench(t, map[string]int{"a": 5}, on("a", []string{"*"}, ""))
			r := rand.New(rand.NewPCG(seed, 1))
			events := b.eventsOf(t, "x", 1+r.IntN(40))
			var mu sync.Mutex                   // of r, once two paths use it
			locked, bad := map[string]bool{}, 0 // bad ones have no delivery
			for i := range events {
				id := events[i].fan.Event.ID
				switch r.IntN(12) {
				case 0:
					b.store.refused[id] = true
				case 1:
					b.store.hopeless[id] = true
				case 2:
					locked[id] = true
					continue
				default:
					continue
				}
				bad++
			}
			b.store.gate = func(ctx context.Context, op string, ids []string) error {
				if op == "fanout" && slices.ContainsFunc(ids, func(id string) bool { return locked[id] }) {
					<-ctx.Done()
					return ctx.Err()
				}
				mu.Lock()
				defer mu.Unlock()
				if r.IntN(20) == 0 {
					return errAway
				}
				return nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b.trickle(ctx, t)
			b.deliver(t, events)
			cancel()
			synctest.Wait()
			good := 0
			for i := range events {
				if _, ok := b.store.keys[events[i].fan.Event.ID+"\x00a"]; ok {
					good++
				}
			}
			if good+bad != len(events) || b.obs.count(CountSetAside)+len(b.store.quarantine) != bad {
				t.Errorf("seed %d: %d of %d good events delivered, %d set aside, %d quarantined of %d bad",
					seed, good, len(events)-bad, b.obs.count(CountSetAside), len(b.store.quarantine), bad)
			}
			b.balanced(t)
		})
	}
}

func TestAsideWaitsLongerEachTime(t *testing.T) {
	var a aside
	now := time.Now()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		a.put("e", now)
		if len(a.skip(now.Add(want*time.Minute-1))) != 1 || len(a.skip(now.Add(want*time.Minute))) != 0 {
			t.Errorf("time %d: want %d minutes", i+1, want)
		}
		now = now.Add(want * time.Minute)
	}
}

func TestAsideIsBounded(t *testing.T) {
	var a aside
	now := time.Now()
	for i := range asideLimit {
		if !a.put(fmt.Sprint(i), now) {
			t.Fatalf("full after %d", i)
		}
	}
	if a.put("one more", now) {
		t.Error("no bound")
	}
	if !a.put("one more", now.Add(asideFirst)) {
		t.Error("room of events whose time is over is not used")
	}
}

// rereading is a store whose table shows events in other bytes than the log, and the last
// one of a batch not at all yet.
type rereading struct{ *pipelineStore }

func (s *rereading) FanOut(ctx context.Context, b delivery.FanOut) (delivery.FanOutResult, error) {
	last := len(b.Fans) - 1
	deferred := b.Fans[last]
	b.Fans = b.Fans[:last]
	result, err := s.pipelineStore.FanOut(ctx, b)
	if err != nil {
		return result, err
	}
	result.Stored = make(map[int]event.Event)
	for i := range b.Fans {
		ev := b.Fans[i].Event
		ev.Payload = json.RawMessage(`{"stored": true}`)
		result.Stored[i] = ev
	}
	if deferred.FromLog {
		result.Deferred = []int{last}
	}
	return result, nil
}

// Workers get an event as its table has it. One that the table does not show yet is left to
// the poller, and holds no worker slot.
func TestStoredEventsGoToTheWorkersAndDeferredOnesToThePoller(t *testing.T) {
	b := newFanBench(t, map[string]int{"a": 5}, on("a", []string{"*"}, ""))
	b.fanOut.store = &rereading{b.store}
	b.deliver(t, b.eventsOf(t, "x", 4))
	if n := len(b.slots.jobs); n != 3 {
		t.Errorf("%d jobs, want 3", n)
	}
	for _, j := range b.slots.jobs {
		if string(j.ev.Payload) != `{"stored": true}` {
			t.Errorf("the worker gets %s, not the stored payload", j.ev.Payload)
		}
	}
	if n := b.obs.count(CountDeferred); n != 1 || b.store.undelivered() != 1 {
		t.Errorf("%d deferred, %d undelivered", n, b.store.undelivered())
	}
	b.balanced(t)
}
