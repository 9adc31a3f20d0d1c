package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// liveAttempts checks that no delivery has two attempts whose contexts live.
type liveAttempts struct {
	mu   sync.Mutex
	live map[string]<-chan struct{} // the end of the context of the latest attempt
	bad  []string
	runs int
}

func newLiveAttempts() *liveAttempts {
	return &liveAttempts{live: map[string]<-chan struct{}{}}
}

func (l *liveAttempts) enter(ctx context.Context, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs++
	if other := l.live[id]; other != nil {
		select {
		case <-other:
		default:
			l.bad = append(l.bad, id)
		}
	}
	l.live[id] = ctx.Done()
}

func (l *liveAttempts) leave(ctx context.Context, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live[id] == ctx.Done() {
		delete(l.live, id)
	}
}

// TestChaos_ThreeProcessesOnABadNetwork runs three processes on one store. Their
// statements hang, fail before or after they take effect, and two of the processes
// are stopped and replaced now and then. Promise 2 must hold all the time, and
// promise 7 in the end.
func TestChaos_ThreeProcessesOnABadNetwork(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	const deliveries = 300
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 1))
	draw := func() float64 { mu.Lock(); defer mu.Unlock(); return dice.Float64() }
	badUntil := time.Now().Add(8 * time.Minute)

	store := newFakeStore()
	store.before = func(ctx context.Context, _ string) error {
		<-time.After(time.Duration(draw() * float64(20*time.Millisecond)))
		switch r := draw(); {
		case time.Now().After(badUntil):
		case r < 0.05:
			<-ctx.Done()
			return ctx.Err()
		case r < 0.3:
			return errors.New("refused")
		}
		return nil
	}
	store.after = func(context.Context, string) error {
		if draw() < 0.1 && time.Now().Before(badUntil) {
			return errors.New("reset after the commit")
		}
		return nil
	}
	live := newLiveAttempts()
	h := does(func(ctx context.Context, e event.Envelope) error {
		live.enter(ctx, e.DeliveryID)
		defer live.leave(ctx, e.DeliveryID)
		takes := time.Duration(draw() * draw() * float64(90*time.Second))
		if draw() < 0.2 { // ignores its context
			<-time.After(takes)
			return nil
		}
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return ctx.Err()
		}
		if draw() < 0.3 {
			return errors.New("no")
		}
		return nil
	})
	h.Timeout = 50 * time.Second
	h.Retry = RetryPolicy{Base: time.Second, Cap: 20 * time.Second, Jitter: true, Window: -1}

	a, b, c := newBench(store, h), newBench(store, h), newBench(store, h)
	a.launch(t)
	b.launch(t)
	c.launch(t)
	synctest.Wait()
	for created := 0; created < deliveries; {
		created += a.fanOut("h", 1+int(draw()*20))
		created += len(store.add("h", int(draw()*5)))
		elapse(time.Duration(draw() * float64(2*time.Second)))
	}
	for range 6 {
		elapse(time.Duration(draw() * float64(3*time.Minute)))
		// A stop on a bad network may leave things behind; that is what leases are for.
		_ = b.halt()
		b = newBench(store, h)
		b.launch(t)
	}
	elapse(20 * time.Minute)

	if len(live.bad) > 0 {
		t.Errorf("%d times two live attempts of one delivery", len(live.bad))
	}
	if got := store.states(); got[delivery.Succeeded] != len(store.rows) {
		t.Errorf("after %d attempts: %v", live.runs, got)
	}
	for _, p := range []*bench{a, b, c} {
		p.mu.Lock()
		if len(p.flight) != 0 || len(p.ended) != 0 || p.queuedBytes != 0 || p.reservedBytes != 0 || p.active != 0 || p.lanes["h"].workers != 0 {
			t.Errorf("left over: %d in flight, %d outcomes, %d bytes queued, %d reserved, %d active, %d workers",
				len(p.flight), len(p.ended), p.queuedBytes, p.reservedBytes, p.active, p.lanes["h"].workers)
		}
		p.mu.Unlock()
	}
}
