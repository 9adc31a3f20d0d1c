package mysql

import (
	"context"
	"database/sql"
	"slices"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// deliveries reads deliveries that hold the token.
func (s *Store) deliveries(ctx context.Context, q querier, o *ourTables, ids []uuid.UUID, token uuid.UUID) (map[uuid.UUID]delivery.Claimed, error) {
	all := make(map[uuid.UUID]delivery.Claimed, len(ids))
	for part := range slices.Chunk(ids, keysPerStatement) {
		b := (&statement{}).add("SELECT "+o.id.text("d.id")+", d.handler_name, d.attempts, COALESCE(d.claim_count, d.attempts), "+
			o.eventID.text("d.event_id")+", d.namespace, "+o.actionID.text("d.action_id")+`, d.action_name, d.action_params,
    CAST(d.started_date AS CHAR), CAST(d.completion_date AS CHAR), d.model_id, d.model_type, d.event_type, d.payload_raw, d.payload,
    CAST(d.event_date AS CHAR), d.traceparent, d.headers
FROM `+s.names.deliveries+" AS d FORCE INDEX (PRIMARY) WHERE d.lease_token = ? AND d.id IN ", o.token.uuid(token)).list(o.id.uuids(part))
		rows, err := query(ctx, q, b, scanClaimed)
		if err != nil {
			return nil, err
		}
		for _, one := range rows {
			all[one.ID] = one
		}
	}
	return all, nil
}

func scanClaimed(rows *sql.Rows) (c delivery.Claimed, err error) {
	var id, action uuid.UUID
	var params, raw, payload, headers []byte
	e := &c.Event
	err = rows.Scan(uuidTarget{&c.ID}, &c.Stored, &c.Attempts, &c.Claims, uuidTarget{&id}, &e.Namespace, uuidTarget{&action}, &e.ActionName, &params,
		dateTarget{&e.StartedDate}, dateTarget{&e.CompletionDate}, textTarget{&e.ModelID}, textTarget{&e.ModelType}, &e.Type, &raw, &payload,
		dateTarget{&e.Date}, textTarget{&e.Traceparent}, &headers)
	if raw != nil {
		payload = raw
	}
	e.ID, e.ActionID = id.String(), action.String()
	e.ActionParams, e.Payload, e.Headers = params, payload, headers
	return c, err
}

// storedDeliveries are the events of leased deliveries as they were stored.
func (f *fanning) storedDeliveries(ctx context.Context, q querier, o *ourTables, created []delivery.Created) (map[int]event.Event, error) {
	var ids []uuid.UUID
	for _, c := range created {
		if c.Leased {
			ids = append(ids, f.b.Fans[c.Fan].Targets[c.Target].ID)
		}
	}
	rows, err := f.deliveries(ctx, q, o, ids, f.b.Lease.Token)
	if err != nil {
		return nil, err
	}
	stored := map[int]event.Event{}
	for _, c := range created {
		if one, ok := rows[f.b.Fans[c.Fan].Targets[c.Target].ID]; ok {
			e := one.Event
			e.Key = f.b.Fans[c.Fan].Event.Key
			stored[c.Fan] = e
		}
	}
	return stored, nil
}
