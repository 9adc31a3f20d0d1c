package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

const hintMigrate = "run: cdc-dispatcher migrate up"

func checkTable(ctx context.Context, s *session) (Finding, error) {
	t := s.cfg.Table
	var kind, persistence string
	err := s.row(ctx, `SELECT c.relkind::text, c.relpersistence::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, []any{t.Schema, t.Name}, &kind, &persistence)
	f := Finding{Status: Fail, Value: t.QualifiedName()}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		f.Message, f.Hint = "the event table does not exist", "correct its name in the configuration, or create it"
		if t.Preset == schema.PresetEventlog {
			f.Hint = hintMigrate
		}
	case err != nil:
		return Finding{}, err
	case kind != "r" && kind != "p":
		f.Message, f.Hint = "the event table is no table but a view or the like", "name the table behind it: the log has rows of tables only"
	case persistence == "u":
		f.Message, f.Fix = "the event table is unlogged: the log has no rows of it, and a crash empties it",
			[]string{fmt.Sprintf("ALTER TABLE %s SET LOGGED", s.quotedTable())}
	default:
		f.Status, f.Message = OK, "the event table exists"
	}
	return f, nil
}

// column is a column of the event table that the configuration names.
type column struct {
	field, name string
	optional    bool
	// types it may have; empty means any.
	types []string
}

var (
	textTypes    = []string{"text", "character varying", "character", "name", "enum"}
	timeTypes    = []string{"timestamp without time zone", "timestamp with time zone", "date"}
	payloadTypes = append([]string{"jsonb", "json", "bytea"}, textTypes...)
	jsonTypes    = append([]string{"jsonb", "json"}, textTypes...)
)

// columns lists the named columns in the order of schema.Columns.
func (s *session) columns() []column {
	c, m := s.cfg.Table.Columns, s.cfg.Table.Mark
	list := []column{
		{"columns.id", c.ID, false, nil},
		{"columns.namespace", c.Namespace, false, nil},
		{"columns.action_id", c.ActionID, false, nil},
		{"columns.action_name", c.ActionName, false, nil},
		{"columns.action_params", c.ActionParams, false, jsonTypes},
		{"columns.started_date", c.StartedDate, false, timeTypes},
		{"columns.completion_date", c.CompletionDate, false, timeTypes},
		{"columns.model_id", c.ModelID, false, nil},
		{"columns.model_type", c.ModelType, false, nil},
		{"columns.type", c.Type, false, textTypes},
		{"columns.payload", c.Payload, false, payloadTypes},
		{"columns.date", c.Date, false, timeTypes},
		{"columns.traceparent", c.Traceparent, true, textTypes},
		{"columns.headers", c.Headers, true, jsonTypes},
	}
	if m.Kind == schema.MarkBoolean {
		list = append(list, column{"mark.column", m.Column, false, []string{"boolean"}})
	}
	if m.Kind == schema.MarkStatus {
		list = append(list, column{"mark.column", m.Column, false, textTypes}, column{"mark.at", m.At, false, timeTypes})
	}
	return slices.DeleteFunc(list, func(c column) bool { return c.name == "" })
}

func checkColumns(ctx context.Context, s *session) (Finding, error) {
	rows, err := s.conn.Query(ctx, `
		SELECT a.attname::text, CASE WHEN b.typtype = 'e' THEN 'enum' ELSE format_type(b.oid, NULL) END
		FROM pg_attribute a
		JOIN pg_type t ON t.oid = a.atttypid
		JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
		WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attnum`, s.quotedTable())
	if err != nil {
		return Finding{}, err
	}
	types := map[string]string{}
	var names []string
	var name, typ string
	if _, err := pgx.ForEachRow(rows, []any{&name, &typ}, func() error {
		types[name], names = typ, append(names, name)
		return nil
	}); err != nil {
		return Finding{}, err
	}
	var problems []string
	for _, c := range s.columns() {
		switch typ, ok := types[c.name]; {
		case !ok && !c.optional:
			problems = append(problems, fmt.Sprintf("%s: there is no column %q", c.field, c.name))
		case ok && c.types != nil && !slices.Contains(c.types, typ):
			problems = append(problems, fmt.Sprintf("%s: column %q is a %s, want %s", c.field, c.name, typ, strings.Join(c.types, ", ")))
		}
	}
	if len(problems) == 0 {
		return Finding{Status: OK, Message: "the event table has the columns that are configured"}, nil
	}
	return Finding{Status: Fail, Message: "the event table does not fit the configuration: " + strings.Join(problems, "; "),
		Value: "columns: " + strings.Join(names, ", "), Hint: "correct the column names in the configuration"}, nil
}

// privilege is what the program needs on one table.
type privilege struct {
	schema, table string
	kinds         []string
	// update lists the columns to update, nil for all.
	update []string
}

// versionTable is where package migrate keeps its versions.
const versionTable = "cdc_dispatcher_migrations"

func (s *session) privileges() []privilege {
	t, own := s.cfg.Table, s.cfg.Schema
	event := privilege{t.Schema, t.Name, []string{"SELECT"}, nil}
	if t.Mark.Kind != schema.MarkNone {
		event.kinds = append(event.kinds, "UPDATE")
		event.update = slices.DeleteFunc([]string{t.Mark.Column, t.Mark.At}, func(c string) bool { return c == "" })
	}
	all := []string{"SELECT", "INSERT", "UPDATE"}
	return []privilege{
		event,
		{own, "event_notifications", all, nil},
		{own, "event_notification_attempts", []string{"SELECT", "INSERT"}, nil},
		{own, "handlers", all, nil},
		{own, "sources", all, nil},
		{own, "gaps", all, nil},
		{own, "audit_log", []string{"SELECT", "INSERT"}, nil},
		{own, versionTable, []string{"SELECT"}, nil},
	}
}

func (p privilege) name() string { return ident(p.schema) + "." + ident(p.table) }

// checkPrivileges looks at the tables that exist; whether all do is the migrations' check.
func checkPrivileges(ctx context.Context, s *session) (Finding, error) {
	var grants, hidden []string
	schemas := map[string]bool{}
	for _, p := range s.privileges() {
		missing, exists, restricted, err := s.missing(ctx, p)
		if err != nil {
			return Finding{}, err
		}
		if !exists {
			continue
		}
		if !schemas[p.schema] {
			schemas[p.schema] = true
			var usage bool
			if err := s.row(ctx, "SELECT has_schema_privilege($1::text, 'USAGE')", []any{p.schema}, &usage); err != nil {
				return Finding{}, err
			}
			if !usage {
				grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", ident(p.schema), ident(s.user)))
			}
		}
		if len(missing) > 0 {
			grants = append(grants, fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(missing, ", "), p.name(), ident(s.user)))
		}
		if restricted {
			hidden = append(hidden, p.name())
		}
	}
	switch {
	case len(grants) > 0:
		return Finding{Status: Fail, Message: fmt.Sprintf("role %s lacks rights", s.user), Fix: grants, Hint: "run it as the owner of the tables"}, nil
	case len(hidden) > 0:
		return Finding{Status: Fail, Message: "row-level security hides rows from role " + s.user, Value: strings.Join(hidden, ", "),
			Fix: []string{fmt.Sprintf("ALTER ROLE %s BYPASSRLS", ident(s.user))}, Hint: "or give the role a policy that shows it every row"}, nil
	}
	return Finding{Status: OK, Message: "the role has the rights that it needs"}, nil
}

// missing lists the rights on p that the role lacks, as GRANT writes them.
func (s *session) missing(ctx context.Context, p privilege) (missing []string, exists, restricted bool, err error) {
	var oid *uint32
	if err := s.row(ctx, `SELECT max(c.oid::bigint)::oid, coalesce(bool_or(row_security_active(c.oid)), false)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, []any{p.schema, p.table}, &oid, &restricted); err != nil || oid == nil {
		return nil, false, false, err
	}
	for _, kind := range p.kinds {
		var ok bool
		grant := kind
		if kind == "UPDATE" && p.update != nil {
			quoted := make([]string, len(p.update))
			for i, c := range p.update {
				quoted[i] = ident(c)
			}
			grant = fmt.Sprintf("UPDATE (%s)", strings.Join(quoted, ", "))
			// A column that does not exist is found by another check.
			err = s.row(ctx, `SELECT coalesce(bool_and(has_column_privilege($1::oid, attnum, 'UPDATE')), true)
				FROM pg_attribute WHERE attrelid = $1::oid AND attname = ANY($2) AND NOT attisdropped`, []any{*oid, p.update}, &ok)
		} else {
			err = s.row(ctx, "SELECT has_table_privilege($1::oid, $2)", []any{*oid, kind}, &ok)
		}
		if err != nil {
			return nil, true, restricted, err
		}
		if !ok {
			missing = append(missing, grant)
		}
	}
	return missing, true, restricted, nil
}

