package testbed

import (
	"context"
	"regexp"
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
)

// Database is what a world needs of its kind of server. SQL that tests share between
// kinds is written for PostgreSQL with these rules: our tables are called eventlog.x, {now} is the
// database's now in UTC, parameters $1, $2 … come once each and in order.
type Database interface {
	// Title is the server with its version, for the table at the end.
	Title() string
	// DSN leads to it without a proxy.
	DSN() string
	// Setup makes the product's tables and the application's.
	Setup(ctx context.Context) error
	Exec(ctx context.Context, sql string, args ...any) error
	// Table reads a result as text; a null is "NULL".
	Table(ctx context.Context, sql string, args ...any) ([][]string, error)
	Begin(ctx context.Context) (Transaction, error)
	Write(ctx context.Context, c workload.Config) error
	// Stored reads the ids of all event rows, Rows the deliveries.
	Stored(ctx context.Context) (map[string]struct{}, error)
	Rows(ctx context.Context) ([]ledger.Row, error)
	// Streaming says that a dispatcher reads the log.
	Streaming(ctx context.Context) bool
	// LockDeliveries locks the delivery table against writers, and against readers too
	// when all is set.
	LockDeliveries(ctx context.Context, all bool) (unlock func() error, err error)
	// RefusePayloads makes the delivery table refuse payloads that have the key "refuse".
	RefusePayloads(ctx context.Context) error
	// Crash, Stop and Start are for a server of the test's own.
	Crash() error
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// Transaction is an open transaction of the application.
type Transaction interface {
	// Insert writes one event row per id. An empty payload is NULL.
	Insert(ctx context.Context, ids []string, eventType, payload string) error
	// InsertSentinel writes the row of an action without events (A23).
	InsertSentinel(ctx context.Context) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

var parameter = regexp.MustCompile(`\$\d+`)

// dialect rewrites shared SQL: the name of the schema, the clock and the parameters.
func dialect(sql, schema, now, param string) string {
	sql = strings.NewReplacer("eventlog.", schema+".", "{now}", now).Replace(sql)
	if param != "" {
		sql = parameter.ReplaceAllLiteralString(sql, param)
	}
	return sql
}
