package pipeline

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// poison is an error that panics when it is looked at.
type poison struct{}

func (poison) Error() string { return "poison" }
func (poison) Code() string  { panic("even my code is poison, and so is card 4242") }

func TestPoisonHandlersFailAloneAndHealthyOnesGoOn(t *testing.T) {
	ways := map[string]func(context.Context, event.Envelope) error{
		"panic":      func(context.Context, event.Envelope) error { panic("card 4242 4242") },
		"no index":   func(_ context.Context, e event.Envelope) error { _ = e.Payload[len(e.Payload)]; return nil },
		"panic nil":  func(context.Context, event.Envelope) error { panic(nil) }, //nolint:govet // that is the point
		"goexit":     func(context.Context, event.Envelope) error { runtime.Goexit(); return nil },
		"bad error":  func(context.Context, event.Envelope) error { return poison{} },
		"timeout":    func(ctx context.Context, _ event.Envelope) error { <-ctx.Done(); return errors.New("gave up") },
		"plain fail": func(context.Context, event.Envelope) error { return errors.New("no") },
	}
	codes := map[string]string{"goexit": "goexit", "timeout": "timeout", "plain fail": "*errors.errorString"}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				bad := does(way)
				bad.Name, bad.Concurrency, bad.Retry = "bad", 2, RetryVernac()
				b := newBench(store, bad, does(func(context.Context, event.Envelope) error { return nil }))
				ids := store.add("bad", 5)
				good := store.add("h", 500)
				b.launch(t)
				elapse(10 * time.Second)
				for _, id := range good {
					if got := store.row(id); got.state != delivery.Succeeded {
						t.Fatalf("a healthy delivery is %s", got.state)
					}
				}
				elapse(20 * time.Minute)
				want := cmp.Or(codes[name], "panic")
				for _, id := range ids {
					got := store.row(id)
					if got.state != delivery.Dead || got.attempts != 5 || got.code != want || got.message != "" {
						t.Errorf("poisoned delivery: %+v, want DEAD after 5 attempts with code %s", got, want)
					}
				}
				if b.book.lines("4242") != 0 {
					t.Error("what was thrown got into the log")
				}
				if panics := b.obs.count(CountPanic); (panics == 25) != (want == "panic" || want == "goexit") {
					t.Errorf("%d panics counted", panics)
				}
				if b.book.lines("panicked") > 2 {
					t.Errorf("every panic has its own log line:\n%s", b.book)
				}
			})
		})
	}
}

func TestPresets_HandlersAreInvokedToTheFigure(t *testing.T) {
	s := time.Second
	tests := []struct {
		name   string
		policy RetryPolicy
		want   []time.Duration
		end    delivery.State
	}{
		{"C82 vernac", RetryVernac(), []time.Duration{1 * s, 2 * s, 4 * s, 8 * s}, delivery.Dead},
		{
			"A121 ekbatan, A111 with a window of 30 min", RetryPolicy{Base: 30 * s, Cap: 300 * s, Window: 1800 * s},
			[]time.Duration{30 * s, 60 * s, 120 * s, 240 * s, 300 * s, 300 * s, 300 * s, 300 * s}, delivery.Expired,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Time
				h := does(func(context.Context, event.Envelope) error {
					at = append(at, time.Now())
					return errors.New("no")
				})
				h.Retry = tt.policy
				store := newFakeStore()
				b := newBench(store, h)
				id := store.add("h", 1)[0]
				b.launch(t)
				elapse(time.Hour)
				for i, want := range tt.want {
					if i+1 >= len(at) {
						t.Fatalf("only %d attempts", len(at))
					}
					if got := at[i+1].Sub(at[i]); got < want || got > want+2*lookSoonest {
						t.Errorf("delay %d is %v, want %v", i+1, got, want)
					}
				}
				if len(at) != len(tt.want)+1 {
					t.Errorf("%d attempts, want %d", len(at), len(tt.want)+1)
				}
				if got := store.row(id); got.state != tt.end || got.attempts != len(at) {
					t.Errorf("ended %s after %d failures, want %s", got.state, got.attempts, tt.end)
				}
			})
		})
	}
}

