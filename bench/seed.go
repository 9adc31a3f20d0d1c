package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Names that runs use.
const (
	eventType    = "order.placed"
	defaultSlot  = "cdc_dispatcher"
	eventIDStart = "01900000-0000-7000-8000-"
)

// payloadPad makes a row of the event table about 430 bytes, and jobPad one of River's. With jobPad either payload is 300 bytes.
const (
	payloadPad = 153
	jobPad     = 239
)

// eventID is the id of event number n. Ids rise, as version 7 does.
func eventID(n int) string { return fmt.Sprintf("%s%012x", eventIDStart, n) }

// eventNumber is the n of the n-th event, from its id.
func eventNumber(id string) int {
	n, err := strconv.ParseUint(id[len(eventIDStart):], 16, 48)
	if err != nil {
		return -1
	}
	return int(n) //nolint:gosec // 48 bits
}

// eventSQL inserts event number n; the values are what an application with this table writes.
func eventSQL(n, payload string) string {
	return `INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
		model_id, model_type, event_type, payload, event_date, delivered)
	SELECT id, 'shop.orders', id, 'PlaceOrder', '{"channel": "web"}', now.now, now.now,
		id::text, 'Order', '` + eventType + `', ` + payload + `, now.now, false
	FROM (SELECT ('` + eventIDStart + `' || lpad(to_hex(` + n + `), 12, '0'))::uuid AS id) AS e,
		(SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS now`
}

// payloadSQL is a document of a few fields and a pad that does not compress, of 256 bytes at most.
func payloadSQL(n string, pad int) string {
	sums := "md5((" + n + ")::text)"
	for i := 1; i < 8; i++ {
		sums += fmt.Sprintf(" || md5((%s + %d)::text)", n, i)
	}
	return fmt.Sprintf(`jsonb_build_object('n', %s, 'currency', 'EUR', 'total_cents', 1999, 'pad', left(%s, %d))`, n, sums, pad)
}

// insertEvents commits events from until to, perTx in one transaction. The commits do not
// wait for the disk: it is not the application that is measured.
func (w *world) insertEvents(ctx context.Context, from, to, perTx int) error {
	const part = 50_000 // so that ctx is looked at now and then
	return w.withConn(ctx, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "SET synchronous_commit = off"); err != nil {
			return err
		}
		for at := from; at < to; at += part {
			sql := fmt.Sprintf(`DO $do$ BEGIN FOR i IN %d .. %d LOOP %s; IF i %% %d = 0 THEN COMMIT; END IF; END LOOP; END $do$`,
				at, min(at+part, to)-1, eventSQL("i::bigint", payloadSQL("i::bigint", w.pad)), perTx)
			if _, err := c.Exec(ctx, sql); err != nil {
				return fmt.Errorf("insert events: %w", err)
			}
		}
		return nil
	})
}

// withConn lends a connection of its own.
func (w *world) withConn(ctx context.Context, fn func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, w.dsn())
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	return fn(c)
}

// sizes puts the size of the rows into the report, once.
func (w *world) sizes(ctx context.Context, who, table, payload string) error {
	key := "row of " + who
	if _, ok := w.b.report.Setup[key]; ok {
		return nil
	}
	var row, doc float64
	err := w.pool.QueryRow(ctx, fmt.Sprintf(`SELECT avg(pg_column_size(t.*)), avg(length(t.%s::text)) FROM (SELECT * FROM %s LIMIT 1000) AS t`, payload, table)).Scan(&row, &doc)
	if err != nil {
		return err
	}
	w.b.report.Setup[key] = fmt.Sprintf("%.0f bytes, of which %.0f payload", row, doc)
	return nil
}
