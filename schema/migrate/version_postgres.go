package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3/database"
)

// versionTableName is unlike anything that a user's schema would have.
const versionTableName = "cdc_dispatcher_migrations"

// versionTable records which migrations are applied: a row is an applied one. goose's own
// table cannot live in a schema whose name needs quotes.
type versionTable struct{ schema string }

var _ database.StoreExtender = versionTable{}

func (v versionTable) table() string { return quoteIdent(v.schema) + "." + versionTableName }

func (v versionTable) createSQL() string {
	return "CREATE TABLE IF NOT EXISTS " + v.table() + ` (
    version      BIGINT    PRIMARY KEY,
    applied_date TIMESTAMP NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')
)`
}

func (v versionTable) createSchemaSQL() string {
	return "CREATE SCHEMA IF NOT EXISTS " + quoteIdent(v.schema)
}

func (v versionTable) insertSQL(value string) string {
	return "INSERT INTO " + v.table() + " (version) VALUES (" + value + ") ON CONFLICT DO NOTHING"
}

// Tablename implements [database.Store].
func (v versionTable) Tablename() string { return v.table() }

// TableExists implements [database.StoreExtender].
func (v versionTable) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2)`, v.schema, versionTableName).Scan(&exists)
	return exists, err
}

// CreateVersionTable implements [database.Store]. It creates the schema when it is missing; a
// role that may not do so can work in one that somebody else has created.
func (v versionTable) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	var exists bool
	if err := db.QueryRowContext(ctx,
		`SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`, v.schema).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := db.ExecContext(ctx, "CREATE SCHEMA "+quoteIdent(v.schema)); err != nil {
			return err
		}
	}
	_, err := db.ExecContext(ctx, v.createSQL())
	return err
}

// Insert implements [database.Store].
func (v versionTable) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	_, err := db.ExecContext(ctx, v.insertSQL("$1"), req.Version)
	return err
}

// Delete implements [database.Store].
func (v versionTable) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	_, err := db.ExecContext(ctx, "DELETE FROM "+v.table()+" WHERE version = $1", version)
	return err
}

// GetMigration implements [database.Store].
func (v versionTable) GetMigration(
	ctx context.Context, db database.DBTxConn, version int64,
) (*database.GetMigrationResult, error) {
	var at time.Time
	err := db.QueryRowContext(ctx, "SELECT applied_date FROM "+v.table()+" WHERE version = $1", version).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %d", database.ErrVersionNotFound, version)
	}
	if err != nil {
		return nil, err
	}
	return &database.GetMigrationResult{Timestamp: at, IsApplied: true}, nil
}

// GetLatestVersion implements [database.Store].
func (v versionTable) GetLatestVersion(ctx context.Context, db database.DBTxConn) (int64, error) {
	return latestVersion(ctx, db, v.table())
}

// ListMigrations implements [database.Store].
func (v versionTable) ListMigrations(ctx context.Context, db database.DBTxConn) ([]*database.ListMigrationsResult, error) {
	return listVersions(ctx, db, v.table())
}

// latestVersion and listVersions are the same on every database. table is quoted.
func latestVersion(ctx context.Context, db database.DBTxConn, table string) (int64, error) {
	var version sql.NullInt64
	if err := db.QueryRowContext(ctx, "SELECT max(version) FROM "+table).Scan(&version); err != nil {
		return 0, err
	}
	if !version.Valid {
		return 0, database.ErrVersionNotFound
	}
	return version.Int64, nil
}

func listVersions(ctx context.Context, db database.DBTxConn, table string) (list []*database.ListMigrationsResult, err error) {
	rows, err := db.QueryContext(ctx, "SELECT version FROM "+table+" ORDER BY version DESC")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		m := &database.ListMigrationsResult{IsApplied: true}
		if err := rows.Scan(&m.Version); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, rows.Err()
}
