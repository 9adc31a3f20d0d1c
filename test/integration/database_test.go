package integration

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// database is what a world needs of its kind of server. SQL that tests share between
// kinds is written for PostgreSQL with these rules: our tables are called eventlog.x, {now} is the
// database's now in UTC, parameters $1, $2 … come once each and in order.
type database interface {
	// title is the server with its version, for the table at the end.
	title() string
	dsn() string
	// setup makes the product's tables and the application's.
	setup(ctx context.Context) error
	exec(ctx context.Context, sql string, args ...any) error
	// table reads a result as text; a null is "NULL".
	table(ctx context.Context, sql string, args ...any) ([][]string, error)
	begin(ctx context.Context) (transaction, error)
	write(ctx context.Context, c workload.Config) error
	// stored reads the ids of all event rows, rows the deliveries.
	stored(ctx context.Context) (map[string]struct{}, error)
	rows(ctx context.Context) ([]ledger.Row, error)
	// streaming says that a dispatcher reads the log.
	streaming(ctx context.Context) bool
	// lockDeliveries locks the delivery table against writers, and against readers too
	// when all is set.
	lockDeliveries(ctx context.Context, all bool) (unlock func() error, err error)
	// refusePayloads makes the delivery table refuse payloads that have the key "refuse".
	refusePayloads(ctx context.Context) error
	// crash, stop and start are for a server of the test's own.
	crash() error
	stop(ctx context.Context) error
	start(ctx context.Context) error
}

// transaction is an open transaction of the application.
type transaction interface {
	// insert writes one event row per id. An empty payload is NULL.
	insert(ctx context.Context, ids []string, eventType, payload string) error
	// insertSentinel writes the row of an action without events (A23).
	insertSentinel(ctx context.Context) error
	commit(ctx context.Context) error
	rollback(ctx context.Context) error
}

// eachDatabase runs fn as one subtest per kind and version of server, each with a
// fresh database on a shared server. The servers are tested at the same time, because most of a
// test is waiting, but never two tests on one server.
func eachDatabase(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	eachPostgres(t, fn)
	eachMySQL(t, fn)
}

// eachServer is eachDatabase with a server of the test's own.
func eachServer(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	eachPostgresServer(t, nil, fn)
	eachMySQLServer(t, nil, fn)
}

// parts is what a dispatcher is wired of for a kind of database.
type parts struct {
	store pipeline.Store
	// readLog completes the configuration with the reader of the log.
	readLog func(config *pipeline.Config, o options, logger *slog.Logger) error
	close   func()
}

// partsOf makes them from a child's or a test's options.
func partsOf(ctx context.Context, o options) (parts, error) {
	if strings.HasPrefix(o.DSN, "postgres") {
		return postgresParts(ctx, o)
	}
	return mysqlParts(ctx, o)
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
