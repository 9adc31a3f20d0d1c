package config

import (
	"errors"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// table decodes the event table: a preset, and what differs from it.
func (d *decoder) table(n *node, path string, s Source) schema.Table {
	t := schema.Eventlog(s.Schema)
	if n.kind != kindMap {
		d.object(n, path, tableFields...)
		return t
	}
	var preset, inSchema, name string
	preset = schema.PresetEventlog
	var mark *node
	var columns *node
	fields := []field{
		optional("preset", oneOf(d, &preset, schema.Presets()...)),
		optional("schema", d.text(&inSchema, checkIdentifier)).aka("database"),
		optional("name", d.text(&name, nil)),
		optional("columns", func(n *node, _ string) { columns = n }),
		optional("mark", func(n *node, _ string) { mark = n }),
		optional("look_back", d.duration(&t.LookBack, time.Second, 3650*day, 0)).aka("lookback", "overlap"),
	}
	if !d.object(n, path, fields...) {
		return t
	}
	if inSchema == "" {
		if before, after, dotted := strings.Cut(name, "."); dotted {
			inSchema, name = before, after
		}
	}
	if inSchema == "" && preset != schema.PresetEventlog && !d.reported(path) {
		inSchema = d.defaultSchema(n, path, s)
	}
	lookBack := t.LookBack
	switch preset {
	case schema.PresetDebezium:
		t = schema.Debezium(inSchema, name)
	case schema.PresetCustom:
		t = schema.Custom(inSchema, name, schema.Columns{}, schema.Mark{})
	default:
		if inSchema != "" {
			t.Schema = inSchema
		}
		if name != "" {
			t.Name = name
		}
	}
	t.LookBack = lookBack
	if columns != nil {
		d.columns(&t.Columns, columns, join(path, "columns"))
	}
	if mark != nil {
		d.mark(&t.Mark, mark, join(path, "mark"))
	}
	t = t.WithDefaults()
	d.checkTable(t, path)
	return t
}

// defaultSchema is where a table is whose schema is not named: public, or the database that a
// MySQL connection string names.
func (d *decoder) defaultSchema(n *node, path string, s Source) string {
	if !s.Database.IsMySQL() {
		return "public"
	}
	cfg, err := parseMySQL(s.DSN)
	if err != nil {
		return "unknown" // the dsn is reported
	}
	if cfg.DBName == "" {
		d.report(CodeMissing, path, n.pos, "write schema: DATABASE, name: TABLE", "%s does not say in which database the event table is, nor does the dsn", path)
		return "unknown"
	}
	return cfg.DBName
}

// tableFields only lists the names, for the message about a table that is no mapping.
var tableFields = []field{
	{name: "preset"}, {name: "schema"}, {name: "name"}, {name: "columns"}, {name: "mark"}, {name: "look_back"},
}

// columns decodes the column names. "none" takes a column of the preset away.
func (d *decoder) columns(c *schema.Columns, n *node, path string) {
	column := func(name string, dst *string) field {
		return optional(name, func(n *node, path string) {
			d.text(dst, checkIdentifier)(n, path)
			if *dst == "none" && n.style == styleText {
				*dst = ""
			}
		})
	}
	d.object(n, path,
		column("id", &c.ID).aka("event_id", "uuid"),
		column("type", &c.Type).aka("event_type"),
		column("payload", &c.Payload).aka("data", "body"),
		column("date", &c.Date).aka("event_date", "created_at", "time", "timestamp"),
		column("model_id", &c.ModelID).aka("aggregate_id", "aggregateid", "key"),
		column("model_type", &c.ModelType).aka("aggregate_type", "aggregatetype"),
		column("namespace", &c.Namespace),
		column("action_id", &c.ActionID),
		column("action_name", &c.ActionName),
		column("action_params", &c.ActionParams),
		column("started_date", &c.StartedDate),
		column("completion_date", &c.CompletionDate),
		column("traceparent", &c.Traceparent),
		column("headers", &c.Headers),
	)
}

// mark decodes "none", {boolean: COLUMN} or {status: COLUMN, pending: …, done: …, none: …, at: …}.
func (d *decoder) mark(m *schema.Mark, n *node, path string) {
	const try = "write none, {boolean: COLUMN} or {status: COLUMN}"
	if n.kind == kindScalar {
		if n.text == "none" {
			*m = schema.Mark{Kind: schema.MarkNone}
			return
		}
		d.report(CodeType, path, n.pos, try, "%s: %s is not a mark", path, d.echo(path, n.text))
		return
	}
	var boolean string
	status := schema.Mark{Kind: schema.MarkStatus}
	ok := d.object(n, path,
		optional("boolean", d.text(&boolean, checkIdentifier)).aka("bool"),
		optional("status", d.text(&status.Column, checkIdentifier)),
		optional("pending", d.text(&status.Pending, nil)),
		optional("done", d.text(&status.Done, nil)).aka("dispatched"),
		optional("none", d.text(&status.None, nil)).aka("no_delivery"),
		optional("at", d.text(&status.At, checkIdentifier)).aka("dispatched_at"),
	)
	switch {
	case !ok:
	case boolean != "" && status.Column != "":
		d.report(CodeConflict, path, n.pos, try, "%s: a table has one mark, here are two", path)
	case boolean != "":
		*m = status
		m.Kind, m.Column = schema.MarkBoolean, boolean
	case status.Column != "":
		*m = status
	default:
		if !d.has(path+".boolean") && !d.has(path+".status") {
			d.report(CodeMissing, path, n.pos, try, "%s names neither a boolean nor a status column", path)
		}
	}
}

// has says whether the file has a setting.
func (d *decoder) has(path string) bool {
	_, ok := d.at[path]
	return ok
}

// checkTable lets package schema judge the whole table.
func (d *decoder) checkTable(t schema.Table, path string) {
	var found schema.Problems
	if err := t.Validate(); !errors.As(err, &found) {
		return
	}
	for _, p := range found {
		at := join(path, p.Field)
		switch p.Field {
		case "table":
			at = join(path, "name")
		case "mark.column":
			at = join(path, "mark."+string(t.Mark.Kind))
		}
		if d.reported(at) {
			continue
		}
		d.report(CodeTable, at, d.posOf(at), p.Fix, "%s", about(at, p.Message))
	}
}

// reported says whether something is already wrong with a setting.
func (d *decoder) reported(path string) bool {
	for _, p := range d.problems {
		if p.Path == path {
			return true
		}
	}
	return false
}
