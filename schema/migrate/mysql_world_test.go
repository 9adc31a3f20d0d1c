package migrate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// mySeed is what an Ekbatan application's own migrations create; {uuid} and {db} vary.
const mySeed = `
CREATE TABLE {db}.events (
    id {uuid} NOT NULL,
    namespace VARCHAR(255) NOT NULL,
    action_id {uuid} NOT NULL,
    action_name VARCHAR(255) NOT NULL,
    action_params JSON NOT NULL,
    started_date DATETIME(6) NOT NULL,
    completion_date DATETIME(6) NOT NULL,
    model_id VARCHAR(255),
    model_type VARCHAR(255),
    event_type VARCHAR(255),
    payload JSON,
    event_date DATETIME(6) NOT NULL,
    delivered BOOLEAN NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX idx_events_action_id ON {db}.events (action_id);
CREATE INDEX events_pending_fanout ON {db}.events (delivered, event_type, event_date);
CREATE TABLE {db}.event_notifications (
    id {uuid} NOT NULL,
    event_id {uuid} NOT NULL,
    handler_name VARCHAR(255) NOT NULL,
    namespace VARCHAR(255) NOT NULL,
    action_id {uuid} NOT NULL,
    action_name VARCHAR(255) NOT NULL,
    action_params JSON NOT NULL,
    started_date DATETIME(6) NOT NULL,
    completion_date DATETIME(6) NOT NULL,
    model_id VARCHAR(255),
    model_type VARCHAR(255),
    event_type VARCHAR(255) NOT NULL,
    payload JSON,
    event_date DATETIME(6) NOT NULL,
    state VARCHAR(24) NOT NULL,
    attempts INT NOT NULL DEFAULT 0,
    next_retry_at DATETIME(6) NOT NULL,
    created_date DATETIME(6) NOT NULL,
    updated_date DATETIME(6) NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (event_id, handler_name)
);
CREATE INDEX event_notifications_due ON {db}.event_notifications (next_retry_at);
`

// mySeedEvents and mySeedDeliveries name their columns, as every Ekbatan process does.
const (
	mySeedEvents = `
INSERT INTO {db}.events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
    model_id, model_type, event_type, payload, event_date, delivered)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
SELECT uuid(), 'shop', uuid(), 'PlaceOrder', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), i, 'Order', 'OrderPlaced', '{"n": 1}',
    UTC_TIMESTAMP(6), false FROM n;`
	mySeedDeliveries = `
INSERT INTO {db}.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
    started_date, completion_date, model_id, model_type, event_type, payload, event_date,
    state, attempts, next_retry_at, created_date, updated_date)
SELECT uuid(), id, 'billing', namespace, action_id, action_name, action_params, started_date, completion_date,
    model_id, model_type, event_type, payload, event_date, 'PENDING', 0, event_date, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
FROM {db}.events WHERE id NOT IN (SELECT event_id FROM {db}.event_notifications);`
)

// myWorld is one database of a server that speaks MySQL's protocol.
type myWorld struct {
	*testdb.MyDB
	t *testing.T
}

func eachMySQL(t *testing.T, fn func(t *testing.T, w myWorld)) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		fn(t, myWorld{testdb.MySQL(t, kind), t})
	})
}

// run runs SQL in which {db} and {uuid} are filled in.
func (w myWorld) run(text string) {
	w.t.Helper()
	uuid := "CHAR(36) CHARACTER SET ascii"
	if w.Kind().IsMariaDB() {
		uuid = "UUID"
	}
	w.Exec(strings.NewReplacer("{db}", w.Name(), "{uuid}", uuid).Replace(text))
}

func (w myWorld) migrator(o migrate.Options) *migrate.Migrator {
	w.t.Helper()
	if o.Schema == "" {
		o.Schema = w.Name()
	}
	m, err := migrate.MySQL(w.Pool(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w myWorld) dialect() migrate.Dialect {
	if w.Kind().IsMariaDB() {
		return migrate.DialectMariaDB
	}
	return migrate.DialectMySQL
}

func (w myWorld) column(query string, args ...any) []string {
	w.t.Helper()
	rows, err := w.Pool().QueryContext(w.t.Context(), query, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var list []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			w.t.Fatal(err)
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return list
}

// catalog describes every column and index of a database, without its name.
func (w myWorld) catalog(name string) []string {
	w.t.Helper()
	columns := w.column(`SELECT CONCAT(table_name, '.', column_name, ' ', column_type, IF(is_nullable = 'NO', ' not null', ''),
    COALESCE(CONCAT(' ', collation_name), ''), COALESCE(CONCAT(' default ', column_default), ''), ' ', extra)
FROM information_schema.columns WHERE table_schema = ? ORDER BY table_name, ordinal_position`, name)
	indexes := w.column(`SELECT CONCAT(index_name, ' on ', table_name, IF(non_unique = 0, ' unique', ''), ' (',
    GROUP_CONCAT(column_name ORDER BY seq_in_index SEPARATOR ', '), ')')
FROM information_schema.statistics WHERE table_schema = ? GROUP BY table_name, index_name, non_unique ORDER BY 1`, name)
	return append(columns, indexes...)
}

func (w myWorld) tables(name string) []string {
	w.t.Helper()
	return sorted(w.column(`SELECT table_name FROM information_schema.tables WHERE table_schema = ?`, name))
}

// withoutVersions leaves our own version table out of a catalog.
func withoutVersions(catalog []string) []string {
	return slices.DeleteFunc(catalog, func(line string) bool { return strings.Contains(line, "cdc_dispatcher_migrations") })
}
