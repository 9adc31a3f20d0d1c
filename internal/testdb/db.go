package testdb

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is a fresh database for one test.
type DB struct {
	t      testing.TB
	server *localserver.Postgres
	name   string
	pool   *pgxpool.Pool
}

// cleanupTimeout bounds what the cleanup of one database may take.
const cleanupTimeout = time.Minute

// databases numbers the databases of this test binary.
var databases atomic.Int64

// Postgres makes a fresh database on the shared server of a major version. The
// cleanup closes the pool, drops the database's replication slots (ending the
// sessions that use them), rolls back its prepared transactions and drops it,
// whoever is still connected.
func Postgres(t testing.TB, major int) *DB {
	t.Helper()
	return PostgresEncoded(t, major, "UTF8")
}

// PostgresEncoded is Postgres with a database of another encoding, such as LATIN1. Connections of its pool
// have UTF8 all the same; those of its DSN have not.
func PostgresEncoded(t testing.TB, major int, encoding string) *DB {
	t.Helper()
	server := sharedServer(t, major)
	db := &DB{t: t, server: server, name: fmt.Sprintf("t%d_%s", databases.Add(1), plainName(t.Name()))}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := onServer(ctx, server, "postgres", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+db.quoted()+" TEMPLATE template0 ENCODING '"+encoding+"'")
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
	cfg, err := pgxpool.ParseConfig(db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 16
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	if db.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.pool.Close)
	return db
}

// DSN is the URL of the database for its superuser.
func (db *DB) DSN() string { return db.server.DSN(db.name) }

// Name is the name of the database.
func (db *DB) Name() string { return db.name }

// Server is the shared server that the database is on. Never stop it.
func (db *DB) Server() *localserver.Postgres { return db.server }

// Pool holds up to 16 connections. Cleanup closes it.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Exec runs SQL and fails the test on an error. Without arguments the text may
// hold several statements.
func (db *DB) Exec(sql string, args ...any) {
	db.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol}
	}
	if _, err := db.pool.Exec(ctx, sql, args...); err != nil {
		db.t.Fatalf("%v\nin: %s", err, sql)
	}
}

func (db *DB) quoted() string { return pgx.Identifier{db.name}.Sanitize() }

// drop removes the database and all that would keep it.
func (db *DB) drop(ctx context.Context) error {
	// A test may have given the database limits that would end this session too.
	if err := onServer(ctx, db.server, "postgres", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ALTER DATABASE "+db.quoted()+" RESET ALL")
		return err
	}); err != nil {
		return err
	}
	if err := db.rollbackPrepared(ctx); err != nil {
		return err
	}
	return onServer(ctx, db.server, "postgres", func(conn *pgx.Conn) error {
		if err := dropSlots(ctx, conn, db.name); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+db.quoted()+" WITH (FORCE)")
		return err
	})
}

// rollbackPrepared ends what PREPARE TRANSACTION left: it can be ended only
// from the same database, and no database with such a transaction can be
// dropped.
func (db *DB) rollbackPrepared(ctx context.Context) error {
	return onServer(ctx, db.server, db.name, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx,
			"SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()")
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, name := range names {
			if _, err := conn.Exec(ctx, "ROLLBACK PREPARED "+name); err != nil {
				return err
			}
		}
		return err
	})
}

// dropSlots drops the logical slots of a database. A slot in use is freed by
// ending its session, which takes a moment and which a client that reconnects
// can undo, so it is tried until it holds.
func dropSlots(ctx context.Context, conn *pgx.Conn, database string) error {
	const query = `
		SELECT count(*) FILTER (WHERE active_pid IS NOT NULL AND pg_terminate_backend(active_pid)),
		       count(*) FILTER (WHERE active_pid IS NULL),
		       count(*)
		FROM pg_replication_slots WHERE database = $1`
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var ended, idle, all int
		if err := conn.QueryRow(ctx, query, database).Scan(&ended, &idle, &all); err != nil {
			return err
		}
		if all == 0 {
			return nil
		}
		if idle > 0 {
			_, err := conn.Exec(ctx, `
				SELECT pg_drop_replication_slot(slot_name)
				FROM pg_replication_slots WHERE database = $1 AND active_pid IS NULL`, database)
			if err != nil && ctx.Err() != nil {
				return err // otherwise somebody took the slot meanwhile
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("replication slots of %s stay in use: %w", database, ctx.Err())
		}
	}
}

// onServer runs fn on a connection of its own.
func onServer(ctx context.Context, server *localserver.Postgres, database string, fn func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, server.DSN(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing is left in it
	return fn(conn)
}
