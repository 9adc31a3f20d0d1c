package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	store "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// ground is the database that the demo works in, and what is asked of its tables.
type ground interface {
	about() *host
	// prepare makes the tables, as a user's program would.
	prepare(ctx context.Context) (pipeline.Store, error)
	table() schema.Table
	// log makes the reader; nil where the server gives no log.
	log() (cdc.Source, error)
	// application is where the application writes.
	application() workload.Config
	// open says whether an event is not fanned out, or a delivery has not ended.
	open(ctx context.Context) (bool, error)
	// states counts the deliveries of each handler.
	states(ctx context.Context) (map[string]map[delivery.State]int, error)
	// accounts reads both tables for the comparison.
	accounts(ctx context.Context) (stored map[string]struct{}, rows []ledger.Row, err error)
	// close ends all connections, and removes everything that was made.
	close(ctx context.Context) error
}

// openGround starts a throw-away server, or makes a database on the one that the DSN names.
func openGround(ctx context.Context, c Config, say func(string)) (ground, error) {
	if c.Database.IsMySQL() {
		return openMySQL(ctx, c.Database, c.DSN, say)
	}
	h, err := openHost(ctx, c.DSN, say)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, h.dsn)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the demo's database: %w", err), h.close(context.WithoutCancel(ctx)))
	}
	return &pgGround{host: h, pool: pool}, nil
}

type pgGround struct {
	host *host
	pool *pgxpool.Pool
}

func (g *pgGround) about() *host { return g.host }

func (g *pgGround) table() schema.Table { return schema.Eventlog("") }

func (g *pgGround) prepare(ctx context.Context) (pipeline.Store, error) {
	migrator, err := migrate.Postgres(g.pool, migrate.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Up(ctx); err != nil {
		return nil, err
	}
	if err := g.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		return workload.Setup(ctx, conn.Conn())
	}); err != nil {
		return nil, err
	}
	return store.New(g.pool, store.Config{Table: g.table()})
}

func (g *pgGround) log() (cdc.Source, error) {
	t := g.table()
	return postgres.New(postgres.Config{
		DSN: g.host.dsn, Slot: g.host.slot, Publication: slotName, Create: true,
		Tables: []postgres.Table{{Schema: t.Schema, Name: t.Name}},
	})
}

func (g *pgGround) application() workload.Config { return workload.Config{DSN: g.host.dsn} }

func (g *pgGround) open(ctx context.Context) (open bool, err error) {
	err = g.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM eventlog.event_notifications WHERE state IN ('PENDING', 'FAILED'))
		    OR EXISTS (SELECT FROM eventlog.events e WHERE NOT delivered
		               AND NOT EXISTS (SELECT FROM eventlog.event_notifications n WHERE n.event_id = e.id))`).Scan(&open)
	return open, err
}

func (g *pgGround) states(ctx context.Context) (map[string]map[delivery.State]int, error) {
	all := stateCounts{}
	rows, err := g.pool.Query(ctx, `SELECT handler_name, state, count(*) FROM eventlog.event_notifications GROUP BY 1, 2`)
	if err != nil {
		return nil, err
	}
	var name, state string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&name, &state, &n}, func() error {
		all.add(name, state, n)
		return nil
	})
	return all, err
}

// stateCounts are deliveries by handler and state.
type stateCounts map[string]map[delivery.State]int

func (c stateCounts) add(handler, state string, n int) {
	if c[handler] == nil {
		c[handler] = map[delivery.State]int{}
	}
	c[handler][delivery.State(state)] = n
}

func (g *pgGround) accounts(ctx context.Context) (stored map[string]struct{}, rows []ledger.Row, err error) {
	if stored, err = ledger.ReadStored(ctx, g.pool, pgx.Identifier{"eventlog", "events"}.Sanitize()); err == nil {
		rows, err = ledger.ReadRows(ctx, g.pool)
	}
	return stored, rows, err
}

func (g *pgGround) close(ctx context.Context) error {
	g.pool.Close()
	return g.host.close(ctx)
}
