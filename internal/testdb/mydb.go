package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/go-sql-driver/mysql"
)

// MyDB is a fresh database for one test on a MySQL or MariaDB server.
type MyDB struct {
	t      testing.TB
	kind   Kind
	server *localserver.MySQL
	name   string
	pool   *sql.DB
}

// MySQL makes a fresh database (utf8mb4) on the shared server of a kind. The
// cleanup closes the pool, ends the sessions that use the database, rolls back its
// prepared XA transactions and drops it. Only those prepared under a name of XID are
// known to be its own.
func MySQL(t testing.TB, kind Kind) *MyDB {
	t.Helper()
	server := sharedMySQLServer(t, kind)
	name := plainName(t.Name())
	db := &MyDB{
		t: t, kind: kind, server: server,
		name: fmt.Sprintf("t%d_%s", databases.Add(1), name[:min(len(name), 24)]),
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := onMySQL(ctx, server, "", func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, "CREATE DATABASE "+db.name)
		return err
	}); err != nil {
		t.Fatalf("create database %s: %v", db.name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := db.drop(ctx); err != nil {
			t.Errorf("drop database %s: %v", db.name, err)
		}
	})
	connector, err := mysql.NewConnector(server.Config(db.name))
	if err != nil {
		t.Fatal(err)
	}
	db.pool = sql.OpenDB(connector)
	db.pool.SetMaxOpenConns(16)
	db.pool.SetMaxIdleConns(16)
	t.Cleanup(func() { _ = db.pool.Close() }) // its sessions are ended by drop anyway
	return db
}

// DSN is the data source name of the database for its superuser, as
// github.com/go-sql-driver/mysql reads it, without parseTime.
func (db *MyDB) DSN() string { return db.server.DSN(db.name) }

// Name is the name of the database. It needs no quotes.
func (db *MyDB) Name() string { return db.name }

// Kind is the kind of server that the database is on.
func (db *MyDB) Kind() Kind { return db.kind }

// Server is the shared server that the database is on. Never stop it, and change no
// global setting that another test could notice.
func (db *MyDB) Server() *localserver.MySQL { return db.server }

// Pool holds up to 16 connections. Cleanup closes it.
func (db *MyDB) Pool() *sql.DB { return db.pool }

// XID is the name, quoted for SQL, of an XA transaction that the cleanup rolls back if
// the test leaves it prepared. Suffixes are up to 20 plain characters.
func (db *MyDB) XID(suffix string) string { return "'" + db.name + "-" + suffix + "'" }

// Exec runs SQL and fails the test on an error. Without arguments the text may
// hold several statements. It runs on a connection of its own: nothing of a session
// stays.
func (db *MyDB) Exec(query string, args ...any) {
	db.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	err := onMySQL(ctx, db.server, db.name, func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, query, args...)
		return err
	})
	if err != nil {
		db.t.Fatalf("%v\nin: %s", err, query)
	}
}

// drop removes the database and all that would keep it.
func (db *MyDB) drop(ctx context.Context) error {
	return onMySQL(ctx, db.server, "", func(conn *sql.Conn) error {
		if err := db.endSessions(ctx, conn); err != nil {
			return err
		}
		if err := db.rollbackPrepared(ctx, conn); err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 20"); err != nil {
			return err
		}
		_, err := conn.ExecContext(ctx, "DROP DATABASE IF EXISTS "+db.name)
		if refusal, ok := errors.AsType[*mysql.MySQLError](err); ok && refusal.Number == lockWaitTimeout {
			err = fmt.Errorf("somebody holds it; XA transactions are rolled back only under a name of XID: %w", err)
		}
		return err
	})
}

// The server's error numbers that the cleanup knows.
const (
	lockWaitTimeout = 1205
	noSuchThread    = 1094
	unknownXID      = 1397
)

// endSessions ends every session of the database. One that is busy takes a
// moment to go.
func (db *MyDB) endSessions(ctx context.Context, conn *sql.Conn) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ids, err := column[uint64](ctx, conn,
			"SELECT id FROM information_schema.processlist WHERE db = ? AND id <> connection_id()", db.name)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			_, err := conn.ExecContext(ctx, fmt.Sprintf("KILL CONNECTION %d", id))
			if refusal, ok := errors.AsType[*mysql.MySQLError](err); err != nil && (!ok || refusal.Number != noSuchThread) {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("sessions of %s do not end: %w", db.name, ctx.Err())
		}
	}
}

// rollbackPrepared ends what XA PREPARE left. XA RECOVER does not say which database
// a transaction is of.
func (db *MyDB) rollbackPrepared(ctx context.Context, conn *sql.Conn) error {
	rows, err := conn.QueryContext(ctx, "XA RECOVER")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var format, global, branch int
		var data string
		if err := rows.Scan(&format, &global, &branch, &data); err != nil {
			return err
		}
		if strings.HasPrefix(data, db.name+"-") {
			names = append(names, fmt.Sprintf("X'%x',X'%x',%d", data[:global], data[global:], format))
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, name := range names {
		_, err := conn.ExecContext(ctx, "XA ROLLBACK "+name)
		if refusal, ok := errors.AsType[*mysql.MySQLError](err); err != nil && (!ok || refusal.Number != unknownXID) {
			return err
		}
	}
	return nil
}

// column reads a query of one column.
func column[T any](ctx context.Context, conn *sql.Conn, query string, args ...any) ([]T, error) {
	rows, err := conn.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// onMySQL runs fn on a connection of its own, on which a text may hold several
// statements.
func onMySQL(ctx context.Context, server *localserver.MySQL, database string, fn func(*sql.Conn) error) error {
	cfg := server.Config(database)
	cfg.MultiStatements = true
	cfg.InterpolateParams = true
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	pool := sql.OpenDB(connector)
	defer func() { _ = pool.Close() }() // nothing is left in it
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return fn(conn)
}
