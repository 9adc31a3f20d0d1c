package mysql

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

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
	table func(schemaName string) schema.Table
	ddl   string
	// ours changes our own tables after the migration.
	ours string
	mark storetest.Mark
	full bool
}

func layouts() []layout {
	return []layout{
		{name: "eventlog", table: schema.Eventlog, mark: storetest.MarkBoolean, full: true},
		{
			// Every column has another name and another type than ours, and so have our own ids.
			name: "custom", mark: storetest.MarkStatus, full: true,
			table: func(schemaName string) schema.Table {
				return schema.Custom(schemaName, "Event `Log?`", schema.Columns{
					ID: "Id", Namespace: "ns", ActionID: "action", ActionName: "action name", ActionParams: "params",
					StartedDate: "started", CompletionDate: "completed", ModelID: "model", ModelType: "kind", Type: "type",
					Payload: "{now}?", Date: "at", Traceparent: "trace", Headers: "meta",
				}, schema.Mark{Kind: schema.MarkStatus, Column: "status", At: "dispatched_at"})
			},
			ddl: "CREATE TABLE `Event ``Log?``` (`Id` BINARY(16), ns TEXT, action BINARY(16), `action name` TEXT, params JSON, " +
				"started TIMESTAMP(6) NULL, completed TIMESTAMP(6) NULL, model VARCHAR(100), kind VARCHAR(100), type VARCHAR(400), " +
				"`{now}?` LONGTEXT, at TIMESTAMP(6) NULL, trace VARCHAR(60), meta JSON, " +
				"status ENUM ('PENDING', 'DISPATCHED', 'NO_DELIVERY') NOT NULL DEFAULT 'PENDING', dispatched_at DATETIME(6), KEY (`Id`)) " +
				"CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
			ours: `ALTER TABLE event_notifications MODIFY id BINARY(16) NOT NULL, MODIFY event_id BINARY(16) NOT NULL,
    MODIFY action_id BINARY(16) NOT NULL, MODIFY lease_token BINARY(16);
ALTER TABLE event_notification_attempts MODIFY delivery_id BINARY(16) NOT NULL`,
		},
		{
			name: "debezium", mark: storetest.MarkNone,
			table: func(schemaName string) schema.Table {
				t := schema.Debezium(schemaName, "outboxevent")
				t.Columns.Date, t.LookBack = "occurred_at", 30*24*time.Hour
				return t
			},
			ddl: `CREATE TABLE outboxevent (id CHAR(36) PRIMARY KEY, aggregatetype VARCHAR(255), aggregateid VARCHAR(255), type VARCHAR(400),
    payload LONGBLOB, occurred_at DATETIME(6)) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci`,
		},
	}
}

// newTestDB makes a database with the layout's tables.
func newTestDB(t *testing.T, kind testdb.Kind, l layout) *testdb.MyDB {
	t.Helper()
	db := testdb.MySQL(t, kind)
	if l.ddl != "" {
		db.Exec(l.ddl)
	}
	m, err := migrate.MySQL(db.Pool(), migrate.Options{Schema: db.Name(), Table: l.table(db.Name())})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.ours != "" {
		db.Exec(l.ours)
	}
	return db
}

// poolOf opens another pool on the database.
func poolOf(t *testing.T, db *testdb.MyDB, change func(*driver.Config)) *sql.DB {
	t.Helper()
	cfg, err := driver.ParseDSN(db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	PoolConfig(cfg)
	if change != nil {
		change(cfg)
	}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(16)
	pool.SetMaxIdleConns(16)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func newStore(t *testing.T, db *testdb.MyDB, pool *sql.DB, c Config) *Store {
	t.Helper()
	c.Schema = db.Name()
	s, err := New(pool, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// way is a way in which the store works, and the layouts and servers that it is tried with.
type way struct {
	name    string
	config  Config
	pool    func(*driver.Config)
	layouts []string
	kinds   []testdb.Kind
}

func ways() []way {
	return []way{
		{name: "default", layouts: []string{"eventlog", "custom", "debezium"}, kinds: []testdb.Kind{testdb.MariaDB1011, testdb.MariaDB118, testdb.MySQL97}},
		{
			// The worst pool: prepared statements, times that are parsed into another zone, matched rows counted, lax
			// sessions in a zone and an isolation of their own.
			name: "odd-pool", layouts: []string{"eventlog"}, kinds: []testdb.Kind{testdb.MariaDB118, testdb.MySQL97},
			pool: func(cfg *driver.Config) {
				cfg.InterpolateParams, cfg.ParseTime, cfg.ClientFoundRows = false, true, true
				cfg.Loc = time.FixedZone("east", 5*3600)
				cfg.Params = map[string]string{
					"time_zone": "'+05:00'", "sql_mode": "''", "transaction_isolation": "'SERIALIZABLE'",
					"autocommit": "0", "sql_select_limit": "1", "sql_safe_updates": "1",
				}
			},
		},
		{
			name: "no-skip-locked", layouts: []string{"custom"}, config: Config{NoSkipLocked: true},
			kinds: []testdb.Kind{testdb.MariaDB1011, testdb.MySQL97},
		},
	}
}

func TestStore(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		for _, l := range layouts() {
			for _, w := range ways() {
				if !slices.Contains(w.layouts, l.name) || !slices.Contains(w.kinds, kind) {
					continue
				}
				t.Run(l.name+"/"+w.name, func(t *testing.T) {
					db := newTestDB(t, kind, l)
					pool := poolOf(t, db, func(cfg *driver.Config) {
						if w.pool == nil {
							return
						}
						w.pool(cfg)
						if kind == testdb.MariaDB1011 { // which has it under another name only
							cfg.Params["tx_isolation"] = cfg.Params["transaction_isolation"]
							delete(cfg.Params, "transaction_isolation")
						}
					})
					h := newHooks(t, db, l)
					storetest.Run(t, func(t *testing.T) storetest.Backend {
						h.reset(t)
						c := w.config
						c.Table = l.table(db.Name())
						s := newStore(t, db, pool, c)
						s.now = h.clock()
						return storetest.Backend{
							Store: s, Mark: l.mark, Full: l.full, LookBack: c.Table.LookBack, Defers: true, Hooks: h,
						}
					})
				})
			}
		}
	})
}
