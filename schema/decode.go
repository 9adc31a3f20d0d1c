package schema

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// Reason is why a row could not be read as an event.
type Reason string

// The reasons.
const (
	// NullID: the row has no key, so that no delivery could name it.
	NullID Reason = "null_id"
	// BadID: the key is an empty text.
	BadID Reason = "bad_id"
	// MissingColumn: the table has no such column, or the log did not carry it.
	MissingColumn Reason = "missing_column"
	// BadTimestamp: a time is not in ISO form, or is a number without a unit (A170).
	BadTimestamp Reason = "bad_timestamp"
	// BadPayload: a binary payload is not in a form that the database prints.
	BadPayload Reason = "bad_payload"
)

// RowError says that one row could not be read as an event. It holds no value of
// the row, so it may be logged.
type RowError struct {
	Reason Reason
	// Table is "schema.table", Column the column at fault.
	Table, Column string
	// Detail completes the sentence "column x …".
	Detail string
}

func (e *RowError) Error() string {
	return fmt.Sprintf("row of %s: %s: column %q %s", e.Table, e.Reason, e.Column, e.Detail)
}

// Code implements event.Coded: rows are counted and logged by reason.
func (e *RowError) Code() string { return string(e.Reason) }

// OfTable says that the fault lies in the table or the mapping and not in the row's own
// values: every row written like it is unreadable too.
func (e *RowError) OfTable() bool { return e.Reason == MissingColumn }

// typeBytea is PostgreSQL's type OID of bytea, whose text form is not its content.
const typeBytea = 17

// Decoder returns the function that turns a row image of the table into an event. All
// its errors are [*RowError]. The event's raw fields share memory with the record.
//
// Columns are found by name, once per *cdc.Relation. A mapped column that the table
// lacks makes every row an error, except for traceparent and headers: no event
// is held up for want of its trace context. A column that the source knows to have the mapped
// name by now is that column. A column that was only renamed since the rows
// before, all others and all types being the same, is found by its place: rows written under the new
// name stay readable once it has its old one back. A null type is not an error: it marks a
// sentinel row (A23).
//
// The returned function may be called from any goroutine.
func (t Table) Decoder() func(cdc.Record) (event.Event, error) {
	d := &decoder{table: t.QualifiedName(), columns: t.Columns}
	return d.decode
}

type decoder struct {
	table   string
	columns Columns
	// layout of the relation seen last. A relation is immutable, so its pointer is
	// its identity.
	layout atomic.Pointer[layout]
}

// layout is where the columns of one relation are; -1 means nowhere.
type layout struct {
	relation *cdc.Relation
	id, namespace, actionID, actionName, actionParams,
	startedDate, completionDate, modelID, modelType, typ, payload, date,
	traceparent, headers int
	// binary says that the payload is a bytea.
	binary bool
}

func (d *decoder) resolve(r *cdc.Relation) (*layout, error) {
	if l := d.layout.Load(); l != nil && l.relation == r {
		return l, nil
	}
	l := &layout{relation: r}
	c := &d.columns
	for _, f := range []struct {
		at       *int
		column   string
		optional bool
	}{
		{&l.id, c.ID, false},
		{&l.namespace, c.Namespace, false},
		{&l.actionID, c.ActionID, false},
		{&l.actionName, c.ActionName, false},
		{&l.actionParams, c.ActionParams, false},
		{&l.startedDate, c.StartedDate, false},
		{&l.completionDate, c.CompletionDate, false},
		{&l.modelID, c.ModelID, false},
		{&l.modelType, c.ModelType, false},
		{&l.typ, c.Type, false},
		{&l.payload, c.Payload, false},
		{&l.date, c.Date, false},
		{&l.traceparent, c.Traceparent, true},
		{&l.headers, c.Headers, true},
	} {
		*f.at = -1
		if f.column == "" {
			continue
		}
		if *f.at = r.Index(f.column); *f.at < 0 {
			*f.at = r.IndexNow(f.column)
		}
		if *f.at < 0 && !f.optional {
			if last := d.layout.Load(); last != nil && renamed(last.relation, r) {
				same := *last
				same.relation = r
				d.layout.Store(&same)
				return &same, nil
			}
			return nil, d.fail(MissingColumn, f.column, "does not exist (renamed or dropped?)")
		}
	}
	l.binary = r.Columns[l.payload].Type == typeBytea
	d.layout.Store(l)
	return l, nil
}

