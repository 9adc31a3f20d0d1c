package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

const (
	// benchType is the type of all events.
	benchType = "bench.event"
	// benchWriters insert at the same time, so that a slow commit delays no other. With the pool and the reader's
	// connections they stay below the twenty that the doctor wants free.
	benchWriters = 6
	// backlogPerTx is how many events of a backlog are in one transaction.
	backlogPerTx = 10
	// benchPad makes a row of the event table about 430 bytes.
	benchPad = 153
)

// benchSessions are the application: it inserts events.
type benchSessions struct {
	db     *database
	events string // the event table, qualified
}

func openBenchSessions(s config.Source) (*benchSessions, error) {
	s.MaxConnections = benchWriters
	db, err := openDatabase(s)
	if err != nil {
		return nil, err
	}
	return &benchSessions{db: db, events: s.Table.QualifiedName()}, nil
}

func (s *benchSessions) close() error { return s.db.close() }

// commit inserts events in one transaction. sent is called just before COMMIT is sent, and not when the insert failed.
func (s *benchSessions) commit(ctx context.Context, ids, payloads []string, sent func()) error {
	if s.db.my == nil {
		return pgx.BeginFunc(ctx, s.db.pg, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+s.events+` (id, namespace, action_id, action_name, action_params, started_date, completion_date,
					model_id, model_type, event_type, payload, event_date, delivered)
				SELECT id, 'bench', id, 'Bench', '{"channel": "web"}', now, now, id::text, 'Bench', '`+benchType+`', payload::jsonb, now, false
				FROM unnest($1::text[]::uuid[], $2::text[]) AS e(id, payload), (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS now`, ids, payloads)
			if err == nil {
				sent()
			}
			return err
		})
	}
	tx, err := s.db.my.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	const row = `(?, 'bench', ?, 'Bench', '{"channel": "web"}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), ?, 'Bench', '` + benchType + `', ?, UTC_TIMESTAMP(6), false)`
	var args []any
	for i, id := range ids {
		args = append(args, id, id, id, payloads[i])
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO `+s.events+` (id, namespace, action_id, action_name, action_params, started_date, completion_date,
			model_id, model_type, event_type, payload, event_date, delivered) VALUES `+row+strings.Repeat(", "+row, len(ids)-1), args...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	sent()
	return tx.Commit()
}

// accounts reads the ids of the events and all deliveries.
func (s *benchSessions) accounts(ctx context.Context) (stored map[string]struct{}, rows []ledger.Row, err error) {
	deliveries := s.db.source.Schema + ".event_notifications"
	if s.db.my != nil {
		if stored, err = ledger.ReadStoredMySQL(ctx, s.db.my, s.events); err == nil {
			rows, err = ledger.ReadRowsMySQL(ctx, s.db.my, deliveries)
		}
		return stored, rows, err
	}
	if stored, err = ledger.ReadStored(ctx, s.db.pg, s.events); err == nil {
		rows, err = ledger.ReadRowsOf(ctx, s.db.pg, deliveries)
	}
	return stored, rows, err
}

// backlog inserts n events as fast as the sessions can.
func (b *benchmark) backlog(ctx context.Context, n int) error {
	return b.write(ctx, n, backlogPerTx, 0)
}

// offer inserts n events at the rate, each in a transaction of its own. One whose turn is over begins at once, and is
// measured from its own commit.
func (b *benchmark) offer(ctx context.Context, n int) error {
	return b.write(ctx, n, 1, time.Second/time.Duration(b.rate))
}

// write inserts n events with all sessions, perTx in a transaction, which begin every so often.
func (b *benchmark) write(ctx context.Context, n, perTx int, every time.Duration) error {
	turns := make(chan int)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(turns)
		begun := time.Now()
		for done := 0; done < n; done += perTx {
			if wait := time.Until(begun.Add(time.Duration(done) * every)); every > 0 && wait > 0 {
				sleep(ctx, wait)
			}
			select {
			case turns <- min(perTx, n-done):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range benchWriters {
		g.Go(func() error {
			for size := range turns {
				if err := b.transact(ctx, size); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// transact inserts events in one transaction, and puts them into the ledger whatever becomes of it.
func (b *benchmark) transact(ctx context.Context, n int) error {
	events := make([]ledger.Event, n)
	ids, payloads := make([]string, n), make([]string, n)
	for i := range events {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		ids[i], payloads[i] = id.String(), benchPayload(i)
		events[i] = ledger.Event{ID: ids[i], Type: benchType}
	}
	committing := false
	err := b.sessions.commit(ctx, ids, payloads, func() {
		committing = true
		now := time.Now()
		for i := range events {
			events[i].At = now
		}
	})
	switch {
	case err == nil:
		b.writers.Committed(events...)
	case committing:
		b.writers.Unknown(events...)
	default:
		b.writers.RolledBack(events...)
	}
	if err != nil {
		return fmt.Errorf("insert events: %w", err)
	}
	return nil
}

// benchPayload is a document of a few fields and a pad that does not compress.
func benchPayload(n int) string {
	var pad [benchPad/2 + 1]byte
	_, _ = rand.Read(pad[:]) // never fails, by its documentation
	return fmt.Sprintf(`{"n": %d, "currency": "EUR", "total_cents": 1999, "pad": "%s"}`, n, hex.EncodeToString(pad[:])[:benchPad])
}
