package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
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
type Migrator struct{ backend backend }

// Up applies what is missing and returns it. Running it again changes nothing. When a step
// fails, those before it stay applied, and Up can be run again.
func (m *Migrator) Up(ctx context.Context) (applied []Migration, err error) {
	err = m.with(ctx, func(_ *sql.DB, p *goose.Provider) error {
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
	err = m.with(ctx, func(db *sql.DB, p *goose.Provider) error {
		version, err := p.GetDBVersion(ctx)
		if err != nil {
			return err
		}
		if err := m.backend.beforeDown(ctx, db, version); err != nil {
			return err
		}
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
	db, end := m.backend.open()
	defer func() { err = errors.Join(err, end()) }()
	scripts, err := m.backend.scripts(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	v := m.backend.versions()
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
func (m *Migrator) with(ctx context.Context, fn func(*sql.DB, *goose.Provider) error) (err error) {
	db, end := m.backend.open()
	defer func() { err = errors.Join(err, end()) }()
	scripts, err := m.backend.scripts(ctx, db)
	if err != nil {
		return err
	}
	locker, err := m.backend.locker()
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, files(scripts),
		goose.WithStore(m.backend.versions()),
		goose.WithSessionLocker(locker),
		goose.WithDisableGlobalRegistry(true),
	)
	if err != nil {
		return err
	}
	return fn(db, provider)
}

func fromResults(results []*goose.MigrationResult) []Migration {
	var list []Migration
	for _, r := range results {
		list = append(list, Migration{Version: r.Source.Version, Name: r.Source.Path, Applied: true})
	}
	return list
}
