package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// Admin answers an operator's questions and carries out an operator's orders. It works on
// the tables of a [Store] and shares its pool.
//
// Promises: no question writes anything, and none runs longer than its time limit or counts
// beyond its count limit, however large the tables are. Every order is one
// transaction that holds its own line of audit_log: who, what, on which deliveries, how
// many.
type Admin struct {
	*Store
	cfg admin.Config
}

// NewAdmin returns the Admin of a store. It does not connect.
func NewAdmin(s *Store, cfg admin.Config) *Admin {
	return &Admin{Store: s, cfg: cfg.WithDefaults()}
}

// orderTimeout bounds one statement of an order, which may wait for rows that others have
// locked.
const orderTimeout = time.Minute

// read runs fn in a read-only transaction with the time limit.
func (a *Admin) read(ctx context.Context, fn func(pgx.Tx) error) error {
	return a.transaction(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly}, a.cfg.Timeout, fn)
}

// write runs fn in a transaction, again when it lost a deadlock.
func (a *Admin) write(ctx context.Context, fn func(pgx.Tx) error) error {
	return again(ctx, func() error { return a.transaction(ctx, pgx.TxOptions{}, orderTimeout, fn) })
}

func (a *Admin) transaction(ctx context.Context, o pgx.TxOptions, limit time.Duration, fn func(pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, a.pool, o, func(tx pgx.Tx) error {
		tx = inMode{tx, a.mode}
		ms := strconv.FormatInt(limit.Milliseconds(), 10)
		if _, err := tx.Exec(ctx, "SELECT set_config('statement_timeout', $1::text, true)", ms); err != nil {
			return err
		}
		return fn(tx)
	})
	if sqlState(err) == codeQueryCanceled && ctx.Err() == nil {
		return fmt.Errorf("%w of %s", admin.ErrSlow, limit)
	}
	return err
}

const codeQueryCanceled = "57014"

// inMode is a transaction whose statements run in the store's query mode.
type inMode struct {
	pgx.Tx
	mode pgx.QueryExecMode
}

func (t inMode) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.Tx.Query(ctx, sql, append([]any{t.mode}, args...)...)
}

func (t inMode) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.Tx.QueryRow(ctx, sql, append([]any{t.mode}, args...)...)
}

func (t inMode) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.Tx.Exec(ctx, sql, append([]any{t.mode}, args...)...)
}

// now reads the database's clock.
func (a *Admin) now(ctx context.Context, tx pgx.Tx) (t time.Time, err error) {
	err = tx.QueryRow(ctx, "SELECT "+a.sql.now).Scan(timeTarget{&t})
	return t, err
}

// in is the quoted name of one of our tables.
func (a *Admin) in(table string) string { return pgx.Identifier{a.schema, table}.Sanitize() }

// audit writes one line of the audit log; detail becomes its JSON document.
func (a *Admin) audit(ctx context.Context, tx pgx.Tx, actor, action, target string, affected int64, reason string, detail any) error {
	document, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO `+a.in("audit_log")+` (happened_date, actor, action, target, affected, reason, detail)
		VALUES (`+a.sql.now+`, $1::text, $2::text, $3::text, $4::bigint, NULLIF($5::text, ''), $6::text::jsonb)`,
		clean(actor), action, clean(target), affected, clean(reason), string(document))
	return err
}

// arguments collects the parameters of a statement that is put together.
type arguments []any

// add returns the placeholder of a further parameter, with its type.
func (a *arguments) add(value any, typ string) string {
	*a = append(*a, value)
	return fmt.Sprintf("$%d::%s", len(*a), typ)
}
