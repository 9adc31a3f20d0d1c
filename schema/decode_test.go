package schema

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// row builds a record from column, value pairs; a nil value is null.
func row(table string, pairs ...any) cdc.Record {
	schemaName, name, _ := strings.Cut(table, ".")
	r := cdc.Record{Relation: &cdc.Relation{Schema: schemaName, Table: name}}
	for i := 0; i < len(pairs); i += 2 {
		r.Relation.Columns = append(r.Relation.Columns, cdc.Column{Name: pairs[i].(string)})
		switch v := pairs[i+1].(type) {
		case nil:
			r.Values = append(r.Values, cdc.Value{Null: true})
		case cdc.Value:
			r.Values = append(r.Values, v)
		case string:
			r.Values = append(r.Values, cdc.Value{Data: []byte(v)})
		}
	}
	return r
}

const someID = "0b0e6f9c-3a5b-4b2e-9d0b-0f7e2d6c1a55"

func eventlogRow(change ...any) cdc.Record {
	pairs := []any{
		"delivered", "f",
		"id", someID,
		"namespace", "shop",
		"action_id", "7d444840-9dc0-11d1-b245-5ffdce74fad2",
		"action_name", "PlaceOrder",
		"action_params", `{"a": 1}`,
		"started_date", "2026-11-30 10:18:05.1",
		"completion_date", "2026-11-30 10:18:05.12",
		"model_id", "42",
		"model_type", "Order",
		"event_type", "OrderPlaced",
		"payload", `{"total": 10.50}`,
		"event_date", "2026-11-30 10:18:05.123456",
	}
	for i := 0; i < len(change); i += 2 {
		for j := 0; j < len(pairs); j += 2 {
			if pairs[j] == change[i] {
				pairs[j+1] = change[i+1]
			}
		}
	}
	return row("eventlog.events", pairs...)
}

