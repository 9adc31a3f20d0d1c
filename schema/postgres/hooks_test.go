package postgres

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline/storetest"
)

// hooks implement storetest.Hooks.
type hooks struct {
	db     *pgxpool.Pool
	layout layout
}

var _ storetest.Hooks = (*hooks)(nil)

func (h *hooks) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := h.db.Exec(context.WithoutCancel(t.Context()), sql, args...); err != nil {
		t.Fatalf("%v in %s", err, sql)
	}
}

func (h *hooks) from() string {
	return pgx.Identifier{h.layout.table.Schema, h.layout.table.Name}.Sanitize()
}

func (h *hooks) reset(t testing.TB) {
	h.exec(t, `DROP TRIGGER IF EXISTS refuse_update ON eventlog.event_notifications`)
	h.exec(t, `DROP TRIGGER IF EXISTS refuse_insert ON eventlog.event_notifications`)
	tables := []string{
		"eventlog.event_notifications", "eventlog.event_notification_attempts", "eventlog.handlers",
		"eventlog.gaps", "eventlog.sources", "storetest.refused", h.from(),
	}
	// Emptying a small table is much faster than truncating it.
	var size int64
	h.row(t, []any{&size}, `SELECT sum(pg_relation_size(r::regclass)) FROM unnest($1::text[]) r`, tables)
	if size > 1<<20 {
		h.exec(t, "TRUNCATE "+strings.Join(tables, ", "))
		return
	}
	for _, table := range tables {
		h.exec(t, "DELETE FROM "+table)
	}
}

func (h *hooks) SetNow(t testing.TB, now time.Time) {
	t.Helper()
	h.exec(t, `UPDATE storetest.clock SET now = $1`, now)
}

// eventRow lists the mapped columns and the values of an event.
func (h *hooks) eventRow(e event.Event) (columns []string, values []any) {
	c := h.layout.table.Columns
	add := func(column string, value any) {
		if column != "" {
			columns, values = append(columns, column), append(values, value)
		}
	}
	text := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	raw := func(r json.RawMessage) any {
		if r == nil {
			return nil
		}
		return string(r)
	}
	add(c.ID, text(e.ID))
	add(c.Namespace, e.Namespace)
	add(c.ActionID, e.ActionID)
	add(c.ActionName, e.ActionName)
	add(c.ActionParams, raw(e.ActionParams))
	add(c.StartedDate, e.StartedDate)
	add(c.CompletionDate, e.CompletionDate)
	add(c.ModelID, text(e.ModelID))
	add(c.ModelType, text(e.ModelType))
	add(c.Type, text(e.Type))
	if e.Payload != nil && h.layout.name == "debezium" {
		add(c.Payload, []byte(e.Payload))
	} else {
		add(c.Payload, raw(e.Payload))
	}
	add(c.Date, e.Date)
	add(c.Traceparent, text(e.Traceparent))
	add(c.Headers, raw(e.Headers))
	if h.layout.mark == storetest.MarkBoolean {
		add(h.layout.table.Mark.Column, false)
	}
	return columns, values
}

type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

func (h *hooks) insertEvents(t testing.TB, db copier, events ...event.Event) {
	t.Helper()
	var (
		columns []string
		rows    [][]any
	)
	for _, e := range events {
		var values []any
		columns, values = h.eventRow(e)
		rows = append(rows, values)
	}
	if _, err := db.CopyFrom(t.Context(), pgx.Identifier{h.layout.table.Schema, h.layout.table.Name}, columns, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
}

func (h *hooks) InsertEvents(t testing.TB, events ...event.Event) {
	t.Helper()
	h.insertEvents(t, h.db, events...)
}

func (h *hooks) BeginEvent(t testing.TB, e event.Event) func() {
	t.Helper()
	tx, err := h.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) //nolint:usetesting // after the test
	h.insertEvents(t, tx, e)
	return func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *hooks) idColumn() string { return quoteIdent(h.layout.table.Columns.ID) + "::text" }

func (h *hooks) DeleteEvent(t testing.TB, id string) {
	t.Helper()
	h.exec(t, `DELETE FROM `+h.from()+` WHERE `+h.idColumn()+` = $1`, id)
}

