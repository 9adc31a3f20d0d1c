package migrate

import (
	"context"
	"database/sql"

	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// Dialect is the SQL that migrations are written in.
type Dialect string

// The dialects.
const (
	DialectPostgres Dialect = "postgres"
	DialectMySQL    Dialect = "mysql"
	// DialectMariaDB is MariaDB 10.7 or later, which has a type for UUIDs.
	DialectMariaDB Dialect = "mariadb"
)

// backend is what differs between the databases.
type backend interface {
	// open returns the database for one call, and what ends it.
	open() (db *sql.DB, end func() error)
	// scripts returns all migrations as this server needs them.
	scripts(ctx context.Context, db *sql.DB) ([]script, error)
	// versions is the table of applied steps.
	versions() database.StoreExtender
	// locker keeps two migrations of one schema apart.
	locker() (lock.SessionLocker, error)
	// beforeDown refuses to take a step back that would lose something. Nil where the
	// step's own statements refuse.
	beforeDown(ctx context.Context, db *sql.DB, version int64) error
}