func TestEnvelope_CarriesTheDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got event.Envelope
		h := does(func(ctx context.Context, e event.Envelope) error {
			got = e
			if deadline, _ := ctx.Deadline(); !deadline.Equal(e.Deadline) {
				t.Errorf("context ends at %v, the envelope says %v", deadline, e.Deadline)
			}
			return nil
		})
		h.Name, h.Aliases, h.Timeout = "new-name", []string{"old-name"}, 7*time.Second
		store := newFakeStore()
		b := newBench(store, h)
		id := store.add("old-name", 1)[0]
		store.rows[id].claims = 2
		want := event.Envelope{
			Event: store.rows[id].ev, Handler: "new-name", DeliveryID: id.String(), Attempt: 3,
			// A81: the row was written under the old name, and other attempts may have been
			// made under it.
			IdempotencyKey: event.IdempotencyKey(store.rows[id].ev.ID, "old-name"),
			Deadline:       time.Now().Add(7 * time.Second),
		}
		b.launch(t)
		synctest.Wait()
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("envelope (-want +got):\n%s", diff)
		}
	})
}

func TestDeadHandlerStopsNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		dead := does(func(context.Context, event.Envelope) error { <-gate; return nil })
		dead.Name, dead.Concurrency, dead.Timeout = "dead", 4, 5*time.Second
		store := newFakeStore()
		b := newBench(store, dead, does(func(context.Context, event.Envelope) error { return nil }))
		stuck := store.add("dead", 100)
		b.launch(t)
		elapse(time.Minute)
		for range 10 {
			store.add("h", 100)
			b.fanOut("h", 100)
			elapse(30 * time.Second)
		}
		if got := store.states(); got[delivery.Succeeded] < 1000 {
			t.Errorf("the healthy handler got stuck: %v", got)
		}
		leased := 0
		for _, id := range stuck {
			if r := store.row(id); r.until.After(time.Now()) {
				leased++
				if r.claims != 1 {
					t.Errorf("a running delivery was claimed %d times", r.claims)
				}
			}
		}
		if leased != 4 {
			t.Errorf("the dead handler holds %d leases, want one for each of its 4 attempts", leased)
		}
		if got := b.obs.count(CountStuck); got != 4 || b.book.lines("ignores the end") != 4 {
			t.Errorf("reported stuck: %d counted, log:\n%s", got, b.book)
		}
		close(gate)
		elapse(time.Second)
		if got := store.states(); got[delivery.Succeeded] != len(store.rows) {
			t.Errorf("after it came back: %v", got)
		}
	})
}

func TestForeignRowsThatMustNotRunAreBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		b := newBench(store, does(func(context.Context, event.Envelope) error {
			t.Error("handler was called")
			return nil
		}))
		null, large := store.add("h", 1)[0], store.add("h", 1)[0]
		store.rows[null].ev.Payload = nil
		store.rows[large].ev.Payload = []byte(strings.Repeat(" ", b.maxPayload+1))
		b.launch(t)
		synctest.Wait()
		for id, reason := range map[uuid.UUID]string{null: delivery.ReasonNullPayload, large: delivery.ReasonOversize} {
			if got := store.row(id); got.state != delivery.Blocked || got.reason != reason || got.claims != 0 {
				t.Errorf("got %+v, want BLOCKED %s", got, reason)
			}
		}
	})
}

func TestWorkers_NeverMoreThanTheConcurrencyAndNoneWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		var mu sync.Mutex
		var order []string
		h := does(func(_ context.Context, e event.Envelope) error {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			mu.Lock()
			order = append(order, e.ID)
			mu.Unlock()
			<-time.After(20 * time.Millisecond)
			return nil
		})
		h.Concurrency = 7
		store := newFakeStore()
		b := newBench(store, h)
		store.add("h", 1000)
		b.launch(t)
		before := time.Now()
		for store.states()[delivery.Succeeded] < 1000 {
			elapse(10 * time.Millisecond)
		}
		if got := most.Load(); got != 7 {
			t.Errorf("%d ran at once, want 7", got)
		}
		if took, ideal := time.Since(before), 1000*20*time.Millisecond/7; took > ideal+ideal/10 {
			t.Errorf("took %v for %v of work: workers waited for claims", took, ideal)
		}
		if got := len(slices.Compact(slices.Sorted(slices.Values(order)))); got != 1000 || len(order) != 1000 {
			t.Errorf("%d attempts for 1000 deliveries", len(order))
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if l := b.lanes["h"]; l.workers != 0 || b.active != 0 || len(b.flight) != 0 || b.queuedBytes != 0 || b.reservedBytes != 0 {
			t.Errorf("idle, but %d workers, %d active, %d in flight, %d bytes queued, %d reserved",
				l.workers, b.active, len(b.flight), b.queuedBytes, b.reservedBytes)
		}
	})
}
