package logger_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/logger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sample(payload string) event.Envelope {
	return event.Envelope{
		Event: event.Event{
			ID: "e1", Type: "order.placed", ModelID: "o-7", Date: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
			Payload: json.RawMessage(payload),
		},
		Handler: "audit", DeliveryID: "d1", Attempt: 2,
	}
}

// line logs one event and returns its JSON line, without time.
func line(t *testing.T, cfg logger.Config, e event.Envelope) map[string]any {
	t.Helper()
	var out bytes.Buffer
	cfg.Logger = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h, err := logger.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Handle(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines for one event", n)
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	return got
}

func TestHandle_LogsOneLineWithoutPayload(t *testing.T) {
	got := line(t, logger.Config{}, sample(`{"card":"4111"}`))
	want := map[string]any{
		"level": "INFO", "msg": "event", "event_id": "e1", "event_type": "order.placed",
		"event_date": "2026-03-01T12:00:00Z", "handler": "audit", "delivery_id": "d1", "attempt": 2.0,
		"payload_bytes": 15.0, "model_id": "o-7",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

func TestHandle_PayloadOnRequest(t *testing.T) {
	for _, c := range []struct {
		name, payload string
		max           int
		want          any
	}{
		{"JSON", `{"a": 1}`, 0, map[string]any{"a": 1.0}},
		{"no JSON", `<a/>`, 0, "<a/>"},
		{"none", ``, 0, ""},
		{"exactly the limit", `{"a": 1}`, 8, map[string]any{"a": 1.0}},
		{"longer than the limit", `{"a": 1}`, 7, `{"a": 1`},
		{"longer than the default", `"` + strings.Repeat("x", 5000) + `"`, 0, `"` + strings.Repeat("x", logger.DefaultMaxPayload-1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := line(t, logger.Config{Payload: true, MaxPayload: c.max, Level: slog.LevelDebug, Message: "seen"}, sample(c.payload))
			if diff := cmp.Diff(c.want, got["payload"]); diff != "" {
				t.Errorf("payload (-want +got):\n%s", diff)
			}
			if got["level"] != "DEBUG" || got["msg"] != "seen" {
				t.Errorf("level %v, message %v", got["level"], got["msg"])
			}
		})
	}
}

func TestHandle_LineThatCannotBeWrittenFailsTheDelivery(t *testing.T) {
	errDisk := errors.New("disk is full")
	h, err := logger.New(logger.Config{Logger: slog.New(slog.NewTextHandler(failingWriter{errDisk}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Handle(t.Context(), sample(`{}`)); !errors.Is(err, errDisk) {
		t.Errorf("Handle = %v; the event would be lost", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestHandle_LevelThatIsOff(t *testing.T) {
	var out bytes.Buffer
	h, err := logger.New(logger.Config{Logger: slog.New(slog.NewTextHandler(&out, nil)), Level: slog.LevelDebug})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Handle(t.Context(), sample(`{}`)); err != nil || out.Len() > 0 {
		t.Errorf("Handle = %v, wrote %q", err, out.String())
	}
}

func TestHandle_KeepsTheLoggersOwnAttributes(t *testing.T) {
	var out bytes.Buffer
	h, err := logger.New(logger.Config{Logger: slog.New(slog.NewTextHandler(&out, nil)).With("source", "orders").WithGroup("g")})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Handle(context.Background(), sample(`{}`)); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "source=orders") || !strings.Contains(s, "g.event_id=e1") {
		t.Errorf("line = %s", s)
	}
}

func TestNew_Refusals(t *testing.T) {
	for name, cfg := range map[string]logger.Config{
		"no logger":    {},
		"negative max": {Logger: slog.Default(), MaxPayload: -1},
	} {
		if _, err := logger.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
