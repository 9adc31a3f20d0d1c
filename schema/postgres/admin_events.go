package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// pageKey is where a page of events ends. The date of a row without one is empty.
type pageKey struct {
	Date string `json:"d,omitempty"`
	Key  string `json:"k"`
}

// ListEvents returns rows of the event table. On a table without an index on its date, every page
// reads the whole table, within the time limit.
func (a *Admin) ListEvents(ctx context.Context, f admin.EventFilter, p admin.Page) (admin.Events, error) {
	t, err := a.eventTable(ctx)
	if err != nil {
		return admin.Events{}, fmt.Errorf("list events: %w", err)
	}
	var args arguments
	where, err := t.eventsWhere(f, p, &args)
	if err != nil {
		return admin.Events{}, fmt.Errorf("list events: %w", err)
	}
	order := t.ref(t.Columns.ID) + " DESC"
	if t.Columns.Date != "" {
		order = t.ref(t.Columns.Date) + " DESC, " + order
	}
	var list admin.Events
	var keys []pageKey
	err = a.read(ctx, func(tx pgx.Tx) error {
		list, keys = admin.Events{}, nil
		rows, err := tx.Query(ctx, `SELECT `+t.summaryColumns()+`
			FROM (SELECT * FROM `+t.from+` AS t WHERE `+where+` ORDER BY `+order+` LIMIT `+args.add(p.Size()+1, "bigint")+`) AS t
			ORDER BY `+order, args...)
		if err != nil {
			return err
		}
		list.Events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e admin.EventSummary, err error) {
			var key pageKey
			err = row.Scan(&e.ID, &key.Key, &key.Date, &e.Type, clampedTime{&e.Date}, &e.Namespace, &e.ModelType, &e.ModelID, &e.Pending, &e.Deliveries)
			if e.ID != key.Key {
				e.Key = key.Key
			}
			keys = append(keys, key)
			return e, err
		})
		return err
	})
	if err != nil {
		return admin.Events{}, fmt.Errorf("list events: %w", err)
	}
	if n := p.Size(); len(list.Events) > n {
		list.Events = list.Events[:n]
		next, err := json.Marshal(keys[n-1])
		if err != nil {
			return admin.Events{}, err
		}
		list.Next = string(next)
	}
	return list, nil
}

func (t *eventTable) eventsWhere(f admin.EventFilter, p admin.Page, args *arguments) (string, error) {
	conditions := []string{t.typed()}
	and := func(format string, values ...any) { conditions = append(conditions, fmt.Sprintf(format, values...)) }
	typ := parens(t.text(t.Columns.Type))
	if prefix, ok := strings.CutSuffix(f.Type, "*"); ok {
		and("starts_with(%s, %s)", typ, args.add(prefix, "text"))
	} else if f.Type != "" {
		and("%s = %s", typ, args.add(f.Type, "text"))
	}
	if f.Pending {
		and("%s", t.pending())
	}
	for bound, operator := range map[*time.Time]string{&f.Since: ">=", &f.Until: "<"} {
		switch {
		case bound.IsZero():
		case t.Columns.Date == "":
			return "", fmt.Errorf("%s has no date to choose by", t.QualifiedName())
		default:
			and("%s %s %s::timestamp", parens(t.timestamp(t.Columns.Date)), operator, args.add(timestampText(*bound), "text"))
		}
	}
	if p.After == "" {
		return strings.Join(conditions, " AND "), nil
	}
	var key pageKey
	if err := json.Unmarshal([]byte(p.After), &key); err != nil || key.Date != "" && t.Columns.Date == "" {
		return "", fmt.Errorf("page key %q is none of ours", p.After)
	}
	id, after := t.ref(t.Columns.ID), args.add(key.Key, "text")+"::"+t.columns[t.Columns.ID].typ
	switch date := t.columns[t.Columns.Date]; {
	case t.Columns.Date == "":
		and("%s < %s", id, after)
	case key.Date == "": // those without a date come first
		and("(%[1]s IS NOT NULL OR %[2]s < %[3]s)", t.ref(t.Columns.Date), id, after)
	default:
		and("(%s, %s) < (%s::%s, %s)", t.ref(t.Columns.Date), id, args.add(key.Date, "text"), date.typ, after)
	}
	return strings.Join(conditions, " AND "), nil
}

