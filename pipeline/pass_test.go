package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// newTraceless is a poller without a log over a table without a mark. Handler a takes what is of type x, and b
// declines everything of type y.
func newTraceless(t *testing.T, c PollerConfig) *pollBench {
	t.Helper()
	b := newPollBench(t, false, c, on("a", []string{"x"}, ""), on("b", []string{"y"}, "event.id == 'nobody'"))
	b.store.traceless = true
	return b
}

// Events that every condition declines leave no trace in a table without a mark. However many they are, they hide
// nothing, and cost neither memory without bound nor the poller all its time.
func TestPollerPagesPastWhatIsDeclined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTraceless(t, PollerConfig{Batch: 20})
		b.p.declined.limit = 40
		b.insert("declined", "y", 400)
		elapse(time.Second)
		b.insert("e", "x", 5)
		b.launch(t)
		elapse(time.Second)
		if b.store.deliveries() != 5 {
			t.Errorf("%d deliveries, want 5", b.store.deliveries())
		}
		looks := b.store.noted("look")
		for i := range 10 {
			elapse(10 * time.Second)
			b.insert(fmt.Sprintf("f%d", i), "x", 3)
		}
		elapse(time.Second)
		if b.store.deliveries() != 35 {
			t.Errorf("%d deliveries, want 35", b.store.deliveries())
		}
		if len(b.p.declined.held) > 40 || len(b.p.seen) > 20 || len(b.p.taken) > 20 {
			t.Errorf("%d are left out, %d seen, %d taken", len(b.p.declined.held), len(b.p.seen), len(b.p.taken))
		}
		if n := b.store.noted("look") - looks; n > 10*20*30 {
			t.Errorf("%d looks in 100 seconds", n)
		}
		if _, err := b.p.trouble.present(); err != nil || b.obs.count(CountSetAside) != 0 || b.aside.size(time.Now()) != 0 {
			t.Errorf("trouble %v, counts %v", err, b.obs.counts)
		}
		if n := b.store.noted("fanout"); n > 30 {
			t.Errorf("%d fan-outs: what is declined was fanned out", n)
		}
	})
}

// While the log is read, what is declined does not end the log's time for the others.
func TestPollerLeavesTheLogItsTimeBehindWhatIsDeclined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{Batch: 20}, on("a", []string{"x"}, ""), on("b", []string{"y"}, "event.id == 'nobody'"))
		b.store.traceless = true
		b.p.declined.limit = 10
		close(b.settled)
		b.launch(t)
		elapse(10 * time.Minute)
		b.insert("declined", "y", 100)
		elapse(time.Millisecond)
		b.insert("e", "x", 5)
		for !b.store.showed("e-0004") {
			elapse(time.Second)
		}
		if n := b.store.deliveries(); n != 0 {
			t.Errorf("%d events were taken on sight", n)
		}
		elapse(25 * time.Second)
		if n := b.store.deliveries(); n != 5 || b.obs.count(CountPolledMissed) != 5 {
			t.Errorf("%d deliveries, counts %v", n, b.obs.counts)
		}
	})
}

// A table without a mark may bound its looks. The time of the last complete one is kept, so that an outage
// that is longer than the bound hides nothing.
func TestPollerKeepsTheTimeOfTheLastCompletePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTraceless(t, PollerConfig{SweepAgain: 30 * time.Second})
		start := time.Now()
		b.insert("e", "x", 50)
		b.launch(t)
		elapse(time.Second)
		if at := b.store.looked(); at.Before(start) || at.After(start.Add(time.Second)) {
			t.Errorf("the first sweep was kept as %s", at)
		}
		elapse(10 * time.Minute)
		if late := time.Since(b.store.looked()); late > coverEvery+2*time.Second {
			t.Errorf("the last complete pass was kept %s ago", late)
		}
		if n := b.store.noted("looked"); n > 14 {
			t.Errorf("written %d times in 10 minutes", n)
		}
	})
}

// A process without handlers looks for nothing, and says nothing about what there is.
func TestPollerWithoutHandlersCoversNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTraceless(t, PollerConfig{})
		b.p.types = delivery.Match{}
		b.insert("e", "x", 5)
		b.launch(t)
		elapse(5 * time.Minute)
		if n := b.store.noted("looked"); n != 0 || b.store.closed != 1 {
			t.Errorf("kept %d times; gaps closed %d times", n, b.store.closed)
		}
	})
}

