package schema

import "time"

// Table describes an event table: where it is, which column carries what, and
// how an event is known to be fanned out. The presets return filled tables; all names
// are exact and case-sensitive, and are quoted wherever they meet SQL.
type Table struct {
	// Preset is the name this table was made from, for messages.
	Preset string
	// Schema and Name locate the table.
	Schema, Name string
	Columns      Columns
	Mark         Mark
	// LookBack bounds how far the poller looks into a table without a mark, by
	// Columns.Date. 0 means the whole table. It is ignored for marked tables.
	LookBack time.Duration
}

// Columns maps the fields of event.Event to column names; an empty name means
// that the table has no such column. ID, Type and Payload are required.
type Columns struct {
	ID             string
	Namespace      string
	ActionID       string
	ActionName     string
	ActionParams   string
	StartedDate    string
	CompletionDate string
	ModelID        string
	ModelType      string
	Type           string
	Payload        string
	Date           string
	Traceparent    string
	Headers        string
}

// MarkKind says how an event is known to be fanned out.
type MarkKind string

// The kinds of mark.
const (
	// MarkBoolean: a boolean column turns from false to true.
	MarkBoolean MarkKind = "boolean"
	// MarkStatus: a status column turns from Pending to Done, or to None when the
	// event had no delivery (B24, B25).
	MarkStatus MarkKind = "status"
	// MarkNone: the table is never written; an event is fanned out when it has deliveries.
	MarkNone MarkKind = "none"
)

// Mark is how an event is known to be fanned out.
type Mark struct {
	Kind MarkKind
	// Column is the boolean or status column.
	Column string
	// Pending, Done and None are the values of a status column. Defaults:
	// PENDING, DISPATCHED, NO_DELIVERY.
	Pending, Done, None string
	// At is a timestamp column stamped together with the status; may be empty.
	At string
}