// summaryColumns are what ListEvents reads of the alias t.
func (t *eventTable) summaryColumns() string {
	c := &t.Columns
	str := func(column string) string { return orElse(column, t.text, "''") }
	dateText, date := "''", "NULL::timestamp"
	if c.Date != "" {
		// The cast of a timestamptz names its zone, so that it reads back the same.
		dateText, date = "COALESCE("+t.ref(c.Date)+"::text, '')", t.timestamp(c.Date)
	}
	id := parens(t.uuid(c.ID))
	return strings.Join([]string{
		"COALESCE(" + id + "::text, '')", "COALESCE(" + t.text(c.ID) + ", '')", dateText, str(c.Type), date,
		str(c.Namespace), str(c.ModelType), str(c.ModelID), t.pending(),
		`COALESCE((SELECT jsonb_object_agg(s.state, s.n) FROM (
			SELECT d.state, count(*) AS n FROM ` + t.deliveries + ` AS d WHERE d.event_id = ` + id + ` GROUP BY d.state) AS s), '{}')`,
	}, ", ")
}

// ShowEvent returns one event by its id or by the key of its row. Its error is [admin.ErrNotFound] when
// neither the event table nor a delivery knows it.
func (a *Admin) ShowEvent(ctx context.Context, id string) (admin.EventStory, error) {
	t, err := a.eventTable(ctx)
	if err != nil {
		return admin.EventStory{}, fmt.Errorf("event %s: %w", id, err)
	}
	var story admin.EventStory
	err = a.read(ctx, func(tx pgx.Tx) error {
		story = admin.EventStory{}
		if err := a.eventRow(ctx, tx, t, id, &story); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT "+a.clocked(deliveryColumns)+storyColumns+" FROM "+a.sql.deliveries+
			" AS d WHERE d.event_id = ANY ($1::text[]::uuid[]) ORDER BY d.handler_name LIMIT 200", a.eventIDs(id))
		if err != nil {
			return err
		}
		if story.Deliveries, err = pgx.CollectRows(rows, scanStory); err != nil {
			return err
		}
		for i := range story.Deliveries {
			d := &story.Deliveries[i]
			if d.History, err = a.history(ctx, tx, d.ID); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return admin.EventStory{}, fmt.Errorf("event %s: %w", id, err)
	case !story.InTable && len(story.Deliveries) == 0:
		return admin.EventStory{}, fmt.Errorf("event %s: %w", id, admin.ErrNotFound)
	case !story.InTable:
		story.Event = story.Deliveries[0].Event
	}
	return story, nil
}

// eventRow reads the row with the key. A text that cannot be a key is no row.
func (a *Admin) eventRow(ctx context.Context, tx pgx.Tx, t *eventTable, key string, story *admin.EventStory) error {
	column := t.columns[t.Columns.ID]
	condition := t.ref(t.Columns.ID) + " = $1::text::" + column.typ
	if column.base != oidUUID && column.base != oidText && column.base != oidVarchar {
		condition = parens(t.text(t.Columns.ID)) + " = $1::text"
		if n := integer(key); n != "" && isInteger(column.base) {
			condition, key = t.ref(t.Columns.ID)+" = $1::text::bigint", n
		}
	}
	if column.base == oidUUID {
		parsed, err := uuid.Parse(key)
		if err != nil {
			return nil //nolint:nilerr // not a key of this table
		}
		key = parsed.String()
	}
	rows, err := tx.Query(ctx, "SELECT "+t.pending()+", count(*) OVER (), "+t.eventValues()+" FROM "+t.from+" AS t WHERE "+condition+" LIMIT 1", clean(key))
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		e := &story.Event.Event
		return struct{}{}, row.Scan(&story.Pending, &story.Rows, &e.ID, &e.Key, &e.Namespace, &e.ActionID, &e.ActionName, (*[]byte)(&e.ActionParams),
			timeTarget{&e.StartedDate}, timeTarget{&e.CompletionDate}, &e.ModelID, &e.ModelType, &e.Type,
			(*[]byte)(&e.Payload), timeTarget{&e.Date}, &e.Traceparent, (*[]byte)(&e.Headers))
	})
	story.InTable = len(found) > 0
	return err
}

