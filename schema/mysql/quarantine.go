package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// Quarantine implements pipeline.FanOutStore. When the database refuses the mark as well, the
// deliveries are inserted without it and the error is returned: the event is then
// visible as BLOCKED, and stays unmarked.
func (s *Store) Quarantine(ctx context.Context, fan delivery.Fan, cause error) error {
	if len(fan.Targets) == 0 {
		return fmt.Errorf("quarantine event %s: it has no targets", fan.Event.ID)
	}
	forms := []event.Event{reduced(fan.Event), bare(fan.Event)}
	details := []string{
		codeOf(cause),
		fmt.Sprintf("%s: payload of %d bytes, sha256 %x", codeOf(cause), len(fan.Event.Payload), sha256.Sum256(fan.Event.Payload)),
	}
	quarantine := func(marked bool) (err error) {
		for i, form := range forms {
			if err = s.quarantine(ctx, fan, form, details[i], marked); err == nil || !rejected(err) {
				return err
			}
		}
		return err
	}
	err := quarantine(true)
	if err == nil {
		return nil
	}
	if rejected(err) {
		if quarantine(false) == nil {
			return coded(fmt.Errorf("quarantine event %s: its deliveries are BLOCKED, but the database refuses its mark: %w", fan.Event.ID, err))
		}
		if absent := s.absent(ctx, fan.Event); absent != nil {
			err = errors.Join(err, absent)
		}
	}
	return coded(fmt.Errorf("quarantine event %s: %w", fan.Event.ID, err))
}

func codeOf(cause error) string {
	return cmp.Or(errorCode(cause), event.Code(cause))
}

// reduced keeps what is short and has a shape of its own.
func reduced(e event.Event) event.Event {
	return event.Event{
		ID: e.ID, Key: e.Key, Namespace: short(e.Namespace), ActionID: e.ActionID, ActionName: short(e.ActionName),
		StartedDate: e.StartedDate, CompletionDate: e.CompletionDate, ModelID: short(e.ModelID), ModelType: short(e.ModelType),
		Type: short(e.Type), Date: e.Date,
	}
}

// bare keeps what says which event it is and nothing of its content that a constraint could be about. The hash in
// last_error tells whether a copy of the payload that turns up elsewhere is the right one.
func bare(e event.Event) event.Event {
	return event.Event{ID: e.ID, Key: e.Key, Type: short(e.Type)}
}

// short is a text as a VARCHAR(255) takes it.
func short(s string) string {
	runes := []rune(clean(s))
	return string(runes[:min(len(runes), 255)])
}

// quarantine writes the event's deliveries in one form. Every value is a parameter, so that nothing of the row is read.
func (s *Store) quarantine(ctx context.Context, fan delivery.Fan, e event.Event, detail string, marked bool) error {
	return s.withTable(ctx, func(t *eventTable, o *ourTables) error {
		return s.change(ctx, func(q querier) error {
			if marked && t.Mark.Kind != schema.MarkNone {
				if _, err := s.setMark(ctx, q, t, []string{cmp.Or(e.Key, e.ID)}, t.Mark.Done); err != nil {
					return err
				}
			}
			return s.insertQuarantined(ctx, q, o, fan, e, detail)
		})
	})
}

func (s *Store) insertQuarantined(ctx context.Context, q querier, o *ourTables, fan delivery.Fan, e event.Event, detail string) error {
	date := "COALESCE(CAST(? AS DATETIME(6)), c.now)"
	at := timeText(e.Date)
	dated := func(t time.Time) []any { return []any{timeText(t), at} }
	var pairs []address
	for _, target := range fan.Targets {
		b := (&statement{}).add("INSERT INTO "+s.names.deliveries+` (id, event_id, handler_name, namespace, action_id, action_name, action_params,
    started_date, completion_date, model_id, model_type, event_type, event_date,
    state, attempts, next_retry_at, created_date, updated_date, claim_count, reason, last_error)
SELECT ?, ?, ?, ?, ?, ?, '{}', `, o.id.uuid(target.ID), o.eventID.ids([]string{e.ID})[0], short(target.Handler), e.Namespace,
			o.actionID.ids([]string{cmp.Or(e.ActionID, e.ID)})[0], e.ActionName)
		b.add("COALESCE(CAST(? AS DATETIME(6)), "+date+"), ", dated(e.StartedDate)...)
		b.add("COALESCE(CAST(? AS DATETIME(6)), "+date+"), ", dated(e.CompletionDate)...)
		b.add("?, ?, ?, "+date+", ", orNull(e.ModelID), orNull(e.ModelType), e.Type, at)
		b.add("'BLOCKED', 0, LEAST("+date+", c.now), c.now, c.now, 0, ?, ?", at, delivery.ReasonRejected, orNull(detail))
		b.add("\nFROM (SELECT " + s.now + " AS now) AS c" + s.onDuplicate())
		if err := b.exec(ctx, q); err != nil {
			return err
		}
		pairs = append(pairs, address{e.ID, short(target.Handler)})
	}
	return s.mustExist(ctx, q, o, pairs)
}

// absent returns [delivery.ErrAbsent] when the event has no row, and nil when it has. An error that
// keeps the question open is returned as it is.
func (s *Store) absent(ctx context.Context, e event.Event) error {
	var present bool
	err := s.withTable(ctx, func(t *eventTable, _ *ourTables) error {
		return s.read(ctx, func(q querier) error {
			b := (&statement{}).add("SELECT EXISTS (SELECT 1 FROM " + t.from + " AS t" + t.force + " WHERE ")
			t.havingKeys(b, []string{cmp.Or(e.Key, e.ID)}).add(")")
			return q.QueryRowContext(ctx, b.sql.String(), b.args...).Scan(&present)
		})
	})
	switch {
	case err != nil && !rejected(err):
		return fmt.Errorf("look for its row: %w", err)
	case err != nil || !present:
		return delivery.ErrAbsent
	}
	return nil
}
