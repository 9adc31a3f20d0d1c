package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// eventTable is what a [Store] knows about the event table. It is immutable.
type eventTable struct {
	schema.Table
	columns map[string]column
	// from is the quoted name, force the hint that makes the index on the key be used; a plan that
	// reads the table would lock, and wait for, rows that nobody asked for.
	from, force string
	// uniqueID says that no two rows can have the same key.
	uniqueID bool
	// typeIndex is the hint for an index that leads from the mark and the type to the oldest
	// rows, and from one type to the next; empty when there is none.
	typeIndex string
	mariaDB   bool
	// deliveries is the quoted name of the delivery table, eventID its column for our id.
	deliveries string
	eventID    column
	// seen is when this was looked up.
	seen time.Time
}

// key is the column of the table's own key.
func (t *eventTable) key() column { return t.columns[t.Columns.ID] }

// ourTables is what a [Store] knows about its own tables. Only types that may differ are
// kept: an existing table may have ids in another form.
type ourTables struct {
	// id, eventID, actionID and token are columns of event_notifications.
	id, eventID, actionID, token column
	// payload is its column payload.
	payload column
	// deliveryID is the column of event_notification_attempts.
	deliveryID column
	seen       time.Time
}

// lookAgain is when tables are looked up again although nothing failed: a column may have got
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

// ourTables is eventTable for our own.
func (s *Store) ourTables(ctx context.Context) (*ourTables, error) {
	s.mu.Lock()
	o := s.ours
	s.mu.Unlock()
	if o != nil && time.Since(o.seen) < lookAgain {
		return o, nil
	}
	o, err := s.describeOurs(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up the tables of schema %s: %w", s.schema, err)
	}
	s.mu.Lock()
	s.ours = o
	s.mu.Unlock()
	return o, nil
}

// forget drops what was learned about the tables.
func (s *Store) forget() {
	s.mu.Lock()
	s.events, s.ours = nil, nil
	s.mu.Unlock()
}

// withTable runs fn with the event table and our tables, and once more with a fresh look at
// them when one seems to have changed since.
func (s *Store) withTable(ctx context.Context, fn func(*eventTable, *ourTables) error) error {
	for look := 1; ; look++ {
		t, err := s.eventTable(ctx)
		if err != nil {
			return err
		}
		o, err := s.ourTables(ctx)
		if err != nil {
			return err
		}
		if err = fn(t, o); err == nil || !changed(err) {
			return err
		}
		s.forget()
		if look == 2 {
			return err
		}
	}
}

// withOurs is withTable for what has nothing to do with events.
func (s *Store) withOurs(ctx context.Context, fn func(*ourTables) error) error {
	for look := 1; ; look++ {
		o, err := s.ourTables(ctx)
		if err != nil {
			return err
		}
		if err = fn(o); err == nil || !changed(err) {
			return err
		}
		s.forget()
		if look == 2 {
			return err
		}
	}
}

// columnsOf reads the columns of a table. There are none when there is no such table.
func columnsOf(ctx context.Context, q querier, schemaName, table string) (map[string]column, error) {
	list, err := collect(ctx, q, func(rows *sql.Rows) (column, error) {
		var name, dataType, columnType, nullable string
		var charset, collation sql.NullString
		err := rows.Scan(&name, &dataType, &columnType, &nullable, &charset, &collation)
		return newColumn(name, dataType, columnType, charset.String, collation.String, nullable == "NO"), err
	}, `SELECT column_name, data_type, column_type, is_nullable, character_set_name, collation_name
FROM information_schema.columns WHERE table_schema = ? AND table_name = ?`, schemaName, table)
	if err != nil {
		return nil, err
	}
	columns := make(map[string]column, len(list))
	for _, c := range list {
		columns[c.name] = c
	}
	return columns, nil
}

// index is an index of whole columns.
type index struct {
	name    string
	unique  bool
	columns []string
}

func (i index) begins(columns ...string) bool {
	return len(i.columns) >= len(columns) && slices.Equal(i.columns[:len(columns)], columns)
}

// indexesOf reads those indexes of a table that may be used, the primary key first. Of an index
// on parts or expressions, the columns before the first such part count.
func indexesOf(ctx context.Context, q querier, mariaDB bool, schemaName, table string) ([]index, error) {
	usable := "is_visible = 'YES'"
	if mariaDB {
		usable = "ignored = 'NO'"
	}
	type part struct {
		index
		column string
		whole  bool
	}
	parts, err := collect(ctx, q, func(rows *sql.Rows) (p part, err error) {
		var column sql.NullString
		err = rows.Scan(&p.name, &p.unique, &column, &p.whole)
		p.column, p.whole = column.String, p.whole && column.Valid
		return p, err
	}, `SELECT index_name, non_unique = 0, column_name, sub_part IS NULL
FROM information_schema.statistics
WHERE table_schema = ? AND table_name = ? AND index_type = 'BTREE' AND `+usable+`
ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index`, schemaName, table)
	if err != nil {
		return nil, err
	}
	var list []index
	cut := false
	for _, p := range parts {
		if n := len(list); n == 0 || list[n-1].name != p.name {
			list, cut = append(list, p.index), false
		}
		last := &list[len(list)-1]
		if cut = cut || !p.whole; cut {
			last.unique = false
			continue
		}
		last.columns = append(last.columns, p.column)
	}
	return list, nil
}

