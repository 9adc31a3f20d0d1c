package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// found is a row of an event of the batch.
type found struct {
	eventRow
	// age is how old the event was when its row was read, in microseconds. One without a date is new.
	age int64
	// times counts the rows with the same key.
	times int
}

// leased says that the delivery of a target is created leased (C64): one that is too old already is left to a claim, which
// ends it.
func (r found) leased(t *delivery.Target) bool {
	return t.Lease && t.Blocked == "" && (t.Window == 0 || r.age <= micros(t.Window))
}

// rows reads the events' rows. A database may take two keys for one; only the very key counts.
func (f *fanning) rows(ctx context.Context, q querier, t *eventTable, events []int, clause string) (map[int]found, error) {
	byID := make(map[string]int, len(events))
	for _, n := range events {
		byID[f.b.event(n).ID] = n
	}
	rows := make(map[int]found, len(events))
	for part := range slices.Chunk(events, keysPerStatement) {
		b := (&statement{}).add("SELECT " + t.eventValues() + ", " + f.since(orElse(t.Columns.Date, t.timestamp, f.now)) + "\nFROM " + t.from + " AS t" + t.force +
			"\nWHERE " + t.ref(t.Columns.ID) + " IN ")
		b.list(t.key().args(f.b.keys(part))).add(" " + clause)
		list, err := query(ctx, q, b, func(rows *sql.Rows) (r found, err error) {
			r.eventRow, err = t.scanEventAnd(rows, &r.age)
			return r, err
		})
		if err != nil {
			return nil, err
		}
		for _, row := range list {
			n, ok := byID[row.ID]
			if !ok {
				continue
			}
			one, times := rows[n], rows[n].times+1
			if times == 1 || row.pending && !one.pending {
				one = row
			}
			one.times = times
			rows[n] = one
		}
	}
	return rows, nil
}

// fannedOut lists those of the events that have deliveries.
func (f *fanning) fannedOut(ctx context.Context, q querier, o *ourTables, events []int) ([]int, error) {
	byID := make(map[uuid.UUID]int, len(events))
	var ids []string
	for _, n := range events {
		id, err := uuid.Parse(f.b.event(n).ID)
		if err != nil {
			return nil, fmt.Errorf("the id of an event: %w", err)
		}
		byID[id] = n
		ids = append(ids, f.b.event(n).ID)
	}
	var old []int
	for part := range slices.Chunk(ids, keysPerStatement) {
		b := (&statement{}).add("SELECT DISTINCT " + o.eventID.text("d.event_id") + " FROM " + f.names.deliveries + " AS d WHERE d.event_id IN ")
		list, err := query(ctx, q, b.list(o.eventID.ids(part)), scanID)
		if err != nil {
			return nil, err
		}
		for _, id := range list {
			old = append(old, byID[id])
		}
	}
	slices.Sort(old)
	return old, nil
}

// mark marks the events, whose rows are locked, and says how many rows it has changed.
func (f *fanning) mark(ctx context.Context, q querier, t *eventTable, o *ourTables, events []int) (changed int64, err error) {
	if t.Mark.Kind == schema.MarkNone || len(events) == 0 {
		return 0, nil
	}
	done, none := events, []int(nil)
	if targeted := f.b.withTargets(events); t.Mark.Kind != schema.MarkBoolean && len(targeted) < len(events) {
		// What got deliveries in another way is not without any.
		bare := without(events, targeted)
		had, err := f.fannedOut(ctx, q, o, bare)
		if err != nil {
			return 0, err
		}
		done, none = append(targeted, had...), without(bare, had)
	}
	changed, err = f.setMark(ctx, q, t, f.b.keys(done), t.Mark.Done)
	if err != nil {
		return 0, err
	}
	more, err := f.setMark(ctx, q, t, f.b.keys(none), t.Mark.None)
	return changed + more, err
}

// setMark marks the rows with the given keys that are pending, and counts them. The status is that of a status column.
func (s *Store) setMark(ctx context.Context, q querier, t *eventTable, keys []string, status string) (changed int64, err error) {
	for part := range slices.Chunk(keys, keysPerStatement) {
		b := (&statement{}).add("UPDATE " + t.from + " AS t" + t.force + " SET " + t.ref(t.Mark.Column) + " = ")
		if t.Mark.Kind == schema.MarkBoolean {
			b.add("1")
		} else {
			b.add("?", status)
			if t.Mark.At != "" {
				b.add(", " + t.ref(t.Mark.At) + " = " + s.now)
			}
		}
		b.add(" WHERE " + t.pending() + " AND ")
		n, err := t.havingKeys(b, part).affecting(ctx, q)
		if err != nil {
			return 0, err
		}
		changed += n
	}
	return changed, nil
}

// havingKeys adds the condition for the rows with exactly these keys.
func (t *eventTable) havingKeys(b *statement, keys []string) *statement {
	b.add(t.ref(t.Columns.ID) + " IN ").list(t.key().args(keys))
	if !t.alike() {
		return b
	}
	exact := make([]any, len(keys))
	for i, key := range keys {
		exact[i] = []byte(key)
	}
	return b.add(" AND " + bytesOf(t.text(t.Columns.ID)) + " IN ").list(exact)
}

