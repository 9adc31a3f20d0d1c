package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	cdcmysql "github.com/cdc-dispatcher/cdc-dispatcher/cdc/mysql"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	schemamysql "github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

// mysql is a database of a MySQL or MariaDB server.
type mysql struct {
	kind   testdb.Kind
	server *localserver.MySQL
	name   string
	pool   *sql.DB
}

// eachMySQL runs fn with a fresh database on the shared server of each kind.
func eachMySQL(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		db := testdb.MySQL(t, kind)
		fn(t, newWorld(t, &mysql{kind: kind, server: db.Server(), name: db.Name(), pool: db.Pool()}))
	})
}

// eachMySQLServer does the same on servers of the test's own.
func eachMySQLServer(t *testing.T, settings map[string]string, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		fn(t, newWorld(t, ownMySQL(t, kind, settings)))
	})
}

func ownMySQL(t *testing.T, kind testdb.Kind, settings map[string]string) *mysql {
	t.Helper()
	server := testdb.DedicatedMySQL(t, kind, settings)
	const name = "app"
	root, err := sql.Open("mysql", server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.ExecContext(t.Context(), "CREATE DATABASE "+name+" CHARACTER SET utf8mb4"); err != nil {
		t.Fatal(err)
	}
	if err := root.Close(); err != nil {
		t.Fatal(err)
	}
	pool, err := sql.Open("mysql", server.DSN(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() }) // the server may be gone
	return &mysql{kind: kind, server: server, name: name, pool: pool}
}

func (m *mysql) title() string { return m.kind.String() + " " + m.server.Version() }
func (m *mysql) dsn() string   { return m.server.DSN(m.name) }

func (m *mysql) setup(ctx context.Context) error {
	mig, err := migrate.MySQL(m.pool, migrate.Options{Schema: m.name})
	if err != nil {
		return err
	}
	if _, err := mig.Up(ctx); err != nil {
		return err
	}
	return workload.SetupMySQL(ctx, m.pool)
}

func (m *mysql) rewrite(query string) string {
	return dialect(query, m.name, "UTC_TIMESTAMP(6)", "?")
}

func (m *mysql) exec(ctx context.Context, query string, args ...any) error {
	_, err := m.pool.ExecContext(ctx, m.rewrite(query), args...)
	return err
}

func (m *mysql) table(ctx context.Context, query string, args ...any) (out [][]string, err error) {
	rows, err := m.pool.QueryContext(ctx, m.rewrite(query), args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	cells := make([]sql.NullString, len(columns))
	into := make([]any, len(columns))
	for i := range cells {
		into[i] = &cells[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		row := make([]string, len(columns))
		for i, c := range cells {
			if row[i] = "NULL"; c.Valid {
				row[i] = c.String
			}
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

func (m *mysql) begin(ctx context.Context) (transaction, error) {
	tx, err := m.pool.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, err
	}
	return mysqlTransaction{tx, m.name}, nil
}

func (m *mysql) write(ctx context.Context, c workload.Config) error {
	c.DSN, c.Dialect, c.Events = m.dsn(), workload.MySQL, m.name+".events"
	return workload.Run(ctx, c)
}

func (m *mysql) stored(ctx context.Context) (map[string]struct{}, error) {
	return ledger.ReadStoredMySQL(ctx, m.pool, m.name+".events")
}

func (m *mysql) rows(ctx context.Context) ([]ledger.Row, error) {
	return ledger.ReadRowsMySQL(ctx, m.pool, m.name+".event_notifications")
}

// streaming asks for a session that sends the binlog. Tests run one after the other on a
// server, so it is ours, or that of a process which was just killed and is still the reader.
func (m *mysql) streaming(ctx context.Context) bool {
	var n int
	err := m.pool.QueryRowContext(ctx, m.rewrite(`SELECT count(*) FROM information_schema.processlist p
		JOIN eventlog.sources s ON s.name = 'main' AND s.epoch > 0 WHERE p.command LIKE 'Binlog Dump%'`)).Scan(&n)
	return err == nil && n > 0
}

func (m *mysql) lockDeliveries(ctx context.Context, all bool) (func() error, error) {
	conn, err := m.pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	mode := "READ"
	if all {
		mode = "WRITE"
	}
	if _, err := conn.ExecContext(ctx, m.rewrite("LOCK TABLES eventlog.event_notifications "+mode)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func() error {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "UNLOCK TABLES")
		return errors.Join(err, conn.Close())
	}, nil
}

func (m *mysql) refusePayloads(ctx context.Context) error {
	return m.exec(ctx, `ALTER TABLE eventlog.event_notifications ADD CONSTRAINT refuses CHECK (json_extract(payload, '$.refuse') IS NULL)`)
}

func (m *mysql) crash() error                    { return m.server.Kill() }
func (m *mysql) stop(ctx context.Context) error  { return m.server.Stop(ctx) }
func (m *mysql) start(ctx context.Context) error { return m.server.Start(ctx) }

type mysqlTransaction struct {
	tx     *sql.Tx
	schema string
}

// rowsPerInsert keeps a statement below the smallest default of max_allowed_packet.
const rowsPerInsert = 500

func (x mysqlTransaction) insert(ctx context.Context, ids []string, eventType, payload string) error {
	var document any
	if payload != "" {
		document = payload
	}
	for len(ids) > 0 {
		n := min(len(ids), max(1, min(rowsPerInsert, (8<<20)/(len(payload)+1))))
		var query strings.Builder
		fmt.Fprintf(&query, `INSERT INTO %s.events (id, namespace, action_id, action_name, action_params, started_date,
			completion_date, model_id, model_type, event_type, payload, event_date, delivered) VALUES `, x.schema)
		var args []any
		for i, id := range ids[:n] {
			if i > 0 {
				query.WriteByte(',')
			}
			query.WriteString(`(?, 'it', ?, 'Test', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'm', 'Model', ?, ?, UTC_TIMESTAMP(6), 0)`)
			args = append(args, id, newID(), eventType, document)
		}
		if _, err := x.tx.ExecContext(ctx, query.String(), args...); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

func (x mysqlTransaction) insertSentinel(ctx context.Context) error {
	_, err := x.tx.ExecContext(ctx, `INSERT INTO `+x.schema+`.events (id, namespace, action_id, action_name, action_params,
		started_date, completion_date, event_date, delivered)
		VALUES (?, 'it', ?, 'Test', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0)`, newID(), newID())
	return err
}

func (x mysqlTransaction) commit(context.Context) error   { return x.tx.Commit() }
func (x mysqlTransaction) rollback(context.Context) error { return x.tx.Rollback() }

// mysqlParts wires a dispatcher for MySQL and MariaDB.
func mysqlParts(_ context.Context, o options) (parts, error) {
	config, err := driver.ParseDSN(o.DSN)
	if err != nil {
		return parts{}, err
	}
	name := config.DBName
	schemamysql.PoolConfig(config)
	connector, err := driver.NewConnector(config)
	if err != nil {
		return parts{}, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(8)
	pool.SetMaxIdleConns(8)
	table := schema.Eventlog(name)
	store, err := schemamysql.New(pool, schemamysql.Config{Schema: name, Table: table})
	if err != nil {
		return parts{}, errors.Join(err, pool.Close())
	}
	readLog := func(config *pipeline.Config, o options, logger *slog.Logger) error {
		source, err := cdcmysql.New(cdcmysql.Config{
			DSN:           orElse(o.LogDSN, o.DSN),
			Tables:        []cdcmysql.Table{{Schema: table.Schema, Name: table.Name}},
			Own:           []cdcmysql.Table{{Schema: name}},
			Keeper:        cdcmysql.KeeperOf(store.Keeper("main", o.Process).Acquire),
			CheckInterval: 200 * time.Millisecond, StandbyPoll: 200 * time.Millisecond, BackoffMax: time.Second,
			ServerID: o.Binlog.ServerID, Heartbeat: o.Binlog.Heartbeat, SaveInterval: o.Binlog.SaveInterval,
			BackoffMin: o.Binlog.BackoffMin, MaxRecords: o.Binlog.MaxRecords,
			Logger: logger,
		})
		if err != nil {
			return err
		}
		config.Log, config.Table, config.Decode = source, table.QualifiedName(), table.Decoder()
		return nil
	}
	return parts{store: store, readLog: readLog, close: func() { _ = pool.Close() }}, nil
}