func (s *Store) describe(ctx context.Context) (*eventTable, error) {
	srv, err := s.serverOf(ctx)
	if err != nil {
		return nil, err
	}
	t := &eventTable{
		Table: s.table, mariaDB: srv.mariaDB, seen: time.Now(), deliveries: s.names.deliveries,
		from: quoteName(s.table.Schema) + "." + quoteName(s.table.Name),
	}
	err = s.read(ctx, func(q querier) (err error) {
		if t.columns, err = columnsOf(ctx, q, t.Schema, t.Name); err != nil {
			return err
		}
		deliveries, err := columnsOf(ctx, q, s.schema, "event_notifications")
		if err != nil {
			return err
		}
		t.eventID = deliveries["event_id"]
		indexes, err := indexesOf(ctx, q, srv.mariaDB, t.Schema, t.Name)
		t.choose(indexes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t, t.check()
}

// choose picks the indexes that statements are made to use.
func (t *eventTable) choose(indexes []index) {
	t.force, t.typeIndex, t.uniqueID = "", "", false
	mark := t.columns[t.Mark.Column]
	for _, i := range indexes {
		hint := " FORCE INDEX (" + quoteName(i.name) + ")"
		if i.begins(t.Columns.ID) {
			unique := i.unique && len(i.columns) == 1
			if t.force == "" || unique && !t.uniqueID {
				t.force = hint
			}
			t.uniqueID = t.uniqueID || unique
		}
		if t.Mark.Kind != schema.MarkNone && mark.notNull && t.Columns.Date != "" && t.typeIndex == "" &&
			i.begins(t.Mark.Column, t.Columns.Type, t.Columns.Date) && t.columns[t.Columns.Type].sorted() {
			t.typeIndex = hint
		}
	}
}

func (s *Store) describeOurs(ctx context.Context) (*ourTables, error) {
	o := &ourTables{seen: time.Now()}
	err := s.read(ctx, func(q querier) error {
		deliveries, err := columnsOf(ctx, q, s.schema, "event_notifications")
		if err != nil {
			return err
		}
		attempts, err := columnsOf(ctx, q, s.schema, "event_notification_attempts")
		if err != nil {
			return err
		}
		for _, want := range []struct {
			column *column
			in     map[string]column
			name   string
		}{
			{&o.id, deliveries, "id"}, {&o.eventID, deliveries, "event_id"}, {&o.actionID, deliveries, "action_id"},
			{&o.token, deliveries, "lease_token"}, {&o.payload, deliveries, "payload"}, {&o.deliveryID, attempts, "delivery_id"},
		} {
			c, ok := want.in[want.name]
			if !ok {
				return fmt.Errorf("there is no column %q: the schema is not up to date", want.name)
			}
			*want.column = c
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return o, nil
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
	want := func(field, name, what string, kinds ...kind) {
		if name == "" {
			return
		}
		c, ok := t.columns[name]
		switch {
		case !ok:
			add(field, fmt.Sprintf("%s has no column %q", t.QualifiedName(), name), "name an existing column, or leave the field out")
		case len(kinds) > 0 && !slices.Contains(kinds, c.kind):
			add(field, fmt.Sprintf("column %q is %s", name, c.typ), "map a column of type "+what)
		}
	}
	c := &t.Columns
	// The log and a query must name the event alike.
	want("columns.id", c.ID, "char, binary(16), uuid or an integer", kindText, kindUUID, kindBinaryUUID, kindInt, kindUnsigned, kindBytes)
	if key := t.columns[c.ID]; key.listed {
		add("columns.id", fmt.Sprintf("column %q is %s, which is not sorted as it compares", c.ID, key.typ), "map a key of type char, uuid or an integer")
	}
	times, json := []kind{kindTime, kindDate}, []kind{kindJSON, kindText}
	const timeKind, jsonKind = "datetime, timestamp or date", "json or text"
	want("columns.namespace", c.Namespace, "")
	want("columns.action_id", c.ActionID, "")
	want("columns.action_name", c.ActionName, "")
	want("columns.action_params", c.ActionParams, jsonKind, json...)
	want("columns.started_date", c.StartedDate, timeKind, times...)
	want("columns.completion_date", c.CompletionDate, timeKind, times...)
	want("columns.model_id", c.ModelID, "")
	want("columns.model_type", c.ModelType, "")
	want("columns.type", c.Type, "")
	want("columns.payload", c.Payload, "json, text or blob", kindJSON, kindText, kindBytes)
	want("columns.date", c.Date, timeKind, times...)
	want("columns.traceparent", c.Traceparent, "")
	want("columns.headers", c.Headers, jsonKind, json...)
	switch t.Mark.Kind {
	case schema.MarkBoolean:
		want("mark.column", t.Mark.Column, "boolean", kindInt, kindUnsigned)
	case schema.MarkStatus:
		want("mark.column", t.Mark.Column, "char, varchar or enum", kindText)
		want("mark.at", t.Mark.At, "datetime or timestamp", kindTime)
	case schema.MarkNone:
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}
