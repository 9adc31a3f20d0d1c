package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// The epoch goes with the position, and a transaction whose rows the log does not
// carry asks for a look once its position is acknowledged.
func TestEpochAndSweepOfATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{})
		b.source.after = func() {
			if b.sweeps.Load() != 0 {
				t.Error("swept before the position was acknowledged")
			}
		}
		first, second := tx("0/1", "1"), tx("0/2", "2")
		first.Epoch, second.Epoch, second.Sweep = 7, 8, "statement"
		b.s.in <- first
		b.s.in <- second
		b.s.in <- cdc.Transaction{Position: "0/3", Epoch: 8, Sweep: "statement"}
		b.launch(t)
		synctest.Wait()
		if n := len(b.store.batches); n != 1 || b.store.batches[0].Position != "0/3" || b.store.batches[0].Epoch != 8 {
			t.Errorf("batches %+v", b.store.batches)
		}
		if b.sweeps.Load() != 1 || b.obs.count(CountSweepAsked) != 2 || b.book.lines("reason=statement") != 1 {
			t.Errorf("%d sweeps, counts %v\n%s", b.sweeps.Load(), b.obs.counts, b.book)
		}
		// Without rows of its own a transaction asks all the same.
		b.source.after = nil
		b.s.in <- cdc.Transaction{Sweep: "xa"}
		synctest.Wait()
		if b.sweeps.Load() != 2 || len(b.source.acked()) != 1 {
			t.Errorf("%d sweeps, acks %v", b.sweeps.Load(), b.source.acked())
		}
	})
}

// An idle stream handles a transaction at once, a busy one gathers the next batch
// meanwhile: no timer is involved, so in a bubble no time passes.
func TestStreamBatchesWithoutATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{})
		hold := make(chan struct{})
		b.store.gate = func(context.Context, string, []string) error { <-hold; return nil }
		start := time.Now()
		b.launch(t)
		b.s.in <- tx("0/1", "1")
		synctest.Wait()
		for i := 2; i <= 11; i++ {
			b.s.in <- tx(fmt.Sprintf("0/%d", i), fmt.Sprint(i))
		}
		synctest.Wait()
		close(hold)
		synctest.Wait()
		if diff := cmp.Diff([]int{1, 10}, b.sizes()); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]cdc.Position{"0/1", "0/11"}, b.source.acked()); diff != "" {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("it took %s of waiting", d)
		}
		if b.obs.captured[viaLog] != 11 {
			t.Errorf("captured %v", b.obs.captured)
		}
	})
}

func TestStreamMemoryIsBounded(t *testing.T) {
	for name, limits := range map[string]FanOutConfig{
		"by events": {BatchEvents: 10},
		"by bytes":  {BatchBytes: 10 * len("0x{}")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newStreamBench(t, limits)
				hold := make(chan struct{})
				b.store.gate = func(context.Context, string, []string) error { <-hold; return nil }
				b.launch(t)
				sent := make(chan int, 1)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					n := 0
					for ; n < 1000; n++ {
						select {
						case b.s.in <- tx(fmt.Sprintf("0/%d", n+1), fmt.Sprint(n%10)):
						case <-ctx.Done():
							sent <- n
							return
						}
					}
					sent <- n
				}()
				synctest.Wait()
				cancel()
				// One batch in flight, one building, the channel, and one in the hand.
				if n := <-sent; n > 10+10+channelLength+1 {
					t.Errorf("%d transactions were taken while nothing moved", n)
				}
				close(hold)
				synctest.Wait()
				for _, n := range b.sizes() {
					if n > 10 {
						t.Errorf("a batch of %d", n)
					}
				}
			})
		})
	}
}

func TestStreamNeverConfirmsInsideATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{BatchEvents: 2})
		b.launch(t)
		part := tx("", "2", "3", "4")
		part.Partial = true
		b.s.in <- tx("0/1", "1")
		b.s.in <- part
		synctest.Wait()
		if diff := cmp.Diff([]cdc.Position{"0/1"}, b.source.acked()); diff != "" {
			t.Errorf("acks inside the transaction (-want +got):\n%s", diff)
		}
		b.s.in <- tx("0/2", "5")
		synctest.Wait()
		if diff := cmp.Diff([]cdc.Position{"0/1", "0/2"}, b.source.acked()); diff != "" {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
		if len(b.store.keys) != 5 {
			t.Errorf("%d deliveries, want 5", len(b.store.keys))
		}
	})
}

func TestStreamConfirmsTransactionsWithoutRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{})
		b.launch(t)
		b.s.in <- tx("0/1")
		synctest.Wait()
		if diff := cmp.Diff([]cdc.Position{"0/1"}, b.source.acked()); diff != "" || b.store.noted("fanout") != 0 {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
	})
}

// A store that keeps the position with the deliveries keeps none for which another trigger
// has still to be called: a crash would lose its records.
func TestPositionWaitsForAllTriggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		b := newStreamBench(t, FanOutConfig{}, Trigger{Name: "slow", Table: "eventlog.events", When: "record.id == '2'",
			OnRecordCreated: func(context.Context, []RecordCreated) error { <-hold; return nil }})
		b.launch(t)
		b.s.in <- tx("0/1", "1")
		synctest.Wait()
		b.s.in <- tx("0/2", "2")
		synctest.Wait()
		if n := len(b.store.batches); n != 2 || b.store.batches[0].Position != "0/1" || b.store.batches[1].Position != "" {
			t.Errorf("batches %+v", b.store.batches)
		}
		close(hold)
		synctest.Wait()
		if diff := cmp.Diff([]cdc.Position{"0/1", "0/2"}, b.source.acked()); diff != "" {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
	})
}

// The position waits for every trigger; a trigger that has succeeded is not
// called again, and one that fails gets the same records.
func TestTriggerFailureRetriesOnlyThatTrigger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		fails := 3
		failing := Trigger{Name: "flaky", Table: "eventlog.events", When: "record.id != '2'",
			OnRecordCreated: func(_ context.Context, rs []RecordCreated) error {
				var ids []string
				for _, r := range rs {
					id, _ := r.Record.Value("id")
					ids = append(ids, string(id.Data))
				}
				calls = append(calls, strings.Join(ids, ","))
				if fails--; fails == 0 {
					panic("boom")
				}
				if fails > 0 {
					return errors.New("not now")
				}
				return nil
			}}
		other := 0
		b := newStreamBench(t, FanOutConfig{},
			Trigger{Name: "other", Table: "eventlog.events", OnRecordCreated: func(_ context.Context, rs []RecordCreated) error {
				other += len(rs)
				return nil
			}},
			failing,
			Trigger{Name: "elsewhere", Table: "shop.orders", OnRecordCreated: func(context.Context, []RecordCreated) error {
				t.Error("called for another table")
				return nil
			}})
		b.launch(t)
		b.s.in <- tx("0/1", "1", "2", "3")
		synctest.Wait()
		if len(b.source.acked()) != 0 {
			t.Error("acknowledged before every trigger had succeeded")
		}
		elapse(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"1,3", "1,3", "1,3", "1,3"}, calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if other != 3 || b.store.noted("fanout") != 1 {
			t.Errorf("other triggers were called again: %d records, %d fan-outs", other, b.store.noted("fanout"))
		}
		if diff := cmp.Diff([]cdc.Position{"0/1"}, b.source.acked()); diff != "" {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
		if b.obs.count(CountTriggerRetry) != 3 || b.book.lines("trigger flaky failed") != 1 || b.book.lines("trigger flaky recovered") != 1 {
			t.Errorf("counts %v, log:\n%s", b.obs.counts, b.book)
		}
		if b.book.lines("a trigger's callback panicked") != 1 || b.book.lines("boom") != 0 {
			t.Errorf("C70: what a callback panicked with may quote the record:\n%s", b.book)
		}
	})
}