// An event that cannot be fanned out stays in sight: the time of the last complete look stands still, and the
// gaps stay open, until it can.
func TestPollerKeepsWhatFailsInSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTraceless(t, PollerConfig{})
		b.store.hopeless["bad-0000"] = true
		b.insert("bad", "x", 1)
		b.insert("e", "x", 20)
		b.launch(t)
		elapse(30 * time.Minute)
		if b.store.deliveries() != 20 {
			t.Errorf("%d deliveries, want 20", b.store.deliveries())
		}
		if !b.store.lookedAt.IsZero() || b.store.closed != 0 {
			t.Errorf("kept as %s, gaps closed %d times", b.store.lookedAt, b.store.closed)
		}
		b.store.tmu.Lock()
		clear(b.store.hopeless)
		b.store.tmu.Unlock()
		elapse(asideMost + 2*time.Minute)
		b.ledger(t, 21)
		if late := time.Since(b.store.looked()); late > 2*coverEvery || b.store.closed != 1 {
			t.Errorf("kept %s ago, gaps closed %d times", late, b.store.closed)
		}
	})
}

// A gap is closed by the time at which its first sweep began, by the database's clock.
func TestGapsAreClosedUpToTheBeginningOfTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, true, PollerConfig{SweepAgain: time.Minute, Interval: time.Hour})
		close(b.settled)
		b.launch(t)
		elapse(10 * time.Minute)
		begun := time.Now()
		b.p.gap()
		elapse(10 * time.Minute)
		if d := b.store.closedAt.Sub(begun); d < 0 || d > time.Second {
			t.Errorf("closed up to %s after the sweep began", d)
		}
	})
}

// A pass that finds what is still the log's to bring covers nothing itself; it confirms the ones
// before it, once what they saw is gone.
func TestCover(t *testing.T) {
	day := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(pass int) time.Time { return day.Add(time.Duration(pass) * time.Minute) }
	type step struct {
		pass    int
		broken  bool
		waiting []int // the passes that saw first what waits
		want    int   // the pass that is covered, 0 for none
	}
	for name, steps := range map[string][]step{
		"nothing waits":               {{pass: 1, want: 1}, {pass: 2, want: 2}},
		"always something new":        {{pass: 1, waiting: []int{1}}, {pass: 2, waiting: []int{2}, want: 1}, {pass: 3, waiting: []int{3, 3}, want: 2}},
		"one waits long":              {{pass: 1, waiting: []int{1}}, {pass: 2, waiting: []int{1, 2}}, {pass: 3, waiting: []int{3}, want: 2}},
		"one waits, then all is well": {{pass: 1, want: 1}, {pass: 2, waiting: []int{2}}, {pass: 3, want: 3}},
		"a pass that did not end":     {{pass: 1, waiting: []int{1}}, {pass: 2, broken: true}, {pass: 3, waiting: []int{3}}, {pass: 4, want: 4}},
	} {
		var c cover
		for _, s := range steps {
			if s.broken {
				c.broken()
				continue
			}
			waiting := map[string]sighting{}
			for i, pass := range s.waiting {
				waiting[fmt.Sprint(i)] = sighting{pass: pass}
			}
			want := time.Time{}
			if s.want > 0 {
				want = at(s.want)
			}
			if got := c.passed(s.pass, at(s.pass), waiting); !got.Equal(want) {
				t.Errorf("%s: after pass %d %s is covered, want pass %d", name, s.pass, got, s.want)
			}
		}
	}
}

// The position is not confirmed past an event that the database refuses in every form and that is nowhere else.
// Nothing else waits for it.
func TestFanOutHoldsTheLogForWhatIsNowhereElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFanBench(t, nil, on("a", []string{"*"}, ""))
		events := b.eventsOf(t, "x", 16)
		b.store.hopeless["x-005"] = true
		b.store.table = slices.DeleteFunc(b.store.table, func(r *tableRow) bool { return r.ev.ID == "x-005" })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- b.fanOut.deliver(ctx, ctx, events, viaLog, place{position: "0/1"}) }()
		elapse(time.Hour)
		if n := b.store.deliveries(); n != 15 {
			t.Errorf("%d deliveries, want those of the others", n)
		}
		for _, batch := range b.store.batches {
			if batch.Position != "" {
				t.Error("the position went with a statement before the event was dealt with")
			}
		}
		if _, err := b.viaLog.present(); err == nil || b.obs.count(CountSetAside) != 0 || b.book.lines("event=x-005") == 0 || b.book.lines("secret value") != 0 {
			t.Errorf("trouble %v, log:\n%s", err, b.book)
		}
		select {
		case err := <-done:
			t.Fatalf("the event was given up: %v", err)
		default:
		}
		b.store.tmu.Lock()
		clear(b.store.hopeless)
		b.store.tmu.Unlock()
		elapse(10 * time.Second)
		if err := <-done; err != nil || b.store.deliveries() != 16 {
			t.Errorf("%d deliveries, %v", b.store.deliveries(), err)
		}
		if _, err := b.viaLog.present(); err != nil {
			t.Errorf("still in trouble: %v", err)
		}
	})
}