// checkMigrations asks package migrate, over a connection of its own.
func checkMigrations(ctx context.Context, s *session) (Finding, error) {
	c, _ := s.config(s.cfg.DSN) // it was read before
	pc, err := pgxpool.ParseConfig("")
	if err != nil {
		return Finding{}, err
	}
	pc.ConnConfig, pc.MaxConns = c, 1
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return Finding{}, err
	}
	defer pool.Close()
	m, err := migrate.Postgres(pool, migrate.Options{Schema: s.cfg.Schema, Table: s.cfg.Table})
	if err != nil {
		return Finding{}, err
	}
	steps, err := m.Status(ctx)
	if err != nil {
		return Finding{}, err
	}
	var pending []string
	for _, step := range steps {
		if !step.Applied {
			pending = append(pending, step.Name)
		}
	}
	if len(pending) > 0 {
		return Finding{Status: Fail, Message: fmt.Sprintf("%d of %d migrations of schema %s are pending", len(pending), len(steps), s.cfg.Schema),
			Value: strings.Join(pending, ", "), Hint: hintMigrate}, nil
	}
	return Finding{Status: OK, Message: "all migrations are applied", Value: fmt.Sprint(len(steps))}, nil
}

func (s *session) own(table string) string { return ident(s.cfg.Schema) + "." + ident(table) }

