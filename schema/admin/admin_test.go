package admin_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func TestEventData_AnyPayloadHasAJSONForm(t *testing.T) {
	for payload, want := range map[string]string{
		`{"a":1}`: `"payload":{"a":1}`, `<a/>`: `"payload_text":"\u003ca/\u003e"`, "\x00\xff": `"payload_base64":"AP8="`,
	} {
		shown, err := json.Marshal(admin.EventData{Event: event.Event{ID: "x", Payload: json.RawMessage(payload)}})
		if err != nil || !strings.Contains(string(shown), want) || strings.Count(string(shown), "payload") != 1 {
			t.Errorf("%q as JSON: %s, %v; want %s", payload, shown, err, want)
		}
	}
}

func TestFilter_SaysInWordsWhatItChooses(t *testing.T) {
	id := uuid.MustParse("01970000-0000-7000-8000-000000000001")
	at := time.Date(2026, 1, 2, 5, 4, 5, 0, time.FixedZone("x", 2*3600))
	for want, f := range map[string]admin.Filter{
		"all deliveries":               {},
		"id " + id.String():            {IDs: []uuid.UUID{id}},
		"2 ids, state DEAD|EXPIRED":    {IDs: []uuid.UUID{id, id}, States: []delivery.State{delivery.Dead, delivery.Expired}},
		"event 7, handler h, type t.*": {Event: "7", Handler: "h", Type: "t.*"},
		"reason r, since 2026-01-02T03:04:05Z, until 2026-01-02T03:04:05Z": {Reason: "r", Since: at, Until: at},
	} {
		if got := f.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct{ got, want int }{
		{admin.Page{}.Size(), 50}, {admin.Page{Limit: 7}.Size(), 7}, {admin.Page{Limit: 5000}.Size(), 1000},
		{admin.Order{}.Max(), 10_000}, {admin.Order{Limit: 3}.Max(), 3}, {admin.Order{Limit: 20_000}.Max(), 10_000},
	} {
		if c.got != c.want {
			t.Errorf("bound = %d, want %d", c.got, c.want)
		}
	}
	if c := (admin.Config{}).WithDefaults(); c.Timeout != 5*time.Second || c.CountLimit != 10_000 {
		t.Errorf("defaults = %+v", c)
	}
	if c := (admin.Count{N: 12}); c.String() != "12" || (admin.Count{N: 12, More: true}).String() != "12+" {
		t.Errorf("count = %s", c)
	}
}
