package event_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

// FuzzTyped decodes payloads. The function is called exactly if encoding/json can read the payload and it
// is not null; otherwise the error says that it cannot be decoded, and quotes nothing of it.
func FuzzTyped(f *testing.F) {
	type order struct {
		ID    string         `json:"id"`
		Total float64        `json:"total"`
		Lines []int          `json:"lines"`
		Notes map[string]any `json:"notes"`
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var want order
		readable := json.Unmarshal(payload, &want) == nil && strings.TrimSpace(string(payload)) != "null"
		called := false
		h := event.Typed(func(_ context.Context, _ event.Envelope, got order) error {
			called = true
			a, err1 := json.Marshal(want)
			b, err2 := json.Marshal(got)
			if err1 != nil || err2 != nil || string(a) != string(b) {
				t.Errorf("%s was decoded as %s, want %s (%v, %v)", payload, b, a, err1, err2)
			}
			return nil
		})
		err := h.Handle(t.Context(), event.Envelope{Event: event.Event{Type: "order.placed", Payload: payload}})
		if called != readable || called == (err != nil) {
			t.Fatalf("%q: called %v, error %v", payload, called, err)
		}
		if err == nil {
			return
		}
		if class, _ := event.Classify(err); class != event.ClassUndecodable {
			t.Errorf("%q: the class is %s", payload, class)
		}
		if len(payload) > 20 && strings.Contains(err.Error(), string(payload)) {
			t.Errorf("%v quotes the payload", err)
		}
	})
}
