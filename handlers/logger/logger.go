// Package logger is a handler that writes one structured log line per event.
//
// Promise: a delivery succeeds only after the line was handed to the
// slog.Handler without an error, and the payload is in it only if that was
// asked for. The package starts no goroutine and holds no connection.
package logger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// DefaultMaxPayload is how much of a payload a line shows.
const DefaultMaxPayload = 4 << 10

// Config says where events are logged and how. Logger is required; the zero value of
// every other field is its default.
type Config struct {
	// Logger receives the lines. Unlike the loggers of other packages it may not be
	// nil: an event that is logged nowhere would count as delivered.
	Logger *slog.Logger
	// Level of the lines. Default info. While the logger does not log this level,
	// events succeed without a line.
	Level slog.Level
	// Message of the lines. Default "event".
	Message string
	// Payload adds the payload. Off by default: it may hold personal data.
	Payload bool
	// MaxPayload is the most bytes of a payload in a line; of a longer one the
	// beginning is logged, as text. Default [DefaultMaxPayload].
	MaxPayload int
}

// Logger is an [event.Handler] that logs events. It is safe for concurrent use.
type Logger struct{ cfg Config }

var _ event.Handler = (*Logger)(nil)

// New returns the Logger for cfg, or an error if cfg has no logger.
func New(cfg Config) (*Logger, error) {
	switch {
	case cfg.Logger == nil:
		return nil, errors.New("logger: no slog.Logger to write to")
	case cfg.MaxPayload < 0:
		return nil, fmt.Errorf("logger: max payload %d is negative", cfg.MaxPayload)
	}
	if cfg.Message == "" {
		cfg.Message = "event"
	}
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = DefaultMaxPayload
	}
	return &Logger{cfg: cfg}, nil
}

// Handle logs e. It calls the slog.Handler itself, because slog.Logger drops its
// error, and with it would go the event.
func (l *Logger) Handle(ctx context.Context, e event.Envelope) error {
	h := l.cfg.Logger.Handler()
	if !h.Enabled(ctx, l.cfg.Level) {
		return nil
	}
	r := slog.NewRecord(time.Now(), l.cfg.Level, l.cfg.Message, 0)
	r.AddAttrs(
		slog.String("event_id", e.ID),
		slog.String("event_type", e.Type),
		slog.Time("event_date", e.Date),
		slog.String("handler", e.Handler),
		slog.String("delivery_id", e.DeliveryID),
		slog.Int("attempt", e.Attempt),
		slog.Int("payload_bytes", len(e.Payload)),
	)
	for _, optional := range [][2]string{
		{"namespace", e.Namespace},
		{"action_id", e.ActionID},
		{"model_type", e.ModelType},
		{"model_id", e.ModelID},
		{"traceparent", e.Traceparent},
	} {
		if optional[1] != "" {
			r.AddAttrs(slog.String(optional[0], optional[1]))
		}
	}
	if l.cfg.Payload {
		r.AddAttrs(slog.Attr{Key: "payload", Value: l.payload(e.Payload)})
	}
	if err := h.Handle(ctx, r); err != nil {
		return fmt.Errorf("write log line: %w", err)
	}
	return nil
}

// payload is JSON inside a JSON line as long as it is whole and valid; else text.
func (l *Logger) payload(p json.RawMessage) slog.Value {
	if len(p) > l.cfg.MaxPayload {
		return slog.StringValue(string(p[:l.cfg.MaxPayload]))
	}
	if !json.Valid(p) {
		return slog.StringValue(string(p))
	}
	return slog.AnyValue(p)
}
