package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// countLimit caps every count: past it the number says nothing more.
const countLimit = 1000

// checkNullIDs counts rows that no delivery could name.
func checkNullIDs(ctx context.Context, s *session) (Finding, error) {
	id, table := ident(s.cfg.Table.Columns.ID), s.quotedTable()
	var notNull bool
	var typ string
	if err := s.row(ctx, `SELECT attnotnull, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = $2`,
		[]any{table, s.cfg.Table.Columns.ID}, &notNull, &typ); err != nil {
		return Finding{}, err
	}
	if notNull {
		return Finding{Status: OK, Message: "every row has an id"}, nil
	}
	store, err := s.store(ctx)
	if err != nil {
		return Finding{}, err
	}
	n, err := store.CountUnidentifiable(ctx, countLimit)
	switch {
	case sqlState(err) == stateQueryCanceled:
		return Finding{Status: OK, Message: "rows without an id were not found in the time there was"}, nil
	case err != nil:
		return Finding{}, err
	case n == 0:
		return Finding{Status: OK, Message: "every row has an id"}, nil
	}
	f := Finding{Status: Warn, Message: "rows without an id cannot have a delivery; no handler gets them", Value: atMost(n),
		Hint: "give them ids, then forbid null: ALTER COLUMN … SET NOT NULL"}
	if typ == "uuid" {
		f.Fix = []string{
			fmt.Sprintf("UPDATE %s SET %s = gen_random_uuid() WHERE %[2]s IS NULL", table, id),
			fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", table, id),
		}
		f.Hint = hintOwner
	}
	return f, nil
}

func atMost(n int) string {
	if n >= countLimit {
		return fmt.Sprintf("%d or more", countLimit)
	}
	return fmt.Sprint(n)
}

// checkUndelivered looks for events that a registered handler wants and that nobody has fanned
// out for long. Events that no handler wants wait on purpose (A54).
func checkUndelivered(ctx context.Context, s *session) (Finding, error) {
	t := s.cfg.Table
	if t.Mark.Kind == schema.MarkNone || t.Columns.Date == "" {
		return Finding{Status: OK, Message: "the event table does not tell how long an event has waited"}, nil
	}
	pending, err := s.pending(ctx)
	if err != nil {
		return Finding{}, err
	}
	date := "e." + ident(t.Columns.Date)
	var age *time.Duration
	err = s.row(ctx, fmt.Sprintf(`
		SELECT max((clock_timestamp() AT TIME ZONE 'UTC') - w.date) FROM (
		    SELECT %[1]s::timestamp AS date FROM %[2]s e
		    WHERE %[3]s AND isfinite(%[1]s) AND %[5]s::text <> '' AND EXISTS (
		        SELECT FROM %[4]s h, unnest(h.types) p(pattern)
		        WHERE pattern = '*' OR pattern = %[5]s::text OR pattern LIKE '%%.*' AND starts_with(%[5]s::text, left(pattern, -1)))
		    LIMIT %[6]d) w`,
		date, s.quotedTable(), pending, s.own("handlers"), "e."+ident(t.Columns.Type), countLimit), nil, &age)
	switch {
	case sqlState(err) == stateQueryCanceled:
		return Finding{Status: Warn, Message: "looking for undelivered events took too long", Hint: "see the poller's index"}, nil
	case err != nil:
		return Finding{}, err
	case age == nil:
		return Finding{Status: OK, Message: "no event waits for its fan-out"}, nil
	case *age <= s.cfg.Undelivered:
		return Finding{Status: OK, Message: "no event has waited for long", Value: age.Round(time.Second).String()}, nil
	}
	return Finding{Status: Warn, Message: "an event has waited for its fan-out for long", Value: age.Round(time.Second).String(),
		Hint: "start the dispatcher; if it runs, see its log and cdc-dispatcher status"}, nil
}

// pending is the condition for a row e that is not fanned out, as the poller asks for it.
func (s *session) pending(ctx context.Context) (string, error) {
	m := s.cfg.Table.Mark
	var notNull bool
	if err := s.row(ctx, "SELECT attnotnull FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = $2",
		[]any{s.quotedTable(), m.Column}, &notNull); err != nil {
		return "", err
	}
	mark := "e." + ident(m.Column)
	switch {
	case m.Kind == schema.MarkBoolean && notNull:
		return mark + " = false", nil
	case m.Kind == schema.MarkBoolean:
		return mark + " IS NOT TRUE", nil
	case notNull:
		return mark + " = " + literal(m.Pending), nil
	}
	return fmt.Sprintf("(%s = %s OR %[1]s IS NULL)", mark, literal(m.Pending)), nil
}

// checkGaps lists stretches of log that were not read and not yet made up for.
func checkGaps(ctx context.Context, s *session) (Finding, error) {
	var n int
	var newest *string
	if err := s.row(ctx, fmt.Sprintf(`SELECT count(*), (array_agg(source || ': ' || reason || ', ' || detail ORDER BY detected_date DESC))[1]
		FROM (SELECT * FROM %s WHERE closed_date IS NULL LIMIT %d) g`, s.own("gaps"), countLimit), nil, &n, &newest); err != nil {
		return Finding{}, err
	}
	if n == 0 {
		return Finding{Status: OK, Message: "the log was read without a gap"}, nil
	}
	return Finding{Status: Warn, Message: "a stretch of the log was not read and the table is not swept yet", Value: *newest,
		Hint: "start the dispatcher: it sweeps the table and closes the gap by itself"}, nil
}
