package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// Admin answers an operator's questions and carries out an operator's orders, in the words
// of package admin. It works on the tables of a [Store] and shares its pool.
//
// Promises: no question writes anything; none of its statements runs longer than the time
// limit, nor counts beyond the count limit, however large the tables are. Every order is
// one transaction that holds its own line of audit_log: who, what, on which deliveries,
// how many.
type Admin struct {
	*Store
	cfg admin.Config
}

// NewAdmin returns the Admin of a store. It does not connect.
func NewAdmin(s *Store, cfg admin.Config) *Admin {
	return &Admin{Store: s, cfg: cfg.WithDefaults()}
}

// orderTimeout bounds an order, which may wait for rows that others have locked.
const orderTimeout = time.Minute

// Numbers of the errors of a statement that ran into its time limit.
const (
	numTimeMySQL   = 3024
	numTimeMariaDB = 1969
)

// ask runs fn, whose statements are bounded in time.
func (a *Admin) ask(ctx context.Context, fn func(querier) error) error {
	srv, err := a.serverOf(ctx)
	if err != nil {
		return err
	}
	err = a.read(ctx, func(q querier) error { return fn(limited{q, srv.mariaDB, a.cfg.Timeout}) })
	if is(err, numTimeMySQL, numTimeMariaDB) && ctx.Err() == nil {
		return fmt.Errorf("%w of %s", admin.ErrSlow, a.cfg.Timeout)
	}
	return err
}

// limited bounds the time of each query, in the query itself: a setting of the session would
// stay in the pool. Queries must begin with SELECT.
type limited struct {
	querier
	mariaDB bool
	limit   time.Duration
}

func (l limited) bound(query string) string {
	if l.mariaDB {
		return "SET STATEMENT max_statement_time = " + strconv.FormatFloat(l.limit.Seconds(), 'f', 6, 64) + " FOR " + query
	}
	// 0 would mean no limit.
	ms := max(l.limit.Milliseconds(), 1)
	return "SELECT /*+ MAX_EXECUTION_TIME(" + strconv.FormatInt(ms, 10) + ") */" + strings.TrimPrefix(query, "SELECT")
}

func (l limited) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return l.querier.QueryContext(ctx, l.bound(query), args...)
}

func (l limited) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return l.querier.QueryRowContext(ctx, l.bound(query), args...)
}

// carryOut runs fn as one transaction, again as a whole when it lost a conflict. Orders with
// the same request id, unless it is empty, wait for each other.
func (a *Admin) carryOut(ctx context.Context, requestID string, fn func(context.Context, querier) error) error {
	bounded, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	err := again(bounded, func() error {
		return a.session(bounded, lockSeconds, func(conn *sql.Conn) (err error) {
			if requestID != "" {
				name := requestLock(a.schema, requestID)
				if err := takeLock(bounded, conn, name); err != nil {
					return err
				}
				// Whatever happens to the order: a connection with the lock must not go back to the pool.
				defer func() { err = errors.Join(err, giveLock(conn, name)) }()
			}
			return transaction(bounded, conn, func(q querier) error { return fn(bounded, q) })
		})
	})
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w of %s", admin.ErrSlow, orderTimeout)
	}
	return err
}

// requestLock names the server's lock for a request id; a name has at most 64 characters.
func requestLock(schema, requestID string) string {
	sum := sha256.Sum256([]byte(schema + " " + requestID))
	return "cdc-dispatcher.order." + hex.EncodeToString(sum[:16])
}

// takeLock waits for a named lock of the server, which belongs to the session. The context
// ends the wait.
func takeLock(ctx context.Context, conn *sql.Conn, name string) error {
	var got sql.NullBool
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, int(orderTimeout.Seconds())).Scan(&got); err != nil {
		return err
	}
	if !got.Bool {
		return fmt.Errorf("%w of %s: another order with this request id runs", admin.ErrSlow, orderTimeout)
	}
	return nil
}

// giveLock releases the lock, or else gives up the session that has it. It is not bounded by the order's
// context, which may be why the order ended.
func giveLock(conn *sql.Conn, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var released sql.NullBool
	err := conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", name).Scan(&released)
	if err == nil {
		return nil
	}
	// The pool closes a connection that says this, and with it the lock is gone.
	if bad := conn.Raw(func(any) error { return sqldriver.ErrBadConn }); !errors.Is(bad, sqldriver.ErrBadConn) && !errors.Is(bad, sql.ErrConnDone) {
		return errors.Join(err, bad)
	}
	return nil
}

// in is the quoted name of one of our tables.
func (a *Admin) in(table string) string { return quoteName(a.schema) + "." + table }

// clock reads the database's clock.
func (a *Admin) clock(ctx context.Context, q querier) (now time.Time, err error) {
	err = q.QueryRowContext(ctx, "SELECT "+a.now).Scan(dateTarget{&now})
	return now, err
}

// since is the expression for the microseconds from a time until now; null when the time is.
func (a *Admin) since(expr string) string {
	return "TIMESTAMPDIFF(MICROSECOND, " + expr + ", " + a.now + ")"
}

// audit writes one line of the audit log; detail becomes its JSON document.
func (a *Admin) audit(ctx context.Context, q querier, actor, action, target string, affected int64, reason string, detail any) error {
	document, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = q.ExecContext(ctx, "INSERT INTO "+a.in("audit_log")+` (happened_date, actor, action, target, affected, reason, detail)
VALUES (`+a.now+`, ?, ?, ?, ?, ?, ?)`, clean(actor), action, clean(target), affected, orNull(clean(reason)), string(document))
	return err
}
