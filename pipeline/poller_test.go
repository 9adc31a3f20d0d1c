package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func TestPollerView(t *testing.T) {
	c := PollerConfig{Interval: 10 * time.Second, ActiveInterval: time.Second, Grace: 5 * time.Second}
	for name, tc := range map[string]struct {
		hasLog bool
		state  sourceState
		want   view
	}{
		"poll-only":                     {false, sourceState{}, view{CountPolledPollMode, 0, time.Second}},
		"streaming":                     {true, sourceState{reading: readingNow}, view{CountPolledMissed, 5 * time.Second, 10 * time.Second}},
		"behind":                        {true, sourceState{reading: readingBehind}, view{CountPolledBehind, time.Minute, 10 * time.Second}},
		"just lost":                     {true, sourceState{notReadingFor: time.Second}, view{CountPolledMissed, 5 * time.Second, 10 * time.Second}},
		"lost for a while":              {true, sourceState{notReadingFor: 3 * time.Second}, view{CountPolledLogDown, 0, time.Second}},
		"cannot be read until a person": {true, sourceState{permanent: true}, view{CountPolledLogDown, 0, time.Second}},
	} {
		if diff := cmp.Diff(tc.want, viewOf(c, tc.hasLog, tc.state), cmp.AllowUnexported(view{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestPollOnlyModeDeliversWithoutGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{})
		b.launch(t)
		elapse(time.Minute)
		start := time.Now()
		b.insert("e", "x", 3000)
		elapse(time.Second)
		b.ledger(t, 3000)
		if b.obs.count(CountPolledPollMode) != 3000 || b.obs.captured[viaPoll] != 3000 {
			t.Errorf("counts %v", b.obs.counts)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("took %s", d)
		}
	})
}

// In steady state an event must have been seen twice, a grace apart: the log has
// the time to bring it. The producer's date plays no part.
func TestPollerTakesOnlyWhatItHasSeenBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{Interval: 10 * time.Second, Grace: 5 * time.Second})
		close(b.settled)
		b.launch(t)
		elapse(time.Minute)
		old := event.Event{ID: "old", Type: "x", Payload: json.RawMessage(`{}`), Date: time.Now().Add(-24 * time.Hour)}
		looks := b.store.noted("look")
		b.store.commit(old)
		for b.store.noted("look") == looks {
			elapse(100 * time.Millisecond)
		}
		if b.store.undelivered() != 1 {
			t.Error("taken at first sight")
		}
		elapse(20 * time.Second)
		b.ledger(t, 1)
		if b.obs.count(CountPolledMissed) != 1 {
			t.Errorf("counts %v", b.obs.counts)
		}
	})
}

func TestPollerLeavesTheLogItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{Interval: time.Second, Grace: 5 * time.Second})
		close(b.settled)
		b.launch(t)
		elapse(time.Minute)
		// The log brings each event two seconds after its commit.
		for i := range 60 {
			ev := event.Event{ID: fmt.Sprint(i), Type: "x", Payload: json.RawMessage(`{}`)}
			b.store.commit(ev)
			elapse(2 * time.Second)
			r, _ := b.router.route(ev)
			if err := b.fanOut.deliver(t.Context(), t.Context(), []routed{r}, viaLog, place{}); err != nil {
				t.Fatal(err)
			}
		}
		b.ledger(t, 60)
		if n := b.obs.count(CountPolledMissed); n != 0 {
			t.Errorf("the poller took %d events that the log brought", n)
		}
	})
}

func TestPollerTakesOverWhileTheLogIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{})
		close(b.settled)
		b.launch(t)
		elapse(time.Minute)
		b.setState(sourceState{notReadingFor: 4 * time.Second})
		b.insert("e", "x", 10)
		elapse(3 * time.Second)
		b.ledger(t, 10)
		if b.obs.count(CountPolledLogDown) != 10 {
			t.Errorf("counts %v", b.obs.counts)
		}
	})
}

