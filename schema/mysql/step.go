package mysql

import (
	"context"
	"log/slog"
	"slices"

	"github.com/google/uuid"
)

const (
	// stepSize is how many rows a background step changes in one transaction.
	stepSize = 1000
	// leftOutMost is how many rows a step passes over before it leaves the rest to the next one.
	leftOutMost = 10 * stepSize
)

// step is something that is done to all deliveries that a look finds.
type step struct {
	// find lists some of them, but for those that are left out.
	find func(q querier, o *ourTables, leftOut []any) ([]uuid.UUID, error)
	// still is what has to hold for a row once it is locked.
	still func(q querier) (*statement, error)
	// set is what is done to it.
	set *statement
}

// condition is a step's still that needs no look at other tables.
func condition(sql string, args ...any) func(querier) (*statement, error) {
	return func(querier) (*statement, error) { return (&statement{}).add(sql, args...), nil }
}

// step finds rows and changes them, a batch at a time, until no more are found. What another session has locked, or was
// faster to change, is left out. So is a row that the database refuses to change, which is reported
// to the logger; it stops neither the others nor the step (Q25).
func (s *Store) step(ctx context.Context, st step) (total int, err error) {
	for leftOut := []string{}; len(leftOut) < leftOutMost; {
		var ids []uuid.UUID
		err := s.withOurs(ctx, func(o *ourTables) error {
			return s.read(ctx, func(q querier) (err error) {
				ids, err = st.find(q, o, o.id.ids(leftOut))
				return err
			})
		})
		if err != nil || len(ids) == 0 {
			return total, err
		}
		changed := make(map[uuid.UUID]bool, len(ids))
		bad, err := separately(sortedUUIDs(ids), func(part []uuid.UUID) error {
			done, err := s.changeFree(ctx, st, part)
			for _, id := range done {
				changed[id] = true
			}
			return err
		})
		total += len(changed)
		if err != nil && !rejected(err) {
			return total, err
		}
		for _, id := range bad {
			s.log.Warn("the database refuses to change a delivery; it is left as it is",
				slog.String("delivery_id", id.String()), slog.Int("error_number", errorNumber(err)))
		}
		for _, id := range ids {
			if !changed[id] {
				leftOut = append(leftOut, id.String())
			}
		}
	}
	return total, nil
}

// changeFree changes those of the rows that nobody else has locked, in one transaction where the server can skip the
// others, and returns them.
func (s *Store) changeFree(ctx context.Context, st step, ids []uuid.UUID) (changed []uuid.UUID, err error) {
	srv, err := s.serverOf(ctx)
	if err != nil {
		return nil, err
	}
	if srv.skipLocked {
		err = again(ctx, func() error {
			changed, err = s.changeLocking(ctx, st, ids, "FOR UPDATE SKIP LOCKED")
			return err
		})
		return changed, err
	}
	changed, err = s.changeLocking(ctx, st, ids, "FOR UPDATE NOWAIT")
	if !passing(err) && !locked(err) {
		return changed, err
	}
	// One by one, to tell those that are locked from the others.
	for one := range slices.Chunk(ids, 1) {
		done, err := s.changeLocking(ctx, st, one, "FOR UPDATE NOWAIT")
		if err != nil && !passing(err) && !locked(err) {
			return changed, err
		}
		changed = append(changed, done...)
	}
	return changed, nil
}

// changeLocking is one transaction: the rows are locked in the order of their keys, and then changed. It returns them if it commits.
func (s *Store) changeLocking(ctx context.Context, st step, ids []uuid.UUID, clause string) (changed []uuid.UUID, err error) {
	err = s.withOurs(ctx, func(o *ourTables) error {
		return s.once(ctx, lockSeconds, func(q querier) error {
			still, err := st.still(q)
			if err != nil {
				return err
			}
			b := (&statement{}).add("SELECT "+o.id.text("d.id")+" FROM "+s.names.deliveries+" AS d FORCE INDEX (PRIMARY) WHERE ").
				add(still.sql.String(), still.args...).add(" AND d.id IN ").list(o.id.uuids(ids)).add(" " + clause)
			if changed, err = query(ctx, q, b, scanID); err != nil || len(changed) == 0 {
				return err
			}
			b = (&statement{}).add("UPDATE "+s.names.deliveries+" AS d FORCE INDEX (PRIMARY) SET ").
				add(st.set.sql.String(), st.set.args...).add(" WHERE d.id IN ").list(o.id.uuids(changed))
			return b.exec(ctx, q)
		})
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}
