package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// impactRate is how many transactions the application begins in a second, impactBlock for how long on end with the
	// dispatcher running, or without: short, so that what else the machine does hits both.
	impactRate  = 200
	impactBlock = 10 * time.Second
)

// impactAll compares the application's own transactions with the dispatcher running, in a process of its own, and without.
func impactAll(ctx context.Context, b *bench) error {
	b.report.Setup["impact"] = fmt.Sprintf("%d transactions/s, BEGIN to the answer to COMMIT, %s for each side in blocks of %s", impactRate, b.impact, min(impactBlock, b.impact))
	for round := range b.rounds {
		var on, off []time.Duration
		err := b.with(ctx, func(w *world) (err error) {
			on, off, err = w.impact(ctx, round)
			return err
		})
		if err != nil {
			return err
		}
		for _, p := range []struct {
			what, want string
			q          float64
		}{{"p50", "", 0.5}, {"p99", "≤ 1.1", 0.99}} {
			name := fmt.Sprintf("insert transaction at %d/s, %s", impactRate, p.what)
			b.report.show(name, "dispatcher running", "ms", quantile(on, p.q))
			b.report.show(name, "no dispatcher", "ms", quantile(off, p.q))
			b.report.ratio(name+", over without", p.want, quantile(on, p.q)/quantile(off, p.q))
		}
	}
	return nil
}

// impact offers the rate in blocks with (on) and without the dispatcher: on, off, off, on, and so on, and the other way round in the
// next round. Everything that was committed is delivered in the end. The times are sorted.
func (w *world) impact(ctx context.Context, round int) (on, off []time.Duration, err error) {
	if err := w.migrateEvents(ctx); err != nil {
		return nil, nil, err
	}
	pool, err := openPool(w.dsn(), sessions)
	if err != nil {
		return nil, nil, err
	}
	defer pool.Close()
	block := min(impactBlock, w.b.impact)
	blocks := 2 * int(w.b.impact/block)
	each := int(impactRate * block.Seconds())
	var reports []childReport
	with := func(fn func() error) error {
		r, err := w.beside(ctx, blocks*each, fn)
		reports = append(reports, r)
		return err
	}
	for i := range blocks {
		offer := func(list *[]time.Duration) func() error {
			return func() error {
				took, err := inserts(ctx, pool, i*each, each)
				*list = append(*list, took...)
				return err
			}
		}
		if (i+1)/2%2 == round%2 {
			err = with(offer(&on))
		} else {
			err = offer(&off)()
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if err := with(func() error { return nil }); err != nil {
		return nil, nil, err
	}
	slices.Sort(on)
	slices.Sort(off)
	return on, off, errors.Join(checkReports(blocks*each, reports...), w.tables(ctx, 1, blocks*each))
}

// beside runs fn beside a dispatcher that has nothing left to do when fn begins, and nothing when it has ended.
func (w *world) beside(ctx context.Context, events int, fn func() error) (r childReport, err error) {
	c, err := startChild(childJob{DSN: w.dsn(), Events: events})
	if err != nil {
		return r, err
	}
	idle := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return w.idle(ctx)
	}
	err = errors.Join(w.read(ctx), idle())
	if err == nil && pause(ctx, time.Second) {
		err = fn()
	}
	if err == nil {
		err = idle()
	}
	r, ended := c.end()
	return r, errors.Join(err, ended)
}

// inserts commits n events from number first on at the rate, one in a transaction, and says how long each transaction took.
func inserts(ctx context.Context, pool *pgxpool.Pool, first, n int) ([]time.Duration, error) {
	sql := eventSQL("$1::bigint", payloadSQL("$1::bigint", payloadPad))
	took := make([]time.Duration, n)
	err := offer(ctx, impactRate, n, func(ctx context.Context, i int) error {
		begun := time.Now()
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sql, first+i); err != nil {
			return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
		}
		err = tx.Commit(ctx)
		took[i] = time.Since(begun)
		return err
	})
	return took, err
}
