package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	binlog "github.com/cdc-dispatcher/cdc-dispatcher/cdc/mysql"
	wal "github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// What is wired together fits, checked here so that neither side knows the other.
var (
	_ cdc.Source    = (*wal.Source)(nil)
	_ cdc.Reporter  = (*wal.Source)(nil)
	_ cdc.Source    = (*binlog.Source)(nil)
	_ cdc.Reporter  = (*binlog.Source)(nil)
	_ binlog.Tenure = (*mysql.Tenure)(nil)
	_ tables        = (*postgres.Store)(nil)
	_ tables        = (*mysql.Store)(nil)
	_ operator      = (*postgres.Admin)(nil)
	_ operator      = (*mysql.Admin)(nil)
)

// tables is a SQL store as this program uses it.
type tables interface {
	pipeline.Store
	CheckSchema(context.Context) error
	RecordSource(ctx context.Context, source, owner string, status cdc.Status) error
}

// database is one source's pool, and what is made of it: the one place that knows which
// kind of database it is. Exactly one of the pools is set.
type database struct {
	source config.Source
	pg     *pgxpool.Pool
	my     *sql.DB
}

// openDatabase makes the pool. It connects when it is first used.
func openDatabase(s config.Source) (d *database, err error) {
	d = &database{source: s}
	if s.Database.IsMySQL() {
		d.my, err = newMySQLPool(s)
	} else {
		d.pg, err = newPool(s)
	}
	return d, err
}

// newMySQLPool makes the pool of a source on MySQL or MariaDB.
func newMySQLPool(s config.Source) (*sql.DB, error) {
	cfg, err := s.MySQLConfig()
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", s.Name, err)
	}
	mysql.PoolConfig(cfg)
	if cfg.Timeout == 0 {
		cfg.Timeout = connectTimeout
	}
	cfg.Params = map[string]string{"time_zone": "'+00:00'"}
	if err := cfg.Apply(driver.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return nil, fmt.Errorf("source %s: %w", s.Name, err)
	}
	if cfg.ConnectionAttributes == "" {
		cfg.ConnectionAttributes = "program_name:cdc-dispatcher " + s.Name
	}
	// What it has to say comes back as errors, too.
	cfg.Logger = &driver.NopLogger{}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("source %s: the connection string cannot be read", s.Name)
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(s.MaxConnections)
	pool.SetMaxIdleConns(s.MaxConnections)
	pool.SetConnMaxIdleTime(poolIdle)
	pool.SetConnMaxLifetime(poolLife)
	return pool, nil
}

// close releases the pool.
func (d *database) close() error {
	switch {
	case d.pg != nil:
		d.pg.Close()
	case d.my != nil:
		return d.my.Close()
	}
	return nil
}

// tables makes the SQL store.
func (d *database) tables(log *slog.Logger) (tables, error) {
	if d.my != nil {
		return d.mysqlStore(log)
	}
	return d.postgresStore(log)
}

func (d *database) postgresStore(log *slog.Logger) (*postgres.Store, error) {
	return postgres.New(d.pg, postgres.Config{Schema: d.source.Schema, Table: d.source.Table, Logger: log})
}

func (d *database) mysqlStore(log *slog.Logger) (*mysql.Store, error) {
	return mysql.New(d.my, mysql.Config{Schema: d.source.Schema, Table: d.source.Table, Logger: log})
}

// operator makes what answers an operator's questions.
func (d *database) operator() (operator, error) {
	if d.my != nil {
		st, err := d.mysqlStore(nil)
		if err != nil {
			return nil, err
		}
		return mysql.NewAdmin(st, admin.Config{}), nil
	}
	st, err := d.postgresStore(nil)
	if err != nil {
		return nil, err
	}
	return postgres.NewAdmin(st, admin.Config{}), nil
}

// migrator makes what creates our tables.
func (d *database) migrator() (*migrate.Migrator, error) {
	if d.my != nil {
		return migrate.MySQL(d.my, migrations(d.source))
	}
	return migrate.Postgres(d.pg, migrations(d.source))
}

// reader makes the reader of the source's log. owner names this process.
func (d *database) reader(owner string, log *slog.Logger) (cdc.Source, error) {
	s := d.source
	if d.my == nil {
		st, err := d.postgresStore(log)
		if err != nil {
			return nil, err
		}
		return wal.New(wal.Config{
			DSN: s.LogDSN(), Password: s.Password,
			Slot: s.Postgres.Slot, Publication: s.Postgres.Publication,
			Tables: []wal.Table{{Schema: s.Table.Schema, Name: s.Table.Name}},
			Create: s.Postgres.Create, Failover: s.Postgres.Failover,
			Recall: func(ctx context.Context) (cdc.Position, error) { return st.Position(ctx, s.Name) },
			Logger: log,
		})
	}
	st, err := d.mysqlStore(log)
	if err != nil {
		return nil, err
	}
	cfg, err := binlogConfig(s)
	if err != nil {
		return nil, err
	}
	cfg.Keeper, cfg.Logger = binlog.KeeperOf(st.Keeper(s.Name, owner).Acquire), log
	return binlog.New(cfg)
}

// binlogConfig says how the log of a source on MySQL or MariaDB is reached, and what is read of it.
func binlogConfig(s config.Source) (binlog.Config, error) {
	cfg, err := s.MySQLLogConfig()
	if err != nil {
		return binlog.Config{}, err
	}
	password, encryption, optional := cfg.Passwd, cfg.TLS, cfg.AllowFallbackToPlaintext
	cfg.Passwd, cfg.TLS = "", nil // given apart, where they need no encoding
	return binlog.Config{
		DSN: cfg.FormatDSN(), Password: password, TLS: encryption, TLSOptional: optional,
		ServerID: s.ServerID(), Heartbeat: s.MySQL.Heartbeat,
		Tables: []binlog.Table{{Schema: s.Table.Schema, Name: s.Table.Name}},
		Own:    []binlog.Table{{Schema: s.Schema}},
	}, nil
}

// lacking says what our tables lack, when that is what err says, and the statement that
// mends it, if one can.
func lacking(err error) (missing []string, statement string, ok bool) {
	var (
		pg *postgres.SchemaError
		my *mysql.SchemaError
	)
	switch {
	case errors.As(err, &pg):
		return pg.Missing, pg.Statement, true
	case errors.As(err, &my):
		return my.Missing, my.Statement, true
	}
	return nil, "", false
}
