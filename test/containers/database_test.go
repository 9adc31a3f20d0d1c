package containers

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
)

// database is the application's, as its programs and the ledger see it.
type database interface {
	// setup makes the business table.
	setup(ctx context.Context) error
	// workload says where the application writes.
	workload() workload.Config
	// succeeded counts such deliveries.
	succeeded(ctx context.Context) (int, error)
	rows(ctx context.Context) ([]ledger.Row, error)
	// version is the name of the server in the matrix of a run, and its whole version.
	version(ctx context.Context) (name, version string, err error)
}

const countSucceeded = "SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'"

type postgres struct {
	dsn  string
	conn *pgx.Conn
}

func openPostgres(t *testing.T, dsn string) *postgres {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &postgres{dsn: dsn, conn: conn}
}

func (p *postgres) setup(ctx context.Context) error { return workload.Setup(ctx, p.conn) }
func (p *postgres) workload() workload.Config       { return workload.Config{DSN: p.dsn} }

func (p *postgres) succeeded(ctx context.Context) (n int, err error) {
	err = p.conn.QueryRow(ctx, countSucceeded).Scan(&n)
	return n, err
}

func (p *postgres) rows(ctx context.Context) ([]ledger.Row, error) {
	return ledger.ReadRows(ctx, p.conn)
}

func (p *postgres) version(ctx context.Context) (name, version string, err error) {
	err = p.conn.QueryRow(ctx, `SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), '.', 1),
		split_part(current_setting('server_version'), ' ', 1)`).Scan(&name, &version)
	return name, version, err
}

// mysqlDatabase is also MariaDB's.
type mysqlDatabase struct {
	dsn  string
	pool *sql.DB
}

// openMySQL opens the database of the compose file on a port of this machine.
func openMySQL(t *testing.T, port string) database {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = "app", "app", "tcp", "127.0.0.1:"+port, "shop"
	pool, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	return &mysqlDatabase{dsn: cfg.FormatDSN(), pool: pool}
}

func (m *mysqlDatabase) setup(ctx context.Context) error { return workload.SetupMySQL(ctx, m.pool) }

func (m *mysqlDatabase) workload() workload.Config {
	return workload.Config{DSN: m.dsn, Dialect: workload.MySQL}
}

func (m *mysqlDatabase) succeeded(ctx context.Context) (n int, err error) {
	err = m.pool.QueryRowContext(ctx, countSucceeded).Scan(&n)
	return n, err
}

func (m *mysqlDatabase) rows(ctx context.Context) ([]ledger.Row, error) {
	return ledger.ReadRowsMySQL(ctx, m.pool, "eventlog.event_notifications")
}

func (m *mysqlDatabase) version(ctx context.Context) (name, version string, err error) {
	if err := m.pool.QueryRowContext(ctx, "SELECT version()").Scan(&version); err != nil {
		return "", "", err
	}
	name = "MySQL"
	if strings.Contains(version, "MariaDB") {
		name = "MariaDB"
	}
	version, _, _ = strings.Cut(version, "-")
	series := strings.Split(version, ".")
	return name + " " + strings.Join(series[:min(2, len(series))], "."), version, nil
}

// report records which server the test runs on.
func report(t *testing.T, db database, by, image string) {
	t.Helper()
	name, version, err := db.version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testdb.Report(t, name, version+", container by "+by+", image "+image)
}
