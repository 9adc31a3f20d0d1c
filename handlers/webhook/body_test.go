package webhook

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// The payload has everything that a re-encoder would change: spaces, a big
// number, an exponent, a repeated key, an escape and HTML characters.
const awkward = `{ "n": 12345678901234567890.10, "e": 1E2, "k":1, "k":2, "u":"\u00e9<&>" }`

func sample() event.Envelope {
	const id = "0190b7c4-8b7e-7c3a-9f1e-2d4c6b8a0e12"
	return event.Envelope{
		Event: event.Event{
			ID: id, Namespace: "com.shop/orders", ActionID: "a1", ActionName: "PlaceOrder", ActionParams: json.RawMessage(`{"x": 1}`),
			ModelID: "o-7", ModelType: "Order", Type: "order.placed", Payload: json.RawMessage(awkward),
			Date:        time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC),
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			Headers:     json.RawMessage(`{"tenant":"t1"}`),
		},
		Handler: "billing", IdempotencyKey: event.IdempotencyKey(id, "billing"), Attempt: 1,
	}
}

func TestRender(t *testing.T) {
	bare := event.Envelope{Event: event.Event{ID: "1", Type: "t", Payload: json.RawMessage(`1`)}}
	for _, c := range []struct {
		name    string
		cfg     Config
		event   event.Envelope
		body    string
		headers http.Header
	}{
		{
			"raw", Config{Format: Raw}, sample(), awkward,
			http.Header{"Content-Type": {"application/json"}},
		},
		{
			"raw of another type", Config{Format: Raw, ContentType: "application/xml"}, event.Envelope{Event: event.Event{Payload: []byte("<a/>")}}, "<a/>",
			http.Header{"Content-Type": {"application/xml"}},
		},
		{
			"envelope", Config{}, sample(),
			`{"id":"0190b7c4-8b7e-7c3a-9f1e-2d4c6b8a0e12","type":"order.placed","timestamp":"2026-03-01T12:00:00.123456Z",` +
				`"namespace":"com.shop/orders","action_id":"a1","action_name":"PlaceOrder","action_params":{"x":1},` +
				`"model_id":"o-7","model_type":"Order","headers":{"tenant":"t1"},"data":` + awkward + `}`,
			http.Header{"Content-Type": {"application/json"}},
		},
		{
			"envelope of a table with three columns", Config{}, bare, `{"id":"1","type":"t","data":1}`,
			http.Header{"Content-Type": {"application/json"}},
		},
		{
			"cloudevents", Config{Format: CloudEvents}, sample(), awkward,
			http.Header{
				"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"0190b7c4-8b7e-7c3a-9f1e-2d4c6b8a0e12"},
				"Ce-Source": {"/cdc-dispatcher/com.shop%252Forders"}, "Ce-Type": {"order.placed"}, "Ce-Subject": {"o-7"},
				"Ce-Time":        {"2026-03-01T12:00:00.123456Z"},
				"Ce-Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
			},
		},
		{
			"cloudevents with a source", Config{Format: CloudEvents, Source: "https://shop.example/é"}, bare, `1`,
			http.Header{
				"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Type": {"t"},
				"Ce-Source": {"https://shop.example/%C3%A9"},
			},
		},
		{
			"cloudevents, structured", Config{Format: CloudEventsStructured}, sample(),
			`{"specversion":"1.0","id":"0190b7c4-8b7e-7c3a-9f1e-2d4c6b8a0e12","source":"/cdc-dispatcher/com.shop%2Forders",` +
				`"type":"order.placed","subject":"o-7","time":"2026-03-01T12:00:00.123456Z","datacontenttype":"application/json",` +
				`"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","data":` + awkward + `}`,
			http.Header{"Content-Type": {"application/cloudevents+json; charset=UTF-8"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &Webhook{cfg: c.cfg.withDefaults()}
			h := http.Header{}
			body, err := w.render(c.event, h)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.body, string(body)); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.headers, h); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if again, _ := w.render(c.event, http.Header{}); string(again) != string(body) {
				t.Error("the next attempt has another body")
			}
		})
	}
}

func TestRender_WhatIsNotJSONIsUndecodableButForRaw(t *testing.T) {
	for _, format := range []Format{Envelope, CloudEvents, CloudEventsStructured} {
		for name, e := range map[string]event.Event{
			"xml":           {Payload: []byte("<secret/>")},
			"null":          {},
			"cut":           {Payload: []byte(`{"secret":`)},
			"two documents": {Payload: []byte(`{}{}`)},
			"broken header": {Payload: []byte(`{}`), Headers: []byte(`{secret`)},
		} {
			if name == "broken header" && format != Envelope {
				continue
			}
			w, err := New(Config{URL: "http://127.0.0.1:1/", Format: format})
			if err != nil {
				t.Fatal(err)
			}
			err = w.Handle(t.Context(), event.Envelope{Event: e})
			if class, _ := event.Classify(err); class != event.ClassUndecodable || event.Code(err) != "not_json" {
				t.Errorf("%s, %s: %v, code %s", format, name, class, event.Code(err))
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q shows the payload", err)
			}
		}
	}
}

func TestPercentEncode(t *testing.T) {
	for in, want := range map[string]string{
		"":                   "",
		"order.placed":       "order.placed",
		`Euro € 😀`:           "Euro%20%E2%82%AC%20%F0%9F%98%80",
		`say "hi" 100%`:      "say%20%22hi%22%20100%25",
		"a\r\nX-Injected: b": "a%0D%0AX-Injected:%20b",
		"\x00\x7f~!":         "%00%7F~!",
		"\xff":               "%EF%BF%BD",
	} {
		if got := percentEncode(in); got != want {
			t.Errorf("percentEncode(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for in, want := range map[string]string{
		good: good, "": "", good + "-more": "", strings.ToUpper(good): "", good[1:]: "", good + "\r\nX: y": "", good + "\n": "",
	} {
		if got := traceparent(in); got != want {
			t.Errorf("traceparent(%q) = %q", in, got)
		}
	}
}
