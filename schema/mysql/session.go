package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
)

// PoolConfig sets what a pool for a [Store] should have: statements with their values in one
// trip to the server, times as text, and the server's own bound on the size of a statement. The rest of cfg
// is the caller's.
//
// Statements work on a pool without it too; each is then prepared, run and closed, which takes two more trips to
// the server.
func PoolConfig(cfg *driver.Config) {
	cfg.InterpolateParams = true
	cfg.ParseTime = false
	cfg.MaxAllowedPacket = 0
	cfg.ClientFoundRows = false // rows that an update leaves as they were are not counted
}

// server is what a [Store] knows about the server.
type server struct {
	mariaDB bool
	version string
	// skipLocked says that locked rows can be skipped.
	skipLocked bool
	// packet is the size in bytes that a statement must stay below.
	packet int
	// session sets what every transaction needs of its session. Nothing of it may be
	// left to the server's defaults or to the pool: time zones move TIMESTAMPs, a session that is
	// not strict cuts values in silence, REPEATABLE READ locks gaps, a limit on what a SELECT returns hides rows, and
	// without autocommit a look stays in a transaction, whose locks hold up every ALTER TABLE.
	session string
	// share is how rows are locked so that they stay as they are.
	share string
}

const (
	// lockSeconds bounds the wait for a row lock where there is no shorter bound; the innodb
	// setting has no fractions. Our own transactions hold locks for milliseconds.
	lockSeconds = 5
	// tableLockSeconds bounds the wait for an ALTER TABLE.
	tableLockSeconds = 20
	// idleSeconds is after how long without a statement the server ends a session of ours, and with it a transaction of a
	// process that is frozen or cut off, whose locks would otherwise hold up the same events in every other process for the
	// server's default of eight hours. The pool notices that a connection is gone before it uses it.
	idleSeconds = 60
	// packetLeast is what every server accepts, packetMost what one statement gains by.
	packetLeast = 64 << 10
	packetMost  = 8 << 20
)

func (s *Store) serverOf(ctx context.Context) (*server, error) {
	s.mu.Lock()
	known := s.server
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	var version string
	var packet int
	if err := s.pool.QueryRowContext(ctx, "SELECT VERSION(), @@max_allowed_packet").Scan(&version, &packet); err != nil {
		return nil, fmt.Errorf("ask for the server's version: %w", err)
	}
	srv := newServer(version, packet)
	if s.noSkipLocked {
		srv.skipLocked = false
	}
	s.mu.Lock()
	s.server = srv
	s.mu.Unlock()
	return srv, nil
}

func newServer(version string, packet int) *server {
	srv := &server{version: version, mariaDB: strings.Contains(strings.ToLower(version), "mariadb")}
	// Escaping may double what is sent.
	srv.packet = min(max(packet, packetLeast)/2, packetMost)
	isolation := "transaction_isolation"
	srv.share = "FOR SHARE"
	if srv.mariaDB {
		isolation, srv.share = "tx_isolation", "LOCK IN SHARE MODE"
		srv.skipLocked = !before(version, 10, 6)
	} else {
		srv.skipLocked = !before(version, 8, 0) && !strings.Contains(version, "TiDB")
	}
	srv.session = "SET SESSION " + isolation + " = 'READ-COMMITTED', time_zone = '+00:00', " +
		"sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, sql_select_limit = DEFAULT, sql_safe_updates = 0, " +
		"character_set_client = 'utf8mb4', character_set_results = 'utf8mb4', collation_connection = 'utf8mb4_bin', " +
		"wait_timeout = " + strconv.Itoa(idleSeconds) + ", lock_wait_timeout = " + strconv.Itoa(tableLockSeconds) + ", innodb_lock_wait_timeout = "
	return srv
}

// before says whether a version such as "10.6.12-MariaDB" is older than major.minor.
func before(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a < major || a == major && b < minor)
}

