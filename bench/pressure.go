package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// warmup is how much is delivered before the rate under a held snapshot is measured: what it leaves dead cannot be removed.
const warmup = 100_000

// heldAll drains with and without a transaction that has been open since before the first event.
func heldAll(ctx context.Context, b *bench) error {
	for round := range b.rounds {
		var free, held float64
		err := inTurn(round,
			func() (err error) { free, err = b.held(ctx, false); return err },
			func() (err error) { held, err = b.held(ctx, true); return err })
		if err != nil {
			return err
		}
		b.report.show("drain after 100,000 deliveries", "no old transaction", "deliveries/s", free)
		b.report.show("drain after 100,000 deliveries", "an old transaction open", "deliveries/s", held)
		b.report.ratio("held snapshot, over free", "≥ 0.7", held/free)
	}
	return nil
}

func (b *bench) held(ctx context.Context, open bool) (rate float64, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateEvents(ctx); err != nil {
			return err
		}
		measure := func() error {
			if _, err := w.drainEvents(ctx, "warm-up", 1, 0, warmup); err != nil {
				return err
			}
			d, err := w.drainEvents(ctx, "held "+strconv.FormatBool(open), 1, warmup, b.events)
			rate = d.rate
			return err
		}
		if !open {
			return measure()
		}
		return w.withConn(ctx, func(c *pgx.Conn) error {
			tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			// The snapshot is taken by the first statement.
			if _, err := tx.Exec(ctx, "SELECT count(*) FROM eventlog.events"); err != nil {
				return err
			}
			return measure()
		})
	})
	return rate, err
}

// historyAll drains into tables with millions of finished rows, and into empty ones.
func historyAll(ctx context.Context, b *bench) error {
	for round := range b.rounds {
		var empty, full drained
		err := inTurn(round,
			func() (err error) { empty, err = b.withHistory(ctx, 0); return err },
			func() (err error) { full, err = b.withHistory(ctx, b.history); return err })
		if err != nil {
			return err
		}
		name := fmt.Sprintf("drain with %d finished", b.history)
		b.report.show(name, "empty tables", "deliveries/s", empty.rate)
		b.report.show(name, "full tables", "deliveries/s", full.rate)
		b.report.ratio("history, over empty", "≥ 0.9", full.rate/empty.rate)
	}
	return nil
}

func (b *bench) withHistory(ctx context.Context, rows int) (d drained, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateEvents(ctx); err != nil {
			return err
		}
		// The past is not in the log that is read.
		for _, sql := range []string{
			"SELECT pg_drop_replication_slot('" + defaultSlot + "')",
			"INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date, model_id, model_type, event_type, payload, event_date, delivered) " +
				"SELECT e.id, 'shop.orders', e.id, 'PlaceOrder', '{\"channel\": \"web\"}', e.at, e.at, e.id::text, 'Order', '" + eventType + "', " + payloadSQL("e.n", payloadPad) + ", e.at, true " +
				"FROM (SELECT n, ('" + eventIDStart + "' || lpad(to_hex(n), 12, '0'))::uuid AS id, clock_timestamp() AT TIME ZONE 'UTC' AS at FROM generate_series(0::bigint, " + strconv.Itoa(rows) + " - 1) AS n) AS e",
			"INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date, completion_date, model_id, model_type, event_type, payload, event_date, " +
				"state, attempts, next_retry_at, created_date, updated_date, claim_count, finished_date) " +
				"SELECT id, id, 'handler-0', namespace, action_id, action_name, action_params, started_date, completion_date, model_id, model_type, event_type, payload, event_date, " +
				"'SUCCEEDED', 0, event_date, event_date, event_date, 1, event_date FROM eventlog.events",
			"SELECT pg_create_logical_replication_slot('" + defaultSlot + "', 'pgoutput')",
		} {
			if _, err := w.pool.Exec(ctx, sql); err != nil {
				return fmt.Errorf("make a history: %w", err)
			}
		}
		d, err = w.drainEvents(ctx, fmt.Sprintf("history %d", rows), 1, rows, b.events)
		return err
	})
	return d, err
}

// backlogAll drains a large backlog with a dispatcher in a process of its own, and compares its ends.
func backlogAll(ctx context.Context, b *bench) error {
	for range b.rounds {
		if err := b.with(ctx, func(w *world) error { return w.backlog(ctx, b.backlog) }); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) backlog(ctx context.Context, events int) error {
	if err := errors.Join(w.migrateEvents(ctx), w.insertEvents(ctx, 0, events, w.b.perTx)); err != nil {
		return err
	}
	newest := time.Now()
	if err := w.settle(ctx); err != nil {
		return err
	}
	if !pause(ctx, time.Until(newest.Add(backlogAge))) {
		return ctx.Err()
	}
	begun := time.Now()
	c, err := startChild(childJob{DSN: w.dsn(), Events: events})
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	err = w.idle(bounded)
	took := time.Since(begun)
	peak, unread := c.peakMemory()
	r, ended := c.end()
	if err := errors.Join(err, unread, ended); err != nil {
		return err
	}
	if err := errors.Join(checkReports(events, r), w.tables(ctx, 1, events)); err != nil {
		return err
	}
	var first, last float64
	err = w.pool.QueryRow(ctx, `SELECT extract(epoch FROM tenth - least)::float8, extract(epoch FROM most - ninth)::float8
		FROM (SELECT min(finished_date) AS least, max(finished_date) AS most,
			percentile_disc(0.1) WITHIN GROUP (ORDER BY finished_date) AS tenth,
			percentile_disc(0.9) WITHIN GROUP (ORDER BY finished_date) AS ninth
			FROM eventlog.event_notifications) AS t`).Scan(&first, &last)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("backlog of %d", events)
	w.b.report.show(name, "cdc-dispatcher", "deliveries/s", float64(events)/took.Seconds())
	w.b.report.ratio(name+", last tenth over the first", "≥ 0.9", first/last)
	w.b.report.limit(name+", peak memory of the dispatcher", "", "MB", "≤ 256", float64(peak)/1e6)
	return nil
}