func TestDecodeEventlog(t *testing.T) {
	got, err := Eventlog("").Decoder()(eventlogRow())
	if err != nil {
		t.Fatal(err)
	}
	date := time.Date(2026, 11, 30, 10, 18, 5, 123456000, time.UTC)
	want := event.Event{
		ID:             someID,
		Namespace:      "shop",
		ActionID:       "7d444840-9dc0-11d1-b245-5ffdce74fad2",
		ActionName:     "PlaceOrder",
		ActionParams:   json.RawMessage(`{"a": 1}`),
		StartedDate:    date.Truncate(100 * time.Millisecond),
		CompletionDate: date.Truncate(10 * time.Millisecond),
		ModelID:        "42",
		ModelType:      "Order",
		Type:           "OrderPlaced",
		Payload:        json.RawMessage(`{"total": 10.50}`),
		Date:           date,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeDebeziumFields(t *testing.T) {
	got, err := Debezium("", "").Decoder()(row("public.outboxevent",
		"id", someID, "aggregatetype", "Order", "aggregateid", "42", "type", "OrderPlaced", "payload", "[1]", "extra", "x"))
	if err != nil {
		t.Fatal(err)
	}
	want := event.Event{ID: someID, ModelID: "42", ModelType: "Order", Type: "OrderPlaced", Payload: json.RawMessage("[1]")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestA23_NullTypeIsASentinel: not an error, and not an event that is fanned out.
func TestA23_NullTypeIsASentinel(t *testing.T) {
	for _, id := range []any{someID, nil} {
		got, err := Eventlog("").Decoder()(eventlogRow("event_type", nil, "payload", nil, "model_id", nil, "id", id))
		if err != nil {
			t.Fatal(err)
		}
		if got.Type != "" || got.Payload != nil {
			t.Errorf("got %+v", got)
		}
	}
}

// TestA169_NullPayloadIsToldFromEmpty: a null payload is nil, an empty one is not.
func TestA169_NullPayloadIsToldFromEmpty(t *testing.T) {
	decode := Eventlog("").Decoder()
	for _, value := range []any{nil, "", "null", cdc.Value{}} {
		got, err := decode(eventlogRow("payload", value))
		if err != nil {
			t.Fatal(err)
		}
		if (got.Payload == nil) != (value == nil) {
			t.Errorf("payload %q decoded to nil: %v", value, got.Payload == nil)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	secret := "s3cret"
	for _, tc := range []struct {
		name   string
		record cdc.Record
		want   RowError
	}{
		{"T51 null id", eventlogRow("id", nil, "payload", secret), RowError{Reason: NullID, Column: "id"}},
		{"empty id", eventlogRow("id", ""), RowError{Reason: BadID, Column: "id"}},
		{"A170 number as a time", eventlogRow("event_date", "1796033885123"), RowError{Reason: BadTimestamp, Column: "event_date"}},
		{"text as a time", eventlogRow("started_date", secret), RowError{Reason: BadTimestamp, Column: "started_date"}},
		{"unchanged value", eventlogRow("payload", cdc.Value{Unchanged: true}), RowError{Reason: MissingColumn, Column: "payload"}},
		{"missing column", row("eventlog.events", "id", someID, "payload", secret), RowError{Reason: MissingColumn, Column: "namespace"}},
		{
			"short row image",
			cdc.Record{Relation: eventlogRow().Relation, Values: eventlogRow().Values[:3]},
			RowError{Reason: MissingColumn, Column: "action_id"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Eventlog("").Decoder()(tc.record)
			var got *RowError
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want a RowError", err)
			}
			if got.Reason != tc.want.Reason || got.Column != tc.want.Column || got.Table != "eventlog.events" || got.Detail == "" {
				t.Errorf("got %+v, want %+v", *got, tc.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the message shows a value: %s", err)
			}
		})
	}
}

// TestB34_ColumnsAreFoundByName: the order of columns changes with the schema.
func TestB34_ColumnsAreFoundByName(t *testing.T) {
	decode := Debezium("", "").Decoder()
	want := event.Event{ID: someID, ModelID: "1", ModelType: "t", Type: "k", Payload: json.RawMessage("{}")}
	for _, r := range []cdc.Record{
		row("public.outboxevent", "id", someID, "aggregatetype", "t", "aggregateid", "1", "type", "k", "payload", "{}"),
		row("public.outboxevent", "payload", "{}", "new", "x", "type", "k", "aggregateid", "1", "aggregatetype", "t", "id", someID),
		row("public.outboxevent", "id", someID, "aggregatetype", "t", "aggregateid", "1", "type", "k", "payload", "{}"),
	} {
		got, err := decode(r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestDecoderIsSafeForConcurrentUse(t *testing.T) {
	decode := Debezium("", "").Decoder()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				r := row("public.outboxevent", "id", someID, "aggregatetype", "t", "aggregateid", "1", "type", "k", "payload", "{}")
				if got, err := decode(r); err != nil || got.ID != someID {
					t.Errorf("got %+v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// A column that was renamed is found by its place, so that rows written under its new name can be read.
// Any other change of the table makes all its rows errors, of the table and not of the row.
func TestDecodeFollowsARenamedColumn(t *testing.T) {
	names := []string{"id", "aggregatetype", "aggregateid", "type", "payload"}
	with := func(change func(*cdc.Relation)) cdc.Record {
		r := row("public.outboxevent", "id", someID, "aggregatetype", "t", "aggregateid", "1", "type", "k", "payload", "{}")
		change(r.Relation)
		return r
	}
	same := func(*cdc.Relation) {}
	rename := func(r *cdc.Relation) { r.Columns[4].Name = "body" }
	var fault *RowError
	if _, err := Debezium("", "").Decoder()(with(rename)); !errors.As(err, &fault) || !fault.OfTable() {
		t.Errorf("without a row before the rename: %v", err)
	}
	// The source may know more: the column has its old name back.
	known := with(func(r *cdc.Relation) { rename(r); r.Columns[4].Now = "payload" })
	if got, err := Debezium("", "").Decoder()(known); err != nil || string(got.Payload) != "{}" {
		t.Errorf("with the name that the column has now: %+v, %v", got, err)
	}
	decode := Debezium("", "").Decoder()
	for i, change := range []func(*cdc.Relation){same, rename, rename, same, rename} {
		got, err := decode(with(change))
		if err != nil || string(got.Payload) != "{}" || got.Type != "k" {
			t.Errorf("row %d: %+v, %v", i, got, err)
		}
	}
	for what, change := range map[string]func(*cdc.Relation){
		"another type":    func(r *cdc.Relation) { rename(r); r.Columns[4].Type++ },
		"one more column": func(r *cdc.Relation) { rename(r); r.Columns = append(r.Columns, cdc.Column{Name: "more"}) },
		"dropped":         func(r *cdc.Relation) { r.Columns = r.Columns[:4] },
		"another order":   func(r *cdc.Relation) { rename(r); r.Columns[0].Name, r.Columns[3].Name = names[3], names[0] },
		"another table":   func(r *cdc.Relation) { rename(r); r.Table = "other" },
	} {
		if got, err := decode(with(change)); !errors.As(err, &fault) || !fault.OfTable() {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	null := with(same)
	null.Values[0].Null = true
	if _, err := decode(null); !errors.As(err, &fault) || fault.OfTable() {
		t.Errorf("null id: %v", err)
	}
}

func TestDecodeBytea(t *testing.T) {
	for text, want := range map[string]string{
		`\x`:         "",
		`\x6869ff`:   "hi\xff",
		`hi`:         "hi",
		`a\\b`:       `a\b`,
		`\000\377 x`: "\x00\xff x",
		``:           "",
	} {
		got, err := decodeBytea([]byte(text))
		if err != nil || string(got) != want || got == nil {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`\x6`, `\xzz`, `\`, `\9`, `\400`, `\08`, `a\12`} {
		if got, err := decodeBytea([]byte(text)); err == nil {
			t.Errorf("%s: got %q, want an error", text, got)
		}
	}
}

func TestDecodeBinaryPayload(t *testing.T) {
	r := row("public.outboxevent", "id", someID, "aggregatetype", "t", "aggregateid", "1", "type", "k", "payload", `\x7b7d`)
	r.Relation.Columns[4].Type = typeBytea
	got, err := Debezium("", "").Decoder()(r)
	if err != nil || string(got.Payload) != "{}" {
		t.Errorf("got %q, %v", got.Payload, err)
	}
	r.Values[4].Data = []byte(`\x7`)
	var rowErr *RowError
	if _, err := Debezium("", "").Decoder()(r); !errors.As(err, &rowErr) || rowErr.Reason != BadPayload {
		t.Errorf("got %v", err)
	}
}

func TestEventID(t *testing.T) {
	for _, tc := range []struct {
		key, want string
		derived   bool
	}{
		{someID, someID, false},
		// SELECT md5('public.outbox:42') is 583a60b043e8e6bb9fdb517130f51ef8.
		{"42", "583a60b0-43e8-36bb-9fdb-517130f51ef8", true},
		{strings.ToUpper(someID), "", true},
		{"{" + someID + "}", "", true},
		{strings.ReplaceAll(someID, "-", ""), "", true},
		{strings.ReplaceAll(someID, "-", "0"), "", true},
		{strings.ReplaceAll(someID, "c", "g"), "", true},
	} {
		got, derived := EventID("public.outbox", tc.key)
		if derived != tc.derived || (tc.want != "" && got != tc.want) || !isUUID(got) {
			t.Errorf("%s: got %s, %v; want %s, %v", tc.key, got, derived, tc.want, tc.derived)
		}
	}
	for n := range 1000 {
		// MariaDB's type UUID takes every one of version 3, and not every one of version 8.
		if id, _ := EventID("public.outbox", strconv.Itoa(n)); id[14] != '3' || !strings.ContainsRune("89ab", rune(id[19])) {
			t.Fatalf("%d: %s is no UUID of version 3", n, id)
		}
	}
	a, _ := EventID("public.a", "42")
	b, _ := EventID("public.b", "42")
	if a == b {
		t.Error("two tables share an event id")
	}
}
