package testbed

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// MySQL is a database of a MySQL or MariaDB server.
type MySQL struct {
	Kind   testdb.Kind
	Server *localserver.MySQL
	Name   string
	Pool   *sql.DB
	// Address is how it is reached instead of directly, for example through a proxy.
	Address string
}

// OwnMySQL is a database on a server of the test's own.
func OwnMySQL(t testing.TB, kind testdb.Kind, settings map[string]string) *MySQL {
	t.Helper()
	return NewMySQL(t, kind, testdb.DedicatedMySQL(t, kind, settings), "")
}

// NewMySQL makes a database on a server that has none, to be reached at an address.
func NewMySQL(t testing.TB, kind testdb.Kind, server *localserver.MySQL, address string) *MySQL {
	t.Helper()
	m := &MySQL{Kind: kind, Server: server, Name: "app", Address: address}
	root, err := sql.Open("mysql", server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.ExecContext(t.Context(), "CREATE DATABASE "+m.Name+" CHARACTER SET utf8mb4"); err != nil {
		t.Fatal(err)
	}
	if err := root.Close(); err != nil {
		t.Fatal(err)
	}
	if m.Pool, err = sql.Open("mysql", m.DSN()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Pool.Close() }) // the server may be gone
	return m
}

// Title implements [Database].
func (m *MySQL) Title() string { return m.Kind.String() + " " + m.Server.Version() }

// DSN implements [Database].
func (m *MySQL) DSN() string {
	config := m.Server.Config(m.Name)
	if m.Address != "" {
		config.Addr = m.Address
	}
	return config.FormatDSN()
}

// Setup implements [Database].
func (m *MySQL) Setup(ctx context.Context) error {
	mig, err := migrate.MySQL(m.Pool, migrate.Options{Schema: m.Name})
	if err != nil {
		return err
	}
	if _, err := mig.Up(ctx); err != nil {
		return err
	}
	return workload.SetupMySQL(ctx, m.Pool)
}

// Rewrite turns shared SQL into that of this database.
func (m *MySQL) Rewrite(query string) string {
	return dialect(query, m.Name, "UTC_TIMESTAMP(6)", "?")
}

// Exec implements [Database].
func (m *MySQL) Exec(ctx context.Context, query string, args ...any) error {
	_, err := m.Pool.ExecContext(ctx, m.Rewrite(query), args...)
	return err
}

// Table implements [Database].
func (m *MySQL) Table(ctx context.Context, query string, args ...any) (out [][]string, err error) {
	rows, err := m.Pool.QueryContext(ctx, m.Rewrite(query), args...)
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

// Begin implements [Database].
func (m *MySQL) Begin(ctx context.Context) (Transaction, error) {
	tx, err := m.Pool.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, err
	}
	return mysqlTransaction{tx, m.Name}, nil
}

// Write implements [Database].
func (m *MySQL) Write(ctx context.Context, c workload.Config) error {
	c.DSN, c.Dialect, c.Events = m.DSN(), workload.MySQL, m.Name+".events"
	return workload.Run(ctx, c)
}

// Stored implements [Database].
func (m *MySQL) Stored(ctx context.Context) (map[string]struct{}, error) {
	return ledger.ReadStoredMySQL(ctx, m.Pool, m.Name+".events")
}

// Rows implements [Database].
func (m *MySQL) Rows(ctx context.Context) ([]ledger.Row, error) {
	return ledger.ReadRowsMySQL(ctx, m.Pool, m.Name+".event_notifications")
}

// Streaming asks for a session that sends the binlog. Tests run one after the other on a
// server, so it is ours, or that of a process which was just killed and is still the reader.
func (m *MySQL) Streaming(ctx context.Context) bool {
	var n int
	err := m.Pool.QueryRowContext(ctx, m.Rewrite(`SELECT count(*) FROM information_schema.processlist p
		JOIN eventlog.sources s ON s.name = 'main' AND s.epoch > 0 WHERE p.command LIKE 'Binlog Dump%'`)).Scan(&n)
	return err == nil && n > 0
}

// LockDeliveries implements [Database].
func (m *MySQL) LockDeliveries(ctx context.Context, all bool) (func() error, error) {
	conn, err := m.Pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	mode := "READ"
	if all {
		mode = "WRITE"
	}
	if _, err := conn.ExecContext(ctx, m.Rewrite("LOCK TABLES eventlog.event_notifications "+mode)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func() error {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "UNLOCK TABLES")
		return errors.Join(err, conn.Close())
	}, nil
}

// RefusePayloads implements [Database].
func (m *MySQL) RefusePayloads(ctx context.Context) error {
	return m.Exec(ctx, `ALTER TABLE eventlog.event_notifications ADD CONSTRAINT refuses CHECK (json_extract(payload, '$.refuse') IS NULL)`)
}

// Crash implements [Database].
func (m *MySQL) Crash() error { return m.Server.Kill() }

// Stop implements [Database].
func (m *MySQL) Stop(ctx context.Context) error { return m.Server.Stop(ctx) }

// Start implements [Database].
func (m *MySQL) Start(ctx context.Context) error { return m.Server.Start(ctx) }

type mysqlTransaction struct {
	tx     *sql.Tx
	schema string
}

// rowsPerInsert keeps a statement below the smallest default of max_allowed_packet.
const rowsPerInsert = 500

// Insert implements [Transaction].
func (x mysqlTransaction) Insert(ctx context.Context, ids []string, eventType, payload string) error {
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
			args = append(args, id, uuid.NewString(), eventType, document)
		}
		if _, err := x.tx.ExecContext(ctx, query.String(), args...); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// InsertSentinel implements [Transaction].
func (x mysqlTransaction) InsertSentinel(ctx context.Context) error {
	_, err := x.tx.ExecContext(ctx, `INSERT INTO `+x.schema+`.events (id, namespace, action_id, action_name, action_params,
		started_date, completion_date, event_date, delivered)
		VALUES (?, 'it', ?, 'Test', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0)`, uuid.NewString(), uuid.NewString())
	return err
}

// Commit implements [Transaction].
func (x mysqlTransaction) Commit(context.Context) error { return x.tx.Commit() }

// Rollback implements [Transaction].
func (x mysqlTransaction) Rollback(context.Context) error { return x.tx.Rollback() }
