package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// deliveryColumns are what deliveryTargets take, of the alias d.
func (a *Admin) deliveryColumns(o *ourTables) string {
	return o.id.text("d.id") + ", " + o.eventID.text("d.event_id") + `, d.handler_name, d.event_type, d.model_type, d.model_id,
	d.event_date, d.state, d.attempts, COALESCE(d.claim_count, d.attempts), d.next_retry_at, COALESCE(d.lease_until > ` + a.now + `, 0),
	d.lease_owner, d.lease_until, d.created_date, d.updated_date, d.finished_date, d.retried_date, d.reason, d.last_error`
}

func deliveryTargets(d *admin.Delivery) []any {
	return []any{
		uuidTarget{&d.ID}, textTarget{&d.EventID}, &d.Handler, &d.EventType, textTarget{&d.ModelType}, textTarget{&d.ModelID},
		dateTarget{&d.EventDate}, &d.State, &d.Attempts, &d.Claims, dateTarget{&d.Due}, &d.Leased,
		textTarget{&d.LeaseOwner}, dateTarget{&d.LeaseUntil}, dateTarget{&d.Created}, dateTarget{&d.Updated},
		dateTarget{&d.Finished}, dateTarget{&d.Retried}, textTarget{&d.Reason}, textTarget{&d.LastError},
	}
}

// ListDeliveries returns deliveries, newest first. Pages are cut by key: rows that appear
// meanwhile shift nothing.
func (a *Admin) ListDeliveries(ctx context.Context, f admin.Filter, p admin.Page) (admin.Deliveries, error) {
	var list admin.Deliveries
	err := a.withOurs(ctx, func(o *ourTables) error {
		return a.ask(ctx, func(q querier) (err error) {
			b := (&statement{}).add("SELECT " + a.deliveryColumns(o) + " FROM " + a.names.deliveries + " AS d WHERE ")
			if err := a.where(ctx, q, o, f, b); err != nil {
				return err
			}
			if p.After != "" {
				after, err := uuid.Parse(p.After)
				if err != nil {
					return fmt.Errorf("page key %q is none of ours", p.After)
				}
				b.add(" AND d.id < ?", o.id.uuid(after))
			}
			list.Deliveries, err = query(ctx, q, b.add(" ORDER BY d.id DESC LIMIT ?", p.Size()+1), func(rows *sql.Rows) (d admin.Delivery, err error) {
				err = rows.Scan(deliveryTargets(&d)...)
				return d, err
			})
			return err
		})
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

// CountDeliveries counts up to the count limit.
func (a *Admin) CountDeliveries(ctx context.Context, f admin.Filter) (n admin.Count, err error) {
	err = a.withOurs(ctx, func(o *ourTables) error {
		return a.ask(ctx, func(q querier) error {
			b := (&statement{}).add("SELECT COUNT(*) FROM (SELECT 1 FROM " + a.names.deliveries + " AS d WHERE ")
			if err := a.where(ctx, q, o, f, b); err != nil {
				return err
			}
			b.add(" LIMIT ?) AS counted", a.cfg.CountLimit)
			return q.QueryRowContext(ctx, b.sql.String(), b.args...).Scan(&n.N)
		})
	})
	if err != nil {
		return admin.Count{}, fmt.Errorf("count deliveries: %w", err)
	}
	return a.counted(n.N), nil
}

// counted is a number that was counted up to the count limit.
func (a *Admin) counted(n int64) admin.Count {
	return admin.Count{N: n, More: n >= int64(a.cfg.CountLimit)}
}

// ShowDelivery returns one delivery with its history. Its error is [admin.ErrNotFound] when there is none.
func (a *Admin) ShowDelivery(ctx context.Context, id uuid.UUID) (admin.DeliveryStory, error) {
	var story admin.DeliveryStory
	err := a.withOurs(ctx, func(o *ourTables) error {
		return a.ask(ctx, func(q querier) error {
			stories, err := a.stories(ctx, q, o, (&statement{}).add("d.id = ?", o.id.uuid(id)))
			if err != nil {
				return err
			}
			if len(stories) == 0 {
				return admin.ErrNotFound
			}
			story = stories[0]
			return nil
		})
	})
	if err != nil {
		return admin.DeliveryStory{}, fmt.Errorf("delivery %s: %w", id, err)
	}
	return story, nil
}

// mostStories is how many deliveries of an event are shown.
const mostStories = 200

// stories reads deliveries with their history, by handler name.
func (a *Admin) stories(ctx context.Context, q querier, o *ourTables, where *statement) ([]admin.DeliveryStory, error) {
	b := (&statement{}).add("SELECT "+a.deliveryColumns(o)+", d.namespace, "+o.actionID.text("d.action_id")+`, d.action_name, d.action_params,
	d.started_date, d.completion_date, d.payload_raw, `+o.payload.text("d.payload")+", d.traceparent, d.headers FROM "+a.names.deliveries+" AS d WHERE ").
		add(where.sql.String(), where.args...).add(" ORDER BY d.handler_name LIMIT ?", mostStories)
	stories, err := query(ctx, q, b, scanStory)
	if err != nil {
		return nil, err
	}
	for i := range stories {
		if stories[i].History, err = a.history(ctx, q, o, stories[i].ID); err != nil {
			return nil, err
		}
	}
	return stories, nil
}

func scanStory(rows *sql.Rows) (s admin.DeliveryStory, err error) {
	var params, raw, payload, headers []byte
	e := &s.Event.Event
	err = rows.Scan(append(deliveryTargets(&s.Delivery), &e.Namespace, textTarget{&e.ActionID}, &e.ActionName, &params,
		dateTarget{&e.StartedDate}, dateTarget{&e.CompletionDate}, &raw, &payload, textTarget{&e.Traceparent}, &headers)...)
	e.ID, e.Type, e.ModelType, e.ModelID, e.Date = s.EventID, s.EventType, s.ModelType, s.ModelID, s.EventDate
	e.ActionParams, e.Headers, e.Payload = params, headers, payload
	if raw != nil {
		e.Payload = raw
	}
	return s, err
}

func (a *Admin) history(ctx context.Context, q querier, o *ourTables, id uuid.UUID) ([]admin.Attempt, error) {
	return collect(ctx, q, func(rows *sql.Rows) (t admin.Attempt, err error) {
		var us, line int64
		err = rows.Scan(&t.Attempt, &t.Outcome, textTarget{&t.Reason}, textTarget{&t.Error}, textTarget{&t.Message}, dateTarget{&t.Started}, &us, &line)
		t.Took = time.Duration(us) * time.Microsecond
		return t, err
	}, `SELECT * FROM (
	SELECT h.attempt, h.outcome, h.reason, h.error, h.message, h.started_date, h.duration_us, h.id
	FROM `+a.names.attempts+` AS h WHERE h.delivery_id = ? ORDER BY h.id DESC LIMIT ?) AS last
ORDER BY last.id`, o.deliveryID.uuid(id), admin.HistoryLimit)
}

// oneRow says whether a row was read; no row is no error.
func oneRow(err error) (found bool, _ error) {
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
