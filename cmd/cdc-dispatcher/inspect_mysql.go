package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// mysqlOutboxQuery finds tables with the columns of Debezium's outbox event router, and
// their timestamp column if there is exactly one.
const mysqlOutboxQuery = `
SELECT CONCAT(c.table_schema, '.', c.table_name),
       COALESCE(CASE WHEN SUM(c.data_type IN ('datetime', 'timestamp')) = 1
                     THEN MAX(CASE WHEN c.data_type IN ('datetime', 'timestamp') THEN c.column_name END) END, '')
FROM information_schema.columns c
JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name AND t.table_type = 'BASE TABLE'
WHERE c.table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')
GROUP BY c.table_schema, c.table_name
HAVING SUM(c.column_name IN ('id', 'aggregatetype', 'aggregateid', 'type', 'payload')) = 5
ORDER BY 1 LIMIT 20`

// inspectMySQL looks at a MySQL or MariaDB server without changing anything.
func inspectMySQL(ctx context.Context, dsn string) (s seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	pool, err := newMySQLPool(config.Source{Name: "init", Database: config.DatabaseMySQL, DSN: dsn, MaxConnections: 1})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return s, err
	}
	defer tx.Rollback() //nolint:errcheck // only read from
	var format string
	var binlog bool
	if err := tx.QueryRowContext(ctx, `SELECT VERSION(), @@GLOBAL.log_bin, @@GLOBAL.binlog_format, EXISTS (
    SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = 'events')`, schema.DefaultSchema).
		Scan(&s.version, &binlog, &format, &s.hasEvents); err != nil {
		return s, err
	}
	s.product = config.DatabaseMySQL
	if strings.Contains(strings.ToLower(s.version), "mariadb") {
		s.product = config.DatabaseMariaDB
	}
	switch {
	case !binlog:
		s.lacks = "the server writes no binlog (log_bin): until it does, the poller does the work"
	case format == "STATEMENT":
		s.lacks = "binlog_format is STATEMENT: until it is ROW (SET GLOBAL binlog_format = 'ROW', and in the server's configuration), nothing can be delivered"
	case format != "ROW":
		s.lacks = fmt.Sprintf("binlog_format is %s: until it is ROW (SET GLOBAL binlog_format = 'ROW', and in the server's configuration), the poller does the work", format)
	}
	rows, err := tx.QueryContext(ctx, mysqlOutboxQuery)
	if err != nil {
		return s, err
	}
	defer rows.Close() //nolint:errcheck // read to its end, or Err tells
	for rows.Next() {
		var o outboxTable
		if err := rows.Scan(&o.name, &o.date); err != nil {
			return s, err
		}
		s.outboxes = append(s.outboxes, o)
	}
	return s, rows.Err()
}
