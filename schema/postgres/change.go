package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// A statement that changes rows is sent together with settings for its own transaction, in
// one round trip.
//
// The rows it changes are named by lists, up to two thousand keys at a time, sorted. The
// planner likes to answer that by reading the whole table, into a hash join, in the order of the key for a merge join, or once for all
// keys while it takes the table for one of a few rows, and compares each key with each row. Such a statement looks each key up
// instead, in order: it reads what it changes, and two statements about the same rows do not deadlock. Two forms leave the planner nothing else,
// whatever it knows about the table:
//
//   - a join on "d.id = ANY (ARRAY[o.id])", which can be neither hashed nor merged, so that no reading in the order of the key is thought of;
//   - an EXISTS with "OFFSET 0", which is no join.
//
// Hash joins and sequential scans are off in addition. The plan is made for the lists at hand. Compilation does not pay for statements
// of milliseconds.
//
// For a few rows the plan costs more than the work: half a millisecond that stands between a commit and its
// handler. Such a statement keeps one plan, made for lists of ten, as a rule when the first event of a new installation arrives and the tables are
// empty; it is kept until the next ANALYZE, however they grow. Where the
// pool does not prepare statements it is planned each time nevertheless.
const (
	tuning = `SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true), `
	planned = tuning + `set_config('plan_cache_mode', 'force_custom_plan', true), `
	kept    = tuning + `set_config('plan_cache_mode', 'force_generic_plan', true), `
)

// few is how many rows a statement with a kept plan may change. More of them, joined with each other by a plan for
// ten, would cost more than a plan.
const few = 16

// stillOpenSQL says that a delivery is open, in a way that no partial index fits: a backlog may have grown
// since the statistics were taken, and reading all of it to find a few keys would look cheap.
const stillOpenSQL = "d.state || '' IN ('PENDING', 'FAILED')"

// settings say what else holds for a transaction.
type settings string

const (
	// durable: the commit waits for the disk even where the database, or the role, is set not to. The
	// position of the log is confirmed after a fan-out, and a lease that a crash
	// forgets would be given twice.
	durable settings = planned + waits
	// fast: the commit does not wait. Losing an outcome in a crash of the server costs a repeat, not a loss.
	fast settings = planned + waitsNot

	// Those for a few rows.
	durableFew settings = kept + waits
	fastFew    settings = kept + waitsNot
)

const (
	waits    = `CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END`
	waitsNot = `set_config('synchronous_commit', 'off', true)`
)

// durableFor and fastFor are durable and fast for a statement that changes n rows.
func durableFor(n int) settings {
	if n <= few {
		return durableFew
	}
	return durable
}

func fastFor(n int) settings {
	if n <= few {
		return fastFew
	}
	return fast
}

// statement is one that changes rows, with its arguments.
type statement struct {
	sql  string
	args []any
}

// changeRows runs a statement that changes rows, as a transaction of its own, and returns what scan
// makes of the rows that it returns.
func changeRows[T any](ctx context.Context, s *Store, with settings, scan pgx.RowToFunc[T], sql string, args ...any) (list []T, err error) {
	err = s.batch(ctx, with, []statement{{sql, args}}, func(results pgx.BatchResults) error {
		rows, err := results.Query()
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scan)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// changeRow is changeRows for a statement that returns one row.
func (s *Store) changeRow(ctx context.Context, with settings, into []any, sql string, args ...any) error {
	return s.batch(ctx, with, []statement{{sql, args}}, func(results pgx.BatchResults) error {
		return results.QueryRow().Scan(into...)
	})
}

// changeOnly is changeRows for a durable statement that returns nothing.
func (s *Store) changeOnly(ctx context.Context, sql string, args ...any) error {
	return s.batch(ctx, durable, []statement{{sql, args}}, func(results pgx.BatchResults) error {
		_, err := results.Exec()
		return err
	})
}

// batch sends the settings and the statements, as one transaction, in one round trip. It returns after the commit, whose failure is
// an error like any other.
func (s *Store) batch(ctx context.Context, with settings, statements []statement, read func(pgx.BatchResults) error) error {
	b := &pgx.Batch{}
	b.Queue(string(with))
	for _, one := range statements {
		b.Queue(one.sql, one.args...)
	}
	results := s.pool.SendBatch(ctx, b)
	_, err := results.Exec()
	if err == nil {
		err = read(results)
	}
	if committed := results.Close(); err == nil {
		err = committed
	}
	return err
}