// The slot exists before the first sweep, so that nothing falls between the two.
func TestFirstSweepWaitsForTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{})
		b.insert("e", "x", 50)
		b.launch(t)
		elapse(4 * time.Second)
		if b.store.noted("look") != 0 {
			t.Error("looked before the source was settled")
		}
		close(b.settled)
		synctest.Wait()
		b.ledger(t, 50)
		if b.obs.count(CountPolledStartup) != 50 {
			t.Errorf("counts %v", b.obs.counts)
		}
		// And again a little later, which also closes gaps that a crash left open.
		b.insert("late", "x", 1)
		elapse(31 * time.Second)
		b.ledger(t, 51)
		if b.obs.count(CountPolledStartup)+b.obs.count(CountPolledMissed) != 51 || b.store.closed != 1 {
			t.Errorf("counts %v, gaps closed %d times", b.obs.counts, b.store.closed)
		}
	})
}

// A log that is far behind brings nearly all there is: the first sweep leaves it to the log, but not for ever.
func TestFirstSweepLeavesTheBacklogToTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{Grace: time.Hour})
		b.setState(sourceState{reading: readingBehind})
		b.insert("e", "x", 50)
		close(b.settled)
		b.launch(t)
		elapse(behindGrace - 2*time.Second)
		if got := b.obs.count(CountPolledStartup); got != 0 {
			t.Errorf("%d events were taken from the log", got)
		}
		elapse(4 * time.Second)
		b.ledger(t, 50)
	})
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{Grace: time.Hour})
		b.setState(sourceState{reading: readingBehind})
		b.insert("e", "x", 50)
		close(b.settled)
		b.launch(t)
		elapse(10 * time.Second)
		b.setState(sourceState{reading: readingNow}) // it has caught up
		elapse(2 * pollerTick)
		b.ledger(t, 50)
	})
}

func TestFirstSweepDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{})
		b.insert("e", "x", 5)
		b.launch(t)
		elapse(6 * time.Second)
		b.ledger(t, 5)
	})
}

func TestGapIsSweptTwiceAndClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{SweepAgain: time.Minute})
		close(b.settled)
		b.launch(t)
		elapse(10 * time.Minute)
		closed := b.store.closed
		b.insert("hole", "x", 2500)
		b.p.gap()
		elapse(time.Second)
		b.ledger(t, 2500)
		if b.store.closed != closed {
			t.Error("closed after one sweep")
		}
		b.insert("invisible", "x", 1) // committed, but only visible now
		elapse(62 * time.Second)
		b.ledger(t, 2501)
		if b.store.closed != closed+1 {
			t.Errorf("closed %d times", b.store.closed-closed)
		}
		if n := b.obs.count(CountPolledGap) + b.obs.count(CountPolledMissed); n != 2501 {
			t.Errorf("counts %v", b.obs.counts)
		}
	})
}

// What the log says it does not carry is looked for without any grace, and counted as such.
func TestPollerLooksSoonWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{SweepAgain: time.Minute, Interval: time.Hour})
		close(b.settled)
		b.launch(t)
		elapse(10 * time.Minute)
		b.insert("x", "x", 3)
		b.p.soon()
		b.p.soon()
		elapse(5 * time.Second)
		b.ledger(t, 3)
		if n := b.obs.count(CountPolledAsked); n != 3 {
			t.Errorf("counts %v", b.obs.counts)
		}
	})
}

// A gap that comes while its predecessors are swept for has not been looked for: it stays
// open until it has had sweeps of its own.
func TestGapThatComesDuringASweepIsNotClosedByIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{SweepAgain: time.Minute, Interval: time.Hour})
		close(b.settled)
		var armed atomic.Bool
		b.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "look" && armed.CompareAndSwap(true, false) {
				b.p.gapFound()
			}
			return nil
		}
		b.launch(t)
		elapse(10 * time.Minute)
		closed := b.store.noted("close")
		b.p.gap()
		elapse(30 * time.Second)
		armed.Store(true) // for the second sweep
		elapse(time.Minute)
		if armed.Load() || b.store.noted("close") != closed {
			t.Error("the sweep closed a gap that came during it")
		}
		elapse(time.Minute)
		if n := b.store.noted("close") - closed; n != 1 {
			t.Errorf("closed %d times", n)
		}
	})
}

