package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// bareRows are the sizes of batches of the bare SQL: those of the dispatcher's defaults.
const bareRows = 2000

// bareFanOut marks a range of events and makes a delivery of each, which is leased, with the columns that the dispatcher fills.
const bareFanOut = `
WITH fresh AS (
    UPDATE eventlog.events SET delivered = true WHERE id BETWEEN $1::uuid AND $2::uuid AND NOT delivered RETURNING *
)
INSERT INTO eventlog.event_notifications (
    id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date, completion_date,
    model_id, model_type, event_type, payload, event_date, state, next_retry_at, created_date, updated_date,
    claim_count, lease_token, lease_until, lease_owner)
SELECT f.id, f.id, 'handler-0', f.namespace, f.action_id, f.action_name, f.action_params, f.started_date, f.completion_date,
    f.model_id, f.model_type, f.event_type, f.payload, f.event_date, 'PENDING', c.now + interval '1 minute', c.now, c.now,
    1, f.id, c.now + interval '1 minute', 'bench'
FROM fresh AS f, (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS c`

// bareOutcome writes that they have succeeded.
const bareOutcome = `
UPDATE eventlog.event_notifications SET state = 'SUCCEEDED', lease_token = NULL, lease_until = NULL, lease_owner = NULL,
    finished_date = clock_timestamp() AT TIME ZONE 'UTC', updated_date = clock_timestamp() AT TIME ZONE 'UTC'
WHERE id BETWEEN $1::uuid AND $2::uuid`

// drainBare is what the server can do with the same rows and no dispatcher: one connection makes the deliveries of two
// thousand events, marks these and commits; another writes the outcomes of those that are committed, without waiting for the
// disk, as the dispatcher does. No log is read, no id is sent, and every statement knows where its rows are.
func (b *bench) drainBare(ctx context.Context) (d drained, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateEvents(ctx); err != nil {
			return err
		}
		if err := w.insertEvents(ctx, 0, b.events, b.perTx); err != nil {
			return err
		}
		if err := w.settle(ctx); err != nil {
			return err
		}
		d.work, err = w.metered(ctx, func() error {
			begun := time.Now()
			err := w.bare(ctx)
			d.rate = float64(b.events) / time.Since(begun).Seconds()
			return err
		})
		if err != nil {
			return err
		}
		r := newReceipts(0, 0)
		r.base = b.events
		return w.ledger(ctx, 1, r)
	})
	return d, err
}

func (w *world) bare(ctx context.Context) error {
	made := make(chan int, w.b.events/bareRows+1)
	g, ctx := errgroup.WithContext(ctx)
	each := func(set, sql string, at int, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, set); err != nil {
			return err
		}
		_, err := c.Exec(ctx, sql, eventID(at), eventID(at+bareRows-1))
		return err
	}
	g.Go(func() error {
		defer close(made)
		return w.withConn(ctx, func(c *pgx.Conn) error {
			for at := 0; at < w.b.events; at += bareRows {
				if err := each("SET synchronous_commit = on", bareFanOut, at, c); err != nil {
					return fmt.Errorf("bare fan-out: %w", err)
				}
				made <- at
			}
			return nil
		})
	})
	g.Go(func() error {
		return w.withConn(ctx, func(c *pgx.Conn) error {
			for at := range made {
				if err := each("SET synchronous_commit = off", bareOutcome, at, c); err != nil {
					return fmt.Errorf("bare outcomes: %w", err)
				}
			}
			return nil
		})
	})
	return g.Wait()
}
