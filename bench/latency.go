package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// sessions write at the same time when a rate is offered, so that a slow commit delays no other.
const sessions = 8

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

func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[int(q*float64(len(sorted)-1))].Microseconds()) / 1000
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
// A transaction whose turn is over begins at once, and is measured from its own commit.
func (w *world) offered(ctx context.Context, r *receipts, rate int, open string, insert func(context.Context, pgx.Tx, int) error) ([]time.Duration, error) {
	// The first connections, plans and looks are not what is measured.
	if !pause(ctx, 3*time.Second) {
		return nil, ctx.Err()
	}
	cfg, err := pgxpool.ParseConfig(w.dsn())
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = sessions
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	committed := make([]time.Time, r.events)
	turns := make(chan int)
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(turns)
		begun := time.Now()
		for i := range r.events {
			if !pause(running, time.Until(begun.Add(time.Duration(i)*time.Second/time.Duration(rate)))) {
				return running.Err()
			}
			select {
			case turns <- i:
			case <-running.Done():
				return running.Err()
			}
		}
		return nil
	})
	for range sessions {
		g.Go(func() error {
			for i := range turns {
				tx, err := pool.Begin(running)
				if err != nil {
					return err
				}
				if err := insert(running, tx, i); err != nil {
					return errors.Join(err, tx.Rollback(context.WithoutCancel(running)))
				}
				committed[i] = time.Now()
				if err := tx.Commit(running); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := w.finished(ctx, r, open); err != nil {
		return nil, err
	}
	list := make([]time.Duration, r.events)
	for i := range list {
		list[i] = time.Duration(r.first[0][i].Load() - committed[i].UnixNano())
	}
	slices.Sort(list)
	return list, nil
}
