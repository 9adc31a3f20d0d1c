package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
)

// inspectTimeout bounds the whole look at a database.
const inspectTimeout = 8 * time.Second

// seen is what init found in a database.
type seen struct {
	product config.Database
	version string
	// lacks says what keeps the log from being read; empty when nothing was seen.
	lacks     string
	hasEvents bool
	outboxes  []outboxTable
}

// outboxTable is a table in Debezium's outbox layout.
type outboxTable struct {
	name string
	// date is its only timestamp column; empty when it has none, or several.
	date string
}

func (s seen) outbox(name string) *outboxTable {
	for i := range s.outboxes {
		if s.outboxes[i].name == name {
			return &s.outboxes[i]
		}
	}
	return nil
}

func (s seen) describe() []string {
	out := []string{s.product.Title() + " " + s.version}
	if s.lacks != "" {
		out = append(out, s.lacks)
	}
	if s.hasEvents {
		out = append(out, "found the table eventlog.events")
	}
	for _, o := range s.outboxes {
		out = append(out, "found "+o.name+", which has the columns of Debezium's outbox")
	}
	return out
}

// outboxQuery finds tables with the columns of Debezium's outbox event router, and
// their timestamp column if there is exactly one. Partitions are left to their root.
const outboxQuery = `
SELECT n.nspname || '.' || c.relname,
       coalesce((SELECT CASE WHEN count(*) = 1 THEN min(a.attname::text) END FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                   AND a.atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype)), '')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')
  AND (SELECT count(*) FROM pg_catalog.pg_attribute a
       WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         AND a.attname IN ('id', 'aggregatetype', 'aggregateid', 'type', 'payload')) = 5
ORDER BY 1 LIMIT 20`

// inspect looks at a database without changing anything.
func inspect(ctx context.Context, kind config.Database, dsn string) (seen, error) {
	if kind.IsMySQL() {
		return inspectMySQL(ctx, dsn)
	}
	return inspectPostgres(ctx, dsn)
}

func inspectPostgres(ctx context.Context, dsn string) (s seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return s, fmt.Errorf("the connection string cannot be read")
	}
	cfg.RuntimeParams["application_name"] = "cdc-dispatcher init"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return s, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // only read from
	// Not a setting of the session: poolers refuse those, or hand them on to others.
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error { return s.look(ctx, tx) })
	return s, err
}

func (s *seen) look(ctx context.Context, tx pgx.Tx) error {
	var walLevel string
	if err := tx.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('wal_level'),
       to_regclass('eventlog.events') IS NOT NULL`).Scan(&s.version, &walLevel, &s.hasEvents); err != nil {
		return err
	}
	s.product = config.DatabasePostgres
	if walLevel != "logical" {
		s.lacks = "wal_level is " + walLevel + ": until it is logical (ALTER SYSTEM SET wal_level = logical, then restart), the poller does the work"
	}
	rows, err := tx.Query(ctx, outboxQuery)
	if err != nil {
		return err
	}
	s.outboxes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o outboxTable, err error) {
		return o, row.Scan(&o.name, &o.date)
	})
	return err
}
