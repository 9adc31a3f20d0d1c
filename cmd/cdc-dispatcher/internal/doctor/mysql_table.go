package doctor

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

func (s *mySession) eventTable(ctx context.Context) (Finding, error) {
	t := s.cfg.Table
	var kind, engine string
	err := s.row(ctx, "SELECT table_type, COALESCE(engine, '') FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
		[]any{t.Schema, t.Name}, &kind, &engine)
	f := Finding{Status: Fail, Value: t.QualifiedName()}
	switch {
	case errors.Is(err, stdsql.ErrNoRows):
		f.Message, f.Hint = "the event table does not exist, or this user has no right on it", "correct its name in the configuration, create it, or grant SELECT on it"
		if t.Preset == schema.PresetEventlog {
			f.Hint = hintMigrate
		}
		return f, nil
	case err != nil:
		return Finding{}, err
	case !strings.Contains(kind, "TABLE"):
		f.Message, f.Hint = "the event table is no table but a view or the like", "name the table behind it: the log has rows of tables only"
		return f, nil
	case engine != "InnoDB":
		f.Message, f.Fix = "the event table is not transactional, so rolled back events would be delivered", []string{"ALTER TABLE " + s.quotedTable() + " ENGINE = InnoDB"}
		f.Value += ", " + engine
		return f, nil
	}
	return s.logged(ctx)
}

// logged looks for columns whose rows the binlog holds in a form that nobody can read.
func (s *mySession) logged(ctx context.Context) (Finding, error) {
	t := s.cfg.Table
	if s.mariaDB && !s.cfg.Poll {
		var name, typ string
		err := s.row(ctx, `SELECT column_name, column_type FROM information_schema.columns
			WHERE table_schema = ? AND table_name = ? AND column_type LIKE '%COMPRESSED%' LIMIT 1`, []any{t.Schema, t.Name}, &name, &typ)
		if err == nil {
			plain, _, _ := strings.Cut(typ, " /*")
			return Finding{Status: Warn, Message: "the binlog holds compressed columns in a form that cannot be read: the poller delivers alone", Value: name,
				Fix: []string{fmt.Sprintf("ALTER TABLE %s MODIFY %s %s", s.quotedTable(), myIdent(name), plain)}, Hint: hintOwner}, nil
		}
		if !errors.Is(err, stdsql.ErrNoRows) {
			return Finding{}, err
		}
	}
	return Finding{Status: OK, Message: "the event table exists", Value: t.QualifiedName()}, nil
}

// tableRights lets the server say what the user may do: each statement is prepared, which checks
// the rights, and never run.
func (s *mySession) tableRights(ctx context.Context) (Finding, error) {
	var grants []string
	for _, p := range (&session{cfg: s.cfg.Config}).privileges() {
		exists, err := s.exists(ctx, p.schema, p.table)
		if err != nil {
			return Finding{}, err
		}
		if !exists {
			continue // which the migrations' check says, unless the user may not even see it
		}
		missing, err := s.missing(ctx, p)
		if err != nil {
			return Finding{}, err
		}
		if len(missing) > 0 {
			grants = append(grants, fmt.Sprintf("GRANT %s ON %s.%s TO %s", strings.Join(missing, ", "), myIdent(p.schema), myIdent(p.table), s.user))
		}
	}
	if len(grants) > 0 {
		return Finding{Status: Fail, Message: "user " + strings.ReplaceAll(s.user, "'", "") + " lacks rights", Fix: grants,
			Hint: "run it as a user with GRANT OPTION"}, nil
	}
	return Finding{Status: OK, Message: "the user has the rights that it needs"}, nil
}

func (s *mySession) exists(ctx context.Context, database, table string) (bool, error) {
	var exists bool
	err := s.row(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?)", []any{database, table}, &exists)
	return exists, err
}

