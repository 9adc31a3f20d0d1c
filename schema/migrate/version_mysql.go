package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3/database"
)

// mysqlVersions is versionTable on MySQL and MariaDB.
type mysqlVersions struct{ schema string }

var _ database.StoreExtender = mysqlVersions{}

func (v mysqlVersions) table() string { return quoteName(v.schema) + "." + versionTableName }

func (v mysqlVersions) createSQL() string {
	return "CREATE TABLE IF NOT EXISTS " + v.table() + ` (
    version      BIGINT      NOT NULL,
    applied_date DATETIME(6) NOT NULL,
    PRIMARY KEY (version)
) ` + mysqlTableOptions
}

func (v mysqlVersions) createSchemaSQL() string {
	return "CREATE DATABASE IF NOT EXISTS " + quoteName(v.schema) + " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
}

// insertSQL does not use INSERT IGNORE, which hides every other error too.
func (v mysqlVersions) insertSQL(value string) string {
	return "INSERT INTO " + v.table() + " (version, applied_date) VALUES (" + value +
		", UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE version = version"
}

// Tablename implements [database.Store].
func (v mysqlVersions) Tablename() string { return v.table() }

// TableExists implements [database.StoreExtender]. An empty table does not count: it is what a
// crash between its creation and its first row leaves.
func (v mysqlVersions) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (
    SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?)`,
		v.schema, versionTableName).Scan(&exists)
	if err != nil || !exists {
		return false, err
	}
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+v.table()+")").Scan(&exists)
	return exists, err
}

// CreateVersionTable implements [database.Store]. It creates the database when it is missing; a
// user that may not do so can work in one that somebody else has created.
func (v mysqlVersions) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	var exists bool
	if err := db.QueryRowContext(ctx,
		`SELECT EXISTS (SELECT 1 FROM information_schema.schemata WHERE schema_name = ?)`, v.schema).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := db.ExecContext(ctx, v.createSchemaSQL()); err != nil {
			return err
		}
	}
	_, err := db.ExecContext(ctx, v.createSQL())
	return err
}

// Insert implements [database.Store].
func (v mysqlVersions) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	_, err := db.ExecContext(ctx, v.insertSQL("?"), req.Version)
	return err
}

// Delete implements [database.Store].
func (v mysqlVersions) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	_, err := db.ExecContext(ctx, "DELETE FROM "+v.table()+" WHERE version = ?", version)
	return err
}

// GetMigration implements [database.Store].
func (v mysqlVersions) GetMigration(
	ctx context.Context, db database.DBTxConn, version int64,
) (*database.GetMigrationResult, error) {
	// As text: whether the driver hands out times depends on the pool.
	var at string
	err := db.QueryRowContext(ctx,
		"SELECT DATE_FORMAT(applied_date, '%Y-%m-%d %H:%i:%s.%f') FROM "+v.table()+" WHERE version = ?", version).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %d", database.ErrVersionNotFound, version)
	}
	if err != nil {
		return nil, err
	}
	applied, err := time.ParseInLocation("2006-01-02 15:04:05.000000", at, time.UTC)
	if err != nil {
		return nil, fmt.Errorf("read the date of version %d: %w", version, err)
	}
	return &database.GetMigrationResult{Timestamp: applied, IsApplied: true}, nil
}

// GetLatestVersion implements [database.Store].
func (v mysqlVersions) GetLatestVersion(ctx context.Context, db database.DBTxConn) (int64, error) {
	return latestVersion(ctx, db, v.table())
}

// ListMigrations implements [database.Store].
func (v mysqlVersions) ListMigrations(ctx context.Context, db database.DBTxConn) ([]*database.ListMigrationsResult, error) {
	return listVersions(ctx, db, v.table())
}
