package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

const (
	// transactionTimeout bounds one transaction, so that a frozen server cannot hold
	// a writer for ever.
	transactionTimeout = 30 * time.Second
	// reconnectPause is the time between two tries to connect after a fault.
	reconnectPause = 50 * time.Millisecond
	// holdSeconds is how long a held transaction stays open on the server.
	holdSeconds = 0.03
)

// writer is one session of the application. Its goroutine owns conn.
type writer struct {
	Config
	rng  *rand.Rand
	conn *pgx.Conn // nil until connected
}

func (w *writer) run(ctx context.Context) error {
	defer w.close(ctx)
	next := time.Now()
	for w.pace(ctx, &next) {
		err := w.transact(ctx)
		switch {
		case err == nil:
		case !w.Faults:
			return err
		case w.conn == nil || w.conn.IsClosed():
			w.close(ctx)
			next = time.Now().Add(reconnectPause)
		}
	}
	return nil
}

// pace waits until the next transaction is due; false means that ctx ended.
func (w *writer) pace(ctx context.Context, next *time.Time) bool {
	timer := time.NewTimer(time.Until(*next))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	if w.Rate > 0 {
		*next = next.Add(time.Duration(float64(w.Writers) / w.Rate * float64(time.Second)))
	}
	return ctx.Err() == nil
}

func (w *writer) close(ctx context.Context) {
	if w.conn != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = w.conn.Close(ctx) // the server cleans up after a lost session by itself
		w.conn = nil
	}
}

// plan is one transaction before it is run.
type plan struct {
	events []Spec // inserted and kept, unless the whole transaction is undone
	undone []Spec // inserted after a savepoint and undone to it
	end    ending
	hold   bool // stay open for a while, so that later transactions commit first
}

type ending int

const (
	commits ending = iota
	rollsBack
	breaks // violates a constraint after its events were inserted
)

// draw decides what the next transaction does: of a hundred, about 70 commit one event,
// 10 commit several, 5 undo a part to a savepoint, 10 are rolled back and 5 break.
func (w *writer) draw() plan {
	specs := func(n int) []Spec {
		out := make([]Spec, n)
		for i := range out {
			out[i] = w.Draw(w.rng)
		}
		return out
	}
	p := plan{hold: w.rng.IntN(20) == 0}
	switch d := w.rng.IntN(100); {
	case d < 70:
		p.events = specs(1)
	case d < 80:
		p.events = specs(2 + w.rng.IntN(4))
	case d < 85:
		p.events, p.undone = specs(1), specs(1+w.rng.IntN(2))
	case d < 95:
		p.events, p.end = specs(1+w.rng.IntN(3)), rollsBack
	default:
		p.events, p.end = specs(1), breaks
	}
	return p
}

// transact runs one transaction and puts its events into the ledger, whatever
// becomes of it. A started transaction is finished after ctx ended.
func (w *writer) transact(ctx context.Context) error {
	if w.conn == nil {
		conn, err := pgx.Connect(ctx, w.DSN)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("connect a writer: %w", err)
		}
		w.conn = conn
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTimeout)
	defer cancel()

	p := w.draw()
	kept, undone := identify(p.events), identify(p.undone)
	w.Ledger.RolledBack(undone...)
	tx, err := w.insert(ctx, p, kept, undone)
	if err != nil || p.end != commits {
		w.Ledger.RolledBack(kept...)
		if tx != nil {
			err = errors.Join(err, tx.Rollback(ctx))
		}
		return err
	}
	now := time.Now()
	for i := range kept {
		kept[i].At = now
	}
	if err := tx.Commit(ctx); err != nil {
		w.Ledger.Unknown(kept...)
		return fmt.Errorf("commit a business transaction: %w", err)
	}
	w.Ledger.Committed(kept...)
	return nil
}

func identify(specs []Spec) []ledger.Event {
	out := make([]ledger.Event, len(specs))
	for i, s := range specs {
		out[i] = ledger.Event{ID: uuid.NewString(), Type: s.Type}
	}
	return out
}

// insert runs everything but the end of a transaction. A constraint that the plan
// wanted to be violated is not an error.
func (w *writer) insert(ctx context.Context, p plan, kept, undone []ledger.Event) (pgx.Tx, error) {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin a business transaction: %w", err)
	}
	var b pgx.Batch
	order := uuid.New()
	b.Queue(`INSERT INTO shop.orders VALUES ($1, $2, $3, clock_timestamp() AT TIME ZONE 'UTC')`,
		order, fmt.Sprintf("c-%04d", w.rng.IntN(10_000)), 1+w.rng.IntN(99_900))
	queueEvents(&b, order, p.events, kept)
	if len(undone) > 0 {
		b.Queue(`SAVEPOINT part`)
		queueEvents(&b, order, p.undone, undone)
		b.Queue(`ROLLBACK TO SAVEPOINT part`)
	}
	if p.hold {
		b.Queue(`SELECT pg_sleep($1)`, holdSeconds)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return tx, fmt.Errorf("write a business transaction: %w", err)
	}
	if p.end == breaks {
		if _, err := tx.Exec(ctx, `UPDATE shop.orders SET total_cents = -1 WHERE id = $1`, order); err == nil {
			return tx, errors.New("a negative total was accepted")
		}
	}
	return tx, nil
}

// queueEvents queues the inserts of event rows as an application writes them (A2–A15).
func queueEvents(b *pgx.Batch, order uuid.UUID, specs []Spec, events []ledger.Event) {
	action := uuid.New()
	for i, s := range specs {
		var payload *string
		if s.Payload != nil {
			text := string(s.Payload)
			payload = &text
		}
		date := time.Now().UTC().Add(-s.Age)
		b.Queue(`INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params,
			started_date, completion_date, model_id, model_type, event_type, payload, event_date, delivered)
			VALUES ($1, 'shop.orders', $2, 'ChangeOrder', jsonb_build_object('order', $3::text),
			$4, $4, $3::text, 'Order', $5, $6::text::jsonb, $4, false)`,
			events[i].ID, action, order.String(), date, s.Type, payload)
	}
}