// querier is a session that is set up: within a transaction, or without one.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// session runs fn on a connection that is set up and is not in a transaction. A pool may give a connection that
// is dead; what fn does on such a one is never done twice here.
func (s *Store) session(ctx context.Context, lockWait int, fn func(*sql.Conn) error) (err error) {
	srv, err := s.serverOf(ctx)
	if err != nil {
		return err
	}
	conn, err := s.pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if closed := conn.Close(); err == nil && !errors.Is(closed, sql.ErrConnDone) {
			err = closed
		}
	}()
	if _, err := conn.ExecContext(ctx, srv.session+strconv.Itoa(lockWait)); err != nil {
		return fmt.Errorf("set up the session: %w", err)
	}
	if err = fn(conn); readOnly(err) {
		discard(conn) // the next one may lead to the new primary
	}
	return err
}

// read runs fn, which only reads. Each of its statements sees what is committed then.
func (s *Store) read(ctx context.Context, fn func(querier) error) error {
	return again(ctx, func() error {
		return s.session(ctx, lockSeconds, func(conn *sql.Conn) error { return fn(conn) })
	})
}

// change runs fn in a transaction, which is run again as a whole when it lost a conflict.
func (s *Store) change(ctx context.Context, fn func(querier) error) error {
	return again(ctx, func() error { return s.once(ctx, lockSeconds, fn) })
}

// once runs fn in one transaction. The lock wait, in seconds, is how long a statement waits for a row.
func (s *Store) once(ctx context.Context, lockWait int, fn func(querier) error) error {
	return s.session(ctx, lockWait, func(conn *sql.Conn) error {
		return transaction(ctx, conn, fn)
	})
}

// endTimeout bounds the wait for the answer to a COMMIT or ROLLBACK when nothing else does.
const endTimeout = 10 * time.Second

// transaction runs fn in a transaction of a session. It begins and ends by statements, because
// database/sql and the driver wait for the end of a transaction of theirs without a context: for
// ever, on a network that swallows the answer. What was under way when ctx is cancelled
// is still committed, if fn has succeeded.
func transaction(ctx context.Context, conn *sql.Conn, fn func(querier) error) error {
	open := true
	defer func() {
		if open {
			discard(conn) // it must not go back to the pool with a transaction
		}
	}()
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	// A lock wait undoes its statement only, so the rest is undone here.
	if err := fn(conn); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		_, undone := conn.ExecContext(undo, "ROLLBACK")
		open = undone != nil // the server undoes it when the connection is gone
		return err
	}
	deadline, bound := ctx.Deadline()
	if !bound {
		deadline = time.Now().Add(endTimeout)
	}
	end, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	_, err := conn.ExecContext(end, "COMMIT")
	open = err != nil
	return err
}

// collect reads all rows. The scanned values must not outlive scan, except for those
// that database/sql copies.
func collect[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) (list []T, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, scanError{err}
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

// statement is SQL with its values, written piece by piece.
type statement struct {
	sql  strings.Builder
	args []any
}

func (b *statement) add(sql string, args ...any) *statement {
	b.sql.WriteString(sql)
	b.args = append(b.args, args...)
	return b
}

// list adds "(?, ?, ?)", or a list of nothing that no value is in.
func (b *statement) list(values []any) *statement {
	if len(values) == 0 {
		return b.add("(NULL)")
	}
	return b.add("(?"+strings.Repeat(", ?", len(values)-1)+")", values...)
}

func (b *statement) exec(ctx context.Context, q querier) error {
	_, err := q.ExecContext(ctx, b.sql.String(), b.args...)
	return err
}

// affecting is exec, and says how many rows the statement has changed.
func (b *statement) affecting(ctx context.Context, q querier) (int64, error) {
	result, err := q.ExecContext(ctx, b.sql.String(), b.args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func query[T any](ctx context.Context, q querier, b *statement, scan func(*sql.Rows) (T, error)) ([]T, error) {
	return collect(ctx, q, scan, b.sql.String(), b.args...)
}

// skipThrough reads the distinct values of the first free column of an index: the statement reads the one that follows
// its parameter. The servers know a plan for that, and choose it or not; without it all entries are read.
func skipThrough(ctx context.Context, q querier, query string) (values []string, err error) {
	for last := ""; ; {
		next, err := collect(ctx, q, scanText, query, last)
		if err != nil || len(next) == 0 {
			return values, err
		}
		last = next[0]
		values = append(values, last)
	}
}