func TestTriggerConditionWithoutAnswerHandsTheRecordOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []RecordCreated
		b := newStreamBench(t, FanOutConfig{}, Trigger{Name: "t", Table: "eventlog.events", When: "record.nope == 'x'",
			OnRecordCreated: func(_ context.Context, rs []RecordCreated) error { got = append(got, rs...); return nil }})
		b.launch(t)
		b.s.in <- tx("0/1", "1")
		synctest.Wait()
		if len(got) != 1 || got[0].ConditionError == nil || got[0].CommitTime.IsZero() {
			t.Errorf("got %+v", got)
		}
		if b.obs.count(CountConditionError) != 1 || b.book.lines("trigger=t") != 1 {
			t.Errorf("not counted or logged:\n%s", b.book)
		}
	})
}

func TestGapIsRecordedThenAcknowledgedThenSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{})
		away := time.Now().Add(time.Minute)
		b.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "gap" && time.Now().Before(away) {
				return errAway
			}
			return nil
		}
		b.source.after = func() {
			if len(b.source.acks) == 1 && (len(b.store.gaps) != 1 || b.gaps.Load() != 0) {
				t.Error("the gap was acknowledged before it was recorded, or after it was swept")
			}
		}
		// They wait in the channel before anybody reads it, so that the first two meet in one batch.
		b.s.in <- tx("0/1", "1")
		b.s.in <- cdc.Transaction{Gap: &cdc.Gap{Reason: "slot_lost", From: "0/1", To: "0/9"}, Position: "0/9"}
		b.s.in <- tx("0/10", "10")
		b.launch(t)
		synctest.Wait()
		if acks := b.source.acked(); len(acks) != 0 || b.gaps.Load() != 0 {
			t.Errorf("acknowledged %v while the gap is not recorded", acks)
		}
		elapse(2 * time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]cdc.Position{"0/1", "0/9", "0/10"}, b.source.acked()); diff != "" || b.gaps.Load() != 1 {
			t.Errorf("acks (-want +got):\n%s; %d sweeps", diff, b.gaps.Load())
		}
		// A store that keeps positions keeps none beyond a gap before that is on record.
		if got := b.store.batches[0].Position; got != "0/1" {
			t.Errorf("the fan-out before the gap kept position %s", got)
		}
		if b.book.lines("reason=slot_lost") != 1 || b.obs.count(CountGap) != 1 {
			t.Errorf("not logged once:\n%s", b.book)
		}
	})
}

func TestBadRowsStopNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{})
		b.launch(t)
		foreign := cdc.Record{Relation: &cdc.Relation{Schema: "shop", Table: "orders"}}
		b.s.in <- cdc.Transaction{Position: "0/1", Records: []cdc.Record{row("", "x"), row("1", ""), row("2", "x"), foreign, row("", "y"), row("3", "x")}}
		synctest.Wait()
		if len(b.store.keys) != 2 {
			t.Errorf("%d deliveries, want 2", len(b.store.keys))
		}
		if b.obs.count(CountRowError) != 2 || b.obs.count(CountSentinel) != 1 || b.obs.count(CountForeignRow) != 1 {
			t.Errorf("counts %v", b.obs.counts)
		}
		for _, want := range []string{"reason=null_id", "table=eventlog.events", "up_to_position=0/1", "table=shop.orders"} {
			if b.book.lines(want) != 1 {
				t.Errorf("the log does not say %q once:\n%s", want, b.book)
			}
		}
		// The same again is counted, and not logged for a while.
		b.s.in <- tx("0/2", "")
		synctest.Wait()
		if b.obs.count(CountRowError) != 3 || b.book.lines("reason=null_id") != 1 {
			t.Errorf("log:\n%s", b.book)
		}
		if diff := cmp.Diff([]cdc.Position{"0/1", "0/2"}, b.source.acked()); diff != "" {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
	})
}

