package schema

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxIdentifier is the longest name, in bytes, that PostgreSQL keeps whole.
// Longer ones are cut without an error, so that the wrong table could be meant.
const maxIdentifier = 63

// Problem is one mistake in a [Table].
type Problem struct {
	// Field is the dotted name of the setting: "schema", "table", "columns.id",
	// "mark.kind", "mark.column", "mark.pending", "mark.done", "mark.none",
	// "mark.at", "look_back".
	Field string
	// Message says what is wrong, Fix what to do about it.
	Message, Fix string
}

func (p Problem) String() string { return p.Field + ": " + p.Message + " (" + p.Fix + ")" }

// Problems is every mistake of one table, in the order of the fields.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return "event table: " + strings.Join(lines, "; ")
}

func (p *Problems) add(field, message, fix string) {
	*p = append(*p, Problem{Field: field, Message: message, Fix: fix})
}

// Validate reports all mistakes at once, as [Problems], or nil. It looks at the
// description only; whether the database agrees is the store's to check.
func (t Table) Validate() error {
	t = t.WithDefaults()
	var p Problems
	p.required("schema", t.Schema, "name the schema the event table is in, such as public")
	p.required("table", t.Name, "name the event table")
	for _, c := range t.Columns.fields() {
		switch {
		case c.required:
			p.required("columns."+c.field, c.column, "name the column that holds the event's "+c.field)
		case c.column != "":
			p.identifier("columns."+c.field, c.column)
		}
	}
	t.validateMark(&p)
	t.validateLookBack(&p)
	if len(p) == 0 {
		return nil
	}
	return p
}

func (t Table) validateMark(p *Problems) {
	switch t.Mark.Kind {
	case MarkBoolean, MarkStatus:
		p.required("mark.column", t.Mark.Column, fmt.Sprintf("name the %s column, or use mark none", t.Mark.Kind))
		for _, c := range t.Columns.fields() {
			if c.column != "" && c.column == t.Mark.Column {
				p.add("mark.column", fmt.Sprintf("%q is also columns.%s", c.column, c.field),
					"a mark is overwritten at fan-out, so it needs a column of its own")
			}
		}
	case MarkNone:
		if t.Mark.Column != "" {
			p.add("mark.column", "a table without a mark has no mark column",
				"set mark.kind to boolean or status, or remove mark.column")
		}
	default:
		p.add("mark.kind", fmt.Sprintf("%q is not a kind of mark", t.Mark.Kind), "use boolean, status or none")
	}
	if t.Mark.Kind == MarkStatus {
		t.Mark.validateStatus(p)
		return
	}
	for _, f := range []struct{ field, value string }{
		{"mark.pending", t.Mark.Pending},
		{"mark.done", t.Mark.Done},
		{"mark.none", t.Mark.None},
		{"mark.at", t.Mark.At},
	} {
		if f.value != "" {
			p.add(f.field, "only a status mark has it", "set mark.kind to status, or remove "+f.field)
		}
	}
}

func (m Mark) validateStatus(p *Problems) {
	if m.Done == m.Pending {
		p.add("mark.done", "is the same as mark.pending", "a fanned-out event needs a status of its own")
	}
	if m.None == m.Pending {
		p.add("mark.none", "is the same as mark.pending", "an event without deliveries needs a status of its own")
	}
	if m.At != "" {
		p.identifier("mark.at", m.At)
		if m.At == m.Column {
			p.add("mark.at", "is the same as mark.column", "name the column that holds the time of the status")
		}
	}
}

func (t Table) validateLookBack(p *Problems) {
	switch {
	case t.LookBack < 0:
		p.add("look_back", "is negative", "use a length of time, or 0 for the whole table")
	case t.LookBack > 0 && t.Mark.Kind == MarkNone && t.Columns.Date == "":
		p.add("look_back", "needs a date to look back by", "set columns.date, or remove look_back")
	}
}

func (p *Problems) required(field, name, fix string) {
	if name == "" {
		p.add(field, "is missing", fix)
		return
	}
	p.identifier(field, name)
}

// identifier refuses names that the database would cut or that cannot be quoted.
func (p *Problems) identifier(field, name string) {
	switch {
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		p.add(field, "holds a control character", "use the exact name, without quotes")
	case len(name) > maxIdentifier:
		p.add(field, fmt.Sprintf("is longer than %d bytes", maxIdentifier), "use the name as the database stores it")
	}
}

// columnField is one field of [Columns] with its dotted name.
type columnField struct {
	field, column string
	required      bool
}

// fields lists the columns in the order of the struct.
func (c Columns) fields() []columnField {
	return []columnField{
		{"id", c.ID, true},
		{"namespace", c.Namespace, false},
		{"action_id", c.ActionID, false},
		{"action_name", c.ActionName, false},
		{"action_params", c.ActionParams, false},
		{"started_date", c.StartedDate, false},
		{"completion_date", c.CompletionDate, false},
		{"model_id", c.ModelID, false},
		{"model_type", c.ModelType, false},
		{"type", c.Type, true},
		{"payload", c.Payload, true},
		{"date", c.Date, false},
		{"traceparent", c.Traceparent, false},
		{"headers", c.Headers, false},
	}
}