// checkDeliveryKey looks for the key that makes a repeated fan-out harmless.
func checkDeliveryKey(ctx context.Context, s *session) (Finding, error) {
	table := s.own("event_notifications")
	var found bool
	if err := s.row(ctx, `
		SELECT EXISTS (
		    SELECT FROM pg_index i
		    WHERE i.indrelid = $1::text::regclass AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
		      AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
		           WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) = '{event_id,handler_name}')`,
		[]any{table}, &found); err != nil {
		return Finding{}, err
	}
	if found {
		return Finding{Status: OK, Message: "one delivery per event and handler is enforced"}, nil
	}
	return Finding{Status: Fail, Message: "nothing keeps an event from having two deliveries for one handler",
		Fix: []string{fmt.Sprintf("CREATE UNIQUE INDEX CONCURRENTLY ON %s (event_id, handler_name)", table)}, Hint: hintOwner}, nil
}

// checkPollIndex looks for an index that finds the events that are not fanned out without
// reading all others.
func checkPollIndex(ctx context.Context, s *session) (Finding, error) {
	t, table := s.cfg.Table, s.quotedTable()
	key, statement := t.Mark.Column, ""
	switch t.Mark.Kind {
	case schema.MarkBoolean:
		statement = fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s) WHERE %s = false", table, ident(indexed(t)), ident(key))
	case schema.MarkStatus:
		statement = fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s) WHERE %s = %s", table, ident(indexed(t)), ident(key), literal(t.Mark.Pending))
	default:
		if key = t.Columns.Date; key == "" || t.LookBack == 0 {
			return Finding{Status: OK, Message: "the poller reads the whole table: it has no mark, and no date to look back by"}, nil
		}
		statement = fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", table, ident(key))
	}
	var found, partitioned bool
	// An index counts when it begins with the column or has it in its condition.
	if err := s.row(ctx, `
		SELECT EXISTS (
		    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = $2
		    WHERE i.indrelid = c.oid AND i.indisvalid
		      AND (i.indkey[0] = a.attnum
		           OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
		                        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
		                        AND i.indpred IS NOT NULL AND NOT a.attnum = ANY (i.indkey::int2[])))), c.relkind = 'p'
		FROM pg_class c WHERE c.oid = $1::text::regclass`, []any{table, key}, &found, &partitioned); err != nil {
		return Finding{}, err
	}
	if found {
		return Finding{Status: OK, Message: "the poller has an index"}, nil
	}
	if partitioned {
		statement = strings.Replace(statement, "CONCURRENTLY ", "", 1)
	}
	return Finding{Status: Warn, Message: "the poller reads the whole event table: no index leads to the events that are not fanned out",
		Fix: []string{statement}, Hint: hintOwner}, nil
}

// indexed is the column by which the poller orders.
func indexed(t schema.Table) string {
	if t.Columns.Date != "" {
		return t.Columns.Date
	}
	return t.Columns.ID
}
