package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// SchemaError says what our tables lack.
type SchemaError struct {
	// Missing lists tables as "table x", columns as "column x.y", columns of another
	// type as "column x.y (is a, not b)", and indexes as "index x (y, z)".
	Missing []string
	// Statement mends what can be mended by changing tables; empty when a table is
	// missing, which takes a migration.
	Statement string
}

func (e *SchemaError) Error() string {
	msg := "the schema is not up to date: missing " + strings.Join(e.Missing, ", ")
	if e.Statement != "" {
		msg += "; run: " + e.Statement
	}
	return msg
}

// family is a kind of column that a statement of this package needs: what may stand there, and what to add when nothing
// does.
type family struct {
	kinds []kind
	ddl   string
}

func (s *Store) families(mariaDB bool) map[string]family {
	id, document := "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin", "JSON"
	if mariaDB {
		id, document = "UUID", "LONGTEXT"
	}
	return map[string]family{
		"id":    {[]kind{kindText, kindUUID, kindBinaryUUID}, id},
		"name":  {[]kind{kindText}, "VARCHAR(255)"},
		"text":  {[]kind{kindText}, "TEXT"},
		"json":  {[]kind{kindJSON, kindText}, document},
		"bytes": {[]kind{kindBytes}, "LONGBLOB"},
		"time":  {[]kind{kindTime}, "DATETIME(6)"},
		"int":   {[]kind{kindInt, kindUnsigned}, "BIGINT"},
		"count": {[]kind{kindInt, kindUnsigned}, "INT"},
	}
}

// ourColumns are the tables and columns that the statements of this package use.
func ourColumns() []struct{ table, columns string } {
	return []struct{ table, columns string }{
		{"event_notifications", `id id, event_id id, handler_name name, namespace name, action_id id, action_name name, action_params json,
			started_date time, completion_date time, model_id name, model_type name, event_type name, payload json, event_date time,
			state name, attempts count, next_retry_at time, created_date time, updated_date time, lease_token id, lease_until time,
			lease_owner text, claim_count count, lost_claims count, reason text, last_error text, finished_date time, retried_date time,
			partition_key text, payload_raw bytes, traceparent text, headers json`},
		{"event_notification_attempts", `delivery_id id, id int, attempt count, outcome name, reason text, error text, message text,
			started_date time, duration_us int`},
		{"handlers", `name name, aliases json, types json, generation int, last_owner name, last_seen time, paused_by text, pause_reason text,
			paused_date time, created_date time`},
		{"sources", `name name, owner name, mode name, detail text, position text, updated_date time, looked_date time, epoch int, identity text`},
		{"gaps", `id int, source name, reason name, detail text, from_position text, to_position text, detected_date time, closed_date time`},
		{"audit_log", `id int, happened_date time, actor name, action name, target text, affected int, reason text, detail json`},
	}
}

// CheckSchema says whether the tables are there and as the store needs them. What our own tables lack is a
// [*SchemaError]; what is wrong with the mapping of the event table is [github.com/cdc-dispatcher/cdc-dispatcher/schema.Problems].
func (s *Store) CheckSchema(ctx context.Context) error {
	srv, err := s.serverOf(ctx)
	if err != nil {
		return err
	}
	var lacks SchemaError
	if err := s.read(ctx, func(q querier) (err error) {
		lacks, err = s.lacking(ctx, q, srv)
		return err
	}); err != nil {
		return fmt.Errorf("check schema %s: %w", s.schema, err)
	}
	if len(lacks.Missing) > 0 {
		return &lacks
	}
	// A fresh look, which becomes the one that is used.
	s.forget()
	if _, err := s.ourTables(ctx); err != nil {
		return err
	}
	_, err = s.eventTable(ctx)
	return err
}

