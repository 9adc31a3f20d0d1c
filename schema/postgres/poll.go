package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// Undelivered implements pipeline.PollStore. The events are what the log's decoder makes of the same
// rows. Rows without a key or a type are left out; see [Store.CountUnidentifiable]. So is, for a while, a row
// that cannot be read, which is reported to the logger: the others are found all the same.
func (s *Store) Undelivered(ctx context.Context, q delivery.Undelivered) (delivery.Found, error) {
	var found delivery.Found
	err := s.withTable(ctx, func(t *eventTable) error {
		s.markLate(ctx, t)
		l, err := s.newLook(t, q)
		if err != nil {
			return err
		}
		// Before the look itself, so that nothing that it cannot see yet is older.
		if err := s.queryRow(ctx, "SELECT "+t.now).Scan(timeTarget{&l.found.At}); err != nil {
			return err
		}
		if q.Limit > 0 && (q.Types.All || len(q.Types.Exact)+len(q.Types.Prefixes) > 0) {
			if err = l.read(ctx); rejected(err) {
				err = l.readable(ctx)
			}
		}
		found = l.found
		return err
	})
	if err != nil {
		return delivery.Found{}, fmt.Errorf("look for undelivered events: %w", err)
	}
	return found, nil
}

// look is one look at the event table.
type look struct {
	*Store
	t     *eventTable
	q     delivery.Undelivered
	args  []any
	found delivery.Found
}

func (s *Store) newLook(t *eventTable, q delivery.Undelivered) (*look, error) {
	var after [2]*string
	if q.After != "" {
		if err := json.Unmarshal([]byte(q.After), &after); err != nil || after[1] == nil {
			return nil, fmt.Errorf("not the end of an earlier look: %q", q.After)
		}
	}
	unreadable := s.unreadable.List()
	return &look{
		Store: s, t: t, q: q, found: delivery.Found{Traceless: t.Mark.Kind == schema.MarkNone, LeftOut: len(unreadable) > 0},
		args: []any{
			q.Types.All, nonNil(q.Types.Exact), nonNil(q.Types.Prefixes), append(unreadable, q.Skip...), q.Limit,
			clean(q.Source), after[0], after[1],
		},
	}, nil
}

// read is the ordinary look.
func (l *look) read(ctx context.Context) error {
	rows, err := l.query(ctx, l.t.undelivered, append(slices.Clone(l.args), l.q.MaxBytes)...)
	if err != nil {
		return err
	}
	var total int
	var last string
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) {
		return scanEvent(row, &last, &total)
	})
	if err != nil {
		return err
	}
	l.found.Events = events
	l.ends(total >= l.q.Limit || len(events) < total, last)
	return nil
}

// ends notes whether and where the look is to be gone on with.
func (l *look) ends(more bool, last string) {
	if l.found.More = more; more && l.found.Traceless {
		l.found.Next = last
	}
}

func (s *Store) readEvents(ctx context.Context, sql string, args ...any) ([]event.Event, error) {
	rows, err := s.query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) { return scanEvent(row) })
}

// keyed is a row of which nothing but its key and its place was read.
type keyed struct{ key, place string }

// readTogether is how many rows are read together when one of them cannot be read; the
// bound on bytes is kept between such groups.
const readTogether = 16

// readable is a look at rows one of which cannot be read, because of a damaged or an impossible value: it reads
// their keys, and then the rows in ever smaller parts, until those at fault stand alone. They are left
// out for a while.
func (l *look) readable(ctx context.Context) error {
	rows, err := l.query(ctx, l.t.undeliveredKeys, l.args...)
	if err != nil {
		return fmt.Errorf("read the keys alone: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k keyed, err error) {
		err = row.Scan(&k.key, &k.place)
		return k, err
	})
	if err != nil {
		return fmt.Errorf("read the keys alone: %w", err)
	}
	bytes := 0
	for done := 0; done < len(keys); {
		group := keys[done:min(done+readTogether, len(keys))]
		bad, err := separately(group, func(part []keyed) error {
			list := make([]string, len(part))
			for i := range part {
				list[i] = part[i].key
			}
			events, err := l.readEvents(ctx, l.t.undeliveredByKey, list)
			for i := range events {
				bytes += weight(&events[i])
			}
			l.found.Events = append(l.found.Events, events...)
			return err
		})
		if err != nil && !rejected(err) {
			return err
		}
		l.leaveOut(bad, err)
		done += len(group)
		l.ends(len(keys) >= l.q.Limit || done < len(keys), group[len(group)-1].place)
		if l.q.MaxBytes > 0 && bytes >= l.q.MaxBytes {
			break
		}
	}
	return nil
}

// weight is what MaxBytes counts.
func weight(e *event.Event) int { return len(e.Payload) + len(e.ActionParams) + len(e.Headers) }

func (l *look) leaveOut(bad []keyed, cause error) {
	l.found.LeftOut = l.found.LeftOut || len(bad) > 0
	for _, k := range bad {
		id, _ := schema.EventID(l.t.QualifiedName(), k.key)
		if l.unreadable.Add(id) {
			l.log.Error("an undelivered event cannot be read; it is left out, and tried again from time to time",
				slog.String("table", l.t.QualifiedName()), slog.String("event_id", id), slog.String("sqlstate", sqlState(cause)))
		}
	}
}

