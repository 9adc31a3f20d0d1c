package mysql

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// dateTarget scans the text of a DATETIME or DATE in UTC; null is the zero time.
type dateTarget struct{ t *time.Time }

// Scan implements [sql.Scanner].
func (d dateTarget) Scan(v any) (err error) {
	switch v := v.(type) {
	case nil:
		*d.t = time.Time{}
	case []byte:
		*d.t, err = parseTime(string(v))
	case string:
		*d.t, err = parseTime(v)
	case time.Time: // a pool with ParseTime
		*d.t = v.UTC()
	default:
		err = fmt.Errorf("a time came as %T", v)
	}
	return err
}

const timeLayout = "2006-01-02 15:04:05.999999"

// parseTime reads a time as the server prints it. A date that is zero, or zero in part, becomes the
// earliest time, as it does in SQL.
func parseTime(s string) (time.Time, error) {
	first, err := time.Parse(timeLayout, earliest)
	if err != nil {
		return first, err
	}
	if date, _, _ := strings.Cut(s, " "); strings.HasPrefix(date, "0000-") || strings.Contains(date, "-00") {
		return first, nil
	}
	if len(s) == len(time.DateOnly) {
		s += " 00:00:00"
	}
	t, err := time.Parse(timeLayout, s)
	if err == nil && t.Before(first) {
		t = first
	}
	return t, err
}

// timeText is a time as a parameter: text in UTC, nil for the zero time.
func timeText(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(timeLayout)
}

// textTarget scans a text; null is the empty text.
type textTarget struct{ s *string }

// Scan implements [sql.Scanner].
func (d textTarget) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*d.s = ""
	case []byte:
		*d.s = string(v)
	case string:
		*d.s = v
	default:
		*d.s = fmt.Sprint(v)
	}
	return nil
}

// uuidTarget scans a UUID from its text, or from its 32 hex digits; null is the zero UUID.
type uuidTarget struct{ id *uuid.UUID }

// Scan implements [sql.Scanner].
func (d uuidTarget) Scan(v any) (err error) {
	var text string
	if err := (textTarget{&text}).Scan(v); err != nil {
		return err
	}
	if text == "" {
		*d.id = uuid.Nil
		return nil
	}
	*d.id, err = uuid.Parse(text)
	return err
}

// scanID reads rows that are the text of a UUID.
func scanID(rows *sql.Rows) (id uuid.UUID, err error) {
	err = rows.Scan(uuidTarget{&id})
	return id, err
}

func scanText(rows *sql.Rows) (s string, err error) {
	err = rows.Scan(textTarget{&s})
	return s, err
}

// eventRow is a row of the event table.
type eventRow struct {
	event.Event
	// pending says that it is not fanned out yet; it is true where there is no mark.
	pending bool
}

// eventValues are what scanEvent reads.
func (t *eventTable) eventValues() string {
	c := &t.Columns
	value := func(name string) string {
		if name == "" {
			return "NULL"
		}
		return t.text(name)
	}
	pending := "1"
	if t.Mark.Kind != schema.MarkNone {
		pending = parens(t.pending())
	}
	return strings.Join([]string{
		pending, t.text(c.ID), value(c.Namespace), value(c.ActionID), value(c.ActionName), value(c.ActionParams), value(c.StartedDate),
		value(c.CompletionDate), value(c.ModelID), value(c.ModelType), value(c.Type), value(c.Payload), value(c.Date),
		value(c.Traceparent), value(c.Headers),
	}, ",\n       ")
}

// scanEvent reads a row as schema.Decoder reads the same row of the log.
func (t *eventTable) scanEvent(rows *sql.Rows) (eventRow, error) { return t.scanEventAnd(rows) }

// scanEventAnd reads more columns after those of the event.
func (t *eventTable) scanEventAnd(rows *sql.Rows, more ...any) (r eventRow, err error) {
	var key, action string
	var params, payload, headers []byte
	e := &r.Event
	err = rows.Scan(append([]any{
		&r.pending, textTarget{&key}, textTarget{&e.Namespace}, textTarget{&action}, textTarget{&e.ActionName}, &params,
		dateTarget{&e.StartedDate}, dateTarget{&e.CompletionDate}, textTarget{&e.ModelID}, textTarget{&e.ModelType}, textTarget{&e.Type},
		&payload, dateTarget{&e.Date}, textTarget{&e.Traceparent}, &headers,
	}, more...)...)
	e.ActionParams, e.Payload, e.Headers = params, payload, headers
	var derived bool
	if e.ID, derived = schema.EventID(t.QualifiedName(), key); derived {
		e.Key = key
	}
	if action != "" {
		e.ActionID, _ = schema.EventID(t.QualifiedName(), action)
	}
	return r, err
}

// rawOrNil is nil for an absent document.
func rawOrNil(raw json.RawMessage) any {
	if raw == nil {
		return nil
	}
	return string(raw)
}
