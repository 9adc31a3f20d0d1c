package migrate_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// seedDDL is what an Ekbatan application's own migrations create.
const seedDDL = `
CREATE SCHEMA eventlog;
CREATE TABLE eventlog.events (
    id UUID PRIMARY KEY,
    namespace VARCHAR(255) NOT NULL,
    action_id UUID NOT NULL,
    action_name VARCHAR(255) NOT NULL,
    action_params JSONB NOT NULL,
    started_date TIMESTAMP NOT NULL,
    completion_date TIMESTAMP NOT NULL,
    model_id VARCHAR(255),
    model_type VARCHAR(255),
    event_type VARCHAR(255),
    payload JSONB,
    event_date TIMESTAMP NOT NULL,
    delivered BOOLEAN NOT NULL
);
CREATE INDEX idx_events_action_id ON eventlog.events (action_id);
CREATE INDEX events_undelivered ON eventlog.events (event_type, event_date) WHERE delivered = FALSE;
CREATE TABLE eventlog.event_notifications (
    id UUID PRIMARY KEY,
    event_id UUID NOT NULL,
    handler_name VARCHAR(255) NOT NULL,
    namespace VARCHAR(255) NOT NULL,
    action_id UUID NOT NULL,
    action_name VARCHAR(255) NOT NULL,
    action_params JSONB NOT NULL,
    started_date TIMESTAMP NOT NULL,
    completion_date TIMESTAMP NOT NULL,
    model_id VARCHAR(255),
    model_type VARCHAR(255),
    event_type VARCHAR(255) NOT NULL,
    payload JSONB,
    event_date TIMESTAMP NOT NULL,
    state VARCHAR(24) NOT NULL,
    attempts INT NOT NULL DEFAULT 0,
    next_retry_at TIMESTAMP NOT NULL,
    created_date TIMESTAMP NOT NULL,
    updated_date TIMESTAMP NOT NULL,
    UNIQUE (event_id, handler_name)
);
CREATE INDEX event_notifications_due ON eventlog.event_notifications (next_retry_at) WHERE state IN ('PENDING', 'FAILED');
`

// partitionedDDL is seedDDL with a partitioned event table, which lacks an index.
func partitionedDDL() string {
	ddl := strings.Replace(seedDDL, "id UUID PRIMARY KEY", "id UUID NOT NULL", 1)
	ddl = strings.Replace(ddl, "delivered BOOLEAN NOT NULL\n)", "delivered BOOLEAN NOT NULL\n) PARTITION BY RANGE (event_date)", 1)
	return ddl + `CREATE TABLE eventlog.events_all PARTITION OF eventlog.events DEFAULT;
DROP INDEX eventlog.events_undelivered;`
}

const seedRows = `
INSERT INTO eventlog.events
SELECT gen_random_uuid(), 'shop', gen_random_uuid(), 'PlaceOrder', '{}', now(), now(), n::text, 'Order', 'OrderPlaced', '{"n": 1}', now(), false
FROM generate_series(1, 50) n;
INSERT INTO eventlog.event_notifications
SELECT gen_random_uuid(), id, 'billing', namespace, action_id, action_name, action_params, started_date, completion_date,
       model_id, model_type, event_type, payload, event_date, 'PENDING', 0, event_date, now(), now()
FROM eventlog.events;
`

func migrator(t *testing.T, pool *pgxpool.Pool, o migrate.Options) *migrate.Migrator {
	t.Helper()
	m, err := migrate.Postgres(pool, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ownerOfSchema creates the schema for a role that may create no others, and returns how it connects.
func ownerOfSchema(db *testdb.DB) (dsn string) {
	role := "owner_" + db.Name()
	db.Exec(`CREATE ROLE "` + role + `" LOGIN`)
	db.Exec(`CREATE SCHEMA eventlog AUTHORIZATION "` + role + `"`)
	return strings.Replace(db.DSN(), "postgres@", role+"@", 1)
}

func up(t *testing.T, m *migrate.Migrator) []migrate.Migration {
	t.Helper()
	applied, err := m.Up(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return applied
}

func down(t *testing.T, m *migrate.Migrator) *migrate.Migration {
	t.Helper()
	undone, err := m.Down(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return undone
}

// column returns the rows of a one-column query.
func column(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var list []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// catalog describes every column and index of a schema, without the schema's name.
func catalog(t *testing.T, pool *pgxpool.Pool, schemaName string) []string {
	t.Helper()
	columns := column(t, pool, `
SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') ORDER BY c.relname, a.attnum`, schemaName)
	indexes := column(t, pool, `
SELECT c.relname || ' on ' || t.relname || CASE WHEN i.indisvalid THEN ' ' ELSE ' invalid ' END || CASE WHEN i.indisunique THEN 'unique ' ELSE '' END
       || substring(pg_get_indexdef(i.indexrelid) FROM 'USING.*')
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 ORDER BY c.relname`, schemaName)
	return append(columns, indexes...)
}

func tables(t *testing.T, pool *pgxpool.Pool, schemaName string) []string {
	t.Helper()
	return column(t, pool, `SELECT relname::text FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
AND relkind IN ('r', 'p') ORDER BY 1`, schemaName)
}

var allTables = []string{
	"audit_log", "cdc_dispatcher_migrations", "event_notification_attempts", "event_notifications",
	"events", "gaps", "handlers", "sources",
}
