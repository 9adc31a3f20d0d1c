package demo

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	binlog "github.com/cdc-dispatcher/cdc-dispatcher/cdc/mysql"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

// myGround is a database of MySQL or MariaDB. All tables of the demo are in one database.
type myGround struct {
	host  *host
	name  string // of the database
	cfg   *driver.Config
	pool  *sql.DB
	store *mysql.Store
}

// openMySQL starts a throw-away server of the kind, or makes a database on the one that dsn names.
func openMySQL(ctx context.Context, kind config.Database, dsn string, say func(string)) (ground, error) {
	if dsn != "" {
		return borrowMySQL(ctx, dsn)
	}
	family := localserver.MySQLServer
	if kind == config.DatabaseMariaDB {
		family = localserver.MariaDBServer
	}
	install, err := localserver.EnsureMySQL(ctx, family, say)
	if err != nil {
		return nil, err
	}
	say("starting a throw-away " + kind.Title() + " from " + install.String())
	server, err := localserver.StartMySQL(ctx, localserver.MySQLOptions{Install: &install, Settings: map[string]string{"binlog_row_metadata": "FULL"}})
	if err != nil {
		return nil, err
	}
	client := "mysql"
	if kind == config.DatabaseMariaDB {
		client = "mariadb"
	}
	g := &myGround{name: schema.DefaultSchema, host: &host{
		look:     fmt.Sprintf("%s -h %s -P %d -u root -e", client, server.Host(), server.Port()),
		origin:   server.Origin(),
		farewell: "stopping the throw-away server and removing its files",
		close:    func(context.Context) error { return server.Close() },
	}}
	if err := g.settle(ctx, server.Config("")); err != nil {
		return nil, errors.Join(fmt.Errorf("look at the new server: %w", err), server.Close())
	}
	return g, nil
}

// borrowMySQL makes a database of its own on somebody else's server.
func borrowMySQL(ctx context.Context, dsn string) (ground, error) {
	cfg, err := config.Source{DSN: dsn}.MySQLConfig()
	if err != nil {
		return nil, fmt.Errorf("--dsn: %w", err)
	}
	var tail [4]byte
	_, _ = rand.Read(tail[:]) // never fails, by its documentation
	g := &myGround{name: slotName + "_" + hex.EncodeToString(tail[:])}
	g.host = &host{
		origin: "the server of --dsn", look: "mysql " + g.name + " -e",
		farewell: "dropping the demo's database",
		close:    func(ctx context.Context) error { return giveBackMySQL(ctx, cfg, g.name) },
	}
	if err := g.settle(ctx, cfg); err != nil {
		return nil, fmt.Errorf("connect to the server of --dsn: %w", err)
	}
	return g, nil
}

// settle makes the database and the pool on it, and asks who the server is.
func (g *myGround) settle(ctx context.Context, server *driver.Config) error {
	admin, err := openPool(server, "")
	if err != nil {
		return err
	}
	defer admin.Close() //nolint:errcheck // nothing is left in it
	var version string
	var hasLog bool
	if err := admin.QueryRowContext(ctx, "SELECT VERSION(), @@GLOBAL.log_bin AND @@GLOBAL.binlog_format = 'ROW'").Scan(&version, &hasLog); err != nil {
		return err
	}
	if g.host.version = "MySQL "; strings.Contains(strings.ToLower(version), "mariadb") {
		g.host.version = "MariaDB "
	}
	version, _, _ = strings.Cut(version, "-") // without the packager's remark
	g.host.version += version
	if hasLog {
		g.host.slot = g.name // any name says that there is a log
	}
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE "+g.name+" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"); err != nil {
		return fmt.Errorf("create a database for the demo: %w", err)
	}
	g.cfg = server.Clone()
	g.cfg.DBName = g.name
	g.pool, err = openPool(server, g.name)
	return err
}

func openPool(server *driver.Config, database string) (*sql.DB, error) {
	cfg := server.Clone()
	cfg.DBName = database
	cfg.Logger = &driver.NopLogger{}
	mysql.PoolConfig(cfg)
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(poolSize)
	pool.SetMaxIdleConns(poolSize)
	return pool, nil
}

// poolSize is what pgx gives its pool on a small machine, and one for the reader's tenure.
const poolSize = 5

func giveBackMySQL(ctx context.Context, cfg *driver.Config, name string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	admin, err := openPool(cfg, "")
	if err != nil {
		return err
	}
	defer admin.Close() //nolint:errcheck // nothing is left in it
	if _, err := admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name); err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

func (g *myGround) about() *host { return g.host }

func (g *myGround) table() schema.Table { return schema.Eventlog(g.name) }

func (g *myGround) prepare(ctx context.Context) (_ pipeline.Store, err error) {
	migrator, err := migrate.MySQL(g.pool, migrate.Options{Schema: g.name})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Up(ctx); err != nil {
		return nil, err
	}
	if err := workload.SetupMySQL(ctx, g.pool); err != nil {
		return nil, err
	}
	g.store, err = mysql.New(g.pool, mysql.Config{Schema: g.name, Table: g.table()})
	return g.store, err
}

func (g *myGround) log() (cdc.Source, error) {
	cfg := g.cfg.Clone()
	password, encryption := cfg.Passwd, cfg.TLS
	cfg.Passwd, cfg.TLS = "", nil // given apart, where they need no encoding
	return binlog.New(binlog.Config{
		DSN: cfg.FormatDSN(), Password: password, TLS: encryption,
		Tables: []binlog.Table{{Schema: g.name, Name: g.table().Name}},
		Own:    []binlog.Table{{Schema: g.name}},
		Keeper: binlog.KeeperOf(g.store.Keeper("demo", "demo").Acquire),
	})
}

func (g *myGround) application() workload.Config {
	return workload.Config{DSN: g.cfg.FormatDSN(), Dialect: workload.MySQL, Events: g.name + ".events"}
}

func (g *myGround) open(ctx context.Context) (open bool, err error) {
	err = g.pool.QueryRowContext(ctx, `
		SELECT EXISTS (SELECT 1 FROM event_notifications WHERE state IN ('PENDING', 'FAILED'))
		    OR EXISTS (SELECT 1 FROM events e WHERE NOT delivered
		               AND NOT EXISTS (SELECT 1 FROM event_notifications n WHERE n.event_id = e.id))`).Scan(&open)
	return open, err
}

func (g *myGround) states(ctx context.Context) (_ map[string]map[delivery.State]int, err error) {
	rows, err := g.pool.QueryContext(ctx, `SELECT handler_name, state, count(*) FROM event_notifications GROUP BY 1, 2`)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	all := stateCounts{}
	for rows.Next() {
		var name, state string
		var n int
		if err := rows.Scan(&name, &state, &n); err != nil {
			return nil, err
		}
		all.add(name, state, n)
	}
	return all, rows.Err()
}

func (g *myGround) accounts(ctx context.Context) (stored map[string]struct{}, rows []ledger.Row, err error) {
	if stored, err = ledger.ReadStoredMySQL(ctx, g.pool, g.name+".events"); err == nil {
		rows, err = ledger.ReadRowsMySQL(ctx, g.pool, g.name+".event_notifications")
	}
	return stored, rows, err
}

func (g *myGround) close(ctx context.Context) error {
	return errors.Join(g.pool.Close(), g.host.close(ctx))
}
