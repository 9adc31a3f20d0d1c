package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// connections is how many a server has: enough for everybody, and few enough to take all.
const connections = "60"

// engine is a server of the test's own, and what a nemesis must know of its kind.
type engine interface {
	testbed.Database
	// target is where it listens, through the DSN that leads there by another address.
	target() string
	through(address string) string
	// settings are keys of a source of the program: its tables, and how it reads the log.
	settings(logDSN string) string
	// forgetLog makes the server lose log that nobody has read, or fails and can be tried
	// again. Where readers keep the log alive, they must be gone.
	forgetLog(ctx context.Context) error
	readersKeepLog() bool
	// occupy takes one connection.
	occupy(ctx context.Context) (release func(), err error)
}

// eachEngine runs fn on every kind and version of server, two at a time.
func eachEngine(t *testing.T, fn func(t *testing.T, e engine)) {
	t.Helper()
	turns := make(chan struct{}, 2)
	turn := func(t *testing.T) {
		t.Parallel()
		turns <- struct{}{}
		t.Cleanup(func() { <-turns })
	}
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		turn(t)
		fn(t, postgres{Postgres: testbed.OwnPostgres(t, major, postgresSettings())})
	})
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		turn(t)
		db := testbed.OwnMySQL(t, kind, map[string]string{"max-connections": connections})
		db.Pool.SetMaxOpenConns(4)
		db.Pool.SetMaxIdleConns(4)
		fn(t, mysql{db})
	})
}

func postgresSettings() map[string]string {
	return map[string]string{
		"max_connections": connections,
		// How long the slot of a reader stays taken that is gone without a word.
		"wal_sender_timeout": "4s",
	}
}

type postgres struct {
	*testbed.Postgres
	// failover asks for a slot that standbys have too.
	failover bool
}

func (p postgres) target() string {
	return fmt.Sprintf("%s:%d", p.Server.Host(), p.Server.Port())
}

func (p postgres) through(address string) string {
	return elsewhere(p.URL, address)
}

// elsewhere is a DSN with another address.
func elsewhere(dsn, address string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err) // it is ours
	}
	u.Host = address
	return u.String()
}

func (p postgres) settings(logDSN string) string {
	return fmt.Sprintf("postgres: {dsn: %q, failover: %t}", logDSN, p.failover)
}

func (p postgres) readersKeepLog() bool { return false }

// forgetLog ends the session that reads and drops its slot before it is taken again.
func (p postgres) forgetLog(ctx context.Context) error {
	if _, err := p.Table(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, testbed.SlotName); err != nil {
		return err
	}
	return p.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, testbed.SlotName)
}

func (p postgres) occupy(ctx context.Context) (func(), error) {
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return nil, err
	}
	return func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil
}

// Start leaves no connection to the server of before in the pool.
func (p postgres) Start(ctx context.Context) error {
	defer p.Pool.Reset()
	return p.Postgres.Start(ctx)
}

type mysql struct{ *testbed.MySQL }

func (m mysql) target() string { return m.Server.Host() + ":" + strconv.Itoa(m.Server.Port()) }

func (m mysql) through(address string) string {
	c := m.Server.Config(m.Name)
	c.Addr = address
	return c.FormatDSN()
}

func (m mysql) settings(logDSN string) string {
	return fmt.Sprintf("schema: %s, table: {schema: %s, name: events}, mysql: {dsn: %q, heartbeat: 1s}", m.Name, m.Name, logDSN)
}

func (m mysql) readersKeepLog() bool { return true }

func (m mysql) forgetLog(ctx context.Context) error {
	if err := m.Exec(ctx, "FLUSH BINARY LOGS"); err != nil {
		return err
	}
	files, err := m.Table(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return err
	}
	last := files[len(files)-1][0]
	if err := m.Exec(ctx, "PURGE BINARY LOGS TO '"+last+"'"); err != nil {
		return err
	}
	if files, err = m.Table(ctx, "SHOW BINARY LOGS"); err != nil {
		return err
	}
	// A server keeps what a session reads, or what it would need after a crash.
	if !strings.EqualFold(files[0][0], last) {
		return errKept
	}
	return nil
}

// errKept says that the server has kept the log, for now.
var errKept = errors.New("the server keeps the log for now")

func (m mysql) occupy(ctx context.Context) (func(), error) {
	config, err := driver.ParseDSN(m.DSN())
	if err != nil {
		return nil, err
	}
	config.Logger = &driver.NopLogger{} // refusals are what this is for
	connector, err := driver.NewConnector(config)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	if err := pool.PingContext(ctx); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return func() { _ = pool.Close() }, nil
}
