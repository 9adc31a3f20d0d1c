package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

const (
	// connectTimeout bounds making one connection of a pool.
	connectTimeout = 10 * time.Second
	// poolIdle and poolLife bound the connections of a pool to MySQL and MariaDB, as pgx does by
	// itself: after a failover they end up where new ones go.
	poolIdle = 30 * time.Minute
	poolLife = time.Hour
)

// newPool makes the pool of a source. It connects when it is first used.
func newPool(s config.Source) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(s.DSN)
	if err != nil {
		// Not wrapped: the parser may quote what it does not recognise as a password.
		return nil, fmt.Errorf("source %s: the connection string cannot be read", s.Name)
	}
	if s.Password != "" {
		cfg.ConnConfig.Password = s.Password
	}
	cfg.MaxConns = int32(s.MaxConnections) //nolint:gosec // at most 1000, by the configuration
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	if _, named := cfg.ConnConfig.RuntimeParams["application_name"]; !named {
		cfg.ConnConfig.RuntimeParams["application_name"] = "cdc-dispatcher " + s.Name
	}
	// Whatever the database's own encoding is: payloads are handed over as UTF-8.
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("source %s: make the connection pool: %w", s.Name, err)
	}
	return pool, nil
}

// migrations describes what migrate does for a source.
func migrations(s config.Source) migrate.Options {
	o := migrate.Options{Schema: s.Schema, Table: s.Table}
	switch s.Database {
	case config.DatabaseMySQL:
		o.Dialect = migrate.DialectMySQL
	case config.DatabaseMariaDB:
		o.Dialect = migrate.DialectMariaDB
	}
	return o
}

// source chooses the source that a command works on: the named one, or the only one.
func (a *app) source(cfg *config.Config, name string) (config.Source, error) {
	if s, ok := cfg.Source(name); ok {
		return s, nil
	}
	try := "name one of them with --source: " + strings.Join(cfg.SourceNames(), ", ")
	if name == "" {
		return config.Source{}, usage(try, "the configuration has %d sources", len(cfg.Sources))
	}
	return config.Source{}, &failure{exit: exitUsage, code: codeNotFound, message: fmt.Sprintf("there is no source %q", name), try: try}
}

// databaseFlag adds --database to a command.
func databaseFlag(cmd *cobra.Command, value *config.Database, usage string) {
	cmd.Flags().Var(value, "database", usage)
}
