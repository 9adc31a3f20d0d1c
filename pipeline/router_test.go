package pipeline

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func routerOf(t *testing.T, handlers ...Handler) *router {
	t.Helper()
	var ps problems
	r := newRegistry(handlers, time.Minute, &ps)
	if len(ps) > 0 {
		t.Fatal(ps)
	}
	n := byte(0)
	return &router{subs: r.subs, maxPayload: 1000, newID: func() uuid.UUID { n++; return uuid.UUID{15: n} }}
}

func on(name string, types []string, when string) Handler {
	h := named(name)
	h.On, h.When = types, when
	return h
}

func TestRouterFindsTheTargets(t *testing.T) {
	r := routerOf(t,
		on("all", []string{"*"}, ""),
		on("orders", []string{"order.*"}, ""),
		on("big", []string{"order.*"}, "event.payload.total > 100"),
		on("mail", []string{"mail.sent"}, ""))
	r.subs[1].Retry.Window = -1
	ev := event.Event{ID: "e", Type: "order.placed", Payload: json.RawMessage(`{"total":7}`)}
	got, ok := r.route(ev)
	if !ok {
		t.Fatal("not routed")
	}
	want := []delivery.Target{
		{ID: uuid.UUID{15: 1}, Handler: "all", Window: 7 * 24 * time.Hour},
		{ID: uuid.UUID{15: 2}, Handler: "orders"},
	}
	if diff := cmp.Diff(want, got.fan.Targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ev, got.fan.Event); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	if len(got.subs) != 2 || got.subs[1].Name != "orders" {
		t.Errorf("subscribers are not parallel to the targets: %v", got.subs)
	}
}

func TestRouterLeavesAlone(t *testing.T) {
	r := routerOf(t, on("a", []string{"order.*"}, "event.type == 'order.paid'"))
	for name, tc := range map[string]struct {
		typ     string
		mark    bool
		ok      bool
		targets int
	}{
		"A53 a sentinel": {"", false, false, 0},
		"A53 a sentinel, even when all are marked":      {"", true, false, 0},
		"A54 nobody listens":                            {"mail.sent", false, false, 0},
		"B25 nobody listens, but it is marked":          {"mail.sent", true, true, 0},
		"every condition declines: marked, no delivery": {"order.placed", false, true, 0},
		"the condition holds":                           {"order.paid", false, true, 1},
	} {
		r.markUnsubscribed = tc.mark
		got, ok := r.route(event.Event{ID: "e", Type: tc.typ, Payload: json.RawMessage(`{}`)})
		if ok != tc.ok || len(got.fan.Targets) != tc.targets {
			t.Errorf("%s: ok %t, %d targets; want %t, %d", name, ok, len(got.fan.Targets), tc.ok, tc.targets)
		}
	}
}

func TestRouterBlocksWhatCannotBeHandled(t *testing.T) {
	long := json.RawMessage(`{"s":"` + strings.Repeat("x", 1000) + `"}`)
	for _, tc := range []struct {
		name, when string
		payload    json.RawMessage
		reason     string // "" for an ordinary delivery, "none" for no delivery
	}{
		{"A169 null payload", "", nil, delivery.ReasonNullPayload},
		{"A169 null payload, condition on the payload", "event.payload.x == 1", nil, delivery.ReasonNullPayload},
		{"null payload, condition declines without it", "event.id == 'other'", nil, "none"},
		{"null payload, condition holds without it", "event.id == 'e'", nil, delivery.ReasonNullPayload},
		{"a JSON null is a payload", "event.payload == null", json.RawMessage(`null`), ""},
		{"oversize", "", long, delivery.ReasonOversize},
		{"oversize is not parsed for a condition", "event.payload.s == 'y'", long, delivery.ReasonOversize},
		{"oversize, declined without it", "event.type != 'a'", long, "none"},
		{"condition without an answer", "event.payload.a.b == 1", json.RawMessage(`{}`), delivery.ReasonCondition},
		{"payload is not JSON, nobody asks", "", json.RawMessage(`{oops`), ""},
		{"payload is not JSON, a condition asks", "event.payload.a == 1", json.RawMessage(`{oops`), delivery.ReasonCondition},
	} {
		r := routerOf(t, on("h", []string{"a"}, tc.when))
		got, ok := r.route(event.Event{ID: "e", Type: "a", Payload: tc.payload})
		switch {
		case !ok:
			t.Errorf("%s: left alone", tc.name)
		case tc.reason == "none":
			if len(got.fan.Targets) != 0 {
				t.Errorf("%s: got %v", tc.name, got.fan.Targets)
			}
		case len(got.fan.Targets) != 1 || got.fan.Targets[0].Blocked != tc.reason:
			t.Errorf("%s: got %v, want reason %q", tc.name, got.fan.Targets, tc.reason)
		case (got.fan.Targets[0].Detail == "") != (tc.reason == ""):
			t.Errorf("%s: detail %q", tc.name, got.fan.Targets[0].Detail)
		}
	}
}

// One bad condition must not keep the other handlers from the event.
func TestRouterOneBadConditionStopsNoOther(t *testing.T) {
	r := routerOf(t, on("bad", []string{"a"}, "event.payload.x.y == 1"), on("good", []string{"a"}, "event.payload.n == 1"))
	got, _ := r.route(event.Event{ID: "e", Type: "a", Payload: json.RawMessage(`{"n":1}`)})
	if len(got.fan.Targets) != 2 || got.fan.Targets[0].Blocked != delivery.ReasonCondition || got.fan.Targets[1].Blocked != "" {
		t.Errorf("got %+v", got.fan.Targets)
	}
}
