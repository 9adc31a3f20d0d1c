package migrate

import (
	"context"
	"database/sql"
	"hash/crc32"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// Postgres returns a Migrator for a PostgreSQL database. It does not connect.
func Postgres(pool *pgxpool.Pool, o Options) (*Migrator, error) {
	o.Dialect = DialectPostgres
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Migrator{backend: postgres{pool: pool, options: o}}, nil
}

type postgres struct {
	pool    *pgxpool.Pool
	options Options
}

func (p postgres) open() (db *sql.DB, end func() error) {
	db = stdlib.OpenDBFromPool(p.pool)
	return db, db.Close
}

func (p postgres) versions() database.StoreExtender { return versionTable{schema: p.options.Schema} }

func (p postgres) scripts(ctx context.Context, db *sql.DB) ([]script, error) {
	partitioned, err := p.partitionedEvents(ctx, db)
	if err != nil {
		return nil, err
	}
	return renderPostgres(p.options, partitioned)
}

// locker has one lock per schema, so that two products in one database do not wait for each other.
func (p postgres) locker() (lock.SessionLocker, error) {
	lockID := int64(crc32.ChecksumIEEE([]byte("cdc-dispatcher migrations of " + p.options.Schema)))
	return lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(1, 300))
}

// beforeDown has nothing to do: a step is one transaction that refuses by itself.
func (postgres) beforeDown(context.Context, *sql.DB, int64) error { return nil }

// partitionedEvents says whether the product's own event table exists and is partitioned:
// PostgreSQL cannot build an index on such a table concurrently.
func (p postgres) partitionedEvents(ctx context.Context, db *sql.DB) (bool, error) {
	if !p.options.ownEvents() {
		return false, nil
	}
	var partitioned bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'p')`,
		p.options.Table.Schema, p.options.Table.Name).Scan(&partitioned)
	return partitioned, err
}
