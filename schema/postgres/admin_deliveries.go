package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

const deliveryColumns = `d.id, d.event_id::text, d.handler_name, d.event_type, COALESCE(d.model_type, ''), COALESCE(d.model_id, ''),
	d.event_date, d.state, d.attempts, COALESCE(d.claim_count, d.attempts), d.next_retry_at, COALESCE(d.lease_until > {now}, false),
	COALESCE(d.lease_owner, ''), d.lease_until, d.created_date, d.updated_date, d.finished_date, d.retried_date,
	COALESCE(d.reason, ''), COALESCE(d.last_error, '')`

// targets are what deliveryColumns are scanned into.
func targets(d *admin.Delivery, id *pgtype.UUID) []any {
	return []any{
		id, &d.EventID, &d.Handler, &d.EventType, &d.ModelType, &d.ModelID,
		clampedTime{&d.EventDate}, &d.State, &d.Attempts, &d.Claims, clampedTime{&d.Due}, &d.Leased,
		&d.LeaseOwner, clampedTime{&d.LeaseUntil}, clampedTime{&d.Created}, clampedTime{&d.Updated},
		clampedTime{&d.Finished}, clampedTime{&d.Retried}, &d.Reason, &d.LastError,
	}
}

// clampedTime scans a timestamp of any value: infinity and years that JSON does not have
// come as the nearest that it has.
type clampedTime struct{ t *time.Time }

// ScanTimestamp implements [pgtype.TimestampScanner].
func (s clampedTime) ScanTimestamp(v pgtype.Timestamp) error {
	switch {
	case v.InfinityModifier == pgtype.Infinity || v.Time.Year() > 9999:
		v.Time = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
	case v.InfinityModifier == pgtype.NegativeInfinity || v.Valid && v.Time.Year() < 1:
		v.Time = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)
	}
	return timeTarget(s).ScanTimestamp(v)
}

// ListDeliveries returns deliveries, newest first. Pages are cut by key: rows that appear
// meanwhile shift nothing.
func (a *Admin) ListDeliveries(ctx context.Context, f admin.Filter, p admin.Page) (admin.Deliveries, error) {
	var list admin.Deliveries
	err := a.read(ctx, func(tx pgx.Tx) error {
		list = admin.Deliveries{}
		var args arguments
		where, err := a.where(ctx, tx, f, &args)
		if err != nil {
			return err
		}
		if p.After != "" {
			after, err := uuid.Parse(p.After)
			if err != nil {
				return fmt.Errorf("page key %q is none of ours", p.After)
			}
			where += " AND d.id < " + args.add(after.String(), "text") + "::uuid"
		}
		rows, err := tx.Query(ctx, "SELECT "+a.clocked(deliveryColumns)+" FROM "+a.sql.deliveries+" AS d WHERE "+where+
			" ORDER BY d.id DESC LIMIT "+args.add(p.Size()+1, "bigint"), args...)
		if err != nil {
			return err
		}
		list.Deliveries, err = pgx.CollectRows(rows, scanDelivery)
		return err
	})
	if err != nil {
		return admin.Deliveries{}, fmt.Errorf("list deliveries: %w", err)
	}
	if n := p.Size(); len(list.Deliveries) > n {
		list.Deliveries = list.Deliveries[:n]
		list.Next = list.Deliveries[n-1].ID.String()
	}
	return list, nil
}

func scanDelivery(row pgx.CollectableRow) (d admin.Delivery, err error) {
	var id pgtype.UUID
	err = row.Scan(targets(&d, &id)...)
	d.ID = id.Bytes
	return d, err
}

// CountDeliveries counts up to the count limit.
func (a *Admin) CountDeliveries(ctx context.Context, f admin.Filter) (n admin.Count, err error) {
	err = a.read(ctx, func(tx pgx.Tx) error {
		var args arguments
		where, err := a.where(ctx, tx, f, &args)
		if err != nil {
			return err
		}
		n, err = a.count(ctx, tx, a.sql.deliveries+" AS d", where, args)
		return err
	})
	if err != nil {
		return admin.Count{}, fmt.Errorf("count deliveries: %w", err)
	}
	return n, nil
}

// count counts rows up to the count limit.
func (a *Admin) count(ctx context.Context, tx pgx.Tx, from, where string, args arguments) (n admin.Count, err error) {
	limit := args.add(a.cfg.CountLimit, "bigint")
	err = tx.QueryRow(ctx, "SELECT count(*) FROM (SELECT FROM "+from+" WHERE "+where+" LIMIT "+limit+") AS counted", args...).Scan(&n.N)
	n.More = n.N >= int64(a.cfg.CountLimit)
	return n, err
}

const storyColumns = `, d.namespace, d.action_id::text, d.action_name, d.action_params::text, d.started_date, d.completion_date,
	COALESCE(d.payload_raw, convert_to(d.payload::text, 'UTF8')), COALESCE(d.traceparent, ''), d.headers::text`

// ShowDelivery returns one delivery with its history. Its error is [admin.ErrNotFound] when there is none.
func (a *Admin) ShowDelivery(ctx context.Context, id uuid.UUID) (admin.DeliveryStory, error) {
	var story admin.DeliveryStory
	err := a.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT "+a.clocked(deliveryColumns)+storyColumns+" FROM "+a.sql.deliveries+" AS d WHERE d.id = $1::text::uuid", id.String())
		if err != nil {
			return err
		}
		if story, err = pgx.CollectExactlyOneRow(rows, scanStory); err != nil {
			return err
		}
		story.History, err = a.history(ctx, tx, id)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = admin.ErrNotFound
	}
	if err != nil {
		return admin.DeliveryStory{}, fmt.Errorf("delivery %s: %w", id, err)
	}
	return story, nil
}

func scanStory(row pgx.CollectableRow) (s admin.DeliveryStory, err error) {
	var id pgtype.UUID
	var params, headers *string
	e := &s.Event.Event
	err = row.Scan(append(targets(&s.Delivery, &id), &e.Namespace, &e.ActionID, &e.ActionName, &params, clampedTime{&e.StartedDate},
		clampedTime{&e.CompletionDate}, (*[]byte)(&e.Payload), &e.Traceparent, &headers)...)
	s.ID = id.Bytes
	e.ID, e.Type, e.ModelType, e.ModelID, e.Date = s.EventID, s.EventType, s.ModelType, s.ModelID, s.EventDate
	e.ActionParams, e.Headers = document(params), document(headers)
	return s, err
}

func document(text *string) json.RawMessage {
	if text == nil {
		return nil
	}
	return json.RawMessage(*text)
}

func (a *Admin) history(ctx context.Context, tx pgx.Tx, id uuid.UUID) ([]admin.Attempt, error) {
	rows, err := tx.Query(ctx, `SELECT * FROM (
		SELECT h.attempt, h.outcome, COALESCE(h.reason, ''), COALESCE(h.error, ''), COALESCE(h.message, ''), h.started_date, h.duration_us, h.id
		FROM `+a.in("event_notification_attempts")+` AS h WHERE h.delivery_id = $1::text::uuid ORDER BY h.id DESC LIMIT $2::bigint) AS last
		ORDER BY id`, id.String(), admin.HistoryLimit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t admin.Attempt, err error) {
		var us, line int64
		err = row.Scan(&t.Attempt, &t.Outcome, &t.Reason, &t.Error, &t.Message, clampedTime{&t.Started}, &us, &line)
		t.Took = time.Duration(us) * time.Microsecond
		return t, err
	})
}
