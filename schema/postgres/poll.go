package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// Undelivered implements pipeline.PollStore. The events are what the log's decoder makes of the same
// rows. Rows without a key or a type are left out; see [Store.CountUnidentifiable]. So is, for a while, a row
// that cannot be read, which is reported to the logger: the others are found all the same.
func (s *Store) Undelivered(ctx context.Context, q delivery.Undelivered) ([]event.Event, error) {
	if q.Limit <= 0 || (!q.Types.All && len(q.Types.Exact) == 0 && len(q.Types.Prefixes) == 0) {
		return nil, nil
	}
	var events []event.Event
	err := s.withTable(ctx, func(t *eventTable) (err error) {
		s.markLate(ctx, t)
		look := []any{
			q.Types.All, nonNil(q.Types.Exact), nonNil(q.Types.Prefixes), append(s.unreadable.list(), q.Skip...), q.Limit,
		}
		events, err = s.readEvents(ctx, t.undelivered, look...)
		if rejected(err) {
			events, err = s.readable(ctx, t, look)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for undelivered events: %w", err)
	}
	return events, nil
}

func (s *Store) readEvents(ctx context.Context, sql string, args ...any) ([]event.Event, error) {
	rows, err := s.query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanEvent)
}

// readable is a look at rows one of which cannot be read, because of a damaged or an impossible value: it reads
// their keys, and then the rows in ever smaller parts, until those at fault stand alone. They are left
// out for a while.
func (s *Store) readable(ctx context.Context, t *eventTable, look []any) (events []event.Event, err error) {
	keys, err := s.ids(ctx, t.undeliveredKeys, look...)
	if err != nil {
		return nil, fmt.Errorf("read the keys alone: %w", err)
	}
	bad, err := separately(keys, func(part []string) error {
		found, err := s.readEvents(ctx, t.undeliveredByKey, part)
		if err == nil {
			events = append(events, found...)
		}
		return err
	})
	if err != nil && !rejected(err) {
		return nil, err
	}
	for _, key := range bad {
		id, _ := schema.EventID(t.QualifiedName(), key)
		if s.unreadable.add(id) {
			s.log.Error("an undelivered event cannot be read; it is left out, and tried again from time to time",
				slog.String("table", t.QualifiedName()), slog.String("event_id", id), slog.String("sqlstate", sqlState(err)))
		}
	}
	return events, nil
}

func scanEvent(row pgx.CollectableRow) (e event.Event, err error) {
	err = row.Scan(&e.ID, &e.Key, &e.Namespace, &e.ActionID, &e.ActionName, (*[]byte)(&e.ActionParams),
		timeTarget{&e.StartedDate}, timeTarget{&e.CompletionDate}, &e.ModelID, &e.ModelType, &e.Type,
		(*[]byte)(&e.Payload), timeTarget{&e.Date}, &e.Traceparent, (*[]byte)(&e.Headers))
	return e, err
}

// CountUnidentifiable returns how many undelivered events can never have a delivery, because
// their row has no key. It stops counting at limit.
func (s *Store) CountUnidentifiable(ctx context.Context, limit int) (n int, err error) {
	err = s.withTable(ctx, func(t *eventTable) error {
		return s.queryRow(ctx, t.unidentifiable, limit).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("count events without a key: %w", err)
	}
	return n, nil
}

// undeliveredSQL reads at most $5 rows of the wanted types, and works out what an event needs
// only for those.
func (t *eventTable) undeliveredSQL() string {
	rows, order := t.undeliveredRowsSQL(), t.orderBy()
	return "\nSELECT " + t.eventValues() + "\nFROM (" + rows + "\n) AS t" + order
}

// undeliveredKeysSQL reads the keys of the same rows and nothing else of them.
func (t *eventTable) undeliveredKeysSQL() string {
	return "\nSELECT " + t.text(t.Columns.ID) + "\nFROM (" + t.undeliveredRowsSQL() + "\n) AS t" + t.orderBy()
}

// undeliveredByKeySQL reads the undelivered rows with the given keys.
func (t *eventTable) undeliveredByKeySQL() string {
	return "\nSELECT " + t.eventValues() + "\nFROM " + t.from + " AS t\nWHERE " + t.ref(t.Columns.ID) +
		" = ANY ($1::text[]::" + t.columns[t.Columns.ID].typ + "[]) AND " + t.pending() + " AND " + t.typed() + t.orderBy()
}

// orderBy is oldest first, when the table has a date.
func (t *eventTable) orderBy() string {
	if t.Columns.Date == "" {
		return ""
	}
	return " ORDER BY " + t.ref(t.Columns.Date)
}

func (t *eventTable) undeliveredRowsSQL() string {
	where := strings.Join([]string{
		t.pending(), t.typed(), "NOT " + t.nameless(), t.recent(),
		parens(t.uuid(t.Columns.ID)) + " <> ALL ($4::text[]::uuid[])",
	}, "\n      AND ")
	typ := parens(t.text(t.Columns.Type))
	if !t.typeIndex {
		return `
    SELECT t.* FROM ` + t.from + ` AS t
    WHERE ` + where + `
      AND ($1::boolean OR ` + typ + ` = ANY ($2::text[]) OR ` + typ + ` ^@ ANY ($3::text[]))
    ` + t.orderBy() + ` LIMIT $5::bigint`
	}
	// Reading the whole index in the order of the date would need a sort of everything that
	// is undelivered, which grows without bound while a type has no subscriber (A54). So
	// each wanted type is read by itself; the types that a pattern may mean are found by
	// skipping from one to the next.
	column := t.ref(t.Columns.Type)
	next := `SELECT ` + typ + ` AS type FROM ` + t.from + ` AS t WHERE ` + t.pending() + ` AND ` + column
	return `
    WITH RECURSIVE present AS (
        (` + next + ` > '' AND ($1::boolean OR cardinality($3::text[]) > 0) ORDER BY ` + column + ` LIMIT 1)
        UNION ALL
        SELECT (` + next + ` > p.type ORDER BY ` + column + ` LIMIT 1) FROM present AS p WHERE p.type IS NOT NULL
    ), wanted AS MATERIALIZED (
        SELECT unnest($2::text[]) AS type
        UNION
        SELECT p.type FROM present AS p WHERE $1::boolean OR p.type ^@ ANY ($3::text[])
    )
    SELECT t.* FROM wanted AS w CROSS JOIN LATERAL (
        SELECT t.* FROM ` + t.from + ` AS t
        WHERE ` + column + ` = w.type AND ` + where + `
        ` + t.orderBy() + ` LIMIT $5::bigint
    ) AS t
    ` + t.orderBy() + ` LIMIT $5::bigint`
}

// eventValues are what scanEvent reads.
func (t *eventTable) eventValues() string {
	c := &t.Columns
	str := func(column string) string { return orElse(column, t.text, "''") }
	nullable := func(column, typ string, expr func(string) string) string {
		if column == "" {
			return "NULL::" + typ
		}
		return expr(column)
	}
	date := func(column string) string { return inRange(t.timestamp(column)) }
	bytes := func(column string) string { return "convert_to(" + t.text(column) + ", 'UTF8')" }
	id := parens(t.uuid(c.ID)) + "::text"
	return strings.Join([]string{
		id,
		"CASE WHEN " + id + " = " + parens(t.text(c.ID)) + " THEN '' ELSE " + t.text(c.ID) + " END",
		str(c.Namespace),
		"COALESCE(" + nullable(c.ActionID, "uuid", t.uuid) + "::text, '')",
		str(c.ActionName),
		nullable(c.ActionParams, "bytea", bytes),
		nullable(c.StartedDate, "timestamp", date),
		nullable(c.CompletionDate, "timestamp", date),
		str(c.ModelID),
		str(c.ModelType),
		str(c.Type),
		t.payloadBytes(),
		nullable(c.Date, "timestamp", date),
		str(c.Traceparent),
		nullable(c.Headers, "bytea", bytes),
	}, ",\n       ")
}

func (t *eventTable) unidentifiableSQL() string {
	if t.columns[t.Columns.ID].notNull && t.nameless() == t.ref(t.Columns.ID)+" IS NULL" {
		return "SELECT 0 WHERE $1::bigint >= 0"
	}
	conditions := []string{t.typed(), t.nameless(), t.recent()}
	if t.Mark.Column != "" {
		conditions = append(conditions, t.pending())
	}
	return "SELECT count(*) FROM (SELECT FROM " + t.from + " AS t WHERE " +
		strings.Join(conditions, " AND ") + " LIMIT $1::bigint) AS nameless"
}
