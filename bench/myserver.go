package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	binlog "github.com/cdc-dispatcher/cdc-dispatcher/cdc/mysql"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	mystore "github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

// myServer is a MySQL or MariaDB server with the tables of the run that is under way.
type myServer struct {
	b      *bench
	name   string // of the experiment, and in its figures
	server *localserver.MySQL
	db     *sql.DB
}

// mySettings make room for large runs, like [settings]. Durability is the server's default.
func mySettings(family localserver.Family) map[string]string {
	set := map[string]string{"innodb_buffer_pool_size": "1G", "max_connections": "200"}
	if family == localserver.MariaDBServer {
		set["innodb_log_file_size"] = "4G"
		set["performance_schema"] = "OFF"
	} else {
		set["innodb_redo_log_capacity"] = "4G"
	}
	return set
}

// onMySQL makes an experiment that runs on a server of that family.
func onMySQL(name string, family localserver.Family) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		set := mySettings(family)
		if b.profile != "" {
			set["performance_schema"] = "ON"
		}
		s := &myServer{b: b, name: name}
		if s.server, err = localserver.StartMySQL(ctx, localserver.MySQLOptions{Family: family, Settings: set}); err != nil {
			return err
		}
		defer func() {
			if closed := s.server.Close(); err == nil {
				err = closed
			}
		}()
		b.report.Versions[name] = s.server.Version()
		if s.db, err = openMyPool(s.server, sessions+2); err != nil {
			return err
		}
		defer s.db.Close()
		var log, flush int
		if err := s.db.QueryRowContext(ctx, "SELECT @@sync_binlog, @@innodb_flush_log_at_trx_commit").Scan(&log, &flush); err != nil {
			return err
		}
		b.report.Setup[name] = fmt.Sprintf("sync_binlog = %d, innodb_flush_log_at_trx_commit = %d", log, flush)
		return s.all(ctx)
	}
}

// openMyPool makes connections as the program makes them, n at most.
func openMyPool(server *localserver.MySQL, n int) (*sql.DB, error) {
	cfg := server.Config("")
	mystore.PoolConfig(cfg)
	cfg.Params = map[string]string{"time_zone": "'+00:00'"}
	if err := cfg.Apply(driver.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return nil, err
	}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(n)
	pool.SetMaxIdleConns(n)
	return pool, nil
}

// fresh makes the tables anew.
func (s *myServer) fresh(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "DROP DATABASE IF EXISTS eventlog"); err != nil {
		return err
	}
	m, err := migrate.MySQL(s.db, migrate.Options{Schema: schema.DefaultSchema})
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	return err
}

// start runs the dispatcher with the given handlers until end.
func (s *myServer) start(handlers []pipeline.Handler) (*dispatcher, error) {
	pool, err := openMyPool(s.server, poolSize)
	if err != nil {
		return nil, err
	}
	p, err := s.pipeline(pool, handlers)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return run(p, func() { _ = pool.Close() }), nil // nothing is open in it any more
}

func (s *myServer) pipeline(pool *sql.DB, handlers []pipeline.Handler) (*pipeline.Pipeline, error) {
	log := warnings()
	table := schema.Eventlog(schema.DefaultSchema)
	st, err := mystore.New(pool, mystore.Config{Table: table, Logger: log})
	if err != nil {
		return nil, err
	}
	reader, err := binlog.New(binlog.Config{
		DSN: s.server.DSN(""), Tables: []binlog.Table{{Schema: table.Schema, Name: table.Name}},
		Keeper: binlog.KeeperOf(st.Keeper(sourceName, "bench").Acquire), Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return pipeline.New(pipeline.Config{
		Source: sourceName, Log: reader, Store: st, Table: table.QualifiedName(), Decode: table.Decoder(),
		Handlers: handlers, Logger: log,
	})
}

// anchored runs the dispatcher until it has a position in the log, so that what is committed from now on is read
// from there.
func (s *myServer) anchored(ctx context.Context) error {
	d, err := s.start(noOps(1, newReceipts(1, 0)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = s.gone(ctx, "a place in the log", "SELECT NOT EXISTS (SELECT 1 FROM eventlog.sources WHERE name = '"+sourceName+"' AND position <> '')")
	return errors.Join(err, d.end())
}

// gone waits until a query says false.
func (s *myServer) gone(ctx context.Context, what, query string) error {
	return waitGone(ctx, what, func() (open bool, err error) {
		err = s.db.QueryRowContext(ctx, query).Scan(&open)
		return open, err
	})
}

// cpu is what the server has used. Linux only; elsewhere it is 0.
func (s *myServer) cpu() time.Duration {
	port := []byte("--port=" + strconv.Itoa(s.server.Port()) + "\x00")
	list, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range list {
		if args, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && bytes.Contains(args, port) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return time.Duration(procStat(pid).own) * tick
		}
	}
	return 0
}

// profiled is like that of a [world].
func (s *myServer) profiled(ctx context.Context, name string, fn func() error) error {
	if s.b.profile != "" {
		if _, err := s.db.ExecContext(ctx, "TRUNCATE TABLE performance_schema.events_statements_summary_by_digest"); err != nil {
			return err
		}
	}
	return s.b.profiled(name, fn, func(path string) error { return s.statements(ctx, path) })
}

func (s *myServer) statements(ctx context.Context, path string) (err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT count_star, sum_rows_affected, sum_rows_examined, ROUND(sum_timer_wait / 1e9), ROUND(sum_lock_time / 1e9),
		LEFT(COALESCE(digest_text, ''), 200)
		FROM performance_schema.events_statements_summary_by_digest ORDER BY sum_timer_wait DESC LIMIT 20`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var out strings.Builder
	out.WriteString("calls\taffected\texamined\ttotal_ms\tlock_ms\tquery\n")
	for rows.Next() {
		var v [6]string
		if err := rows.Scan(&v[0], &v[1], &v[2], &v[3], &v[4], &v[5]); err != nil {
			return err
		}
		out.WriteString(strings.Join(v[:], "\t") + "\n")
	}
	return errors.Join(rows.Err(), os.WriteFile(path, []byte(out.String()), 0o600))
}