// renamed says that to is the relation from but for the names of columns.
func renamed(from, to *cdc.Relation) bool {
	if from.Name() != to.Name() || len(from.Columns) != len(to.Columns) {
		return false
	}
	for i := range to.Columns {
		a, b := from.Columns[i], to.Columns[i]
		if a.Type != b.Type || a.Name != b.Name && (to.Index(a.Name) >= 0 || from.Index(b.Name) >= 0) {
			return false
		}
	}
	return true
}

func (d *decoder) fail(reason Reason, column, detail string) error {
	return &RowError{Reason: reason, Table: d.table, Column: column, Detail: detail}
}

func (d *decoder) decode(r cdc.Record) (event.Event, error) {
	l, err := d.resolve(r.Relation)
	if err != nil {
		return event.Event{}, err
	}
	row := reader{decoder: d, record: r}
	e := event.Event{
		Namespace:      row.text(l.namespace),
		ActionID:       row.uuid(l.actionID),
		ActionName:     row.text(l.actionName),
		ActionParams:   row.raw(l.actionParams),
		StartedDate:    row.time(l.startedDate),
		CompletionDate: row.time(l.completionDate),
		ModelID:        row.text(l.modelID),
		ModelType:      row.text(l.modelType),
		Type:           row.text(l.typ),
		Payload:        row.raw(l.payload),
		Date:           row.time(l.date),
		Traceparent:    row.text(l.traceparent),
		Headers:        row.raw(l.headers),
	}
	if l.binary && e.Payload != nil && row.err == nil {
		if e.Payload, row.err = decodeBytea(e.Payload); row.err != nil {
			row.err = d.fail(BadPayload, d.columns.Payload, row.err.Error())
		}
	}
	row.identify(&e, l.id)
	if row.err != nil {
		return event.Event{}, row.err
	}
	return e, nil
}

// reader reads the values of one record; the first failure sticks.
type reader struct {
	*decoder
	record cdc.Record
	err    error
}

// value returns the column's bytes; ok is false for null, for a column that is not mapped, and
// after a failure.
func (r *reader) value(at int) (data []byte, ok bool) {
	if at < 0 || r.err != nil {
		return nil, false
	}
	column := r.record.Relation.Columns[at].Name
	if at >= len(r.record.Values) {
		r.err = r.fail(MissingColumn, column, "is not in the row image")
		return nil, false
	}
	v := &r.record.Values[at]
	if v.Unchanged {
		r.err = r.fail(MissingColumn, column, "was not carried by the log")
		return nil, false
	}
	return v.Data, !v.Null
}

func (r *reader) text(at int) string {
	data, _ := r.value(at)
	return string(data)
}

// raw returns nil for null and a non-nil slice for everything else, the empty text included.
func (r *reader) raw(at int) json.RawMessage {
	data, ok := r.value(at)
	if !ok {
		return nil
	}
	if data == nil {
		data = []byte{}
	}
	return data
}

// uuid returns an id that is not the event's own, derived by the same rule; empty when null.
func (r *reader) uuid(at int) string {
	data, ok := r.value(at)
	if !ok {
		return ""
	}
	id, _ := EventID(r.table, string(data))
	return id
}

func (r *reader) time(at int) time.Time {
	data, ok := r.value(at)
	if !ok {
		return time.Time{}
	}
	t, err := parseTime(data)
	if err != nil {
		detail := err.Error() + "; map a timestamp, timestamptz or date column"
		r.err = r.fail(BadTimestamp, r.record.Relation.Columns[at].Name, detail)
	}
	return t
}

// identify fills the event's identity.
func (r *reader) identify(e *event.Event, at int) {
	data, ok := r.value(at)
	switch {
	case r.err != nil:
	case !ok && e.Type == "":
		// A sentinel has no delivery, so it needs no name.
	case !ok:
		r.err = r.fail(NullID, r.columns.ID, "is null, so no delivery can name the event")
	case len(data) == 0:
		r.err = r.fail(BadID, r.columns.ID, "is empty, so no delivery can name the event")
	default:
		var derived bool
		if e.ID, derived = EventID(r.table, string(data)); derived {
			e.Key = string(data)
		}
	}
}
