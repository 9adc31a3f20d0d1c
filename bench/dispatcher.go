package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	wal "github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	store "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

const (
	// poolSize is the default of the program's max_connections.
	poolSize = 10
	// sourceName names the database in our tables.
	sourceName = "bench"
)

// dispatcher is this product as a library's user runs it.
type dispatcher struct {
	close func()
	stop  context.CancelFunc
	done  chan error
}

// migrateEvents makes the tables and the slot, so that what is committed from now on is in
// the log.
func (w *world) migrateEvents(ctx context.Context) error {
	m, err := migrate.Postgres(w.pool, migrate.Options{Schema: schema.DefaultSchema})
	if err != nil {
		return err
	}
	if _, err := m.Up(ctx); err != nil {
		return err
	}
	if _, err := w.pool.Exec(ctx, `CREATE PUBLICATION cdc_dispatcher FOR TABLE eventlog.events WITH (publish = 'insert')`); err != nil {
		return err
	}
	_, err = w.pool.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, defaultSlot)
	return err
}

// startDispatcher runs the dispatcher with the given handlers until end.
func startDispatcher(dsn string, handlers []pipeline.Handler) (*dispatcher, error) {
	pool, err := openPool(dsn, poolSize)
	if err != nil {
		return nil, err
	}
	p, err := newPipeline(pool, dsn, handlers)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return run(p, pool.Close), nil
}

// run runs a pipeline until end, which closes its connections with the given function.
func run(p *pipeline.Pipeline, closePool func()) *dispatcher {
	ctx, stop := context.WithCancel(context.Background())
	d := &dispatcher{close: closePool, stop: stop, done: make(chan error, 1)}
	go func() { d.done <- p.Run(ctx) }()
	return d
}

// warnings is a logger for what is worth a line beside the figures.
func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func newPipeline(pool *pgxpool.Pool, dsn string, handlers []pipeline.Handler) (*pipeline.Pipeline, error) {
	log := warnings()
	table := schema.Eventlog(schema.DefaultSchema)
	st, err := store.New(pool, store.Config{Table: table, Logger: log})
	if err != nil {
		return nil, err
	}
	reader, err := wal.New(wal.Config{
		DSN: dsn, Tables: []wal.Table{{Schema: table.Schema, Name: table.Name}}, Create: true, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return pipeline.New(pipeline.Config{
		Source: sourceName, Log: reader, Store: st, Table: table.QualifiedName(), Decode: table.Decoder(),
		Handlers: handlers, Logger: log,
	})
}

// end stops softly.
func (d *dispatcher) end() error {
	d.stop()
	defer d.close()
	select {
	case err := <-d.done:
		return err
	case <-time.After(time.Minute):
		return fmt.Errorf("the dispatcher does not stop")
	}
}

// noOps are handlers that note what they receive and do nothing.
func noOps(n int, r *receipts) []pipeline.Handler {
	var list []pipeline.Handler
	for i := range n {
		list = append(list, pipeline.Handler{
			Name: "handler-" + strconv.Itoa(i), On: []string{eventType},
			Handler: event.HandlerFunc(func(_ context.Context, e event.Envelope) error {
				r.started(i, eventNumber(e.ID))
				return nil
			}),
		})
	}
	return list
}

// openDeliveries asks whether any delivery is not finished.
const openDeliveries = `SELECT EXISTS (SELECT FROM eventlog.event_notifications WHERE state IN ('PENDING', 'FAILED'))`

// marked waits until every event is marked. One that was delivered from the log's image, because its row was not
// visible to others yet, is marked later: with the next fan-out, or by the poller.
func (w *world) marked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return w.gone(ctx, "events that are not marked", `SELECT EXISTS (SELECT FROM eventlog.events WHERE NOT delivered)`)
}

// ledger compares what was inserted with what was delivered. The table also holds what was delivered before the first event
// of r.
func (w *world) ledger(ctx context.Context, handlers int, r *receipts) error {
	return errors.Join(r.check(), w.tables(ctx, handlers, r.base+r.events))
}

// tables compares what was inserted with what the tables say about it.
func (w *world) tables(ctx context.Context, handlers, inserted int) error {
	var events, marked, rows, pairs, good int
	err := w.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE delivered) FROM eventlog.events`).Scan(&events, &marked)
	if err != nil {
		return err
	}
	err = w.pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT (event_id, handler_name)),
		count(*) FILTER (WHERE state = 'SUCCEEDED' AND attempts = 0 AND claim_count = 1) FROM eventlog.event_notifications`).Scan(&rows, &pairs, &good)
	if err != nil {
		return err
	}
	want := inserted * handlers
	if events != inserted || marked != events || rows != want || pairs != want || good != want {
		return fmt.Errorf("ledger: %d events inserted, %d in the table, %d marked; %d deliveries wanted, %d rows, %d pairs, %d of them SUCCEEDED with one claim",
			inserted, events, marked, want, rows, pairs, good)
	}
	return nil
}
