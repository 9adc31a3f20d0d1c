package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverArgs is a job of the size of an event.
type riverArgs struct {
	N        int    `json:"n"`
	Currency string `json:"currency"`
	Total    int    `json:"total_cents"`
	Pad      string `json:"pad"`
}

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return eventType }

func newRiverArgs(n, pad int) riverArgs {
	return riverArgs{N: n, Currency: "EUR", Total: 1999, Pad: strings.Repeat(fmt.Sprintf("%08x", n*2654435761), pad/8+1)[:pad]}
}

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	receipts *receipts
}

// Work implements river.Worker.
func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.receipts.started(0, job.Args.N)
	return nil
}

// riverSide is River in this process.
type riverSide struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func (w *world) migrateRiver(ctx context.Context) error {
	m, err := rivermigrate.New(riverpgxv5.New(w.pool), nil)
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// newRiver makes a client with the settings of River's own benchmark: 2,000 workers, and a fetch
// every 2 ms instead of every 100 ms.
func newRiver(dsn string, r *receipts) (*riverSide, error) {
	pool, err := openPool(dsn, poolSize)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{receipts: r})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers:           workers,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &riverSide{pool: pool, client: client}, nil
}

func (s *riverSide) end() error {
	defer s.pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.client.Stop(ctx)
}

func (w *world) insertJobs(ctx context.Context, s *riverSide, n, pad int) error {
	const batch = 5000
	for at := 0; at < n; at += batch {
		var params []river.InsertManyParams
		for i := at; i < min(at+batch, n); i++ {
			params = append(params, river.InsertManyParams{Args: newRiverArgs(i, pad)})
		}
		if _, err := s.client.InsertManyFast(ctx, params); err != nil {
			return fmt.Errorf("insert jobs: %w", err)
		}
	}
	return nil
}

// openJobs asks whether any job is not finished.
const openJobs = `SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))`

func (w *world) riverLedger(ctx context.Context, r *receipts) error {
	if err := r.check(); err != nil {
		return err
	}
	var jobs, good int
	err := w.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE state = 'completed' AND attempt = 1) FROM river_job`).Scan(&jobs, &good)
	if err != nil {
		return err
	}
	if jobs != r.events || good != jobs {
		return fmt.Errorf("ledger: %d jobs inserted, %d rows, %d completed at the first attempt", r.events, jobs, good)
	}
	return nil
}
