package pipeline_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	pgsource "github.com/cdc-dispatcher/cdc-dispatcher/cdc/postgres"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	pgstore "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

var errCardGone = errors.New("card was withdrawn")

type order struct {
	ID    string  `json:"id"`
	Total float64 `json:"total"`
}

func charge(context.Context, string, order) error { return nil }

// Example runs a dispatcher inside a Go program: the tables exist ("cdc-dispatcher
// migrate up", or package schema/migrate), and the handler is a Go function.
func Example() {
	run := func(ctx context.Context, dsn string) error {
		pool, err := pgxpool.New(ctx, dsn)
		if err != nil {
			return err
		}
		defer pool.Close()

		table := schema.Eventlog(schema.DefaultSchema)
		store, err := pgstore.New(pool, pgstore.Config{Table: table})
		if err != nil {
			return err
		}
		reader, err := pgsource.New(pgsource.Config{
			DSN:    dsn,
			Tables: []pgsource.Table{{Schema: table.Schema, Name: table.Name}},
			Create: true,
		})
		if err != nil {
			return err
		}
		p, err := pipeline.New(pipeline.Config{
			Source: "shop",
			Log:    reader,
			Store:  store,
			Table:  table.QualifiedName(),
			Decode: table.Decoder(),
			Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
			Handlers: []pipeline.Handler{{
				Name:  "billing",
				On:    []string{"order.placed"},
				Retry: pipeline.RetryDefault(),
				Handler: event.Typed(func(ctx context.Context, e event.Envelope, o order) error {
					switch err := charge(ctx, e.IdempotencyKey, o); {
					case errors.Is(err, errCardGone):
						return event.Permanent(err) // DEAD, with the reason
					case err != nil:
						return event.RetryAfter(err, time.Minute) // FAILED, again in a minute or later
					}
					return nil // SUCCEEDED
				}),
			}},
		})
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}
	if dsn := os.Getenv("DATABASE_URL"); dsn != "" {
		if err := run(context.Background(), dsn); err != nil {
			slog.Error("dispatcher", slog.Any("error", err))
		}
	}
}
