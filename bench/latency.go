package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// latencyAll offers a rate of single-event transactions, and measures from the moment before COMMIT is
// sent to the start of the handler. Both clocks are this process's.
func latencyAll(ctx context.Context, b *bench) error {
	for round := range b.rounds {
		for _, rate := range []int{200, 1000} {
			n := int(b.seconds.Seconds() * float64(rate))
			name := fmt.Sprintf("latency at %d/s, ", rate)
			var ours, river []time.Duration
			err := inTurn(round,
				func() (err error) { ours, err = b.latency(ctx, rate, n); return err },
				func() (err error) { river, err = b.latencyRiver(ctx, rate, n); return err })
			if err != nil {
				return err
			}
			for _, p := range []struct {
				what string
				q    float64
				// most is what is wanted at 200/s.
				most string
			}{{"p50", 0.5, "≤ 3"}, {"p99", 0.99, "≤ 15"}} {
				mine, theirs := quantile(ours, p.q), quantile(river, p.q)
				if rate > 200 {
					p.most = ""
				}
				b.report.limit(name+p.what, "cdc-dispatcher", "ms", p.most, mine)
				b.report.show(name+p.what, "river", "ms", theirs)
				b.report.ratio(name+p.what+", over River", "≤ 1.0", mine/theirs)
			}
		}
	}
	return nil
}

func (b *bench) latency(ctx context.Context, rate, n int) (sorted []time.Duration, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateEvents(ctx); err != nil {
			return err
		}
		r := newReceipts(1, n)
		running, err := startDispatcher(w.dsn(), noOps(1, r))
		if err != nil {
			return err
		}
		sql := eventSQL("$1::bigint", payloadSQL("$1::bigint", payloadPad))
		sorted, err = w.offered(ctx, r, rate, openDeliveries, func(ctx context.Context, tx pgx.Tx, i int) error {
			_, err := tx.Exec(ctx, sql, i)
			return err
		})
		if err = errors.Join(err, w.looked(ctx, fmt.Sprintf("latency %d", rate)), w.marked(ctx), running.end()); err != nil {
			return err
		}
		return w.ledger(ctx, 1, r)
	})
	return sorted, err
}

func (b *bench) latencyRiver(ctx context.Context, rate, n int) (sorted []time.Duration, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateRiver(ctx); err != nil {
			return err
		}
		r := newReceipts(1, n)
		side, err := newRiver(w.dsn(), r)
		if err != nil {
			return err
		}
		if err := side.client.Start(ctx); err != nil {
			return errors.Join(err, side.end())
		}
		sorted, err = w.offered(ctx, r, rate, openJobs, func(ctx context.Context, tx pgx.Tx, i int) error {
			_, err := side.client.InsertTx(ctx, tx, newRiverArgs(i, jobPad), nil)
			return err
		})
		if err = errors.Join(err, w.looked(ctx, fmt.Sprintf("latency %d river", rate)), side.end()); err != nil {
			return err
		}
		return w.riverLedger(ctx, r)
	})
	return sorted, err
}

// offered runs one transaction per event at a steady rate, and returns how long each was on its way, sorted.
func (w *world) offered(ctx context.Context, r *receipts, rate int, open string, insert func(context.Context, pgx.Tx, int) error) ([]time.Duration, error) {
	// The first connections, plans and looks are not what is measured.
	if !pause(ctx, 3*time.Second) {
		return nil, ctx.Err()
	}
	pool, err := openPool(w.dsn(), sessions)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	committed := make([]time.Time, r.events)
	err = offer(ctx, rate, r.events, func(ctx context.Context, i int) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		if err := insert(ctx, tx, i); err != nil {
			return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
		}
		committed[i] = time.Now()
		return tx.Commit(ctx)
	})
	if err != nil {
		return nil, err
	}
	if err := w.finished(ctx, r, open); err != nil {
		return nil, err
	}
	return r.after(committed), nil
}
