package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// slowHandler is how long the handler of the replicas figure takes, and slowWorkers how many of it run at once in one process:
	// 800 deliveries a second, a small part of what two cores can do, so that even four processes wait for their handlers only.
	slowHandler = 20 * time.Millisecond
	slowWorkers = 16
)

// replicasAll compares 1, 2 and 4 processes on a handler that takes its time.
func replicasAll(ctx context.Context, b *bench) error {
	most := float64(slowWorkers) / slowHandler.Seconds()
	b.report.Setup["replicas"] = fmt.Sprintf("handler of %s, %d workers in a process: %.0f deliveries/s at most", slowHandler, slowWorkers, most)
	counts := []int{1, 2, 4}
	for range b.rounds {
		rates := map[int]float64{}
		for _, n := range counts {
			var err error
			if rates[n], err = b.replicas(ctx, n, int(most*b.seconds.Seconds())*n); err != nil {
				return err
			}
		}
		for _, n := range []int{1, 2, 4} {
			b.report.show(fmt.Sprintf("%d processes, handler of %s", n, slowHandler), "cdc-dispatcher", "deliveries/s", rates[n])
			if n > 1 {
				b.report.ratio(fmt.Sprintf("%d processes, over %d times one", n, n), "≥ 0.9", rates[n]/rates[1]/float64(n))
			}
		}
		slices.Reverse(counts)
	}
	return nil
}

// replicas drains with n processes: from the moment when the handler has been started in each of them until the last
// outcome is in the table.
func (b *bench) replicas(ctx context.Context, n, events int) (rate float64, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateEvents(ctx); err != nil {
			return err
		}
		if err := w.insertEvents(ctx, 0, events, b.perTx); err != nil {
			return err
		}
		newest := time.Now()
		if err := w.settle(ctx); err != nil {
			return err
		}
		if !pause(ctx, time.Until(newest.Add(backlogAge))) {
			return ctx.Err()
		}
		reports, done, err := w.together(ctx, n, events)
		if err != nil {
			return err
		}
		if err := errors.Join(checkReports(events, reports...), w.tables(ctx, 1, events)); err != nil {
			return err
		}
		// From then on all of them worked. Programs that start at the same time are ready at different times.
		var all time.Time
		for _, r := range reports {
			if begun := time.Unix(0, r.First); r.First != 0 && begun.After(all) {
				all = begun
			}
		}
		var finished int
		err = w.pool.QueryRow(ctx, `SELECT count(*) FROM eventlog.event_notifications WHERE finished_date >= $1`, all.UTC()).Scan(&finished)
		rate = float64(finished) / done.Sub(all).Seconds()
		return err
	})
	return rate, err
}

// together runs n processes until everything is finished, and says when that was.
func (w *world) together(ctx context.Context, n, events int) (reports []childReport, done time.Time, err error) {
	var children []*child
	for range n {
		c, failed := startChild(childJob{DSN: w.dsn(), Events: events, Took: slowHandler, Workers: slowWorkers})
		if c != nil {
			children = append(children, c)
		}
		err = errors.Join(err, failed)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
		defer cancel()
		err = w.idle(ctx)
		done = time.Now()
	}
	for _, c := range children {
		r, failed := c.end()
		reports, err = append(reports, r), errors.Join(err, failed)
	}
	return reports, done, err
}
