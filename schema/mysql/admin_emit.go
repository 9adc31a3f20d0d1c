package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// EmitEvent inserts one row into the event table, as an application would, and a line into the
// audit log, in one transaction. It fills the mapped columns; a table that demands more says so.
// A key that is neither given nor counted up by the database is a new UUID: what another default of the
// column makes cannot be read back on every server.
func (a *Admin) EmitEvent(ctx context.Context, e admin.Emit) (out admin.Emitted, err error) {
	switch {
	case e.Actor == "":
		return admin.Emitted{}, admin.ErrNoActor
	case e.Type == "":
		return admin.Emitted{}, admin.ErrNoType
	}
	err = a.withTable(ctx, func(t *eventTable, _ *ourTables) error {
		return a.carryOut(ctx, "", func(ctx context.Context, q querier) error {
			counted, err := t.counted(ctx, q)
			if err != nil {
				return err
			}
			row := newRow{t: t, now: a.now}
			if err := row.fill(e, counted); err != nil {
				return err
			}
			result, err := q.ExecContext(ctx, "INSERT INTO "+t.from+" ("+strings.Join(row.names, ", ")+") VALUES ("+strings.Join(row.values, ", ")+")", row.args...)
			if err != nil {
				return err
			}
			if out.Key = row.key; out.Key == "" {
				id, err := result.LastInsertId()
				if err != nil {
					return err
				}
				out.Key = strconv.FormatInt(id, 10)
				if t.key().kind == kindUnsigned {
					out.Key = strconv.FormatUint(uint64(id), 10)
				}
			}
			out.ID, _ = schema.EventID(t.QualifiedName(), out.Key)
			return a.audit(ctx, q, e.Actor, "events.emit", out.ID, 1, "", map[string]any{"type": clean(e.Type)})
		})
	})
	if err != nil {
		return admin.Emitted{}, fmt.Errorf("emit event: %w", err)
	}
	return out, nil
}

// counted says whether the database counts the keys up.
func (t *eventTable) counted(ctx context.Context, q querier) (bool, error) {
	var extra string
	err := q.QueryRowContext(ctx, "SELECT LOWER(extra) FROM information_schema.columns WHERE table_schema = ? AND table_name = ? AND column_name = ?",
		t.Schema, t.Name, t.Columns.ID).Scan(&extra)
	return strings.Contains(extra, "auto_increment"), err
}

// newRow collects the columns of a row to insert and their values.
type newRow struct {
	t             *eventTable
	now           string
	names, values []string
	args          []any
	// key is the text of the row's key, "" when the database counts it up.
	key string
}

func (r *newRow) add(name, expr string, args ...any) {
	if name != "" {
		r.names, r.values, r.args = append(r.names, quoteName(name)), append(r.values, expr), append(r.args, args...)
	}
}

// text adds a value in the form that the column takes.
func (r *newRow) text(field, name, value string) error {
	if name == "" {
		return nil
	}
	c := r.t.columns[name]
	if c.kind == kindInt || c.kind == kindUnsigned || c.kind == kindUUID || c.kind == kindBinaryUUID {
		arg, ok := c.arg(clean(value))
		if !ok {
			return fmt.Errorf("%s %q is no value for column %q, which is %s", field, value, name, c.typ)
		}
		r.add(name, "?", arg)
		return nil
	}
	if c.kind == kindBytes {
		r.add(name, "?", []byte(value))
		return nil
	}
	r.add(name, "?", clean(value))
	return nil
}

func (r *newRow) fill(e admin.Emit, counted bool) error {
	c := &r.t.Columns
	for _, f := range []struct {
		field, name, value string
		optional           bool
	}{
		{"type", c.Type, e.Type, false},
		{"payload", c.Payload, string(e.Payload), e.Payload == nil},
		{"namespace", c.Namespace, orDefault(e.Namespace, "cdc-dispatcher"), false},
		{"action id", c.ActionID, uuid.NewString(), false},
		{"action name", c.ActionName, orDefault(e.ActionName, "emit"), false},
		{"action parameters", c.ActionParams, "{}", false},
		{"model type", c.ModelType, e.ModelType, e.ModelType == ""},
		{"model id", c.ModelID, e.ModelID, e.ModelID == ""},
		{"headers", c.Headers, string(e.Headers), e.Headers == nil},
		{"traceparent", c.Traceparent, e.Traceparent, e.Traceparent == ""},
	} {
		if f.optional {
			continue
		}
		if err := r.text(f.field, f.name, f.value); err != nil {
			return err
		}
	}
	for _, date := range []string{c.StartedDate, c.CompletionDate, c.Date} {
		r.add(date, r.now)
	}
	switch r.t.Mark.Kind {
	case schema.MarkBoolean:
		r.add(r.t.Mark.Column, "0")
	case schema.MarkStatus:
		r.add(r.t.Mark.Column, r.t.columns[r.t.Mark.Column].from(quoteText(r.t.Mark.Pending)))
	case schema.MarkNone:
	}
	if e.ID == "" && counted {
		return nil
	}
	return r.setKey(orDefault(e.ID, uuid.Must(uuid.NewV7()).String()))
}

// setKey gives the row its key, and keeps the text that the database will print for it.
func (r *newRow) setKey(key string) error {
	r.key = clean(key)
	switch r.t.key().kind {
	case kindUUID, kindBinaryUUID:
		if parsed, err := uuid.Parse(r.key); err == nil {
			r.key = parsed.String()
		}
	case kindInt, kindUnsigned:
		// "007" is 7.
		if trimmed := strings.TrimLeft(r.key, "0"); trimmed != "" {
			r.key = trimmed
		}
	default:
	}
	return r.text("id", r.t.Columns.ID, r.key)
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