// unheld lists those of the events that were to be marked, and are not. Marks that were all changed are not looked at again, for the
// sake of speed. A trigger that undoes a part of a mark is found out by the poller, whose events are always looked at.
func (f *fanning) unheld(ctx context.Context, q querier, t *eventTable, events []int, rows map[int]found, changed int64) ([]int, error) {
	sure := changed == int64(len(events)) && !slices.ContainsFunc(events, func(n int) bool { return rows[n].times > 1 || !f.b.fan(n).FromLog })
	if sure || t.Mark.Kind == schema.MarkNone {
		return nil, nil
	}
	return f.stillPending(ctx, q, t, events)
}

// vanished tells deliveries that were not inserted because their event's row, which nobody had locked, was deleted after it
// was read from those that the database did not take.
func (f *fanning) vanished(ctx context.Context, q querier, t *eventTable, events []int, cause error) error {
	if !errors.Is(cause, errCollision) {
		return cause
	}
	switch rows, err := f.rows(ctx, q, t, events, ""); {
	case err != nil:
		return err
	case len(rows) < len(events):
		return errVanished
	}
	return cause
}

// stillPending lists events whose mark did not hold, because a trigger undoes it.
func (f *fanning) stillPending(ctx context.Context, q querier, t *eventTable, events []int) (undone []int, err error) {
	byID := make(map[string]int, len(events))
	for _, n := range events {
		byID[f.b.event(n).ID] = n
	}
	for part := range slices.Chunk(events, keysPerStatement) {
		b := (&statement{}).add("SELECT " + t.text(t.Columns.ID) + " FROM " + t.from + " AS t" + t.force + " WHERE " + t.pending() + " AND ")
		keys, err := query(ctx, q, t.havingKeys(b, f.b.keys(part)), scanText)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			id, _ := schema.EventID(t.QualifiedName(), key)
			if n, ok := byID[id]; ok && !slices.Contains(undone, n) {
				undone = append(undone, n)
			}
		}
	}
	return undone, nil
}

// inserted adds the deliveries that are new to what was passed. The ids are ours alone, so those that are there
// are new. All others must have been there before under their event and handler; the database's idea of
// "the same handler" may be another than ours, and then a delivery would be lost.
func (f *fanning) inserted(ctx context.Context, q querier, o *ourTables, p *passed, goals []goal) error {
	type row struct {
		id     uuid.UUID
		leased bool
	}
	var lost []goal
	for part := range slices.Chunk(goals, keysPerStatement) {
		ids := make([]uuid.UUID, len(part))
		for i, g := range part {
			ids[i] = f.b.target(g).ID
		}
		b := (&statement{}).add("SELECT " + o.id.text("d.id") + ", d.lease_token IS NOT NULL FROM " + f.names.deliveries +
			" AS d FORCE INDEX (PRIMARY) WHERE d.id IN ")
		list, err := query(ctx, q, b.list(o.id.uuids(ids)), func(rows *sql.Rows) (r row, err error) {
			err = rows.Scan(uuidTarget{&r.id}, &r.leased)
			return r, err
		})
		if err != nil {
			return err
		}
		leased := make(map[uuid.UUID]bool, len(list))
		for _, r := range list {
			leased[r.id] = r.leased
		}
		for _, g := range part {
			if l, ok := leased[f.b.target(g).ID]; ok {
				p.created = append(p.created, delivery.Created{Fan: f.b.order[g.event], Target: g.target, Leased: l})
			} else {
				lost = append(lost, g)
			}
		}
	}
	return f.mustExist(ctx, q, o, lost)
}

func (f *fanning) mustExist(ctx context.Context, q querier, o *ourTables, goals []goal) error {
	pairs := make([]address, len(goals))
	for i, g := range goals {
		pairs[i] = address{f.b.event(g.event).ID, f.b.target(g).Handler}
	}
	return f.Store.mustExist(ctx, q, o, pairs)
}

// address names a delivery.
type address struct{ event, handler string }

// mustExist makes sure that each of the deliveries is there, byte by byte.
func (s *Store) mustExist(ctx context.Context, q querier, o *ourTables, pairs []address) error {
	for part := range slices.Chunk(pairs, keysPerStatement) {
		ids := make([]string, len(part))
		for i, p := range part {
			ids[i] = p.event
		}
		b := (&statement{}).add("SELECT " + o.eventID.text("d.event_id") + ", d.handler_name FROM " + s.names.deliveries + " AS d WHERE d.event_id IN ")
		list, err := query(ctx, q, b.list(o.eventID.ids(ids)), func(rows *sql.Rows) (p address, err error) {
			var id uuid.UUID
			err = rows.Scan(uuidTarget{&id}, textTarget{&p.handler})
			p.event = id.String()
			return p, err
		})
		if err != nil {
			return err
		}
		there := make(map[address]bool, len(list))
		for _, p := range list {
			there[p] = true
		}
		for _, p := range part {
			if !there[p] {
				return errCollision
			}
		}
	}
	return nil
}
