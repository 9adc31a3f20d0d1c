package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// Type OIDs that are treated in a special way.
const (
	oidBool        = 16
	oidBytea       = 17
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidFloat4      = 700
	oidFloat8      = 701
	oidMoney       = 790
	oidJSON        = 114
	oidBPChar      = 1042
	oidVarchar     = 1043
	oidDate        = 1082
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidInterval    = 1186
	oidUUID        = 2950
	oidJSONB       = 3802
)

// dbColumn is one column of the event table as the catalog has it.
type dbColumn struct {
	name string
	// oid is the type, base the type below a domain.
	oid, base uint32
	// typ is the type as SQL spells it.
	typ     string
	notNull bool
	// compound says that it is an array, a row or a range.
	compound bool
}

// eventTable is what a [Store] knows about the event table, and the statements that
// follow from it. It is immutable.
type eventTable struct {
	schema.Table
	columns map[string]dbColumn
	// uniqueID says that no two rows can have the same key.
	uniqueID bool
	// typeIndex says that an index leads from the type to the oldest unmarked rows.
	typeIndex bool
	// seen is when this was looked up.
	seen time.Time
	// from is the quoted name, now and deliveries are parts of statements.
	from, now, deliveries string
	// lookFrom is where a bounded look of the source $6 begins to count back.
	lookFrom string

	fanOut, unmarked, image, imageOnly, markLate, quarantine, quarantineUnmarked, present, undelivered, undeliveredKeys, undeliveredByKey, unidentifiable string
}

const columnsSQL = `
SELECT a.attname, a.atttypid, format_type(a.atttypid, -1), a.attnotnull,
       (WITH RECURSIVE base AS (
            SELECT a.atttypid AS oid
            UNION ALL
            SELECT t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid = base.oid WHERE t.typtype = 'd')
        SELECT b.oid FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid WHERE t.typtype <> 'd'),
       (SELECT t.typcategory IN ('A', 'C', 'R') FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relname = $2::text AND a.attnum > 0 AND NOT a.attisdropped
  AND c.relkind IN ('r', 'p', 'v', 'm', 'f')`

// indexesSQL finds whether the key is unique, and whether there is an index by which the
// undelivered rows of one type can be read oldest first.
const indexesSQL = `
SELECT coalesce(bool_or(i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = 1
           AND i.indkey[0] = (SELECT attnum FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attname = $3::text)), false),
       coalesce(bool_or(c.relkind = 'r' AND am.amname = 'btree' AND i.indnkeyatts >= 2
           AND i.indkey[0] = (SELECT attnum FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attname = $4::text)
           AND i.indkey[1] = (SELECT attnum FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attname = $5::text)
           AND pg_get_expr(i.indpred, c.oid) IN (format('(%I = false)', $6::text), format('(NOT %I)', $6::text))), false)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
JOIN pg_catalog.pg_am am ON am.oid = ic.relam
WHERE n.nspname = $1::text AND c.relname = $2::text AND i.indisvalid`

// lookAgain is when the event table is looked up again although nothing failed: a column may have got
// another type without any statement noticing.
const lookAgain = time.Minute

// eventTable returns what is known about the event table, and finds it out first when that is
// nothing, or old.
func (s *Store) eventTable(ctx context.Context) (*eventTable, error) {
	s.mu.Lock()
	t := s.events
	s.mu.Unlock()
	if t != nil && time.Since(t.seen) < lookAgain {
		return t, nil
	}
	t, err := s.describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up event table %s: %w", s.table.QualifiedName(), err)
	}
	s.mu.Lock()
	s.events = t
	s.mu.Unlock()
	return t, nil
}

// withTable runs fn with the event table, and once more with a fresh look at it when
// the table seems to have changed since.
func (s *Store) withTable(ctx context.Context, fn func(*eventTable) error) error {
	for look := 1; ; look++ {
		t, err := s.eventTable(ctx)
		if err != nil {
			return err
		}
		err = again(ctx, func() error { return fn(t) })
		if err == nil || !changed(err) {
			return err
		}
		s.mu.Lock()
		if s.events == t {
			s.events = nil
		}
		s.mu.Unlock()
		if look == 2 {
			return err
		}
	}
}

// checkEncoding refuses connections on which text is not UTF-8, as it is by default in a database of another
// encoding: payloads of stored rows would not be what the log brings of the same rows.
func (s *Store) checkEncoding(ctx context.Context) error {
	var encoding string
	if err := s.queryRow(ctx, "SELECT current_setting('client_encoding')").Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("the connections of the pool have client_encoding %s; "+
			"set RuntimeParams[\"client_encoding\"] = \"UTF8\" in the pool's configuration, whatever the encoding of the database is", encoding)
	}
	return nil
}