// A callback that ignores its context holds the stop up for a known time only, and nothing is acknowledged.
func TestStopAbandonsATriggerThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newStreamBench(t, FanOutConfig{}, Trigger{Name: "deaf", Table: "eventlog.events",
			OnRecordCreated: func(context.Context, []RecordCreated) error { <-release; return nil }})
		b.launch(t)
		b.s.in <- tx("0/1", "1")
		elapse(time.Second)
		b.stop()
		elapse(time.Minute)
		select {
		case <-b.done:
			t.Error("the stop did not leave it its time")
		default:
		}
		b.cut() // what finishTimeout does
		elapse(callbackPatience + time.Second)
		select {
		case <-b.done:
		default:
			t.Error("the stop still waits")
		}
		if len(b.source.acked()) != 0 || b.book.lines("trigger=deaf") != 1 {
			t.Errorf("acks %v, log:\n%s", b.source.acked(), b.book)
		}
		close(release)
	})
}

// A callback that ends its goroutine has failed, and its records come again.
func TestTriggerThatEndsItsGoroutineHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		b := newStreamBench(t, FanOutConfig{}, Trigger{Name: "t", Table: "eventlog.events",
			OnRecordCreated: func(context.Context, []RecordCreated) error {
				if calls++; calls == 1 {
					runtime.Goexit()
				}
				return nil
			}})
		b.launch(t)
		b.s.in <- tx("0/1", "1")
		elapse(time.Minute)
		if calls != 2 || len(b.source.acked()) != 1 {
			t.Errorf("%d calls, acks %v", calls, b.source.acked())
		}
	})
}

func TestPollerBoundsOneLookInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{Batch: 500})
		b.p.bytes, b.p.limit = 10_000, 500
		for i := range 40 {
			b.store.commit(event.Event{ID: fmt.Sprintf("big-%03d", i), Type: "x", Payload: json.RawMessage(slices.Repeat([]byte("x"), 900+i%2*20_000)), Date: time.Now()})
		}
		b.launch(t)
		elapse(time.Minute)
		b.ledger(t, 40)
		for _, s := range b.obs.fanned {
			if s.Events > 11 {
				t.Errorf("a look brought %d events", s.Events)
			}
		}
	})
}

func TestSharedTypes(t *testing.T) {
	match := func(patterns ...string) matcher {
		var ps problems
		m := newMatcher(patterns, "on", &ps)
		if len(ps) > 0 {
			t.Fatal(ps)
		}
		return m
	}
	for _, tc := range []struct {
		ours, theirs, want []string
	}{
		{[]string{"*"}, []string{"a", "b.*", "*"}, []string{"a", "b.*", "*"}},
		{[]string{"a"}, []string{"*"}, []string{"*"}},
		{[]string{"a", "order.paid"}, []string{"a", "b", "order.*", "orders.*"}, []string{"a", "order.*"}},
		{[]string{"order.*"}, []string{"order.paid", "order.paid.*", "orders", "o.*", "order.*"}, []string{"order.paid", "order.paid.*", "order.*"}},
		{[]string{"order.paid.*"}, []string{"order.*", "order.paid"}, []string{"order.*"}},
	} {
		if diff := cmp.Diff(tc.want, shared(match(tc.ours...).Match, tc.theirs)); diff != "" {
			t.Errorf("%v and %v (-want +got):\n%s", tc.ours, tc.theirs, diff)
		}
	}
}

// Events that could not be fanned out, and that another process delivered after all, are no trouble any more.
func TestPollerRecoversWhenOthersDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPollBench(t, false, PollerConfig{})
		b.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "fanout" {
				return errAway
			}
			return nil
		}
		b.insert("e", "x", 3)
		b.launch(t)
		elapse(time.Minute)
		if _, err := b.viaPoll.present(); err == nil {
			t.Error("nothing failed")
		}
		b.store.tmu.Lock()
		for _, r := range b.store.table {
			r.delivered = true
		}
		b.store.tmu.Unlock()
		elapse(time.Minute)
		if since, err := b.viaPoll.present(); err != nil {
			t.Errorf("still failing since %s: %v", since, err)
		}
	})
}
