package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// myEventSQL inserts one event, whose number is an expression; the values are what an application with this table writes.
func myEventSQL(n string) string {
	id := "CONCAT('" + eventIDStart + "', LPAD(LOWER(HEX(" + n + ")), 12, '0'))"
	now := "UTC_TIMESTAMP(6)"
	var pad []string
	for i := range 3 {
		pad = append(pad, fmt.Sprintf("SHA2(%s + %d, 256)", n, i))
	}
	return "INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date, " +
		"model_id, model_type, event_type, payload, event_date, delivered) VALUES (" +
		strings.Join([]string{
			id, "'shop.orders'", id, "'PlaceOrder'", `'{"channel": "web"}'`, now, now, id, "'Order'", "'" + eventType + "'",
			"JSON_OBJECT('n', " + n + ", 'currency', 'EUR', 'total_cents', 1999, 'pad', LEFT(CONCAT(" + strings.Join(pad, ", ") + "), " + fmt.Sprint(payloadPad) + "))",
			now, "0",
		}, ", ") + ")"
}

// myEventArgs are the parameters of that statement with "?" for the number.
func myEventArgs(n int) []any {
	var args []any
	for range strings.Count(myEventSQL("?"), "?") {
		args = append(args, n)
	}
	return args
}

// insertEvents commits n events, one in a transaction. These commits do not wait for the disk: it is not the application that
// is measured. What is measured has the server's own settings again.
func (s *myServer) insertEvents(ctx context.Context, n int) (err error) {
	var log, flush int
	if err := s.db.QueryRowContext(ctx, "SELECT @@sync_binlog, @@innodb_flush_log_at_trx_commit").Scan(&log, &flush); err != nil {
		return err
	}
	durability := func(log, flush int) error {
		_, err := s.db.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("SET GLOBAL sync_binlog = %d, GLOBAL innodb_flush_log_at_trx_commit = %d", log, flush))
		return err
	}
	if err := durability(0, 2); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, durability(log, flush)) }()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	sql := "CREATE PROCEDURE eventlog.bench_insert(n BIGINT) BEGIN DECLARE i BIGINT DEFAULT 0; WHILE i < n DO " +
		myEventSQL("i") + "; SET i = i + 1; END WHILE; END"
	for _, sql := range []string{sql, fmt.Sprintf("CALL eventlog.bench_insert(%d)", n), "DROP PROCEDURE eventlog.bench_insert"} {
		if _, err := conn.ExecContext(ctx, sql); err != nil {
			return fmt.Errorf("insert events: %w", err)
		}
	}
	return s.sizes(ctx, conn)
}

// sizes puts the size of the payload into the report, once.
func (s *myServer) sizes(ctx context.Context, conn *sql.Conn) error {
	key := "payload of " + s.name
	if _, ok := s.b.report.Setup[key]; ok {
		return nil
	}
	var bytes float64
	if err := conn.QueryRowContext(ctx, "SELECT AVG(LENGTH(payload)) FROM (SELECT payload FROM eventlog.events LIMIT 1000) AS t").Scan(&bytes); err != nil {
		return err
	}
	s.b.report.Setup[key] = fmt.Sprintf("%.0f bytes", bytes)
	return nil
}

// myFanOutSQL makes the deliveries of the events in a range as a fan-out makes them, leased to somebody.
func myFanOutSQL(from, to string) string {
	return `INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
		started_date, completion_date, model_id, model_type, event_type, payload, event_date, traceparent, headers,
		state, attempts, next_retry_at, created_date, updated_date, claim_count, lease_token, lease_until, lease_owner)
	SELECT id, id, 'handler-0', namespace, action_id, action_name, action_params,
		started_date, completion_date, model_id, model_type, event_type, payload, event_date, traceparent, headers,
		'PENDING', 0, UTC_TIMESTAMP(6) + INTERVAL 60 SECOND, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 1, '` + eventID(0) + `', UTC_TIMESTAMP(6) + INTERVAL 60 SECOND,
		'a host of some name/12345/0123456789abcdef'
	FROM eventlog.events WHERE id BETWEEN '` + from + `' AND '` + to + `' AND delivered = 0`
}

func myMarkSQL(from, to string) string {
	return "UPDATE eventlog.events SET delivered = 1 WHERE id BETWEEN '" + from + "' AND '" + to + "' AND delivered = 0"
}

// myOutcomeSQL writes what a success writes.
func myOutcomeSQL(from, to string) string {
	return `UPDATE eventlog.event_notifications SET state = 'SUCCEEDED', lease_token = NULL, lease_until = NULL, lease_owner = NULL, lost_claims = NULL,
		reason = NULL, last_error = NULL, finished_date = UTC_TIMESTAMP(6), updated_date = UTC_TIMESTAMP(6) WHERE id BETWEEN '` + from + `' AND '` + to + `'`
}