// Looks that fail are logged once, and a sweep that is due is not forgotten.
func TestPollerSurvivesADatabaseThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{})
		back := time.Now().Add(10 * time.Minute)
		b.store.gate = func(context.Context, string, []string) error {
			if time.Now().Before(back) {
				return errAway
			}
			return nil
		}
		close(b.settled)
		b.insert("e", "x", 100)
		b.launch(t)
		elapse(9 * time.Minute)
		if b.book.lines("undelivered events failed") != 1 || b.book.lines("recovered") != 0 {
			t.Errorf("log:\n%s", b.book)
		}
		elapse(2 * time.Minute)
		b.ledger(t, 100)
		if b.book.lines("undelivered events recovered") != 1 || b.obs.count(CountPolledStartup) != 100 {
			t.Errorf("counts %v, log:\n%s", b.obs.counts, b.book)
		}
	})
}

// Rows that can never be fanned out, in front of all others, must not fill the
// looks (queues 27).
func TestQ27_UndeliverableEventsDoNotStarveTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{Batch: 50}, on("a", []string{"x"}, ""), on("b", []string{"y"}, "event.id == 'nobody'"))
		for i := range 200 {
			id := fmt.Sprintf("bad-%03d", i)
			b.store.hopeless[id] = true
			b.store.commit(event.Event{ID: id, Type: "x", Payload: json.RawMessage(`{}`)})
		}
		for i := range 200 { // declined by the condition, and the mark does not stick (a table without one)
			id := fmt.Sprintf("declined-%03d", i)
			b.store.markless[id] = true
			b.store.commit(event.Event{ID: id, Type: "y", Payload: json.RawMessage(`{}`)})
		}
		b.insert("z-good", "x", 100)
		b.launch(t)
		elapse(30 * time.Second)
		if n := b.store.deliveries(); n != 100 {
			t.Errorf("%d of the good events have a delivery", n)
		}
		if n := b.store.undelivered(); n != 400 {
			t.Errorf("%d undelivered", n)
		}
	})
}

// More events that stay undelivered than can be left out hide what is behind them. The poller
// must not look again and again without a pause then, and has to say what is the matter.
func TestPollerDoesNotSpinInFrontOfACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{Batch: 50}, on("a", []string{"x"}, ""), on("b", []string{"y"}, "event.id == 'nobody'"))
		b.aside.limit = 100
		for i := range 300 {
			id := fmt.Sprintf("declined-%03d", i)
			b.store.markless[id] = true
			b.store.commit(event.Event{ID: id, Type: "y", Payload: json.RawMessage(`{}`)})
		}
		b.launch(t)
		elapse(10 * time.Second)
		b.insert("e", "x", 5)
		looks := b.store.noted("look")
		elapse(10 * time.Minute)
		if n := b.store.noted("look") - looks; n > 10*60 {
			t.Errorf("%d looks in 10 minutes", n)
		}
		if b.book.lines("undelivered events failed") != 1 || b.book.lines("hide those behind them") != 1 {
			t.Errorf("log:\n%s", b.book)
		}
		if _, err := b.p.trouble.present(); !errors.Is(err, errCrowded) {
			t.Errorf("health shows %v", err)
		}
		// Once they are out of sight, the others come at once.
		b.store.tmu.Lock()
		b.store.table = slices.DeleteFunc(b.store.table, func(r *tableRow) bool { return r.ev.Type == "y" })
		b.store.tmu.Unlock()
		elapse(15 * time.Second)
		b.ledger(t, 5)
		if _, err := b.p.trouble.present(); err != nil {
			t.Errorf("still in trouble: %v", err)
		}
	})
}

