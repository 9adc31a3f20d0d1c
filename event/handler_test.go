package event_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

type order struct {
	ID    string    `json:"id"`
	Total int       `json:"total"`
	At    time.Time `json:"at"`
	Card  struct {
		Number int64 `json:"number"`
	} `json:"card"`
	Secret leaky `json:"secret"`
}

// leaky has a decoder whose error repeats the value, as many do.
type leaky struct{}

func (*leaky) UnmarshalJSON(b []byte) error { return errors.New("cannot parse " + string(b)) }

func TestC12_TypedDecodeErrorHasPlaceButNoValue(t *testing.T) {
	const secret = "4111-1111-1111-1111"
	for _, c := range []struct {
		name, payload string
		want          []string
	}{
		{"wrong kind", `{"id":"o1","total":"` + secret + `"}`, []string{`"total"`, "int", "string", "at byte"}},
		{"nested field", `{"card":{"number":"` + secret + `"}}`, []string{`"card.number"`, "int64"}},
		{"number out of range", `{"total":41111111111111111111111}`, []string{`"total"`, "number"}},
		{"syntax", `{"id":"` + secret + `",}`, []string{"invalid JSON at byte"}},
		{"cut off", `{"id":"` + secret, []string{"invalid JSON at byte"}},
		{"a type's own decoder", `{"secret":"` + secret + `"}`, []string{"does not fit"}},
		{"a standard type's own decoder", `{"at":"` + secret + `"}`, []string{"does not fit"}},
		{"empty", ``, []string{"invalid JSON at byte 0"}},
		{"JSON null", ` null `, []string{"JSON null"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := event.Typed(func(context.Context, event.Envelope, order) error {
				t.Error("the handler ran on a payload that does not decode")
				return nil
			})
			err := h.Handle(t.Context(), event.Envelope{Event: event.Event{Type: "order.placed", Payload: json.RawMessage(c.payload)}})
			if class, _ := event.Classify(err); class != event.ClassUndecodable {
				t.Fatalf("class = %v (%v), want undecodable (M9)", class, err)
			}
			if got := event.Code(err); got != "decode" {
				t.Errorf("code = %q, want decode", got)
			}
			for _, want := range append(c.want, "order.placed", "event_test.order") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %s", err, want)
				}
			}
			if strings.Contains(err.Error(), "4111") {
				t.Errorf("error %q shows the value", err)
			}
		})
	}
}

func TestTyped_NullIsForTypesThatCanHoldIt(t *testing.T) {
	null := event.Envelope{Event: event.Event{Type: "t", Payload: json.RawMessage("null")}}
	called := 0
	for name, h := range map[string]event.Handler{
		"pointer": event.Typed(func(_ context.Context, _ event.Envelope, p *order) error { called++; return nil }),
		"map":     event.Typed(func(_ context.Context, _ event.Envelope, p map[string]any) error { called++; return nil }),
		"any":     event.Typed(func(_ context.Context, _ event.Envelope, p any) error { called++; return nil }),
		"raw":     event.Typed(func(_ context.Context, _ event.Envelope, p json.RawMessage) error { called++; return nil }),
		"own":     event.Typed(func(_ context.Context, _ event.Envelope, p optional) error { called++; return nil }),
	} {
		if err := h.Handle(t.Context(), null); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if called != 5 {
		t.Errorf("%d of 5 handlers ran", called)
	}
}

type optional struct{ Set bool }

func (o *optional) UnmarshalJSON(b []byte) error { o.Set = string(b) != "null"; return nil }

func TestTyped_PassesThePayloadAndTheHandlersError(t *testing.T) {
	var got struct{ ID string }
	h := event.Typed(func(_ context.Context, e event.Envelope, p struct{ ID string }) error {
		got = p
		return event.Permanent(errPlain)
	})
	err := h.Handle(t.Context(), event.Envelope{Event: event.Event{Payload: json.RawMessage(`{"id":"o-7","unknown":1}`)}})
	if class, _ := event.Classify(err); class != event.ClassPermanent || !errors.Is(err, errPlain) {
		t.Errorf("handler's error arrived as %v", err)
	}
	if got.ID != "o-7" {
		t.Errorf("payload = %+v", got)
	}
}

// The vector is computed apart from Go:
//
//	printf '0190b7c4-8b7e-7c3a-9f1e-2d4c6b8a0e12\0billing' | sha256sum | cut -c1-32
func TestIdempotencyKey_Vector(t *testing.T) {
	const want = "dlv_dd63cab5ba8328f4deb37bb436c34328"
	if got := event.IdempotencyKey("0190b7c4-8b7e-7c3a-9f1e-2d4c6b8a0e12", "billing"); got != want {
		t.Errorf("IdempotencyKey = %q, want %q: stored receivers rely on it", got, want)
	}
}

func TestIdempotencyKey_IsDotFreeAndTellsPairsApart(t *testing.T) {
	seen := map[string][2]string{}
	for _, pair := range [][2]string{
		{"a", "b"}, {"ab", ""}, {"", "ab"}, {"a", "B"}, {"b", "a"}, {"a.b", "c.d"}, {"e", "order.placed.v1"},
	} {
		key := event.IdempotencyKey(pair[0], pair[1])
		if other, dup := seen[key]; dup {
			t.Errorf("%q and %q share the key %s", pair, other, key)
		}
		seen[key] = pair
		if strings.Contains(key, ".") {
			t.Errorf("key %q holds a full stop; it could not be signed as a Standard Webhooks id", key)
		}
		if key != event.IdempotencyKey(pair[0], pair[1]) {
			t.Errorf("key of %q changes", pair)
		}
	}
}