func (h *hooks) EventMark(t testing.TB, id string) (string, time.Time) {
	t.Helper()
	var (
		mark string
		at   pgtype.Timestamp
	)
	switch h.layout.mark {
	case storetest.MarkBoolean:
		var done bool
		h.row(t, []any{&done}, `SELECT delivered FROM `+h.from()+` WHERE `+h.idColumn()+` = $1`, id)
		if done {
			return "done", time.Time{}
		}
		return "pending", time.Time{}
	case storetest.MarkStatus:
		h.row(t, []any{&mark, &at},
			`SELECT status::text, dispatched_at AT TIME ZONE 'UTC' FROM `+h.from()+` WHERE `+h.idColumn()+` = $1`, id)
		return map[string]string{"PENDING": "pending", "DISPATCHED": "done", "NO_DELIVERY": "none"}[mark], at.Time
	default:
		return "", time.Time{}
	}
}

func (h *hooks) row(t testing.TB, into []any, sql string, args ...any) {
	t.Helper()
	if err := h.db.QueryRow(t.Context(), sql, args...).Scan(into...); err != nil {
		t.Fatalf("%v in %s", err, sql)
	}
}

func (h *hooks) PutDeliveries(t testing.TB, list ...storetest.Row) {
	t.Helper()
	columns := strings.Fields(`id event_id handler_name namespace action_id action_name action_params started_date completion_date
model_id model_type event_type payload event_date state attempts next_retry_at created_date updated_date
traceparent headers lost_claims claim_count lease_token lease_until lease_owner reason last_error finished_date`)
	var rows [][]any
	for _, r := range list {
		e := r.Event
		row := []any{
			[16]byte(r.ID), e.ID, r.Handler, e.Namespace, e.ActionID, e.ActionName, string(e.ActionParams), e.StartedDate, e.CompletionDate,
			e.ModelID, e.ModelType, e.Type, string(e.Payload), e.Date, string(r.State), r.Attempts, r.NextRetryAt, r.CreatedDate, r.UpdatedDate,
		}
		if r.Foreign {
			row = append(row, make([]any, 10)...)
		} else {
			row = append(row, orNull(e.Traceparent), orNull(string(e.Headers)), r.LostClaims, r.ClaimCount, nil, timeOrNull(r.LeaseUntil), orNull(r.LeaseOwner),
				orNull(r.Reason), orNull(r.LastError), timeOrNull(r.Finished))
			if r.LeaseToken != nil {
				row[len(row)-6] = [16]byte(*r.LeaseToken)
			}
		}
		rows = append(rows, row)
	}
	if _, err := h.db.CopyFrom(t.Context(), pgx.Identifier{"eventlog", "event_notifications"}, columns, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func timeOrNull(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at
}

func (h *hooks) Deliveries(t testing.TB) []storetest.Row {
	t.Helper()
	rows, err := h.db.Query(t.Context(), `
SELECT id, event_id::text, handler_name, namespace, action_id::text, action_name, action_params::text, started_date, completion_date,
       coalesce(model_id, ''), coalesce(model_type, ''), event_type, coalesce(payload_raw, convert_to(payload::text, 'UTF8')), event_date,
       state, attempts, next_retry_at, created_date, updated_date, coalesce(traceparent, ''), headers::text,
       coalesce(lost_claims, 0), coalesce(claim_count, 0), claim_count IS NULL, lease_token, lease_until, coalesce(lease_owner, ''), coalesce(reason, ''),
       coalesce(last_error, ''), finished_date
FROM eventlog.event_notifications ORDER BY event_id, handler_name`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r storetest.Row, err error) {
		var id, token pgtype.UUID
		e := &r.Event
		err = row.Scan(&id, &e.ID, &r.Handler, &e.Namespace, &e.ActionID, &e.ActionName, (*[]byte)(&e.ActionParams),
			timeTarget{&e.StartedDate}, timeTarget{&e.CompletionDate}, &e.ModelID, &e.ModelType, &e.Type, (*[]byte)(&e.Payload),
			timeTarget{&e.Date}, &r.State, &r.Attempts, timeTarget{&r.NextRetryAt}, timeTarget{&r.CreatedDate}, timeTarget{&r.UpdatedDate},
			&e.Traceparent, (*[]byte)(&e.Headers), &r.LostClaims, &r.ClaimCount, &r.Foreign, &token, timeTarget{&r.LeaseUntil}, &r.LeaseOwner,
			&r.Reason, &r.LastError, timeTarget{&r.Finished})
		r.ID = id.Bytes
		if token.Valid {
			lease := uuid.UUID(token.Bytes)
			r.LeaseToken = &lease
		}
		return r, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (h *hooks) Attempts(t testing.TB, id uuid.UUID) []storetest.Attempt {
	t.Helper()
	rows, err := h.db.Query(t.Context(), `
SELECT attempt, outcome, coalesce(reason, ''), coalesce(error, ''), coalesce(message, ''), started_date, duration_us
FROM eventlog.event_notification_attempts WHERE delivery_id = $1 ORDER BY id`, id.String())
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a storetest.Attempt, err error) {
		var us int64
		err = row.Scan(&a.Attempt, &a.Outcome, &a.Reason, &a.Error, &a.Message, timeTarget{&a.Started}, &us)
		a.Took = time.Duration(us) * time.Microsecond
		return a, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (h *hooks) LockEvent(t testing.TB, id string) func() {
	t.Helper()
	return h.lock(t, `SELECT FROM `+h.from()+` WHERE `+h.idColumn()+` = $1 FOR UPDATE`, id)
}

func (h *hooks) LockDelivery(t testing.TB, id uuid.UUID) func() {
	t.Helper()
	return h.lock(t, `SELECT FROM eventlog.event_notifications WHERE id = $1 FOR UPDATE`, id.String())
}

func (h *hooks) lock(t testing.TB, sql, id string) func() {
	t.Helper()
	tx, err := h.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock := sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) }) //nolint:usetesting // after the test
	t.Cleanup(unlock)
	if _, err := tx.Exec(t.Context(), sql, id); err != nil {
		t.Fatal(err)
	}
	return unlock
}

func (h *hooks) RefuseUpdates(t testing.TB, id uuid.UUID) {
	t.Helper()
	h.exec(t, `INSERT INTO storetest.refused VALUES ($1)`, id.String())
	h.exec(t, `CREATE OR REPLACE TRIGGER refuse_update BEFORE UPDATE ON eventlog.event_notifications
FOR EACH ROW EXECUTE FUNCTION storetest.refuse_update()`)
}

func (h *hooks) RefuseInserts(t testing.TB, eventID string, what storetest.Refused) {
	t.Helper()
	h.exec(t, `INSERT INTO storetest.refused VALUES ($1, $2)`, eventID, string(what))
	h.exec(t, `CREATE OR REPLACE TRIGGER refuse_insert BEFORE INSERT ON eventlog.event_notifications
FOR EACH ROW EXECUTE FUNCTION storetest.refuse_insert()`)
}

func (h *hooks) Pause(t testing.TB, handler string, p delivery.Pause) {
	t.Helper()
	h.exec(t, `UPDATE eventlog.handlers SET paused_by = $2, pause_reason = $3, paused_date = $4 WHERE name = $1`, handler, p.By, p.Reason, p.At)
}

func (h *hooks) Handlers(t testing.TB) []storetest.Registered {
	t.Helper()
	rows, err := h.db.Query(t.Context(), `SELECT name, aliases, types, generation, last_owner, last_seen FROM eventlog.handlers ORDER BY name`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r storetest.Registered, err error) {
		err = row.Scan(&r.Name, &r.Aliases, &r.Types, &r.Generation, &r.LastOwner, timeTarget{&r.LastSeen})
		return r, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (h *hooks) Gaps(t testing.TB) []storetest.Gap {
	t.Helper()
	rows, err := h.db.Query(t.Context(), `
SELECT source, reason, detail, from_position, to_position, detected_date, closed_date FROM eventlog.gaps ORDER BY detected_date, reason, source`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g storetest.Gap, err error) {
		err = row.Scan(&g.Source, &g.Reason, &g.Detail, &g.From, &g.To, timeTarget{&g.Detected}, timeTarget{&g.Closed})
		return g, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
