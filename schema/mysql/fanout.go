package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

const (
	// lookFor is how long rows that are locked, or that the log has shown before the table does, are
	// looked for again within one fan-out.
	lookFor = 2 * time.Second
	// lookPause is the pause between two such looks.
	lookPause = 50 * time.Millisecond
	// shortWait is how many seconds one of these looks waits for a row lock.
	shortWait = 1
	// keysPerStatement bounds a list of keys, rowsPerStatement the rows that are inserted at once.
	keysPerStatement = 1000
	rowsPerStatement = 500
)

// FanOut implements pipeline.FanOutStore. Events whose rows are there, and not locked, are fanned
// out in one transaction, together with the position; those that have to be waited for, that cannot be marked,
// or whose rows are gone in further ones, and the position after them. An error after the first leaves events that
// are completely fanned out, and a repeated call does the rest.
func (s *Store) FanOut(ctx context.Context, batch delivery.FanOut) (delivery.FanOutResult, error) {
	f := &fanning{
		Store: s, b: newFanBatch(batch),
		result: delivery.FanOutResult{Stored: map[int]event.Event{}},
	}
	if len(f.b.order) == 0 && !f.hasPosition() {
		return delivery.FanOutResult{}, nil
	}
	f.result.Repeated, f.result.DuplicateIDs = f.b.repeated, f.b.duplicates
	err := f.run(ctx)
	if err == nil {
		return f.result, nil
	}
	err = coded(fmt.Errorf("fan out %d events: %w", len(f.b.order), err))
	if rejected(err) {
		err = errors.Join(err, s.unlease(ctx, f.b, f.result.Created))
	}
	return delivery.FanOutResult{}, err
}

// fanning is one call of FanOut.
type fanning struct {
	*Store
	b      *fanBatch
	result delivery.FanOutResult
	// positioned says that the position is written.
	positioned bool
}

func (f *fanning) run(ctx context.Context) error {
	missing, err := f.pass(ctx, numbers(0, f.b.rows), lockFree)
	if err != nil {
		return err
	}
	var absent, unmarked []int
	if len(missing) > 0 {
		if absent, unmarked, err = f.wait(ctx, missing); err != nil {
			return err
		}
	}
	unmarked = append(unmarked, numbers(f.b.rows, len(f.b.order))...)
	if unmarked = f.b.withTargets(unmarked); len(unmarked) > 0 {
		gone, err := f.pass(ctx, unmarked, lockNone)
		if err != nil {
			return err
		}
		absent = append(absent, gone...)
	}
	absent = slices.DeleteFunc(f.b.withTargets(absent), func(n int) bool { return !f.b.fan(n).FromLog })
	if len(absent) > 0 {
		slices.Sort(absent)
		if err := f.images(ctx, absent); err != nil {
			return err
		}
	}
	return f.position(ctx)
}

// wait looks again for events whose rows were not to be had, for a moment. What it returns is certain: the rows
// of absent are not there, and those of unmarked can be read and not be locked.
func (f *fanning) wait(ctx context.Context, missing []int) (absent, unmarked []int, err error) {
	for begun := time.Now(); ; {
		gone, err := f.pass(ctx, missing, lockWaiting)
		if err == nil {
			return gone, nil, nil
		}
		if !locked(err) {
			return nil, nil, err
		}
		if missing, err = f.pass(ctx, missing, lockFree); err != nil || len(missing) == 0 {
			return nil, nil, err
		}
		if time.Since(begun) >= lookFor {
			return f.giveUp(ctx, missing)
		}
		if !pause(ctx, lookPause) {
			return nil, nil, ctx.Err()
		}
	}
}

// giveUp tells what is to become of events one of which is locked for longer than we wait. Those that are locked and
// cannot be seen are committed, as far as the log is concerned, and left to the poller.
func (f *fanning) giveUp(ctx context.Context, missing []int) (absent, unmarked []int, err error) {
	for _, n := range missing {
		gone, err := f.pass(ctx, []int{n}, lockNow)
		switch {
		case locked(err):
			visible, err := f.visible(ctx, n)
			if err != nil {
				return nil, nil, err
			}
			switch {
			case visible:
				unmarked = append(unmarked, n)
			case f.b.fan(n).FromLog:
				f.result.Deferred = append(f.result.Deferred, f.b.order[n])
			}
		case err != nil:
			return nil, nil, err
		default:
			absent = append(absent, gone...)
		}
	}
	return absent, unmarked, nil
}

func (f *fanning) visible(ctx context.Context, n int) (visible bool, err error) {
	err = f.withTable(ctx, func(t *eventTable, _ *ourTables) error {
		return f.read(ctx, func(q querier) error {
			rows, err := f.rows(ctx, q, t, []int{n}, "")
			visible = len(rows) > 0
			return err
		})
	})
	return visible, err
}

// lockMode is how a pass over the table gets at rows that others have locked.
type lockMode int

const (
	// lockFree takes the rows that are not locked.
	lockFree lockMode = iota
	// lockWaiting waits for locks, shortly.
	lockWaiting
	// lockNow fails at once when a row is locked.
	lockNow
	// lockNone takes no lock and makes no mark.
	lockNone
)

// clause is the end of a statement that reads events. A table that is never written is locked only
// to wait for what a transaction is about to commit.
func (t *eventTable) clause(how lockMode, srv *server) string {
	marks := t.Mark.Kind != schema.MarkNone
	lock := "FOR UPDATE"
	if !marks {
		lock = srv.share
	}
	switch how {
	case lockNone:
		return ""
	case lockFree:
		if !marks {
			return ""
		}
		if !srv.skipLocked {
			return lock + " NOWAIT"
		}
		return lock + " SKIP LOCKED"
	case lockNow:
		return lock + " NOWAIT"
	default:
		return lock
	}
}

