package schema

// The names of the presets.
const (
	PresetEventlog = "eventlog"
	PresetDebezium = "debezium"
	PresetCustom   = "custom"
)

// DefaultSchema is where our tables live unless told otherwise.
const DefaultSchema = "eventlog"

// Default values of a status column.
const (
	DefaultPending = "PENDING"
	DefaultDone    = "DISPATCHED"
	DefaultNone    = "NO_DELIVERY"
)

// Presets lists the names of the presets, the default first.
func Presets() []string { return []string{PresetEventlog, PresetDebezium, PresetCustom} }

// Eventlog is the product's own layout, and Ekbatan's: "events" in the given schema
// ([DefaultSchema] when empty), marked by the boolean column delivered.
func Eventlog(schema string) Table {
	return Table{
		Preset: PresetEventlog,
		Schema: orDefault(schema, DefaultSchema),
		Name:   "events",
		Columns: Columns{
			ID:             "id",
			Namespace:      "namespace",
			ActionID:       "action_id",
			ActionName:     "action_name",
			ActionParams:   "action_params",
			StartedDate:    "started_date",
			CompletionDate: "completion_date",
			ModelID:        "model_id",
			ModelType:      "model_type",
			Type:           "event_type",
			Payload:        "payload",
			Date:           "event_date",
			Traceparent:    "traceparent",
			Headers:        "headers",
		},
		Mark: Mark{Kind: MarkBoolean, Column: "delivered"},
	}
}

// Debezium is the layout of Debezium's outbox: id, aggregatetype, aggregateid,
// type and payload. Empty arguments mean public and outboxevent.
//
// aggregateid becomes ModelID, aggregatetype ModelType, type Type. The layout has
// neither a mark nor a date: the table is never written, and an event counts as fanned
// out when it has a delivery. Rows may be deleted at any time, even in the transaction
// that inserted them. A table with a timestamp column should map it to
// Columns.Date and set a LookBack, which keeps the poller's look short.
func Debezium(schema, name string) Table {
	return Table{
		Preset: PresetDebezium,
		Schema: orDefault(schema, "public"),
		Name:   orDefault(name, "outboxevent"),
		Columns: Columns{
			ID:        "id",
			ModelID:   "aggregateid",
			ModelType: "aggregatetype",
			Type:      "type",
			Payload:   "payload",
		},
		Mark: Mark{Kind: MarkNone},
	}
}

// Custom is any other table. Without a mark kind the table is taken to have no mark.
func Custom(schema, name string, columns Columns, mark Mark) Table {
	if mark.Kind == "" {
		mark.Kind = MarkNone
	}
	return Table{Preset: PresetCustom, Schema: schema, Name: name, Columns: columns, Mark: mark}.WithDefaults()
}

// WithDefaults returns t with the default values of a status column filled in.
func (t Table) WithDefaults() Table {
	if t.Mark.Kind == MarkStatus {
		t.Mark.Pending = orDefault(t.Mark.Pending, DefaultPending)
		t.Mark.Done = orDefault(t.Mark.Done, DefaultDone)
		t.Mark.None = orDefault(t.Mark.None, DefaultNone)
	}
	return t
}

// QualifiedName returns "schema.table", unquoted: the name that event ids are derived from
// and that messages show. It equals the Name of the table's cdc.Relation.
func (t Table) QualifiedName() string { return t.Schema + "." + t.Name }

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