// missing lists the rights on p that the user lacks, as GRANT writes them.
func (s *mySession) missing(ctx context.Context, p privilege) (missing []string, err error) {
	table := myIdent(p.schema) + "." + myIdent(p.table)
	column, err := s.firstColumn(ctx, p.schema, p.table)
	if err != nil {
		return nil, err
	}
	for _, kind := range p.kinds {
		grant, statement := kind, ""
		switch kind {
		case "SELECT":
			statement = "SELECT 1 FROM " + table + " LIMIT 1"
		case "INSERT":
			statement = fmt.Sprintf("INSERT INTO %s (%s) VALUES (NULL)", table, column)
		case "UPDATE":
			set := []string{column + " = NULL"}
			if p.update != nil {
				set = nil
				names := make([]string, len(p.update))
				for i, c := range p.update {
					names[i] = myIdent(c)
					set = append(set, names[i]+" = NULL")
				}
				grant = "UPDATE (" + strings.Join(names, ", ") + ")"
			}
			statement = "UPDATE " + table + " SET " + strings.Join(set, ", ")
		}
		allowed, err := s.allowed(ctx, statement)
		if err != nil {
			return nil, err
		}
		if !allowed {
			missing = append(missing, grant)
		}
	}
	return missing, nil
}

// allowed prepares a statement. What is wrong with it beside rights is found by another check.
func (s *mySession) allowed(ctx context.Context, statement string) (bool, error) {
	prepared, err := s.conn.PrepareContext(ctx, statement)
	switch number(err) {
	case 0:
		if err != nil {
			return false, err
		}
		return true, prepared.Close() //nolint:sqlclosecheck // there is nothing in between
	case numNoTableRight, numNoColumnRight, numNoDBRight:
		return false, nil
	}
	return true, nil
}

func (s *mySession) firstColumn(ctx context.Context, database, table string) (string, error) {
	var name string
	err := s.row(ctx, `SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?
		ORDER BY ordinal_position LIMIT 1`, []any{database, table}, &name)
	if errors.Is(err, stdsql.ErrNoRows) {
		return "id", nil
	}
	return myIdent(name), err
}

func (s *mySession) migrations(ctx context.Context) (Finding, error) {
	m, err := migrate.MySQL(s.cfg.Pool, migrate.Options{Schema: s.cfg.Schema, Table: s.cfg.Table})
	if err != nil {
		return Finding{}, err
	}
	return pendingMigrations(ctx, m, "database "+s.cfg.Schema)
}

// columns lets the store look: what it accepts is what counts.
func (s *mySession) columns(ctx context.Context) (Finding, error) {
	st, err := s.store()
	if err != nil {
		return Finding{}, err
	}
	err = st.CheckSchema(ctx)
	var problems schema.Problems
	lacks, isLacking := errors.AsType[*mysql.SchemaError](err)
	switch {
	case err == nil:
		return s.names(ctx, st)
	case isLacking:
		return lackingTables(lacks.Missing, lacks.Statement), nil
	case errors.As(err, &problems):
		return misfit(problems), nil
	}
	return Finding{}, err
}

// names warns of a collation, in tables that existed before, to which different names are equal.
func (s *mySession) names(ctx context.Context, st *mysql.Store) (Finding, error) {
	advice, err := st.CheckNames(ctx)
	if err != nil {
		return Finding{}, err
	}
	if advice == nil {
		return Finding{Status: OK, Message: "the tables have the columns that are needed"}, nil
	}
	return Finding{Status: Warn, Message: "handler names that differ only in accents or in case are one to the delivery table, and the second is refused",
		Value: strings.Join(advice.Missing, ", "), Fix: strings.Split(strings.TrimSuffix(advice.Statement, ";"), "; "),
		Hint: "nothing to do unless you have such names; the statement copies the table and holds writers up"}, nil
}

