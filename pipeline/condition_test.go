package pipeline

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func orderEvent() *event.Event {
	return &event.Event{
		ID: "018f5c1e-0000-4000-8000-000000000001", Namespace: "shop", Type: "order.placed",
		ModelID: "o-1", ModelType: "Order", ActionName: "PlaceOrder",
		Date: time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC),
		Payload: json.RawMessage(`{"total": 10.5, "count": 3, "big": 9007199254740993, "huge": 18446744073709551615,
			"astronomic": 123456789012345678901234567890, "paid": true, "note": null, "tags": ["a","b"], "secret": "hunter2"}`),
		Headers:      json.RawMessage(`{"tenant": "acme"}`),
		ActionParams: json.RawMessage(`{"channel": "web"}`),
	}
}

func TestConditionOverEvent(t *testing.T) {
	for expr, want := range map[string]bool{
		`event.type == "order.placed"`:                          true,
		`event.namespace == "shop" && event.model_type != "X"`:  true,
		`event.id.startsWith("018f")`:                           true,
		`event.payload.total > 10`:                              true,
		`event.payload.total > 11`:                              false,
		`event.payload.count == 3`:                              true,
		`event.payload.count + 1 == 4`:                          true,
		`event.payload.paid`:                                    true,
		`event.payload.note == null`:                            true,
		`"b" in event.payload.tags`:                             true,
		`event.payload.tags.exists(t, t == "c")`:                false,
		`has(event.payload.missing)`:                            false,
		`has(event.payload.total)`:                              true,
		`has(event.payload)`:                                    true,
		`has(event.traceparent)`:                                false,
		`has(event.started_date)`:                               false,
		`event.headers.tenant == "acme"`:                        true,
		`event.action_params.channel == "web"`:                  true,
		`event.event_date < timestamp("2024-06-01T00:00:00Z")`:  true,
		`event.event_date.getHours() == 12`:                     true,
		`event.payload.big == 9007199254740993`:                 true,
		`event.payload.big == 9007199254740992`:                 false,
		`event.payload.huge == 18446744073709551615u`:           true,
		`event.payload.huge > event.payload.big`:                true,
		`event.payload.astronomic > event.payload.huge`:         true,
		`event.type.matches("^order\\.(placed|cancelled)$")`:    true,
		`event.payload["total"] >= 10.5 ? true : false`:         true,
		"event.type == 'order.placed'\n  && event.payload.paid": true,
	} {
		cond, err := compileEventCondition(expr)
		if err != nil {
			t.Errorf("compile %s: %v", expr, err)
			continue
		}
		got, err := cond.holdsFor(newEventView(orderEvent()))
		if err != nil || got != want {
			t.Errorf("%s = %t, %v; want %t", expr, got, err, want)
		}
	}
}

func TestConditionThatCannotBeEvaluatedIsAnErrorAndNotFalse(t *testing.T) {
	malformed := orderEvent()
	malformed.Payload = json.RawMessage(`{"secret": "hunter2", oops`)
	twice := orderEvent()
	twice.Payload = json.RawMessage(`{} {"secret": "hunter2"}`)
	for _, tc := range []struct {
		name, expr string
		ev         *event.Event
		want       string
	}{
		{"missing key", `event.payload.customer.tier == "gold"`, orderEvent(), "condition: no such key: customer"},
		{"key from the data", `event.payload[event.payload.secret] == 1`, orderEvent(), "condition: no such key"},
		{"wrong type", `event.payload.note > 3`, orderEvent(), "condition: no such overload"},
		{"not a bool", `event.payload.total`, orderEvent(), "condition gave a double instead of true or false"},
		{"division", `event.payload.count / 0 == 1`, orderEvent(), "condition: division by zero"},
		{"data in the message", `int(event.payload.secret) == 1`, orderEvent(), "condition: "},
		{"null time", `event.started_date > timestamp("2024-06-01T00:00:00Z")`, orderEvent(), "condition: no such overload"},
		{"not JSON", `event.payload.total > 1`, malformed, "condition reads event.payload, which is not JSON: syntax error at byte 23"},
		{"two values", `event.payload.total > 1`, twice, "condition reads event.payload, which is not JSON: "},
	} {
		cond, err := compileEventCondition(tc.expr)
		if err != nil {
			t.Errorf("%s: compile: %v", tc.name, err)
			continue
		}
		_, err = cond.holdsFor(newEventView(tc.ev))
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want %q", tc.name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error carries a value: %v", tc.name, err)
		}
	}
}

