package testbed

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// SlotName is the slot and publication of every dispatcher under test.
const SlotName = "cdc_dispatcher"

// Postgres is a database of a PostgreSQL server.
type Postgres struct {
	Server *localserver.Postgres
	URL    string
	Pool   *pgxpool.Pool
}

// OwnPostgres is a database on a server of the test's own.
func OwnPostgres(t testing.TB, major int, settings map[string]string) *Postgres {
	t.Helper()
	server := testdb.Dedicated(t, major, settings)
	return NewPostgres(t, server, server.DSN("postgres"))
}

// NewPostgres is a database on a server, to be reached by a URL.
func NewPostgres(t testing.TB, server *localserver.Postgres, dsn string) *Postgres {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &Postgres{Server: server, URL: dsn, Pool: pool}
}

// Title implements [Database].
func (p *Postgres) Title() string {
	title := "PostgreSQL " + p.Server.Version()
	if strings.Contains(p.Server.Origin(), "container") {
		title += ", container"
	}
	return title
}

// DSN implements [Database].
func (p *Postgres) DSN() string { return p.URL }

// Setup implements [Database].
func (p *Postgres) Setup(ctx context.Context) error {
	m, err := migrate.Postgres(p.Pool, migrate.Options{})
	if err != nil {
		return err
	}
	if _, err := m.Up(ctx); err != nil {
		return err
	}
	return p.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return workload.Setup(ctx, conn.Conn()) })
}

// Rewrite turns shared SQL into that of this database.
func (p *Postgres) Rewrite(sql string) string {
	return dialect(sql, "eventlog", "(clock_timestamp() AT TIME ZONE 'UTC')", "")
}

// Exec without arguments takes several statements in one text.
func (p *Postgres) Exec(ctx context.Context, sql string, args ...any) error {
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol}
	}
	_, err := p.Pool.Exec(ctx, p.Rewrite(sql), args...)
	return err
}

// Table asks in the simple protocol, whose answers are text.
func (p *Postgres) Table(ctx context.Context, sql string, args ...any) ([][]string, error) {
	rows, err := p.Pool.Query(ctx, p.Rewrite(sql), append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]string, error) {
		var out []string
		for _, raw := range row.RawValues() {
			if raw == nil {
				out = append(out, "NULL")
				continue
			}
			out = append(out, string(raw))
		}
		return out, nil
	})
}

// Begin implements [Database].
func (p *Postgres) Begin(ctx context.Context) (Transaction, error) {
	tx, err := p.Pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return postgresTransaction{tx}, nil
}

// Write implements [Database].
func (p *Postgres) Write(ctx context.Context, c workload.Config) error {
	c.DSN = p.URL
	return workload.Run(ctx, c)
}

// Stored implements [Database].
func (p *Postgres) Stored(ctx context.Context) (map[string]struct{}, error) {
	return ledger.ReadStored(ctx, p.Pool, "eventlog.events")
}

// Rows implements [Database].
func (p *Postgres) Rows(ctx context.Context) ([]ledger.Row, error) {
	return ledger.ReadRows(ctx, p.Pool)
}

// Streaming asks for a session that sends: a slot is active already while it is being created.
func (p *Postgres) Streaming(ctx context.Context) bool {
	var sending bool
	err := p.Pool.QueryRow(ctx, `SELECT count(*) = 1 FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
		WHERE s.slot_name = $1 AND r.state IN ('catchup', 'streaming')`, SlotName).Scan(&sending)
	return err == nil && sending
}

// LockDeliveries implements [Database].
func (p *Postgres) LockDeliveries(ctx context.Context, all bool) (func() error, error) {
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return nil, err
	}
	mode := "SHARE"
	if all {
		mode = "ACCESS EXCLUSIVE"
	}
	if _, err := conn.Exec(ctx, `BEGIN; LOCK TABLE eventlog.event_notifications IN `+mode+` MODE`); err != nil {
		return nil, err
	}
	return func() error { return conn.Close(context.WithoutCancel(ctx)) }, nil
}

// RefusePayloads implements [Database].
func (p *Postgres) RefusePayloads(ctx context.Context) error {
	return p.Exec(ctx, `ALTER TABLE eventlog.event_notifications ADD CONSTRAINT refuses CHECK (payload ->> 'refuse' IS NULL)`)
}

// Crash implements [Database].
func (p *Postgres) Crash() error { return p.Server.Kill() }

// Stop implements [Database].
func (p *Postgres) Stop(ctx context.Context) error { return p.Server.Stop(ctx, localserver.StopFast) }

// Start implements [Database].
func (p *Postgres) Start(ctx context.Context) error {
	return p.Server.Start(ctx)
}

type postgresTransaction struct{ tx pgx.Tx }

// Insert implements [Transaction].
func (x postgresTransaction) Insert(ctx context.Context, ids []string, eventType, payload string) error {
	_, err := x.tx.Exec(ctx, `
		INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date,
			completion_date, model_id, model_type, event_type, payload, event_date, delivered)
		SELECT id, 'it', gen_random_uuid(), 'Test', '{}', now, now, 'm', 'Model', $2, nullif($3::text, '')::jsonb, now, false
		  FROM unnest($1::uuid[]) id, (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) n`,
		ids, eventType, payload)
	return err
}

// InsertSentinel implements [Transaction].
func (x postgresTransaction) InsertSentinel(ctx context.Context) error {
	_, err := x.tx.Exec(ctx, `
		INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date, event_date, delivered)
		VALUES (gen_random_uuid(), 'it', gen_random_uuid(), 'Test', '{}', now(), now(), now(), false)`)
	return err
}

// Commit implements [Transaction].
func (x postgresTransaction) Commit(ctx context.Context) error { return x.tx.Commit(ctx) }

// Rollback implements [Transaction].
func (x postgresTransaction) Rollback(ctx context.Context) error { return x.tx.Rollback(ctx) }