// CheckNames says whether the delivery table tells handler names and event ids apart byte by byte. Tables that
// existed before may have a collation to which "é" and "e" are one name. Such a table works: two handlers
// whose names are one to it are told at fan-out, as a delivery that is refused. Nil means that there is nothing to say; the
// statement of what is returned copies the table.
func (s *Store) CheckNames(ctx context.Context) (*SchemaError, error) {
	var alter []string
	lacks := &SchemaError{}
	if err := s.read(ctx, func(q querier) error {
		columns, err := columnsOf(ctx, q, s.schema, "event_notifications")
		for _, name := range []string{"event_id", "handler_name"} {
			is, ok := columns[name]
			if !ok || is.binary() {
				continue
			}
			lacks.Missing = append(lacks.Missing, fmt.Sprintf("column event_notifications.%s (has the collation %s, not a binary one)", name, is.collation))
			alter = append(alter, "ALTER TABLE "+s.names.deliveries+" MODIFY "+name+" "+is.typ+" CHARACTER SET "+is.charset+" COLLATE "+is.charset+"_bin NOT NULL;")
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("check the names of schema %s: %w", s.schema, err)
	}
	if len(alter) == 0 {
		return nil, nil
	}
	lacks.Statement = strings.Join(alter, " ")
	return lacks, nil
}

func (s *Store) lacking(ctx context.Context, q querier, srv *server) (lacks SchemaError, err error) {
	families := s.families(srv.mariaDB)
	var alter []string
	noTables := false
	for _, table := range ourColumns() {
		columns, err := columnsOf(ctx, q, s.schema, table.table)
		if err != nil {
			return lacks, err
		}
		if len(columns) == 0 {
			lacks.Missing, noTables = append(lacks.Missing, "table "+s.schema+"."+table.table), true
			continue
		}
		change := "ALTER TABLE " + quoteName(s.schema) + "." + table.table + " "
		for text := range strings.SplitSeq(table.columns, ",") {
			name, word, _ := strings.Cut(strings.TrimSpace(text), " ")
			want := families[word]
			switch is, ok := columns[name]; {
			case !ok:
				lacks.Missing = append(lacks.Missing, "column "+table.table+"."+name)
				alter = append(alter, change+"ADD COLUMN "+name+" "+want.ddl+";")
			case !slices.Contains(want.kinds, is.kind):
				lacks.Missing = append(lacks.Missing, fmt.Sprintf("column %s.%s (is %s, not %s)", table.table, name, is.typ, want.ddl))
			}
		}
	}
	if noTables {
		return lacks, nil
	}
	missing, statements, err := s.missingIndexes(ctx, q, srv)
	if err != nil {
		return lacks, err
	}
	lacks.Missing = append(lacks.Missing, missing...)
	lacks.Statement = strings.Join(append(alter, statements...), " ")
	return lacks, nil
}

// missingIndexes looks for the indexes of the delivery table without which the store gives wrong
// results, or none in time.
func (s *Store) missingIndexes(ctx context.Context, q querier, srv *server) (missing, statements []string, err error) {
	indexes, err := indexesOf(ctx, q, srv.mariaDB, s.schema, "event_notifications")
	if err != nil {
		return nil, nil, err
	}
	has := func(ok func(index) bool) bool { return slices.ContainsFunc(indexes, ok) }
	change := "ALTER TABLE " + s.names.deliveries + " ADD "
	if !has(func(i index) bool { return i.name == "PRIMARY" && i.begins("id") }) {
		missing = append(missing, "primary key event_notifications (id)")
		statements = append(statements, change+"PRIMARY KEY (id);")
	}
	if !has(func(i index) bool { return i.unique && slices.Equal(i.columns, []string{"event_id", "handler_name"}) }) {
		missing = append(missing, "unique index event_notifications (event_id, handler_name)")
		statements = append(statements, change+"UNIQUE KEY (event_id, handler_name);")
	}
	if !has(func(i index) bool { return i.name == claimIndex && i.begins("handler_name", "state", "next_retry_at") }) {
		missing = append(missing, "index "+claimIndex+" of event_notifications (handler_name, state, next_retry_at)")
		statements = append(statements, change+"INDEX "+claimIndex+" (handler_name, state, next_retry_at);")
	}
	return missing, statements, nil
}
