package integration

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"

	cdcmysql "github.com/cdc-dispatcher/cdc-dispatcher/cdc/mysql"
	cdcpostgres "github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	schemamysql "github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
	schemapostgres "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

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

// postgresParts wires a dispatcher for PostgreSQL.
func postgresParts(ctx context.Context, o options) (parts, error) {
	config, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return parts{}, err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return parts{}, err
	}
	table := schema.Eventlog("")
	store, err := schemapostgres.New(pool, schemapostgres.Config{Table: table})
	if err != nil {
		pool.Close()
		return parts{}, err
	}
	readLog := func(config *pipeline.Config, o options, logger *slog.Logger) error {
		source, err := cdcpostgres.New(cdcpostgres.Config{
			DSN: orElse(o.LogDSN, o.DSN), Slot: slotName, Publication: slotName, Create: true,
			Tables:      []cdcpostgres.Table{{Schema: table.Schema, Name: table.Name}},
			StandbyPoll: 200 * time.Millisecond, BackoffMax: time.Second, Logger: logger,
		})
		if err != nil {
			return err
		}
		config.Log, config.Table, config.Decode = source, table.QualifiedName(), table.Decoder()
		return nil
	}
	return parts{store: store, readLog: readLog, close: pool.Close}, nil
}

// mysqlParts wires a dispatcher for MySQL and MariaDB.
func mysqlParts(_ context.Context, o options) (parts, error) {
	config, err := driver.ParseDSN(o.DSN)
	if err != nil {
		return parts{}, err
	}
	name := config.DBName
	schemamysql.PoolConfig(config)
	connector, err := driver.NewConnector(config)
	if err != nil {
		return parts{}, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(8)
	pool.SetMaxIdleConns(8)
	table := schema.Eventlog(name)
	store, err := schemamysql.New(pool, schemamysql.Config{Schema: name, Table: table})
	if err != nil {
		return parts{}, errors.Join(err, pool.Close())
	}
	readLog := func(config *pipeline.Config, o options, logger *slog.Logger) error {
		source, err := cdcmysql.New(cdcmysql.Config{
			DSN:           orElse(o.LogDSN, o.DSN),
			Tables:        []cdcmysql.Table{{Schema: table.Schema, Name: table.Name}},
			Own:           []cdcmysql.Table{{Schema: name}},
			Keeper:        cdcmysql.KeeperOf(store.Keeper("main", o.Process).Acquire),
			CheckInterval: 200 * time.Millisecond, StandbyPoll: 200 * time.Millisecond, BackoffMax: time.Second,
			ServerID: o.Binlog.ServerID, Heartbeat: o.Binlog.Heartbeat, SaveInterval: o.Binlog.SaveInterval,
			BackoffMin: o.Binlog.BackoffMin, MaxRecords: o.Binlog.MaxRecords,
			Logger: logger,
		})
		if err != nil {
			return err
		}
		config.Log, config.Table, config.Decode = source, table.QualifiedName(), table.Decoder()
		return nil
	}
	return parts{store: store, readLog: readLog, close: func() { _ = pool.Close() }}, nil
}