// pass fans out those of the events that it can get at, in one transaction, and returns the others.
func (f *fanning) pass(ctx context.Context, events []int, how lockMode) (missing []int, err error) {
	if len(events) == 0 && how != lockFree {
		return nil, nil
	}
	var done *passed
	err = f.withTable(ctx, func(t *eventTable, o *ourTables) error {
		srv, err := f.serverOf(ctx)
		if err != nil {
			return err
		}
		run := func() error {
			return f.once(ctx, lockWait(how), func(q querier) (err error) {
				done, err = f.try(ctx, q, t, o, srv, events, how)
				return err
			})
		}
		if how == lockWaiting || how == lockNow || how == lockFree && !srv.skipLocked {
			// Whoever asked for it deals with a lock that is held.
			if err = run(); passing(err) && !locked(err) {
				err = again(ctx, run)
			}
			return err
		}
		return again(ctx, run)
	})
	if how == lockFree && locked(err) {
		return f.oneByOne(ctx, events)
	}
	if err != nil {
		return nil, err
	}
	f.merge(done)
	return done.missing, nil
}

// oneByOne is a pass that takes what is not locked, on a server that cannot skip what is.
func (f *fanning) oneByOne(ctx context.Context, events []int) (missing []int, err error) {
	for _, n := range events {
		gone, err := f.pass(ctx, []int{n}, lockNow)
		switch {
		case locked(err):
			missing = append(missing, n)
		case err != nil:
			return nil, err
		default:
			missing = append(missing, gone...)
		}
	}
	return missing, nil
}

func lockWait(how lockMode) int {
	if how == lockWaiting {
		return shortWait
	}
	return lockSeconds
}

// passed is what a pass did, once it is committed.
type passed struct {
	missing, fresh, repeated, unmarked, absent []int
	created                                    []delivery.Created
	stored                                     map[int]event.Event
	duplicates                                 []string
	positioned                                 bool
}

func (f *fanning) merge(p *passed) {
	r := &f.result
	r.Created = append(r.Created, p.created...)
	r.Fresh += len(p.fresh)
	r.Repeated += len(p.repeated)
	r.Unmarked += len(p.unmarked)
	r.Absent += len(p.absent)
	for fan, e := range p.stored {
		r.Stored[fan] = e
	}
	for _, id := range p.duplicates {
		if !slices.Contains(r.DuplicateIDs, id) {
			r.DuplicateIDs = append(r.DuplicateIDs, id)
		}
	}
	f.positioned = f.positioned || p.positioned
	if len(p.unmarked) > 0 {
		f.unmarkable.Do(func() {
			f.log.Warn("events are delivered, but their rows cannot be marked; look for a session that locks them, "+
				"or a trigger that undoes the mark",
				slog.String("table", f.table.QualifiedName()), slog.String("event_id", f.b.event(p.unmarked[0]).ID))
		})
	}
}

// try is the transaction of a pass.
func (f *fanning) try(ctx context.Context, q querier, t *eventTable, o *ourTables, srv *server, events []int, how lockMode) (*passed, error) {
	p := &passed{stored: map[int]event.Event{}}
	rows, err := f.rows(ctx, q, t, events, t.clause(how, srv))
	if err != nil {
		return nil, err
	}
	var fresh []int
	for _, n := range events {
		switch row, ok := rows[n]; {
		case !ok:
			p.missing = append(p.missing, n)
			continue
		case row.pending:
			fresh = append(fresh, n)
		default:
			p.repeated = append(p.repeated, n)
		}
		if rows[n].times > 1 {
			p.duplicates = append(p.duplicates, f.b.event(n).ID)
		}
	}
	if t.Mark.Kind == schema.MarkNone || how == lockNone {
		old, err := f.fannedOut(ctx, q, o, fresh)
		if err != nil {
			return nil, err
		}
		fresh, p.repeated = without(fresh, old), append(p.repeated, old...)
	}
	if how != lockNone {
		changed, err := f.mark(ctx, q, t, o, fresh)
		if err != nil {
			return nil, err
		}
		if p.unmarked, err = f.unheld(ctx, q, t, fresh, rows, changed); err != nil {
			return nil, err
		}
		p.fresh = without(fresh, p.unmarked)
	}
	if err := f.create(ctx, q, t, o, srv, p, fresh, rows); err != nil {
		return nil, err
	}
	if how == lockNone {
		// What is to be left alone counts as made from the log's image, whichever it was.
		for _, n := range fresh {
			if n >= f.b.rows {
				p.absent = append(p.absent, n)
			} else {
				p.unmarked = append(p.unmarked, n)
			}
		}
	}
	for _, c := range p.created {
		p.stored[c.Fan] = rows[f.b.place[c.Fan]].Event
	}
	if how == lockFree && len(p.missing) == 0 && f.b.rows == len(f.b.order) && len(events) == f.b.rows {
		p.positioned = true
		return p, f.savePosition(ctx, q)
	}
	return p, nil
}

// create inserts the deliveries of the events, whose rows were read, and notes those that are new. They are looked up only when
// not all of them are.
func (f *fanning) create(
	ctx context.Context, q querier, t *eventTable, o *ourTables, srv *server, p *passed, events []int, rows map[int]found,
) error {
	goals := f.b.goals(events)
	all, err := f.insert(ctx, q, t, o, srv, goals, rows)
	if err != nil {
		return err
	}
	if !all {
		return f.vanished(ctx, q, t, events, f.inserted(ctx, q, o, p, goals))
	}
	for _, g := range goals {
		p.created = append(p.created, delivery.Created{Fan: f.b.order[g.event], Target: g.target, Leased: rows[g.event].leased(f.b.target(g))})
	}
	return nil
}
