package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// eventType is the type of `event` in conditions. Its fields are known to the
// compiler, so that a mistyped one is an error at start and not a surprise at night.
var eventType = cel.ObjectType("cdc.Event")

// eventField is one field of `event`.
type eventField struct {
	name string
	typ  *cel.Type
	get  func(v *eventView) (any, error)
}

// eventFields lists the fields in the order in which messages name them.
func eventFields() []eventField {
	text := func(get func(*event.Event) string) func(*eventView) (any, error) {
		return func(v *eventView) (any, error) { return get(v.ev), nil }
	}
	date := func(get func(*event.Event) time.Time) func(*eventView) (any, error) {
		return func(v *eventView) (any, error) {
			if t := get(v.ev); !t.IsZero() {
				return t, nil
			}
			return types.NullValue, nil
		}
	}
	doc := func(name string, get func(*eventView) *lazyJSON, raw func(*event.Event) json.RawMessage) func(*eventView) (any, error) {
		return func(v *eventView) (any, error) { return get(v).value(name, raw(v.ev)) }
	}
	return []eventField{
		{"id", cel.StringType, text(func(e *event.Event) string { return e.ID })},
		{"type", cel.StringType, text(func(e *event.Event) string { return e.Type })},
		{"namespace", cel.StringType, text(func(e *event.Event) string { return e.Namespace })},
		{"model_id", cel.StringType, text(func(e *event.Event) string { return e.ModelID })},
		{"model_type", cel.StringType, text(func(e *event.Event) string { return e.ModelType })},
		{"payload", cel.DynType, doc("payload", func(v *eventView) *lazyJSON { return &v.payload },
			func(e *event.Event) json.RawMessage { return e.Payload })},
		{"headers", cel.DynType, doc("headers", func(v *eventView) *lazyJSON { return &v.headers },
			func(e *event.Event) json.RawMessage { return e.Headers })},
		{"event_date", cel.TimestampType, date(func(e *event.Event) time.Time { return e.Date })},
		{"started_date", cel.TimestampType, date(func(e *event.Event) time.Time { return e.StartedDate })},
		{"completion_date", cel.TimestampType, date(func(e *event.Event) time.Time { return e.CompletionDate })},
		{"action_id", cel.StringType, text(func(e *event.Event) string { return e.ActionID })},
		{"action_name", cel.StringType, text(func(e *event.Event) string { return e.ActionName })},
		{"action_params", cel.DynType, doc("action_params", func(v *eventView) *lazyJSON { return &v.params },
			func(e *event.Event) json.RawMessage { return e.ActionParams })},
		{"traceparent", cel.StringType, text(func(e *event.Event) string { return e.Traceparent })},
	}
}

func eventFieldNames() []string {
	var names []string
	for _, f := range eventFields() {
		names = append(names, f.name)
	}
	return names
}

// eventTypes teaches the compiler the fields of `event`, and the interpreter to
// read them off an *eventView without building a map of the whole event.
type eventTypes struct{ *types.Registry }

// FindStructType implements types.Provider.
func (t eventTypes) FindStructType(name string) (*types.Type, bool) {
	if name == eventType.TypeName() {
		return types.NewTypeTypeWithParam(eventType), true
	}
	return t.Registry.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (t eventTypes) FindStructFieldNames(name string) ([]string, bool) {
	if name == eventType.TypeName() {
		return eventFieldNames(), true
	}
	return t.Registry.FindStructFieldNames(name)
}

// FindStructFieldType implements types.Provider.
func (t eventTypes) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if name != eventType.TypeName() {
		return t.Registry.FindStructFieldType(name, field)
	}
	fields := eventFields()
	i := slices.IndexFunc(fields, func(f eventField) bool { return f.name == field })
	if i < 0 {
		return nil, false
	}
	get := fields[i].get
	return &types.FieldType{
		Type: fields[i].typ,
		IsSet: func(target any) bool {
			got, err := get(target.(*eventView))
			return err != nil || got != nil && got != "" && got != types.NullValue
		},
		GetFrom: func(target any) (any, error) { return get(target.(*eventView)) },
	}, true
}

// eventView is the variable `event`: a CEL activation and the value itself. It
// belongs to one goroutine.
type eventView struct {
	ev                       *event.Event
	payload, headers, params lazyJSON
}

// newEventView prepares an event for conditions. Its JSON is parsed once, and
// only if a condition asks for it.
func newEventView(ev *event.Event) *eventView { return &eventView{ev: ev} }

// ResolveName implements cel.Activation.
func (v *eventView) ResolveName(name string) (any, bool) {
	if name == "event" {
		return v, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (v *eventView) Parent() cel.Activation { return nil }

// lazyJSON is a JSON document that is parsed when it is first read.
type lazyJSON struct {
	parsed bool
	val    any
	err    error
}

func (l *lazyJSON) value(name string, raw json.RawMessage) (any, error) {
	if !l.parsed {
		l.parsed = true
		l.val, l.err = parseJSON(raw)
		if l.err != nil {
			l.err = &viewError{fmt.Sprintf("condition reads event.%s, which is not JSON: %s", name, l.err)}
		}
	}
	return l.val, l.err
}

// viewError is an error of a field that a condition reads. Its text is ours, and
// carries no data.
type viewError struct{ msg string }

func (e *viewError) Error() string { return e.msg }

// parseJSON decodes a document for CEL: integers exactly, as int where they fit
// 64 bits and as uint above, everything else as double; an absent document is null.
func parseJSON(raw json.RawMessage) (any, error) {
	if len(raw) == 0 {
		return types.NullValue, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, describeJSON(err, len(raw))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("more than one value, second at byte %d", dec.InputOffset())
	}
	return exactNumbers(doc), nil
}

// describeJSON keeps the place of a JSON error and drops the text (C70).
func describeJSON(err error, size int) error {
	var syn *json.SyntaxError
	if errors.As(err, &syn) {
		return fmt.Errorf("syntax error at byte %d", syn.Offset)
	}
	return fmt.Errorf("it ends too early, at byte %d", size)
}

// exactNumbers replaces every json.Number in place.
func exactNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return exactNumber(v.String())
	case map[string]any:
		for key, elem := range v {
			v[key] = exactNumbers(elem)
		}
	case []any:
		for i, elem := range v {
			v[i] = exactNumbers(elem)
		}
	case nil:
		return types.NullValue
	}
	return v
}

func exactNumber(s string) any {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return u
	}
	// Out of range is ±Inf, which compares as one would expect.
	f, _ := strconv.ParseFloat(s, 64)
	return f
}
