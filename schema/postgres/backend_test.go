package postgres

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline/storetest"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var _ pipeline.Store = (*Store)(nil)

// layout is an event table for the suite.
type layout struct {
	name  string
	table schema.Table
	ddl   string
	mark  storetest.Mark
	full  bool
}

func layouts() []layout {
	debezium := schema.Debezium("", "")
	debezium.Columns.Date = "occurred_at"
	debezium.LookBack = 30 * 24 * time.Hour
	return []layout{
		{name: "eventlog", table: schema.Eventlog(""), mark: storetest.MarkBoolean, full: true},
		{
			// Every column has another name and another type than ours.
			name: "custom", mark: storetest.MarkStatus, full: true,
			table: schema.Custom("Shop's", `Event "Log"`, schema.Columns{
				ID: "Id", Namespace: "ns", ActionID: "action", ActionName: "action name", ActionParams: "params",
				StartedDate: "started", CompletionDate: "completed", ModelID: "model", ModelType: "kind", Type: "type",
				Payload: "{now}", Date: "at", Traceparent: "trace", Headers: "meta",
			}, schema.Mark{Kind: schema.MarkStatus, Column: "status", At: "dispatched_at"}),
			ddl: `CREATE SCHEMA "Shop's";
CREATE TYPE "Shop's".status AS ENUM ('PENDING', 'DISPATCHED', 'NO_DELIVERY');
CREATE TABLE "Shop's"."Event ""Log""" (
    "Id" varchar(36), ns text, action text, "action name" text, params json, started timestamptz, completed timestamptz,
    model text, kind varchar(100), type text, "{now}" json, at timestamptz, trace varchar(60), meta json,
    status "Shop's".status NOT NULL DEFAULT 'PENDING', dispatched_at timestamptz);
CREATE INDEX ON "Shop's"."Event ""Log""" ("Id")`,
		},
		{
			name: "debezium", mark: storetest.MarkNone, table: debezium,
			ddl: `CREATE TABLE public.outboxevent (
    id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type varchar(400), payload bytea, occurred_at timestamp)`,
		},
	}
}

// newTestDB makes a database with the layout's tables.
func migrateUp(t *testing.T, db *testdb.DB, table schema.Table) {
	t.Helper()
	m, err := migrate.Postgres(db.Pool(), migrate.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func newTestDB(t *testing.T, major int, l layout) *testdb.DB {
	t.Helper()
	db := testdb.Postgres(t, major)
	if l.ddl != "" {
		db.Exec(l.ddl)
	}
	migrateUp(t, db, l.table)
	db.Exec(`
CREATE SCHEMA storetest;
CREATE TABLE storetest.clock (now timestamp NOT NULL);
INSERT INTO storetest.clock VALUES ('2031-05-17 12:00');
CREATE TABLE storetest.refused (id uuid PRIMARY KEY, what text NOT NULL DEFAULT 'all');
CREATE FUNCTION storetest.refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM storetest.refused WHERE id = NEW.id) THEN RAISE EXCEPTION 'not this one'; END IF;
    RETURN NEW;
END $$;
CREATE FUNCTION storetest.refuse_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM storetest.refused WHERE id = NEW.event_id AND (what = 'all'
        OR NEW.payload IS NOT NULL OR NEW.payload_raw IS NOT NULL
        OR (what = 'content' AND (NEW.namespace <> '' OR NEW.action_name <> '')))) THEN
        RAISE EXCEPTION 'not order-3';
    END IF;
    RETURN NEW;
END $$`)
	return db
}

// newPool opens another pool on the database, with a query mode.
func newPool(t *testing.T, db *testdb.DB, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 16
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newStore(t *testing.T, pool *pgxpool.Pool, table schema.Table) *Store {
	t.Helper()
	s, err := New(pool, Config{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// frozenClock reads the clock that the hooks set.
const frozenClock = "(SELECT now FROM storetest.clock)"

// poolMode is a way in which a pool sends statements, and the layouts that are tried with it.
type poolMode struct {
	name    string
	mode    pgx.QueryExecMode
	layouts []string
}

func modes() []poolMode {
	return []poolMode{
		{"default", pgx.QueryExecModeCacheStatement, []string{"eventlog", "custom", "debezium"}},
		// What poolers in transaction mode ask for.
		{"simple", pgx.QueryExecModeSimpleProtocol, []string{"eventlog"}},
		{"exec", pgx.QueryExecModeExec, []string{"debezium"}},
	}
}

func TestStore(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, l := range layouts() {
			for _, m := range modes() {
				if !slices.Contains(m.layouts, l.name) {
					continue
				}
				t.Run(l.name+"/"+m.name, func(t *testing.T) {
					db := newTestDB(t, major, l)
					pool := newPool(t, db, m.mode)
					storetest.Run(t, func(t *testing.T) storetest.Backend {
						h := &hooks{db: db.Pool(), layout: l}
						h.reset(t)
						s := newStore(t, pool, l.table)
						s.sql = render(s.schema, frozenClock)
						return storetest.Backend{Store: s, Mark: l.mark, Full: l.full, LookBack: l.table.LookBack, Hooks: h}
					})
				})
			}
		}
	})
}