func scanEvent(row pgx.CollectableRow, more ...any) (e event.Event, err error) {
	err = row.Scan(append([]any{&e.ID, &e.Key, &e.Namespace, &e.ActionID, &e.ActionName, (*[]byte)(&e.ActionParams),
		timeTarget{&e.StartedDate}, timeTarget{&e.CompletionDate}, &e.ModelID, &e.ModelType, &e.Type,
		(*[]byte)(&e.Payload), timeTarget{&e.Date}, &e.Traceparent, (*[]byte)(&e.Headers)}, more...)...)
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

// undeliveredSQL reads at most $5 rows of the wanted types, as many of them as fit into $9 bytes and at
// least one, and works out what an event needs only for those.
func (t *eventTable) undeliveredSQL() string {
	order := t.orderBy()
	return "\nSELECT " + t.eventValues() + `,
       ` + t.placeSQL() + `, t."cdc-dispatcher total"
FROM (
    SELECT t.*, row_number() OVER w AS "cdc-dispatcher n", count(*) OVER () AS "cdc-dispatcher total",
           sum(CASE WHEN $9::bigint > 0 THEN ` + t.weightSQL() + ` ELSE 0 END) OVER w AS "cdc-dispatcher bytes"
    FROM (` + t.undeliveredRowsSQL() + `
    ) AS t
    WINDOW w AS (` + order + ` ROWS UNBOUNDED PRECEDING)
) AS t
WHERE t."cdc-dispatcher n" = 1 OR $9::bigint <= 0 OR t."cdc-dispatcher bytes" <= $9::bigint` + order
}

// weightSQL is the size of what may be large.
func (t *eventTable) weightSQL() string {
	sizes := []string{"octet_length(" + t.payloadBytes() + ")"}
	for _, column := range []string{t.Columns.ActionParams, t.Columns.Headers} {
		if column != "" {
			sizes = append(sizes, "octet_length("+t.text(column)+")")
		}
	}
	return "COALESCE(" + strings.Join(sizes, ", 0) + COALESCE(") + ", 0)"
}

// undeliveredKeysSQL reads the keys and the places of the same rows and nothing else of them.
func (t *eventTable) undeliveredKeysSQL() string {
	return "\nSELECT " + t.text(t.Columns.ID) + ", " + t.placeSQL() + "\nFROM (" + t.undeliveredRowsSQL() + "\n) AS t" + t.orderBy()
}

// placeSQL is where a row stands in the order of the looks. The JSON form of a date is the same
// whatever the settings of the session.
func (t *eventTable) placeSQL() string {
	date := "NULL"
	if t.Columns.Date != "" {
		date = t.ref(t.Columns.Date)
	}
	return "jsonb_build_array(" + date + ", " + t.ref(t.Columns.ID) + "::text)::text"
}

// behind is the condition for a row behind the place of $7 and $8. Where there is a mark, looks have no pages.
func (t *eventTable) behind() string {
	key, date := t.ref(t.Columns.ID), t.ref(t.Columns.Date)
	keyAt, dateAt := "$8::text::"+t.columns[t.Columns.ID].typ, "$7::text::"+t.columns[t.Columns.Date].typ
	behind := ""
	switch {
	case t.Mark.Kind != schema.MarkNone:
		return "$7::text IS NULL AND $8::text IS NULL"
	case t.Columns.Date == "":
		return "$7::text IS NULL AND " + parens("$8::text IS NULL OR "+key+" > "+keyAt)
	case t.columns[t.Columns.Date].notNull:
		behind = fmt.Sprintf("(%s, %s) > (%s, %s)", date, key, dateAt, keyAt)
	default: // without a date comes last
		behind = fmt.Sprintf("%[1]s > %[2]s OR (%[1]s = %[2]s AND %[3]s > %[4]s) OR (%[1]s IS NULL AND ($7::text IS NOT NULL OR %[3]s > %[4]s))",
			date, dateAt, key, keyAt)
	}
	return parens("$8::text IS NULL OR " + behind)
}

// undeliveredByKeySQL reads the undelivered rows with the given keys.
func (t *eventTable) undeliveredByKeySQL() string {
	return "\nSELECT " + t.eventValues() + "\nFROM " + t.from + " AS t\nWHERE " + t.ref(t.Columns.ID) +
		" = ANY ($1::text[]::" + t.columns[t.Columns.ID].typ + "[]) AND " + t.pending() + " AND " + t.typed() + t.orderBy()
}

// orderBy is oldest first, when the table has a date. Looks that have pages need an order without ties.
func (t *eventTable) orderBy() string {
	var by []string
	if t.Columns.Date != "" {
		by = append(by, t.ref(t.Columns.Date))
	}
	if t.Mark.Kind == schema.MarkNone {
		by = append(by, t.ref(t.Columns.ID))
	}
	if len(by) == 0 {
		return ""
	}
	return " ORDER BY " + strings.Join(by, ", ")
}

func (t *eventTable) undeliveredRowsSQL() string {
	where := strings.Join([]string{
		t.pending(), t.typed(), "NOT " + t.nameless(), t.recent(t.lookFrom), "$6::text IS NOT NULL", t.behind(),
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
	conditions := []string{t.typed(), t.nameless(), t.recent(t.now)}
	if t.Mark.Column != "" {
		conditions = append(conditions, t.pending())
	}
	return "SELECT count(*) FROM (SELECT FROM " + t.from + " AS t WHERE " +
		strings.Join(conditions, " AND ") + " LIMIT $1::bigint) AS nameless"
}
