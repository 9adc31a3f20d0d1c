package main

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// sessions write at the same time when a rate is offered, so that a slow commit delays no other.
const sessions = 8

// offer runs do for 0 to n-1 at a steady rate per second, on [sessions] goroutines. One whose turn is over begins as soon as
// a session is free.
func offer(ctx context.Context, rate, n int, do func(ctx context.Context, i int) error) error {
	turns := make(chan int)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(turns)
		begun := time.Now()
		for i := range n {
			if !pause(ctx, time.Until(begun.Add(time.Duration(i)*time.Second/time.Duration(rate)))) {
				return ctx.Err()
			}
			select {
			case turns <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range sessions {
		g.Go(func() error {
			for i := range turns {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// after says how long after its commit each event reached its first handler, sorted.
func (r *receipts) after(committed []time.Time) []time.Duration {
	list := make([]time.Duration, r.events)
	for i := range list {
		list[i] = time.Duration(r.first[0][i].Load() - committed[i].UnixNano())
	}
	slices.Sort(list)
	return list
}

// quantile is in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[int(q*float64(len(sorted)-1))].Microseconds()) / 1000
}
