package pipeline

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// instantStore acknowledges everything at once.
type instantStore struct{ *fakeStore }

func (instantStore) Settle(_ context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	settled := make([]delivery.Settled, len(outcomes))
	for i, o := range outcomes {
		settled[i] = delivery.Settled{ID: o.ID, State: delivery.Succeeded}
	}
	return settled, nil
}

// BenchmarkHandling_NoOp is what handling itself costs: batches of 2,000 leased
// deliveries through a handler with 16 workers that does nothing, without a database.
func BenchmarkHandling_NoOp(b *testing.B) {
	const batch = 2000
	sub := subscription(does(succeed))
	h := newHandling(handlingConfig{
		store: instantStore{newFakeStore()}, subs: []*subscriber{sub}, lease: time.Minute, shutdownTimeout: time.Minute,
		maxPayload: 1 << 20, observer: NopObserver{}, logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- h.run(ctx) }()
	jobs := make([]job, batch)
	b.ReportAllocs()
	for n := 0; n < b.N; {
		got := h.reserve(sub.Name, min(batch, b.N-n))
		if got == 0 {
			continue
		}
		at := time.Now()
		for i := range jobs[:got] {
			jobs[i] = job{
				id: uuid.New(), token: uuid.New(), sub: sub, stored: sub.Name, claims: 1, leasedAt: at,
				ev: event.Event{ID: "5e0a4d3c-1c8e-4b55-9a39-0f6f0d1f2b11", Type: "t", Payload: []byte(`{}`), Date: at},
			}
		}
		h.accept(jobs[:got])
		n += got
	}
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
}
