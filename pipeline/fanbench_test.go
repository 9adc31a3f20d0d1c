package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// fanBench is a fanOut over fakes.
type fanBench struct {
	*fanOut
	store  *pipelineStore
	slots  *fakeSlots
	obs    *fanRecorder
	book   *logBook
	router *router
}

type fanRecorder struct {
	recorder
	fanned   []FanOutStats
	captured map[string]int
}

func (r *fanRecorder) FannedOut(s FanOutStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fanned = append(r.fanned, s)
}

func (r *fanRecorder) Captured(via string, n int, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.captured == nil {
		r.captured = map[string]int{}
	}
	r.captured[via] += n
}

func newFanBench(t *testing.T, free map[string]int, handlers ...Handler) *fanBench {
	t.Helper()
	b := &fanBench{store: newPipelineStore(), slots: newFakeSlots(free), obs: &fanRecorder{}, book: &logBook{}}
	b.router = routerOf(t, handlers...)
	b.router.newID = newRowID
	var ps problems
	p := &plan{
		Config: Config{Source: "test", Store: b.store, Observer: b.obs, Logger: slog.New(slog.NewTextHandler(b.book, nil)),
			Lease: time.Minute, Owner: "me"},
		registry: newRegistry(handlers, time.Minute, &ps),
	}
	b.fanOut = newFanOut(p, b.slots)
	return b
}

// eventsOf makes n events of a type and puts them into the table.
func (b *fanBench) eventsOf(t *testing.T, typ string, n int) []routed {
	t.Helper()
	var out []routed
	for i := range n {
		ev := event.Event{ID: fmt.Sprintf("%s-%03d", typ, i), Type: typ, Payload: json.RawMessage(`{}`), Date: time.Now()}
		b.store.commit(ev)
		r, ok := b.router.route(ev)
		if !ok {
			t.Fatalf("%s is not routed", ev.ID)
		}
		r.fan.FromLog = true
		out = append(out, r)
	}
	return out
}

func (b *fanBench) deliver(t *testing.T, events []routed) {
	t.Helper()
	if err := b.fanOut.deliver(t.Context(), t.Context(), events, viaLog, place{position: "0/1"}); err != nil {
		t.Fatal(err)
	}
}

// ledger checks promise 1: every event of the table is marked, and has one delivery.
func (b *fanBench) ledger(t *testing.T, deliveries int) {
	t.Helper()
	if n := b.store.undelivered(); n != 0 {
		t.Errorf("%d events are undelivered", n)
	}
	if n := len(b.store.keys); n != deliveries {
		t.Errorf("%d deliveries, want %d", n, deliveries)
	}
	b.balanced(t)
}

// balanced checks that no worker slot was lost.
func (b *fanBench) balanced(t *testing.T) {
	t.Helper()
	for h, n := range b.slots.reserved {
		if n != b.slots.released[h]+b.slots.accepts[h] {
			t.Errorf("handler %s: %d slots reserved, %d released, %d used", h, n, b.slots.released[h], b.slots.accepts[h])
		}
	}
}

// trickle keeps fanning out single events, as the poller does beside the log.
func (b *fanBench) trickle(ctx context.Context, t *testing.T) {
	events := b.eventsOf(t, "other", 200)
	go func() {
		for i := range events {
			if !sleep(ctx, 10*time.Second) || b.fanOut.deliver(ctx, ctx, events[i:i+1], viaPoll, place{}) != nil {
				return
			}
		}
	}()
}

// lock makes every statement wait that touches the row.
func (b *fanBench) lock(id string) {
	b.store.gate = func(ctx context.Context, op string, ids []string) error {
		if op == "fanout" && slices.Contains(ids, id) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
}
