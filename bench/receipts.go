package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// receipts is what the handlers of a run received: how often each of them was started for each
// event, and when first. Safe for use by many goroutines, and cheap.
type receipts struct {
	// base is the number of the first event.
	base, events int
	starts       [][]atomic.Uint32 // by handler, by event
	first        [][]atomic.Int64  // the same, as nanoseconds of the wall clock

	left atomic.Int64
	once sync.Once
	done chan struct{}
}

func newReceipts(handlers, events int) *receipts {
	r := &receipts{events: events, done: make(chan struct{})}
	for range handlers {
		r.starts = append(r.starts, make([]atomic.Uint32, events))
		r.first = append(r.first, make([]atomic.Int64, events))
	}
	r.left.Store(int64(handlers * events))
	return r
}

// started notes that a handler was started for an event.
func (r *receipts) started(handler, n int) {
	if n -= r.base; n < 0 || n >= r.events || r.starts[handler][n].Add(1) > 1 {
		return
	}
	r.first[handler][n].Store(time.Now().UnixNano())
	if r.left.Add(-1) == 0 {
		r.once.Do(func() { close(r.done) })
	}
}

// finished waits until every handler has been started for every event, and then for what settled waits for.
func (r *receipts) finished(ctx context.Context, settled func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
		return fmt.Errorf("%d deliveries have not started: %w", r.left.Load(), ctx.Err())
	}
	return settled(ctx)
}

// check says whether every event reached every handler once.
func (r *receipts) check() error {
	missing, repeated := 0, 0
	for _, handler := range r.starts {
		for i := range handler {
			switch n := handler[i].Load(); {
			case n == 0:
				missing++
			case n > 1:
				repeated++
			}
		}
	}
	if missing+repeated > 0 {
		return fmt.Errorf("%d deliveries never reached their handler, %d reached it more than once", missing, repeated)
	}
	return nil
}