// pollIndex looks for an index that finds the events that are not fanned out without
// reading all others.
func (s *mySession) pollIndex(ctx context.Context) (Finding, error) {
	t := s.cfg.Table
	if t.Mark.Kind == schema.MarkNone && (t.Columns.Date == "" || t.LookBack == 0) {
		return s.wholeTable(ctx)
	}
	key := t.Mark.Column
	if t.Mark.Kind == schema.MarkNone {
		key = t.Columns.Date
	}
	var found bool
	if err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.statistics
		WHERE table_schema = ? AND table_name = ? AND column_name = ? AND seq_in_index = 1)`, []any{t.Schema, t.Name, key}, &found); err != nil {
		return Finding{}, err
	}
	if found {
		return Finding{Status: OK, Message: "the poller has an index"}, nil
	}
	columns := []string{key, t.Columns.Type, t.Columns.Date}
	if t.Mark.Kind == schema.MarkNone {
		columns = columns[:1]
	}
	columns = slices.DeleteFunc(columns, func(c string) bool { return c == "" })
	for i := range columns {
		columns[i] = myIdent(columns[i])
	}
	return Finding{Status: Warn, Message: "the poller reads the whole event table: no index leads to the events that are not fanned out",
		Fix:  []string{fmt.Sprintf("CREATE INDEX events_pending_fanout ON %s (%s)", s.quotedTable(), strings.Join(columns, ", "))},
		Hint: hintOwner}, nil
}

// wholeTable: without a mark and without look_back each look of the poller reads every row.
func (s *mySession) wholeTable(ctx context.Context) (Finding, error) {
	t := s.cfg.Table
	var rows float64
	if err := s.row(ctx, "SELECT COALESCE(table_rows, 0) FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
		[]any{t.Schema, t.Name}, &rows); err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: "the poller reads the whole table: it has no mark, and no look_back bounds the look",
		Value: fmt.Sprintf("about %.0f rows", rows)}
	if rows <= s.cfg.LargeTable {
		return f, nil
	}
	f.Status = Warn
	f.Hint = "give the table a mark; or name its date column (columns.date) and set look_back, which is to be longer than the dispatcher may ever be away"
	return f, nil
}

func (s *mySession) nullIDs(ctx context.Context) (Finding, error) {
	st, err := s.store()
	if err != nil {
		return Finding{}, err
	}
	n, err := st.CountUnidentifiable(ctx, countLimit)
	switch {
	case err != nil:
		return Finding{}, err
	case n == 0:
		return Finding{Status: OK, Message: "every row has an id"}, nil
	}
	return Finding{Status: Warn, Message: "rows without an id cannot have a delivery; no handler gets them", Value: atMost(n),
		Fix:  []string{fmt.Sprintf("UPDATE %s SET %s = UUID() WHERE %[2]s IS NULL", s.quotedTable(), myIdent(s.cfg.Table.Columns.ID))},
		Hint: "then forbid null: ALTER TABLE … MODIFY … NOT NULL"}, nil
}

func (s *mySession) undelivered(ctx context.Context) (Finding, error) {
	o, err := s.ask(ctx)
	switch {
	case err != nil:
		return Finding{}, err
	case slices.Contains(o.Incomplete, "undelivered"):
		return Finding{Status: Warn, Message: "looking for undelivered events took too long", Hint: "see the poller's index"}, nil
	case o.Wanted.N == 0:
		return Finding{Status: OK, Message: "no event waits for its fan-out"}, nil
	case o.OldestWanted <= s.cfg.Undelivered:
		return Finding{Status: OK, Message: "no event has waited for long", Value: o.OldestWanted.String()}, nil
	}
	return Finding{Status: Warn, Message: "an event has waited for its fan-out for long", Value: o.OldestWanted.String(),
		Hint: "start the dispatcher; if it runs, see its log and cdc-dispatcher status"}, nil
}

func (s *mySession) gaps(ctx context.Context) (Finding, error) {
	o, err := s.ask(ctx)
	switch {
	case err != nil:
		return Finding{}, err
	case slices.Contains(o.Incomplete, "gaps"):
		return Finding{}, fmt.Errorf("read the gaps: %w", admin.ErrSlow)
	case len(o.Gaps) == 0:
		return Finding{Status: OK, Message: "the log was read without a gap"}, nil
	}
	newest := o.Gaps[len(o.Gaps)-1]
	return Finding{Status: Warn, Message: "a stretch of the log was not read and the table is not swept yet",
		Value: newest.Source + ": " + newest.Reason + ", " + newest.Detail,
		Hint:  "start the dispatcher: it sweeps the table and closes the gap by itself"}, nil
}
