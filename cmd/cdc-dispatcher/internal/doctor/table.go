package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
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

// checkColumns lets the store look: what it accepts is what counts.
func checkColumns(ctx context.Context, s *session) (Finding, error) {
	store, err := s.store(ctx)
	if err != nil {
		return Finding{}, err
	}
	err = store.CheckSchema(ctx)
	var lacks *postgres.SchemaError
	var problems schema.Problems
	switch {
	case err == nil:
		return Finding{Status: OK, Message: "the tables have the columns that are needed"}, nil
	case errors.As(err, &lacks):
		return lackingTables(lacks.Missing, lacks.Statement), nil
	case errors.As(err, &problems):
		return misfit(problems), nil
	}
	return Finding{}, err
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

func checkMigrations(ctx context.Context, s *session) (Finding, error) {
	pool, err := s.connections(ctx)
	if err != nil {
		return Finding{}, err
	}
	m, err := migrate.Postgres(pool, migrate.Options{Schema: s.cfg.Schema, Table: s.cfg.Table})
	if err != nil {
		return Finding{}, err
	}
	return pendingMigrations(ctx, m, "schema "+s.cfg.Schema)
}

func (s *session) own(table string) string { return ident(s.cfg.Schema) + "." + ident(table) }

// checkPollIndex looks for an index that finds the events that are not fanned out without
// reading all others.
func checkPollIndex(ctx context.Context, s *session) (Finding, error) {
	t := s.cfg.Table
	if t.Mark.Kind == schema.MarkNone && (t.Columns.Date == "" || t.LookBack == 0) {
		return checkWholeTable(ctx, s)
	}
	key := t.Mark.Column
	if t.Mark.Kind == schema.MarkNone {
		key = t.Columns.Date
	}
	// An index counts when it begins with the column, or holds just the rows that the poller asks for. The
	// condition must be the poller's own, which for a boolean depends on whether it can be null.
	var found, partitioned, notNull bool
	if err := s.row(ctx, `
		SELECT EXISTS (
		    SELECT FROM pg_index i
		    WHERE i.indrelid = c.oid AND i.indisvalid
		      AND (i.indpred IS NULL AND i.indkey[0] = a.attnum
		           OR CASE WHEN NOT $3::bool THEN pg_get_expr(i.indpred, c.oid) LIKE '%' || quote_ident(a.attname) || '%' || quote_literal($4::text) || '%'
		                   WHEN a.attnotnull THEN pg_get_expr(i.indpred, c.oid) IN (format('(%I = false)', a.attname), format('(NOT %I)', a.attname))
		                   ELSE pg_get_expr(i.indpred, c.oid) = format('(%I IS NOT TRUE)', a.attname) END)),
		       c.relkind = 'p', a.attnotnull
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $2
		WHERE c.oid = $1::text::regclass`, []any{s.quotedTable(), key, t.Mark.Kind == schema.MarkBoolean, t.Mark.Pending},
		&found, &partitioned, &notNull); err != nil {
		return Finding{}, err
	}
	if found {
		return Finding{Status: OK, Message: "the poller has an index"}, nil
	}
	return Finding{Status: Warn, Message: "the poller reads the whole event table: no index leads to the events that are not fanned out",
		Fix: []string{s.pollIndex(notNull, partitioned)}, Hint: hintOwner}, nil
}

// checkWholeTable: without a mark and without look_back each look of the poller reads every
// row, which in a large table may take longer than a look may.
func checkWholeTable(ctx context.Context, s *session) (Finding, error) {
	rows, err := s.estimate(ctx)
	if err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: "the poller reads the whole table: it has no mark, and no look_back bounds the look",
		Value: fmt.Sprintf("about %.0f rows", rows)}
	if rows <= s.cfg.LargeTable {
		return f, nil
	}
	f.Status, f.Hint = Warn, "give the table a mark; or name its date column (columns.date) and set look_back, which is to be longer than the dispatcher may ever be away"
	if s.cfg.Table.Columns.Date != "" {
		f.Hint = "set look_back under the table, longer than the dispatcher may ever be away; or give the table a mark"
	}
	return f, nil
}

// estimate is how many rows the planner expects in the event table.
func (s *session) estimate(ctx context.Context) (float64, error) {
	var plan []byte
	if err := s.row(ctx, "EXPLAIN (FORMAT JSON) SELECT FROM "+s.quotedTable(), nil, &plan); err != nil {
		return 0, err
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		}
	}
	if err := json.Unmarshal(plan, &plans); err != nil {
		return 0, fmt.Errorf("read the planner's estimate: %w", err)
	}
	if len(plans) != 1 {
		return 0, fmt.Errorf("the planner made %d plans of one statement", len(plans))
	}
	return plans[0].Plan.Rows, nil
}

// pollIndex is the statement that creates the index that serves the poller best.
func (s *session) pollIndex(notNull, partitioned bool) string {
	t := s.cfg.Table
	by := ident(t.Columns.ID)
	if t.Columns.Date != "" {
		by = ident(t.Columns.Date)
	}
	concurrently := "CONCURRENTLY "
	if partitioned {
		concurrently = ""
	}
	create := "CREATE INDEX " + concurrently + "ON " + s.quotedTable()
	mark := ident(t.Mark.Column)
	switch {
	case t.Mark.Kind == schema.MarkBoolean && notNull:
		return fmt.Sprintf("%s (%s, %s) WHERE %s = false", create, ident(t.Columns.Type), by, mark)
	case t.Mark.Kind == schema.MarkBoolean:
		return fmt.Sprintf("%s (%s) WHERE %s IS NOT TRUE", create, by, mark)
	case t.Mark.Kind == schema.MarkStatus:
		return fmt.Sprintf("%s (%s) WHERE %s = %s", create, by, mark, literal(t.Mark.Pending))
	}
	return fmt.Sprintf("%s (%s)", create, by)
}
