package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

// Dialect is the database that the application writes to.
type Dialect int

// The dialects. MySQL is also MariaDB.
const (
	Postgres Dialect = iota
	MySQL
)

// Config is what the application does. The zero value of each optional field is its default.
type Config struct {
	// DSN of a database with the eventlog tables, and [Setup] or [SetupMySQL] done, as
	// pgx or github.com/go-sql-driver/mysql reads it. Required.
	DSN string
	// Dialect is the database's. Default [Postgres].
	Dialect Dialect
	// Events is the event table, quoted and qualified as SQL wants it. Default
	// "eventlog.events".
	Events string
	// Ledger receives what was written. Required.
	Ledger *ledger.Writers
	// Writers is how many sessions write at once. Default 4.
	Writers int
	// Rate bounds the transactions per second of all writers together. Default 0: no bound.
	Rate float64
	// Seed makes the mix of transactions repeatable, per writer.
	Seed uint64
	// Draw makes the next event. It is called from every writer, with the writer's
	// own source of randomness. Default [Orders].
	Draw func(*rand.Rand) Spec
	// Faults says that connections and the server may fail.
	Faults bool
	// Rough adds what an application should not do often: a transaction that inserts
	// many events at once (COPY, on MySQL one statement of many rows), and one that stays
	// open for a second.
	Rough bool
}

// Spec is one event to insert.
type Spec struct {
	Type string
	// Payload is a JSON document; nil is stored as NULL.
	Payload []byte
	// Age dates the event back.
	Age time.Duration
}

// OrderTypes are the event types that [Orders] draws.
func OrderTypes() []string {
	return []string{"order.placed", "order.paid", "order.shipped", "order.cancelled"}
}

// Orders draws events of a shop, all types equally often.
func Orders(r *rand.Rand) Spec {
	types := OrderTypes()
	return Spec{
		Type: types[r.IntN(len(types))],
		Payload: fmt.Appendf(nil, `{"order_id": "o-%08x", "customer": "c-%04d", "total_cents": %d}`,
			r.Uint32(), r.IntN(10_000), 100+r.IntN(99_900)),
	}
}

// Setup creates the business table that the writers write to, if it is missing.
func Setup(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `
		CREATE SCHEMA IF NOT EXISTS shop;
		CREATE TABLE IF NOT EXISTS shop.orders (
			id uuid PRIMARY KEY,
			customer text NOT NULL,
			total_cents bigint NOT NULL CHECK (total_cents > 0),
			updated timestamp NOT NULL)`)
	if err != nil {
		return fmt.Errorf("create the business table: %w", err)
	}
	return nil
}

// Run writes until ctx ends, and then returns nil.
func Run(ctx context.Context, c Config) error {
	if c.Writers == 0 {
		c.Writers = 4
	}
	if c.Events == "" {
		c.Events = "eventlog.events"
	}
	if c.Draw == nil {
		c.Draw = Orders
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range c.Writers {
		w := &writer{Config: c, rng: rand.New(rand.NewPCG(c.Seed, uint64(i)))}
		group.Go(func() error { return w.run(ctx) })
	}
	return group.Wait()
}
