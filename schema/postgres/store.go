package postgres

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/internal/refusal"
)

// Config says which tables a [Store] works on.
type Config struct {
	// Schema holds the delivery table and our other tables. Default
	// [schema.DefaultSchema].
	Schema string
	// Table is the event table. The zero value is the product's own, in Schema.
	Table schema.Table
	// Logger hears of rows that the database refuses. Nil is silent.
	Logger *slog.Logger
}

// Store is the SQL store. Make one with [New].
type Store struct {
	pool   *pgxpool.Pool
	mode   pgx.QueryExecMode
	log    *slog.Logger
	schema string
	table  schema.Table
	sql    statements

	// mu guards events.
	mu sync.Mutex
	// events is what was learned about the event table, nil until it is needed.
	events *eventTable

	// refused holds deliveries that the database would not let us lease.
	refused refusal.List
	// unreadable holds events whose rows could not be read.
	unreadable refusal.List
	// unmarkable is for the one report of rows that cannot be marked.
	unmarkable sync.Once
	// late are events to be marked when their rows come into sight.
	late late
}

// New returns a store on the pool, which stays the caller's. It does not connect; the
// error names every mistake in the configuration.
func New(pool *pgxpool.Pool, c Config) (*Store, error) {
	if c.Schema == "" {
		c.Schema = schema.DefaultSchema
	}
	if c.Table.Name == "" {
		c.Table = schema.Eventlog(c.Schema)
	}
	c.Table = c.Table.WithDefaults()
	if err := errors.Join(c.Table.Validate(), validSchema(c.Schema)); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{pool: pool, mode: queryMode(pool), log: c.Logger, schema: c.Schema, table: c.Table}
	s.sql = render(c.Schema, databaseClock)
	return s, nil
}

func validSchema(name string) error {
	var problems schema.Problems
	if errors.As(schema.Eventlog(name).Validate(), &problems) {
		return problems
	}
	return nil
}

// databaseClock is now, in UTC and without a zone (A19).
const databaseClock = "(clock_timestamp() AT TIME ZONE 'UTC')"

// statements are the texts that depend on the schema's name alone.
type statements struct {
	// now and deliveries are parts of the statements about the event table.
	now, deliveries string

	unlease                                     string
	claim, candidates, nextDue                  string
	settle, succeed, renew                      string
	syncHandlers, others                        string
	orphans, block, stuck, revive, far, shorten string
	recordGap, closeGaps, recordSource, looked  string
	position                                    string
	// lookFrom is a part of the statements about the event table.
	lookFrom string
}

func render(schemaName, now string) statements {
	in := func(table string) string { return pgx.Identifier{schemaName, table}.Sanitize() }
	x := strings.NewReplacer(
		"{now}", now,
		"{open}", stillOpenSQL,
		"{deliveries}", in("event_notifications"),
		"{attempts}", in("event_notification_attempts"),
		"{handlers}", in("handlers"),
		"{sources}", in("sources"),
		"{gaps}", in("gaps"),
	)
	parts := strings.NewReplacer("{claims}", claimsSQL, "{expired}", expiredSQL, "{exhausted}", exhaustedSQL)
	return statements{
		now:          now,
		deliveries:   in("event_notifications"),
		unlease:      x.Replace(unleaseSQL),
		claim:        x.Replace(claimSQL),
		candidates:   x.Replace(candidatesSQL),
		nextDue:      x.Replace(nextDueSQL),
		settle:       x.Replace(parts.Replace(settleSQL)),
		succeed:      x.Replace(parts.Replace(succeedSQL)),
		renew:        x.Replace(renewSQL),
		syncHandlers: x.Replace(syncHandlersSQL),
		others:       x.Replace(othersSQL),
		orphans:      x.Replace(orphansSQL),
		far:          x.Replace(farSQL),
		shorten:      x.Replace(shortenSQL),
		looked:       x.Replace(lookedSQL),
		lookFrom:     x.Replace(lookFromSQL),
		block:        x.Replace(blockSQL),
		stuck:        x.Replace(stuckSQL),
		revive:       x.Replace(reviveSQL),
		recordGap:    x.Replace(recordGapSQL),
		closeGaps:    x.Replace(closeGapsSQL),
		recordSource: x.Replace(recordSourceSQL),
		position:     x.Replace(positionSQL),
	}
}

// queryMode is how questions are sent: as the pool is configured, but never as named prepared
// statements. The server may keep one plan for such a statement, and a plan that was made while
// a table was small does not follow its growth until the next ANALYZE. Statements that change
// rows have a setting against that, see tuning.
func queryMode(pool *pgxpool.Pool) pgx.QueryExecMode {
	mode := pool.Config().ConnConfig.DefaultQueryExecMode
	if mode == pgx.QueryExecModeCacheStatement {
		return pgx.QueryExecModeCacheDescribe
	}
	return mode
}

func (s *Store) query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.pool.Query(ctx, sql, append([]any{s.mode}, args...)...)
}

func (s *Store) queryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.pool.QueryRow(ctx, sql, append([]any{s.mode}, args...)...)
}

func (s *Store) exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return s.pool.Exec(ctx, sql, append([]any{s.mode}, args...)...)
}

// attemptsPerStatement bounds how often a statement is run that lost a deadlock.
const attemptsPerStatement = 6

// again runs fn, and runs it again when it failed for a reason that passes by itself.
// fn must be one transaction.
func again(ctx context.Context, fn func() error) error {
	for n := 1; ; n++ {
		err := fn()
		if err == nil || n == attemptsPerStatement || !passing(err) {
			return err
		}
		pause := time.NewTimer(time.Duration(rand.Int64N(int64(n) * int64(10*time.Millisecond)))) //nolint:gosec // jitter
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// micros is a duration as statements take it; they multiply it with one microsecond.
func micros(d time.Duration) int64 { return d.Microseconds() }

// separately runs fn on all items at once and, when the database refuses that because of a
// row, on ever smaller parts, until the rows at fault stand alone. It returns those and
// one error for each. Any other error ends it.
func separately[T any](items []T, fn func([]T) error) (refused []T, err error) {
	if len(items) == 0 {
		return nil, nil
	}
	err = fn(items)
	if err == nil || !rejected(err) {
		return nil, err
	}
	if len(items) == 1 {
		return items, err
	}
	half := len(items) / 2
	first, err1 := separately(items[:half], fn)
	if err1 != nil && !rejected(err1) {
		return first, err1
	}
	second, err2 := separately(items[half:], fn)
	if err2 != nil && !rejected(err2) {
		return append(first, second...), err2
	}
	return append(first, second...), errors.Join(err1, err2)
}
