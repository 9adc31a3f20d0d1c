package integration

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	cdcpostgres "github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	schemapostgres "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// slotName is the slot and publication of every dispatcher under test.
const slotName = "cdc_dispatcher"

// postgres is a database of a PostgreSQL server.
type postgres struct {
	server *localserver.Postgres
	url    string
	pool   *pgxpool.Pool
}

// eachPostgres runs fn with a fresh database on the shared server of each version.
func eachPostgres(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		db := testdb.Postgres(t, major)
		fn(t, newWorld(t, &postgres{server: db.Server(), url: db.DSN(), pool: db.Pool()}))
	})
}

// eachPostgresServer does the same on servers of the test's own.
func eachPostgresServer(t *testing.T, settings map[string]string, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		server := testdb.Dedicated(t, major, settings)
		dsn := server.DSN("postgres")
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		fn(t, newWorld(t, &postgres{server: server, url: dsn, pool: pool}))
	})
}

func (p *postgres) title() string {
	title := "PostgreSQL " + p.server.Version()
	if strings.Contains(p.server.Origin(), "container") {
		title += ", container"
	}
	return title
}

func (p *postgres) dsn() string { return p.url }

func (p *postgres) setup(ctx context.Context) error {
	m, err := migrate.Postgres(p.pool, migrate.Options{})
	if err != nil {
		return err
	}
	if _, err := m.Up(ctx); err != nil {
		return err
	}
	return p.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return workload.Setup(ctx, conn.Conn()) })
}

func (p *postgres) rewrite(sql string) string {
	return dialect(sql, "eventlog", "(clock_timestamp() AT TIME ZONE 'UTC')", "")
}

// exec without arguments takes several statements in one text.
func (p *postgres) exec(ctx context.Context, sql string, args ...any) error {
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol}
	}
	_, err := p.pool.Exec(ctx, p.rewrite(sql), args...)
	return err
}

// table asks in the simple protocol, whose answers are text.
func (p *postgres) table(ctx context.Context, sql string, args ...any) ([][]string, error) {
	rows, err := p.pool.Query(ctx, p.rewrite(sql), append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
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

func (p *postgres) begin(ctx context.Context) (transaction, error) {
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return postgresTransaction{tx}, nil
}

func (p *postgres) write(ctx context.Context, c workload.Config) error {
	c.DSN = p.url
	return workload.Run(ctx, c)
}

func (p *postgres) stored(ctx context.Context) (map[string]struct{}, error) {
	return ledger.ReadStored(ctx, p.pool, "eventlog.events")
}

func (p *postgres) rows(ctx context.Context) ([]ledger.Row, error) {
	return ledger.ReadRows(ctx, p.pool)
}

// alterDatabase changes a setting for every later session of the database.
func (p *postgres) alterDatabase(t testing.TB, setting string) {
	t.Helper()
	if err := p.exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+setting+`', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
}

// senderTimeout sets wal_sender_timeout for every later replication session of this
// database; the reader answers twice in that time.
func (w *world) senderTimeout(d time.Duration) {
	w.t.Helper()
	w.postgres().alterDatabase(w.t, fmt.Sprintf("wal_sender_timeout = %d", d.Milliseconds()))
}

// streaming asks for a session that sends: a slot is active already while it is being created.
func (p *postgres) streaming(ctx context.Context) bool {
	var sending bool
	err := p.pool.QueryRow(ctx, `SELECT count(*) = 1 FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
		WHERE s.slot_name = $1 AND r.state IN ('catchup', 'streaming')`, slotName).Scan(&sending)
	return err == nil && sending
}

func (p *postgres) lockDeliveries(ctx context.Context, all bool) (func() error, error) {
	conn, err := pgx.Connect(ctx, p.url)
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

func (p *postgres) refusePayloads(ctx context.Context) error {
	return p.exec(ctx, `ALTER TABLE eventlog.event_notifications ADD CONSTRAINT refuses CHECK (payload ->> 'refuse' IS NULL)`)
}

func (p *postgres) crash() error                   { return p.server.Kill() }
func (p *postgres) stop(ctx context.Context) error { return p.server.Stop(ctx, localserver.StopFast) }
func (p *postgres) start(ctx context.Context) error {
	return p.server.Start(ctx)
}

type postgresTransaction struct{ tx pgx.Tx }

func (x postgresTransaction) insert(ctx context.Context, ids []string, eventType, payload string) error {
	_, err := x.tx.Exec(ctx, `
		INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date,
			completion_date, model_id, model_type, event_type, payload, event_date, delivered)
		SELECT id, 'it', gen_random_uuid(), 'Test', '{}', now, now, 'm', 'Model', $2, nullif($3::text, '')::jsonb, now, false
		  FROM unnest($1::uuid[]) id, (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) n`,
		ids, eventType, payload)
	return err
}

func (x postgresTransaction) insertSentinel(ctx context.Context) error {
	_, err := x.tx.Exec(ctx, `
		INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date, event_date, delivered)
		VALUES (gen_random_uuid(), 'it', gen_random_uuid(), 'Test', '{}', now(), now(), now(), false)`)
	return err
}

func (x postgresTransaction) commit(ctx context.Context) error   { return x.tx.Commit(ctx) }
func (x postgresTransaction) rollback(ctx context.Context) error { return x.tx.Rollback(ctx) }

// postgresParts wires a dispatcher for PostgreSQL.
func postgresParts(ctx context.Context, o options) (parts, error) {
	config, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return parts{}, err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return parts{}, err
	}
	table := schema.Eventlog("")
	store, err := schemapostgres.New(pool, schemapostgres.Config{Table: table})
	if err != nil {
		pool.Close()
		return parts{}, err
	}
	readLog := func(config *pipeline.Config, o options, logger *slog.Logger) error {
		source, err := cdcpostgres.New(cdcpostgres.Config{
			DSN: orElse(o.LogDSN, o.DSN), Slot: slotName, Publication: slotName, Create: true,
			Tables:      []cdcpostgres.Table{{Schema: table.Schema, Name: table.Name}},
			StandbyPoll: 200 * time.Millisecond, BackoffMax: time.Second, Logger: logger,
		})
		if err != nil {
			return err
		}
		config.Log, config.Table, config.Decode = source, table.QualifiedName(), table.Decoder()
		return nil
	}
	return parts{store: store, readLog: readLog, close: pool.Close}, nil
}
