package mysql

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// hasPosition says that the batch completes a place in the log that is kept here.
func (f *fanning) hasPosition() bool {
	return f.b.Position != "" && f.b.Source != "" && f.b.Epoch != 0
}

// savePosition keeps the position while its epoch is the source's. When it is not, somebody else reads, and where
// that one is counts; the deliveries are written all the same, because they are true.
func (f *fanning) savePosition(ctx context.Context, q querier) error {
	if !f.hasPosition() {
		return nil
	}
	_, err := q.ExecContext(ctx, "UPDATE "+f.names.sources+" SET position = ?, updated_date = "+f.now+" WHERE name = ? AND epoch = ?",
		string(f.b.Position), clean(f.b.Source), f.b.Epoch)
	return err
}

// position keeps the position after everything before it is committed.
func (f *fanning) position(ctx context.Context) error {
	if f.positioned || !f.hasPosition() {
		return nil
	}
	return f.change(ctx, func(q querier) error { return f.savePosition(ctx, q) })
}

// unlease frees what was created for a caller that is told of an error instead. Without it
// the deliveries would wait for the end of their lease.
func (s *Store) unlease(ctx context.Context, b *fanBatch, created []delivery.Created) error {
	var ids []uuid.UUID
	for _, c := range created {
		if c.Leased {
			ids = append(ids, b.Fans[c.Fan].Targets[c.Target].ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return s.withOurs(ctx, func(o *ourTables) error {
		return s.change(ctx, func(q querier) error {
			for part := range slices.Chunk(sortedUUIDs(ids), keysPerStatement) {
				st := (&statement{}).add("UPDATE "+s.names.deliveries+" AS d FORCE INDEX (PRIMARY) SET claim_count = 0, "+
					"next_retry_at = LEAST(d.event_date, "+s.now+"), lease_until = NULL, lease_owner = NULL, lease_token = NULL "+
					"WHERE d.lease_token = ? AND d.state = 'PENDING' AND d.id IN ", o.token.uuid(b.Lease.Token))
				if err := st.list(o.id.uuids(part)).exec(ctx, q); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
