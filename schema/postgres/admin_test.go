package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin/admintest"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

func TestAdmin(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		server := admintest.Server{Open: func(t *testing.T, l admintest.Layout) admintest.Backend {
			o := open(t, major, l.Table, ddl(l.Name)...)
			return admintest.Backend{
				Store: o.store, Table: l.Table, Hooks: o,
				NewAdmin: func(cfg admin.Config) admintest.Admin { return postgres.NewAdmin(o.store, cfg) },
			}
		}}
		columns := schema.Columns{ID: "id", Type: "kind", Payload: "body", Date: "at", ModelID: "ref"}
		plain := schema.Columns{ID: "id", Type: "kind", Payload: "body"}
		server.Layouts = []admintest.Layout{
			{Name: "eventlog", Table: schema.Eventlog(""), Payload: `{"total": 1}`},
			{Name: "debezium", Table: schema.Debezium("", ""), Payload: `{"total": 1}`},
			{Name: "identity, status and zone", Payload: `{"b":1,  "a":2}`,
				Table: schema.Custom("public", "Out Box", columns, schema.Mark{Kind: schema.MarkStatus, Column: "status", At: "status_at"})},
			{Name: "text key and bytes", Payload: `<a>é</a>`, NullDates: true,
				Table: schema.Custom("public", "outbox", columns, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"})},
			{Name: "enum type, no date, no mark", Payload: `{"total":1}`, Table: schema.Custom("public", "outbox", plain, schema.Mark{})},
		}
		server.Loose = admintest.Layout{Name: "loose", Payload: `{}`,
			Table: schema.Custom("public", "outbox", plain, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"})}
		admintest.Run(t, server)
	})
}

// ddl makes the event table of a layout.
func ddl(layout string) []string {
	switch layout {
	case "debezium":
		return []string{`CREATE TABLE public.outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL DEFAULT '',
			aggregateid varchar(255) NOT NULL DEFAULT '', type varchar(255) NOT NULL, payload jsonb)`}
	case "identity, status and zone":
		return []string{`CREATE TABLE public."Out Box" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind varchar(40) NOT NULL, body json,
			at timestamptz NOT NULL, ref text, status varchar(20) NOT NULL, status_at timestamptz)`}
	case "text key and bytes":
		return []string{`CREATE TABLE public.outbox (id text PRIMARY KEY, kind text NOT NULL, body bytea, at timestamp, ref text, sent boolean NOT NULL)`}
	case "enum type, no date, no mark":
		return []string{`CREATE TYPE public.kind AS ENUM ('order.placed', 'order.cancelled')`,
			`CREATE TABLE public.outbox (id int PRIMARY KEY DEFAULT floor(random() * 1e9), kind public.kind NOT NULL, body text)`}
	case "loose":
		return []string{`CREATE TABLE public.outbox (id int, kind text, body jsonb, sent boolean)`}
	default:
		return nil
	}
}

// office is a migrated database with a store. It implements admintest.Hooks.
type office struct {
	*testdb.DB
	store *postgres.Store
	table schema.Table
}

func open(t *testing.T, major int, table schema.Table, ddl ...string) *office {
	t.Helper()
	db := testdb.Postgres(t, major)
	for _, sql := range ddl {
		db.Exec(sql)
	}
	m, err := migrate.Postgres(db.Pool(), migrate.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(db.Pool(), postgres.Config{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return &office{db, store, table}
}

func (o *office) Reset(testing.TB) {
	o.Exec(`DELETE FROM eventlog.event_notifications; DELETE FROM eventlog.event_notification_attempts; DELETE FROM eventlog.handlers;
		DELETE FROM eventlog.sources; DELETE FROM eventlog.gaps; DELETE FROM eventlog.audit_log`)
	o.DeleteEvents(nil)
}

func (o *office) Now(t testing.TB) time.Time {
	return value[time.Time](t, o, "SELECT clock_timestamp()").UTC()
}

func (o *office) PutDelivery(_ testing.TB, id uuid.UUID, r admintest.Row) {
	claims := &r.Claims
	if r.Foreign {
		claims = nil
	}
	o.Exec(`INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
			started_date, completion_date, model_id, model_type, event_type, payload, event_date, state, attempts, next_retry_at,
			created_date, updated_date, claim_count, reason, last_error, lease_token, lease_until, lease_owner, finished_date)
		SELECT $1::text::uuid, $2::text::uuid, $3, 'n', $2::text::uuid, 'a', '{"x":1}', t.now, t.now, 'o-7', 'Order', $4, '{"total": 1}',
			t.now - $5::interval, $6::text, $7, t.now + $8::interval, t.now - $5::interval, t.now, $9::int, NULLIF($10, ''), NULLIF($11, ''),
			CASE WHEN $12::interval <> '0' THEN gen_random_uuid() END, CASE WHEN $12::interval <> '0' THEN t.now + $12::interval END,
			CASE WHEN $12::interval <> '0' THEN 'worker' END,
			CASE WHEN $6::text IN ('SUCCEEDED', 'DEAD', 'EXPIRED', 'DISCARDED') THEN t.now END
		FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) t`,
		id.String(), r.Event.String(), r.Handler, r.Type, r.Age, string(r.State), r.Attempts, r.Due, claims, r.Reason, r.LastError, r.Leased)
}

func (o *office) PutAttempt(_ testing.TB, id uuid.UUID, a admin.Attempt) {
	o.Exec(`INSERT INTO eventlog.event_notification_attempts (delivery_id, attempt, outcome, reason, error, message, started_date, duration_us)
		VALUES ($1::text::uuid, $2, $3, NULLIF($4, ''), NULLIF($5, ''), NULLIF($6, ''), $7, $8)`,
		id.String(), a.Attempt, a.Outcome, a.Reason, a.Error, a.Message, a.Started, a.Took.Microseconds())
}

func (o *office) SetRawPayload(_ testing.TB, id uuid.UUID, payload []byte) {
	o.Exec("UPDATE eventlog.event_notifications SET payload = NULL, payload_raw = $2 WHERE id = $1::text::uuid", id.String(), payload)
}

func (o *office) KillDeliveries(testing.TB) {
	o.Exec("UPDATE eventlog.event_notifications SET state = 'DEAD', claim_count = 1")
}

// in runs a statement in a transaction that end ends.
func (o *office) in(t testing.TB, sql string, args ...any) (end func()) {
	tx, err := o.Pool().Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // a no-op after the commit
	if _, err := tx.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

func (o *office) LeaseUncommitted(t testing.TB, id uuid.UUID) (commit func()) {
	return o.in(t, `UPDATE eventlog.event_notifications SET lease_token = gen_random_uuid(),
		lease_until = (clock_timestamp() AT TIME ZONE 'UTC') + interval '1 hour' WHERE id = $1::text::uuid`, id.String())
}

func (o *office) Waiting(t testing.TB) bool {
	return value[bool](t, o, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
}

func (o *office) LockDeliveries(t testing.TB) (unlock func()) {
	return o.in(t, "LOCK TABLE eventlog.event_notifications")
}

func (o *office) PutEvents(_ testing.TB, e admintest.EventRow) {
	o.Exec(`INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
			event_type, payload, event_date, delivered)
		SELECT gen_random_uuid(), 'n', gen_random_uuid(), 'a', '{}', now(), now(), NULLIF($1, ''), '{}', (now() AT TIME ZONE 'UTC') - $2::interval, $3
		FROM generate_series(1, $4::int)`, e.Type, e.Age, e.Delivered, e.Rows)
}

func (o *office) PutLoose(_ testing.TB, key *int, typ *string, delivered bool) {
	o.Exec("INSERT INTO public.outbox VALUES ($1, $2, '{}', $3)", key, typ, delivered)
}

// events is the quoted name of the event table.
func (o *office) events() string {
	return pgx.Identifier{o.table.Schema, o.table.Name}.Sanitize()
}

func (o *office) DateEvents(_ testing.TB, at time.Time) {
	date := "NULL"
	if !at.IsZero() {
		date = at.Format("'" + time.RFC3339Nano + "'")
	}
	o.Exec(fmt.Sprintf("UPDATE %s SET %q = %s", o.events(), o.table.Columns.Date, date))
}

func (o *office) DeleteEvents(testing.TB) { o.Exec("DELETE FROM " + o.events()) }

func (o *office) AuditLog(t testing.TB) []admintest.AuditLine {
	rows, err := o.Pool().Query(context.Background(),
		"SELECT actor, action, target, COALESCE(reason, ''), affected, detail::text FROM eventlog.audit_log ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l admintest.AuditLine, err error) {
		var detail string
		err = row.Scan(&l.Actor, &l.Action, &l.Target, &l.Reason, &l.Affected, &detail)
		l.Detail = []byte(detail)
		return l, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func (o *office) RefuseAudit(_ testing.TB, actor string) (allow func()) {
	o.Exec("ALTER TABLE eventlog.audit_log ADD CONSTRAINT refused CHECK (actor <> '" + actor + "')")
	return func() { o.Exec("ALTER TABLE eventlog.audit_log DROP CONSTRAINT refused") }
}

// value reads one value.
func value[T any](t testing.TB, o *office, sql string, args ...any) (v T) {
	t.Helper()
	if err := o.Pool().QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%v\nin: %s", err, sql)
	}
	return v
}