func (s *Store) describe(ctx context.Context) (*eventTable, error) {
	t := &eventTable{
		Table:      s.table,
		columns:    map[string]dbColumn{},
		seen:       time.Now(),
		from:       pgx.Identifier{s.table.Schema, s.table.Name}.Sanitize(),
		now:        s.sql.now,
		deliveries: s.sql.deliveries,
		lookFrom:   s.sql.lookFrom,
	}
	if err := s.checkEncoding(ctx); err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, columnsSQL, t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	var c dbColumn
	if _, err := pgx.ForEachRow(rows, []any{&c.name, &c.oid, &c.typ, &c.notNull, &c.base, &c.compound}, func() error {
		t.columns[c.name] = c
		return nil
	}); err != nil {
		return nil, err
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	if err := s.queryRow(ctx, indexesSQL, t.Schema, t.Name, t.Columns.ID, t.Columns.Type, t.Columns.Date, t.Mark.Column).
		Scan(&t.uniqueID, &t.typeIndex); err != nil {
		return nil, err
	}
	t.typeIndex = t.typeIndex && t.Mark.Kind == schema.MarkBoolean &&
		slices.Contains([]uint32{oidText, oidVarchar}, t.columns[t.Columns.Type].base)
	t.render()
	return t, nil
}

// check compares the mapping with the catalog, and reports all mistakes at once, as [schema.Problems].
func (t *eventTable) check() error {
	var problems schema.Problems
	add := func(field, message, fix string) {
		problems = append(problems, schema.Problem{Field: field, Message: message, Fix: fix})
	}
	if len(t.columns) == 0 {
		add("table", t.QualifiedName()+" does not exist", "create it, or name the right schema and table")
		return problems
	}
	// No event is held up for want of its trace context.
	for _, soft := range []*string{&t.Columns.Traceparent, &t.Columns.Headers} {
		if _, ok := t.columns[*soft]; !ok {
			*soft = ""
		}
	}
	want := func(field, column, kind string, types ...uint32) {
		if column == "" {
			return
		}
		c, ok := t.columns[column]
		switch {
		case !ok:
			add(field, fmt.Sprintf("%s has no column %q", t.QualifiedName(), column), "name an existing column, or leave the field out")
		case len(types) > 0 && !slices.Contains(types, c.base):
			add(field, fmt.Sprintf("column %q is %s", column, c.typ), "map a column of type "+kind)
		}
	}
	c := &t.Columns
	times := []uint32{oidTimestamp, oidTimestamptz, oidDate}
	const timeKind = "timestamp, timestamptz or date"
	want("columns.id", c.ID, "")
	// The log and a query must name the event alike, whatever the settings of their sessions.
	switch key := t.columns[c.ID]; key.base {
	case oidFloat4, oidFloat8, oidMoney, oidInterval:
		add("columns.id", fmt.Sprintf("column %q is %s, whose text depends on the session", c.ID, key.typ),
			"map a key of type uuid, text, or an integer")
	default:
		if key.compound {
			add("columns.id", fmt.Sprintf("column %q is %s, which holds several values", c.ID, key.typ), "map a key of type uuid, text, or an integer")
		}
	}
	want("columns.namespace", c.Namespace, "")
	want("columns.action_id", c.ActionID, "")
	want("columns.action_name", c.ActionName, "")
	want("columns.action_params", c.ActionParams, "json or jsonb", oidJSON, oidJSONB)
	want("columns.started_date", c.StartedDate, timeKind, times...)
	want("columns.completion_date", c.CompletionDate, timeKind, times...)
	want("columns.model_id", c.ModelID, "")
	want("columns.model_type", c.ModelType, "")
	want("columns.type", c.Type, "")
	want("columns.payload", c.Payload, "")
	want("columns.date", c.Date, timeKind, times...)
	want("columns.traceparent", c.Traceparent, "")
	want("columns.headers", c.Headers, "json or jsonb", oidJSON, oidJSONB)
	switch t.Mark.Kind {
	case schema.MarkBoolean:
		want("mark.column", t.Mark.Column, "boolean", oidBool)
	case schema.MarkStatus:
		want("mark.column", t.Mark.Column, "")
		want("mark.at", t.Mark.At, "timestamp or timestamptz", oidTimestamp, oidTimestamptz)
	case schema.MarkNone:
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}
