package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// Migration is one step and where it stands.
type Migration struct {
	Version int64
	// Name is the step's file name, such as "0001_seed.sql".
	Name    string
	Applied bool
	// AppliedAt is when, by the database's clock; zero unless Applied.
	AppliedAt time.Time
}

// Migrator runs the migrations of one schema. Its methods may be called from any goroutine.
type Migrator struct {
	pool    *pgxpool.Pool
	options Options
}

// Postgres returns a Migrator for a PostgreSQL database. It does not connect.
func Postgres(pool *pgxpool.Pool, o Options) (*Migrator, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Migrator{pool: pool, options: o}, nil
}

// Up applies what is missing and returns it. Running it again changes nothing. When a step
// fails, those before it stay applied, and Up can be run again.
func (m *Migrator) Up(ctx context.Context) (applied []Migration, err error) {
	err = m.with(ctx, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		applied = fromResults(results)
		var partial *goose.PartialError
		if errors.As(err, &partial) {
			applied = fromResults(partial.Applied)
		}
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate up: %w", err)
	}
	return applied, nil
}

// Down takes back the last applied step and returns it; Applied is false in
// the result. Without an applied step it returns nil. See the package documentation for what stays.
func (m *Migrator) Down(ctx context.Context) (undone *Migration, err error) {
	err = m.with(ctx, func(p *goose.Provider) error {
		result, err := p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil
		}
		if err != nil {
			return err
		}
		undone = &Migration{Version: result.Source.Version, Name: result.Source.Path}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("migrate down: %w", err)
	}
	return undone, nil
}

// Status lists all steps in order. It writes nothing.
func (m *Migrator) Status(ctx context.Context) (list []Migration, err error) {
	db := stdlib.OpenDBFromPool(m.pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	scripts, err := render(m.options, false)
	if err != nil {
		return nil, err
	}
	v := versionTable{schema: m.options.Schema}
	exists, err := v.TableExists(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	for _, s := range scripts {
		step := Migration{Version: s.version, Name: s.name}
		if exists {
			switch result, err := v.GetMigration(ctx, db, s.version); {
			case err == nil:
				step.Applied, step.AppliedAt = true, result.Timestamp
			case !errors.Is(err, database.ErrVersionNotFound):
				return nil, fmt.Errorf("migrate status: %w", err)
			}
		}
		list = append(list, step)
	}
	return list, nil
}

// with runs fn with a provider that lives as long as the call.
func (m *Migrator) with(ctx context.Context, fn func(*goose.Provider) error) (err error) {
	db := stdlib.OpenDBFromPool(m.pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	partitioned, err := m.partitionedEvents(ctx, db)
	if err != nil {
		return err
	}
	scripts, err := render(m.options, partitioned)
	if err != nil {
		return err
	}
	// One lock per schema, so that two products in one database do not wait for each other.
	lockID := int64(crc32.ChecksumIEEE([]byte("cdc-dispatcher migrations of " + m.options.Schema)))
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(1, 300))
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, files(scripts),
		goose.WithStore(versionTable{schema: m.options.Schema}),
		goose.WithSessionLocker(locker),
		goose.WithDisableGlobalRegistry(true),
	)
	if err != nil {
		return err
	}
	return fn(provider)
}

// partitionedEvents says whether the product's own event table exists and is partitioned:
// PostgreSQL cannot build an index on such a table concurrently.
func (m *Migrator) partitionedEvents(ctx context.Context, db *sql.DB) (bool, error) {
	if !m.options.ownEvents() {
		return false, nil
	}
	var partitioned bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'p')`,
		m.options.Table.Schema, m.options.Table.Name).Scan(&partitioned)
	return partitioned, err
}

func fromResults(results []*goose.MigrationResult) []Migration {
	var list []Migration
	for _, r := range results {
		list = append(list, Migration{Version: r.Source.Version, Name: r.Source.Path, Applied: true})
	}
	return list
}
