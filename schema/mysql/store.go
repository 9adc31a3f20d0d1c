package mysql

import (
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/internal/refusal"
)

// Config says which tables a [Store] works on.
type Config struct {
	// Schema is the database that holds the delivery table and our other tables. Default
	// [schema.DefaultSchema].
	Schema string
	// Table is the event table. The zero value is the product's own, in Schema.
	Table schema.Table
	// Logger hears of rows that the database refuses. Nil is silent.
	Logger *slog.Logger
	// NoSkipLocked treats the server as one that cannot skip locked rows. Claims then stamp rows by an
	// update that waits for other claims, and rows that are locked are found one by one.
	NoSkipLocked bool
}

// Store is the SQL store. Make one with [New].
type Store struct {
	pool         *sql.DB
	log          *slog.Logger
	schema       string
	table        schema.Table
	noSkipLocked bool
	// now is the database's clock, an expression.
	now string
	// names are the quoted names of our tables.
	names names

	// mu guards the next three, which are nil until they are needed.
	mu     sync.Mutex
	server *server
	events *eventTable
	// ours is what was learned about our own tables.
	ours *ourTables

	// refused holds deliveries that the database would not let us lease.
	refused refusal.List
	// unreadable holds events whose rows could not be read.
	unreadable refusal.List
	// unmarkable is for the one report of rows that cannot be marked.
	unmarkable sync.Once
}

// names are the quoted names of our tables.
type names struct {
	deliveries, attempts, handlers, sources, gaps string
}

// New returns a store on the pool, which stays the caller's. It does not connect; the
// error names every mistake in the configuration.
func New(pool *sql.DB, c Config) (*Store, error) {
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
	in := func(table string) string { return quoteName(c.Schema) + "." + table }
	return &Store{
		pool: pool, log: c.Logger, schema: c.Schema, table: c.Table, noSkipLocked: c.NoSkipLocked, now: databaseClock,
		names: names{
			deliveries: in("event_notifications"), attempts: in("event_notification_attempts"),
			handlers: in("handlers"), sources: in("sources"), gaps: in("gaps"),
		},
	}, nil
}

func validSchema(name string) error {
	var problems schema.Problems
	if errors.As(schema.Eventlog(name).Validate(), &problems) {
		return problems
	}
	return nil
}

// databaseClock is now, in UTC (A19). NOW() would follow the zone of the session.
const databaseClock = "UTC_TIMESTAMP(6)"

// micros is a duration as statements take it, in microseconds.
func micros(d time.Duration) int64 { return d.Microseconds() }

// clean makes s storable: no NUL, valid UTF-8. NUL is storable here, but not on every
// database that the product knows, and no name needs it.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// orNull is nil for the empty text.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
