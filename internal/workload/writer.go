package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

const (
	// transactionTimeout bounds one transaction, so that a frozen server cannot hold
	// a writer for ever.
	transactionTimeout = 30 * time.Second
	// reconnectPause is the time between two tries to connect after a fault.
	reconnectPause = 50 * time.Millisecond
	// holdSeconds is how long a held transaction stays open on the server, and
	// longSeconds a long one.
	holdSeconds, longSeconds = 0.03, 1.0
)

// writer is one session of the application. Its goroutine owns conn.
type writer struct {
	Config
	rng  *rand.Rand
	conn session // nil until connected
}

// session is one connection to the database. Only one goroutine uses it.
type session interface {
	// write begins a transaction and runs everything but its end.
	write(ctx context.Context, c change) error
	// breakOrder violates a constraint on the order of the running transaction; it
	// returns an error when that was accepted.
	breakOrder(ctx context.Context, order string) error
	commit(ctx context.Context) error
	// rollback ends the transaction, if one was begun.
	rollback(ctx context.Context) error
	// lost says that the connection is of no use any more.
	lost() bool
	close(ctx context.Context)
}

// change is what one transaction writes.
type change struct {
	order, customer string
	total           int
	kept, undone    []row // the second are undone to a savepoint
	bulk            bool  // all that is kept goes in one statement
	hold            float64
}

// row is an event row as an application writes it (A2–A15).
type row struct {
	id, action, eventType string
	payload               *string
	date                  time.Time
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
		case w.conn == nil || w.conn.lost():
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
		w.conn.close(ctx)
		w.conn = nil
	}
}

// plan is one transaction before it is run.
type plan struct {
	events []Spec // inserted and kept, unless the whole transaction is undone
	undone []Spec // inserted after a savepoint and undone to it
	end    ending
	bulk   bool
	hold   float64 // seconds to stay open, so that later transactions commit first
}

type ending int

const (
	commits ending = iota
	rollsBack
	breaks // violates a constraint after its events were inserted
)

// draw decides what the next transaction does: of a hundred, about 70 commit one event,
// 10 commit several, 5 undo a part to a savepoint, 10 are rolled back and 5 break. Rough
// ones come before these, two in a hundred each.
func (w *writer) draw() plan {
	specs := func(n int) []Spec {
		out := make([]Spec, n)
		for i := range out {
			out[i] = w.Draw(w.rng)
		}
		return out
	}
	var p plan
	if w.rng.IntN(20) == 0 {
		p.hold = holdSeconds
	}
	if w.Rough {
		switch d := w.rng.IntN(100); {
		case d < 2:
			p.events, p.bulk = specs(10+w.rng.IntN(40)), true
			if w.rng.IntN(4) == 0 {
				p.end = rollsBack
			}
			return p
		case d < 4:
			p.hold = longSeconds
		}
	}
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
		conn, err := w.connect(ctx)
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
	c := w.change(p, kept, undone)
	err := w.conn.write(ctx, c)
	if err != nil {
		err = fmt.Errorf("write a business transaction: %w", err)
	} else if p.end == breaks {
		err = w.conn.breakOrder(ctx, c.order)
	}
	if err != nil || p.end != commits {
		w.Ledger.RolledBack(kept...)
		return errors.Join(err, w.conn.rollback(ctx))
	}
	now := time.Now()
	for i := range kept {
		kept[i].At = now
	}
	if err := w.conn.commit(ctx); err != nil {
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

func (w *writer) connect(ctx context.Context) (session, error) {
	if w.Dialect == MySQL {
		return connectMySQL(ctx, w.DSN, w.Events)
	}
	return connectPostgres(ctx, w.DSN, w.Events)
}

func (w *writer) change(p plan, kept, undone []ledger.Event) change {
	return change{
		order:    uuid.NewString(),
		customer: fmt.Sprintf("c-%04d", w.rng.IntN(10_000)),
		total:    1 + w.rng.IntN(99_900),
		kept:     rows(p.events, kept),
		undone:   rows(p.undone, undone),
		bulk:     p.bulk,
		hold:     p.hold,
	}
}

func rows(specs []Spec, events []ledger.Event) []row {
	action := uuid.NewString()
	out := make([]row, len(specs))
	for i, s := range specs {
		out[i] = row{id: events[i].ID, action: action, eventType: s.Type, date: time.Now().UTC().Add(-s.Age)}
		if s.Payload != nil {
			text := string(s.Payload)
			out[i].payload = &text
		}
	}
	return out
}

var errAccepted = errors.New("a negative total was accepted")