// Reading works and writing does not: a full disk, a server in recovery.
func TestPollerWaitsWhileNothingCanBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{})
		back := time.Now().Add(20 * time.Minute)
		b.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "fanout" && time.Now().Before(back) {
				return errAway
			}
			return nil
		}
		b.insert("e", "x", 300)
		b.launch(t)
		elapse(time.Until(back) + 15*time.Second)
		b.ledger(t, 300)
		if b.aside.size(time.Now()) != 0 {
			t.Error("good events are set aside")
		}
		if b.book.lines("what the poller found failed") != 1 || b.book.lines("what the poller found recovered") != 1 || b.book.lines("undelivered events failed") != 0 {
			t.Errorf("log:\n%s", b.book)
		}
	})
}

// A locked row is all that there is at first: it must not hold the poller itself.
func TestPollerIsNotHeldByALockedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{})
		free := time.Now().Add(30 * time.Minute)
		b.store.gate = func(ctx context.Context, _ string, ids []string) error {
			if slices.Contains(ids, "locked-0000") && time.Now().Before(free) {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		b.insert("locked", "x", 1)
		b.launch(t)
		elapse(10 * time.Minute)
		for i := range 10 {
			b.insert(fmt.Sprintf("e%d", i), "x", 2)
			elapse(time.Minute)
		}
		if n := b.store.deliveries(); n != 20 {
			t.Errorf("%d of 20 good events have a delivery", n)
		}
		elapse(90 * time.Minute)
		b.ledger(t, 21)
	})
}

func TestPollerDoesNotAskWhenNobodyListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{})
		b.p.types = delivery.Match{}
		b.launch(t)
		elapse(time.Minute)
		if n := b.store.noted("look"); n != 2 { // the sweeps, which must know the time to close gaps
			t.Errorf("looked %d times (A44)", n)
		}
		if b.store.closed != 1 {
			t.Error("gaps are not closed")
		}
	})
}

func TestA54_UnsubscribedEventsWaitAndDoNotStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{Batch: 10}, on("a", []string{"x"}, ""))
		b.insert("alone", "unsubscribed", 100)
		b.insert("e", "x", 5)
		b.launch(t)
		elapse(10 * time.Second)
		if b.store.deliveries() != 5 || b.store.undelivered() != 100 {
			t.Errorf("%d deliveries, %d undelivered", b.store.deliveries(), b.store.undelivered())
		}
	})
}

func TestPollerLooksAdaptToTheWeightOfPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{Batch: 500})
		b.p.bytes = 10_000
		for i := range 200 {
			b.store.commit(event.Event{ID: fmt.Sprintf("big-%03d", i), Type: "x", Payload: slices.Repeat([]byte("x"), 900)})
		}
		b.insert("small", "x", 2000)
		b.launch(t)
		elapse(time.Minute)
		b.ledger(t, 2200)
		most := 0
		for i, s := range b.obs.fanned {
			if i < 18 && s.Events*900 > 10_000 {
				t.Errorf("look %d brought %d events of 900 bytes", i, s.Events)
			}
			most = max(most, s.Events)
		}
		if most < 400 {
			t.Errorf("the largest look brought %d small events", most)
		}
	})
}

// Looks that take as long as the pause between them leave room for a sweep.
func TestGapIsSweptAlsoWhenLooksAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{SweepAgain: time.Minute, Interval: 10 * time.Second})
		close(b.settled)
		b.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "look" {
				<-time.After(12 * time.Second)
			}
			return nil
		}
		b.launch(t)
		elapse(10 * time.Minute)
		closed, looks := b.store.noted("close"), b.store.noted("look")
		b.p.gap()
		elapse(3 * time.Minute)
		if n := b.store.noted("close") - closed; n != 1 {
			t.Errorf("closed %d times", n)
		}
		// The pause is between two looks, and not from the beginning of one to that of the next.
		if n := b.store.noted("look") - looks; n > 12 {
			t.Errorf("%d looks in three minutes", n)
		}
	})
}
