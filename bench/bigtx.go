package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// largePayload is the size of a large event in bytes.
	largePayload = 2_000_000
	// largePerTx is how many of them the application commits at once.
	largePerTx = 10
)

// bigTxAll commits one very large transaction, and very large events, under a dispatcher that runs in a process of its own.
func bigTxAll(ctx context.Context, b *bench) error {
	for range b.rounds {
		name := fmt.Sprintf("one transaction of %d events", b.bigTx)
		took, peak, err := b.big(ctx, b.bigTx, func(w *world) (time.Time, error) { return w.insertAtOnce(ctx, b.bigTx) })
		if err != nil {
			return err
		}
		b.report.show(name, "cdc-dispatcher", "deliveries/s", float64(b.bigTx)/took.Seconds())
		b.report.limit(name+", peak memory of the dispatcher", "", "MB", "≤ 256", float64(peak)/1e6)
		name = fmt.Sprintf("%d events of 2 MB, %d in a transaction", b.large, largePerTx)
		took, peak, err = b.big(ctx, b.large, func(w *world) (time.Time, error) { return w.insertLarge(ctx, b.large) })
		if err != nil {
			return err
		}
		b.report.show(name+", with the application's inserts", "cdc-dispatcher", "MB/s", float64(b.large)*largePayload/1e6/took.Seconds())
		b.report.limit(name+", peak memory of the dispatcher", "", "MB", "≤ 256", float64(peak)/1e6)
	}
	return nil
}

// big runs the dispatcher, lets the application insert, and says how long it took from the moment that insert returns, at which there
// was something to do, until the last outcome was in the table, and what the dispatcher had in memory at most.
func (b *bench) big(ctx context.Context, events int, insert func(*world) (time.Time, error)) (took time.Duration, peak int64, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateEvents(ctx); err != nil {
			return err
		}
		c, err := startChild(childJob{DSN: w.dsn(), Events: events})
		if err != nil {
			return err
		}
		took, err = w.bigWork(ctx, insert)
		var unread error
		peak, unread = c.peakMemory()
		r, ended := c.end()
		if err = errors.Join(err, unread, ended); err != nil {
			return err
		}
		return errors.Join(checkReports(events, r), w.tables(ctx, 1, events))
	})
	return took, peak, err
}

func (w *world) bigWork(ctx context.Context, insert func(*world) (time.Time, error)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	if err := w.read(ctx); err != nil {
		return 0, err
	}
	begun, err := insert(w)
	if err != nil {
		return 0, err
	}
	err = w.idle(ctx)
	return time.Since(begun), err
}

// read waits until somebody reads the log.
func (w *world) read(ctx context.Context) error {
	return w.gone(ctx, "a reader of the log", `SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '`+defaultSlot+`' AND active)`)
}

// idle waits until everything that was committed is finished. It asks less often than gone, because the question reads the
// index entries of what is finished already.
func (w *world) idle(ctx context.Context) error {
	const unfinished = `SELECT EXISTS (SELECT FROM eventlog.events WHERE NOT delivered)
		OR EXISTS (SELECT FROM eventlog.event_notifications WHERE state IN ('PENDING', 'FAILED'))`
	for {
		var open bool
		if err := w.pool.QueryRow(ctx, unfinished).Scan(&open); err != nil || !open {
			return err
		}
		if !pause(ctx, 30*time.Millisecond) {
			return fmt.Errorf("unfinished deliveries: %w", ctx.Err())
		}
	}
}

// insertAtOnce commits n events in one transaction, and returns when it began to commit.
func (w *world) insertAtOnce(ctx context.Context, n int) (committed time.Time, err error) {
	err = w.withConn(ctx, func(c *pgx.Conn) error {
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		sql := fmt.Sprintf(`DO $do$ BEGIN FOR i IN 0 .. %d LOOP %s; END LOOP; END $do$`, n-1, eventSQL("i::bigint", payloadSQL("i::bigint", payloadPad)))
		if _, err := tx.Exec(ctx, sql); err != nil {
			return errors.Join(fmt.Errorf("insert events: %w", err), tx.Rollback(context.WithoutCancel(ctx)))
		}
		committed = time.Now()
		return tx.Commit(ctx)
	})
	return committed, err
}

// insertLarge commits n events whose payloads are large and cannot be compressed much, and returns when
// it began to insert.
func (w *world) insertLarge(ctx context.Context, n int) (begun time.Time, err error) {
	pad := make([]byte, largePayload*3/4)
	_, _ = rand.Read(pad) // never fails, by its contract
	err = w.withConn(ctx, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, `CREATE TEMPORARY TABLE pad AS SELECT $1::text AS pad`, base64.StdEncoding.EncodeToString(pad)); err != nil {
			return err
		}
		begun = time.Now()
		payload := `jsonb_build_object('n', i, 'pad', (SELECT pad FROM pad))`
		sql := fmt.Sprintf(`DO $do$ BEGIN FOR i IN 0 .. %d LOOP %s; IF i %% %d = 0 THEN COMMIT; END IF; END LOOP; END $do$`,
			n-1, eventSQL("i::bigint", payload), largePerTx)
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("insert large events: %w", err)
		}
		return nil
	})
	return begun, err
}