func isInteger(oid uint32) bool { return oid == oidInt2 || oid == oidInt4 || oid == oidInt8 }

// integer returns the decimal number in s, "" when it is none that any integer column holds.
func integer(s string) string {
	var n int64
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil || fmt.Sprint(n) != s {
		return ""
	}
	return s
}

// EmitEvent inserts one row into the event table, as an application would, and a line into the
// audit log, in one transaction. It fills the mapped columns; a table that demands more says so.
func (a *Admin) EmitEvent(ctx context.Context, e admin.Emit) (admin.Emitted, error) {
	switch {
	case e.Actor == "":
		return admin.Emitted{}, admin.ErrNoActor
	case e.Type == "":
		return admin.Emitted{}, admin.ErrNoType
	}
	t, err := a.eventTable(ctx)
	if err != nil {
		return admin.Emitted{}, fmt.Errorf("emit event: %w", err)
	}
	var out admin.Emitted
	err = a.write(ctx, func(tx pgx.Tx) error {
		var generated bool
		if err := tx.QueryRow(ctx, `SELECT a.atthasdef OR a.attidentity <> '' FROM pg_catalog.pg_attribute AS a
			WHERE a.attrelid = (SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			                    WHERE n.nspname = $1::text AND c.relname = $2::text) AND a.attname = $3::text`,
			t.Schema, t.Name, t.Columns.ID).Scan(&generated); err != nil {
			return err
		}
		var args arguments
		names, values := t.emitted(e, generated, &args)
		if err := tx.QueryRow(ctx, "INSERT INTO "+t.from+" AS t ("+strings.Join(names, ", ")+") VALUES ("+strings.Join(values, ", ")+
			") RETURNING "+t.text(t.Columns.ID), args...).Scan(&out.Key); err != nil {
			return err
		}
		out.ID, _ = schema.EventID(t.QualifiedName(), out.Key)
		return a.audit(ctx, tx, e.Actor, "events.emit", out.ID, 1, "", map[string]any{"type": clean(e.Type)})
	})
	if err != nil {
		return admin.Emitted{}, fmt.Errorf("emit event: %w", err)
	}
	return out, nil
}

// emitted returns the columns to insert and their values.
func (t *eventTable) emitted(e admin.Emit, generated bool, args *arguments) (names, values []string) {
	c := &t.Columns
	add := func(column, value string) {
		if column != "" {
			names, values = append(names, quoteIdent(column)), append(values, value)
		}
	}
	// text is a parameter that the database casts to the column's type.
	text := func(column, value string) {
		if column != "" {
			add(column, args.add(clean(value), "text")+"::"+t.columns[column].typ)
		}
	}
	optional := func(column, value string) {
		if value != "" {
			text(column, value)
		}
	}
	now := func(column string) {
		if column == "" {
			return
		}
		if t.columns[column].base == oidTimestamptz {
			add(column, "clock_timestamp()")
			return
		}
		add(column, t.now)
	}
	if e.ID != "" {
		text(c.ID, e.ID)
	} else if !generated {
		text(c.ID, uuid.Must(uuid.NewV7()).String())
	}
	text(c.Type, e.Type)
	if e.Payload != nil && t.columns[c.Payload].base == oidBytea {
		add(c.Payload, "convert_to("+args.add(string(e.Payload), "text")+", 'UTF8')")
	} else if e.Payload != nil {
		add(c.Payload, args.add(string(e.Payload), "text")+"::"+t.columns[c.Payload].typ)
	}
	text(c.Namespace, orDefault(e.Namespace, "cdc-dispatcher"))
	text(c.ActionID, uuid.NewString())
	text(c.ActionName, orDefault(e.ActionName, "emit"))
	text(c.ActionParams, "{}")
	now(c.StartedDate)
	now(c.CompletionDate)
	now(c.Date)
	optional(c.ModelType, e.ModelType)
	optional(c.ModelID, e.ModelID)
	optional(c.Headers, string(e.Headers))
	optional(c.Traceparent, e.Traceparent)
	switch t.Mark.Kind {
	case schema.MarkBoolean:
		add(t.Mark.Column, "false")
	case schema.MarkStatus:
		add(t.Mark.Column, quoteText(t.Mark.Pending)+"::"+t.columns[t.Mark.Column].typ)
	}
	return names, values
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