// Rows that lack a column may be nowhere but in the log, which therefore stays before
// them. What was committed before has its deliveries and is acknowledged; only a new start, with
// another mapping, goes on.
func TestRowsOfAnotherLayoutAreNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{})
		hold := make(chan struct{})
		b.store.gate = func(context.Context, string, []string) error { <-hold; return nil }
		b.launch(t)
		other := cdc.Record{Relation: eventTable}
		b.s.in <- tx("0/1", "1")
		synctest.Wait()
		b.s.in <- tx("0/2", "2") // gathers in one batch with what follows
		b.s.in <- cdc.Transaction{Position: "0/3", Records: []cdc.Record{row("3", "x"), other, row("", "x"), other}}
		b.s.in <- tx("0/4", "4")
		close(hold)
		elapse(time.Hour)
		if diff := cmp.Diff([]cdc.Position{"0/1", "0/2"}, b.source.acked()); diff != "" {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
		if n := b.store.deliveries(); n != 3 {
			t.Errorf("%d deliveries, want those of all rows that can be read", n)
		}
		if b.book.lines("needs your help") != 1 || b.book.lines("reason=missing_column") != 1 || b.book.lines("reason=null_id") != 1 {
			t.Errorf("not logged once:\n%s", b.book)
		}
		if b.obs.count(CountRowError) != 3 || b.store.noted("fanout") > 3 {
			t.Errorf("counts %v, %d statements", b.obs.counts, b.store.noted("fanout"))
		}
		if since, err := b.s.holding.present(); err == nil || since.IsZero() {
			t.Error("health does not show it")
		}
		b.halt()
		if acks := b.source.acked(); len(acks) != 2 {
			t.Errorf("acknowledged at the stop: %v", acks)
		}
	})
}

// Between two runs of the source nothing is in flight.
func TestCalmWaitsForEverythingHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{BatchEvents: 3})
		hold := make(chan struct{})
		b.store.gate = func(context.Context, string, []string) error { <-hold; return nil }
		b.launch(t)
		const sent = 1 + 3 + channelLength // in flight, gathered, waiting
		for i := 1; i <= sent; i++ {
			b.s.in <- tx(fmt.Sprintf("0/%d", i), fmt.Sprint(i))
		}
		calm := make(chan []cdc.Position, 1)
		go func() {
			b.s.calm(t.Context())
			calm <- b.source.acked()
		}()
		synctest.Wait()
		if len(calm) != 0 {
			t.Fatal("calm before anything was done")
		}
		close(hold)
		acked := <-calm
		if acked[len(acked)-1] != cdc.Position(fmt.Sprintf("0/%d", sent)) {
			t.Errorf("calm at %v", acked)
		}
	})
}

func TestStopFinishesAndAcknowledgesWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{})
		hold := make(chan struct{})
		b.store.gate = func(context.Context, string, []string) error { <-hold; return nil }
		b.launch(t)
		b.s.in <- tx("0/1", "1")
		synctest.Wait()
		b.s.in <- tx("0/2", "2") // building
		synctest.Wait()
		b.stop()
		synctest.Wait()
		close(hold)
		<-b.done
		if diff := cmp.Diff([]cdc.Position{"0/1"}, b.source.acked()); diff != "" {
			t.Errorf("acks (-want +got):\n%s", diff)
		}
	})
}

func TestStopDoesNotAcknowledgeWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStreamBench(t, FanOutConfig{}, Trigger{Name: "t", Table: "eventlog.events",
			OnRecordCreated: func(context.Context, []RecordCreated) error { return errors.New("no") }})
		b.launch(t)
		b.s.in <- tx("0/1", "1")
		elapse(time.Minute)
		b.halt()
		if acks := b.source.acked(); len(acks) != 0 {
			t.Errorf("acknowledged %v", acks)
		}
	})
}
