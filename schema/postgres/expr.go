package postgres

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

func quoteIdent(name string) string { return pgx.Identifier{name}.Sanitize() }

// quoteText writes a literal that means s whatever standard_conforming_strings says.
func quoteText(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// plainText says whether the cast of a type to text is what the log prints. The
// cast of a few others differs: it drops the blanks of char(n), and spells out true.
func plainText(oid uint32) bool {
	switch oid {
	case oidUUID, oidText, oidVarchar, oidInt2, oidInt4, oidInt8, oidJSON, oidJSONB:
		return true
	default:
		return false
	}
}

// ref names a column of the alias t.
func (t *eventTable) ref(column string) string { return "t." + quoteIdent(column) }

// text is the column's value as the log prints it: bytes in hex, dates in the ISO form and times in UTC, whatever
// the settings of the session. An event's id may be made of it, so it must not depend on who asks.
func (t *eventTable) text(column string) string {
	ref := t.ref(column)
	// The JSON form is ISO under every DateStyle; it has a T where the text has a blank.
	iso := func(timestamp string) string { return "replace(to_jsonb(" + timestamp + ") #>> '{}', 'T', ' ')" }
	switch c := t.columns[column]; {
	case c.base == oidBytea:
		return parens(quoteText(`\x`) + " || encode(" + ref + ", 'hex')")
	case c.base == oidTimestamp, c.base == oidDate:
		return iso(ref)
	case c.base == oidTimestamptz:
		return fmt.Sprintf("CASE WHEN isfinite(%[1]s) THEN regexp_replace(%[2]s, '( BC)?$', %[3]s) ELSE %[1]s::text END",
			ref, iso(parens(ref+" AT TIME ZONE 'UTC'")), quoteText(`+00\1`))
	case c.oid == oidText:
		return ref
	case plainText(c.oid):
		return ref + "::text"
	default:
		return fmt.Sprintf("CASE WHEN %[1]s IS NOT NULL THEN format('%%s', %[1]s) END", ref)
	}
}

// uuid is the column's value as a UUID, by the rule of schema.EventID.
func (t *eventTable) uuid(column string) string {
	c := t.columns[column]
	if c.oid == oidUUID {
		return t.ref(column)
	}
	text := t.text(column)
	hash := fmt.Sprintf("md5(convert_to(%s || %s, 'UTF8'))", quoteText(t.QualifiedName()+":"), parens(text))
	derived := fmt.Sprintf("overlay(overlay(%[1]s PLACING '3' FROM 13) PLACING translate(substr(%[1]s, 17, 1), "+
		"'0123456789abcdef', '89ab89ab89ab89ab') FROM 17)::uuid", hash)
	if slices.Contains([]uint32{oidInt2, oidInt4, oidInt8}, c.base) {
		return derived
	}
	return fmt.Sprintf("CASE WHEN %s ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN %s::uuid ELSE %s END",
		parens(text), parens(text), derived)
}

func parens(s string) string { return "(" + s + ")" }

// timestamp is the column's value as a timestamp in UTC.
func (t *eventTable) timestamp(column string) string {
	switch t.columns[column].base {
	case oidTimestamptz:
		return parens(t.ref(column) + " AT TIME ZONE 'UTC'")
	case oidDate:
		// A date reaches further than a timestamp; the cast would fail, and every look with it.
		return fmt.Sprintf("CASE WHEN isfinite(%[1]s) AND %[1]s > '9999-12-31' THEN timestamp '9999-12-31 23:59:59.999999' "+
			"ELSE %[1]s::timestamp END", t.ref(column))
	default:
		return t.ref(column)
	}
}

// inRange moves a timestamp into the range that schema.Decoder keeps to as well; null stays null.
func inRange(timestamp string) string {
	return fmt.Sprintf("CASE WHEN %[1]s IS NOT NULL THEN "+
		"GREATEST(LEAST(%[1]s, '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00.000001') END", timestamp)
}

// inColumn says whether payloads go into the delivery's jsonb column; all others
// keep their bytes in payload_raw.
func (t *eventTable) inColumn() bool { return t.columns[t.Columns.Payload].oid == oidJSONB }

// payloadBytes is the payload as the log decoder returns it.
func (t *eventTable) payloadBytes() string {
	if t.columns[t.Columns.Payload].oid == oidBytea {
		return t.ref(t.Columns.Payload)
	}
	return "convert_to(" + t.text(t.Columns.Payload) + ", 'UTF8')"
}

// orElse is expr(column), or the default when the column is not mapped or null.
func orElse(column string, expr func(string) string, def string) string {
	if column == "" {
		return def
	}
	return "COALESCE(" + expr(column) + ", " + def + ")"
}

// pending is the condition for a row that no path has fanned out, by the alias t. A row whose mark was left
// null is one of them. It matches the predicate of the published index where the column cannot be null.
func (t *eventTable) pending() string {
	switch column := t.ref(t.Mark.Column); {
	case t.Mark.Kind == schema.MarkNone:
		return "NOT EXISTS (SELECT FROM " + t.deliveries + " p WHERE p.event_id = " + parens(t.uuid(t.Columns.ID)) + ")"
	case t.Mark.Kind == schema.MarkStatus && t.columns[t.Mark.Column].notNull:
		return column + " = " + quoteText(t.Mark.Pending)
	case t.Mark.Kind == schema.MarkStatus:
		return parens(column + " = " + quoteText(t.Mark.Pending) + " OR " + column + " IS NULL")
	case t.columns[t.Mark.Column].notNull:
		return column + " = false"
	default:
		return column + " IS NOT TRUE"
	}
}

// pendingByKey is pending for rows that are looked up by their keys, in a way that no index on the mark fits;
// see stillOpenSQL. To the planner it is true of nearly all rows, whatever the statistics say: in quiet times they
// say that no row is pending, and a batch of two thousand, planned as one row, would be compared row by row.
func (t *eventTable) pendingByKey() string { return parens(t.pending()) + "::int <> 0" }

// typed is the condition for a row that is an event and no sentinel.
func (t *eventTable) typed() string {
	switch t.columns[t.Columns.Type].base {
	case oidText, oidVarchar, oidBPChar:
		return t.ref(t.Columns.Type) + " <> ''"
	default:
		return t.ref(t.Columns.Type) + " IS NOT NULL"
	}
}

// nameless is the condition for a row without a usable key.
func (t *eventTable) nameless() string {
	ref := t.ref(t.Columns.ID)
	switch t.columns[t.Columns.ID].base {
	case oidText, oidVarchar:
		return parens(ref + " IS NULL OR " + ref + " = ''")
	default:
		return ref + " IS NULL"
	}
}

// recent is the condition that bounds the poller's look into a table without a mark, counted back from the given
// time. A row without a date may be of any age, and is looked at.
func (t *eventTable) recent(from string) string {
	if t.LookBack <= 0 || t.Mark.Kind != schema.MarkNone {
		return "true"
	}
	if t.columns[t.Columns.Date].base == oidTimestamptz {
		from = parens(from + " AT TIME ZONE 'UTC'")
	}
	// A subquery is worked out once, and an index on the date fits what comes of it.
	return fmt.Sprintf("(%[1]s IS NULL OR %[1]s >= (SELECT %[2]s - %[3]d * interval '1 microsecond'))", t.ref(t.Columns.Date), from, micros(t.LookBack))
}