func TestConditionCostIsBounded(t *testing.T) {
	cond, err := compileEventCondition(`event.payload.all(a, event.payload.all(b, event.payload.all(c, a + b + c >= 0)))`)
	if err != nil {
		t.Fatal(err)
	}
	ev := orderEvent()
	numbers := make([]int, 1000)
	ev.Payload, _ = json.Marshal(numbers)
	if _, err := cond.holdsFor(newEventView(ev)); err == nil || !strings.Contains(err.Error(), "cost limit") {
		t.Fatalf("got %v, want the cost limit", err)
	}
}

func TestConditionCompileErrorsArePositioned(t *testing.T) {
	for _, tc := range []struct {
		expr         string
		line, column int
		message      string
		snippet      string
	}{
		{`event.tpye == "a"`, 1, 6, "event has no field 'tpye'; it has id, type,", "event.tpye == \"a\"\n     ^"},
		{"event.type == 'a'\n && evnt.type == 'b'", 2, 5, "undeclared reference to 'evnt'", " && evnt.type == 'b'\n    ^"},
		{`event.type == `, 1, 15, "Syntax error", "event.type == \n              ^"},
		{`event.type`, 1, 1, "a condition is true or false, this one is a string", "event.type\n^"},
		{`event.type > 3`, 1, 12, "found no matching overload", "event.type > 3\n           ^"},
		{``, 1, 1, "Syntax error", "\n^"},
	} {
		_, err := compileEventCondition(tc.expr)
		var bad *ConditionError
		if !errors.As(err, &bad) {
			t.Errorf("%q: got %v, want a ConditionError", tc.expr, err)
			continue
		}
		if bad.Line != tc.line || bad.Column != tc.column || !strings.HasPrefix(bad.Message, tc.message) {
			t.Errorf("%q: got %d:%d %q, want %d:%d %q", tc.expr, bad.Line, bad.Column, bad.Message, tc.line, tc.column, tc.message)
		}
		if diff := cmp.Diff(tc.snippet, bad.Snippet()); diff != "" {
			t.Errorf("%q: snippet (-want +got):\n%s", tc.expr, diff)
		}
	}
}

func TestConditionKnowsWhetherItReadsThePayload(t *testing.T) {
	for expr, want := range map[string]bool{
		`event.type == "a"`:                         false,
		`event.headers.payload == 1`:                false,
		`event.payload.x == 1`:                      true,
		`event.payload["x"] == 1`:                   true,
		`has(event.payload)`:                        true,
		`has(event.payload.x)`:                      true,
		`event.headers.l.exists(e, e == "payload")`: false,
		`[1].exists(e, e == event.payload.x)`:       true,
		`event.type == "a" || event.payload.n == 2`: true,
		`[event].exists(e, e.type == "order.paid")`: true,
	} {
		cond, err := compileEventCondition(expr)
		if err != nil {
			t.Errorf("compile %s: %v", expr, err)
		} else if cond.payload != want {
			t.Errorf("%s: reads the payload = %t, want %t", expr, cond.payload, want)
		}
	}
}

func TestConditionOverRecord(t *testing.T) {
	rec := cdc.Record{
		Relation: &cdc.Relation{Schema: "shop", Table: "orders", Columns: []cdc.Column{
			{Name: "id"}, {Name: "amount"}, {Name: "note"}, {Name: "blob"}}},
		Values: []cdc.Value{{Data: []byte("o-1")}, {Data: []byte("250")}, {Null: true}, {Unchanged: true}},
	}
	for expr, want := range map[string]bool{
		`record.id == "o-1"`:             true,
		`int(record.amount) > 100`:       true,
		`record.note == null`:            true,
		`has(record.blob)`:               false,
		`"amount" in record`:             true,
		`double(record["amount"]) < 1.0`: false,
	} {
		cond, err := compileRecordCondition(expr)
		if err != nil {
			t.Errorf("compile %s: %v", expr, err)
			continue
		}
		if got, err := cond.holdsForRecord(rec); err != nil || got != want {
			t.Errorf("%s = %t, %v; want %t", expr, got, err, want)
		}
	}
	cond, err := compileRecordCondition(`record.amonut > 1`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cond.holdsForRecord(rec); err == nil {
		t.Error("a missing column is an error")
	}
}
