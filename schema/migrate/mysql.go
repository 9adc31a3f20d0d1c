package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// MySQL returns a Migrator for a MySQL or MariaDB server; which of the two is asked of the
// server. It does not connect. Options.Dialect is ignored. The pool stays the caller's.
func MySQL(db *sql.DB, o Options) (*Migrator, error) {
	if o.Dialect != DialectMariaDB {
		o.Dialect = DialectMySQL
	}
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Migrator{backend: mysql{db: db, options: o}}, nil
}

type mysql struct {
	db      *sql.DB
	options Options
}

func (m mysql) open() (db *sql.DB, end func() error) { return m.db, func() error { return nil } }

func (m mysql) versions() database.StoreExtender { return mysqlVersions{schema: m.options.Schema} }

func (m mysql) locker() (lock.SessionLocker, error) {
	return &namedLock{name: lockName("migrate", m.options.Schema)}, nil
}

func (m mysql) scripts(ctx context.Context, db *sql.DB) ([]script, error) {
	var version string
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return nil, fmt.Errorf("ask for the server's version: %w", err)
	}
	o := m.options
	o.Dialect = DialectMySQL
	if strings.Contains(strings.ToLower(version), "mariadb") {
		o.Dialect = DialectMariaDB
	}
	return renderMySQL(o, o.Dialect == DialectMariaDB && before(version, 10, 7))
}

// before says whether a version such as "10.6.12-MariaDB" is older than major.minor.
func before(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a < major || a == major && b < minor)
}

// ErrPayloadsKept says that a step back would drop the only copy of some payloads.
var ErrPayloadsKept = errors.New("event_notifications has deliveries whose payload is kept in payload_raw, " +
	"which this step would drop: delete those deliveries first, or keep the column")

// beforeDown refuses what step 2's own statements cannot: DDL here is no transaction.
func (m mysql) beforeDown(ctx context.Context, db *sql.DB, version int64) error {
	if version != 2 {
		return nil
	}
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.columns
    WHERE table_schema = ? AND table_name = 'event_notifications' AND column_name = 'payload_raw')`, m.options.Schema).Scan(&exists)
	if err != nil || !exists {
		return err
	}
	var kept bool
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+quoteName(m.options.Schema)+
		".event_notifications WHERE payload_raw IS NOT NULL)").Scan(&kept)
	if err == nil && kept {
		err = ErrPayloadsKept
	}
	return err
}

// namedLock is a lock of the server that belongs to a session and ends with it. It also
// puts back the one setting of the session that the steps change, so that the
// connection may return to the pool.
type namedLock struct {
	name string
	// wait is the session's lock_wait_timeout, in seconds, from before the lock.
	wait int64
}

// lockSeconds bounds the wait for another migrator, as on PostgreSQL.
const lockSeconds = 300

// SessionLock implements [lock.SessionLocker].
func (l *namedLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := conn.QueryRowContext(ctx, "SELECT @@SESSION.lock_wait_timeout").Scan(&l.wait); err != nil {
		return err
	}
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", l.name, lockSeconds).Scan(&got); err != nil {
		return err
	}
	if got.Int64 != 1 {
		return fmt.Errorf("another migration has held the lock %s for %d s", l.name, lockSeconds)
	}
	return nil
}

// SessionUnlock implements [lock.SessionLocker].
func (l *namedLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = "+strconv.FormatInt(l.wait, 10))
	var released sql.NullInt64
	return errors.Join(err, conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", l.name).Scan(&released))
}
