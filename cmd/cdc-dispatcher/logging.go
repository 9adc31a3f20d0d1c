package main

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/lmittmann/tint"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
)

// logger makes the process's log, on stderr: text for people on a terminal, JSON for
// machines otherwise.
func (a *app) logger(c config.Log) *slog.Logger {
	level := slogLevel(c.Level)
	text := c.Format == config.FormatText || c.Format == config.FormatAuto && isTerminal(a.err)
	if !text {
		return slog.New(slog.NewJSONHandler(a.err, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(tint.NewTextHandler(a.err, &tint.Options{Level: level, TimeFormat: time.TimeOnly + ".000", NoColor: !a.color()}))
}

// ofSource adds the source's name to every line of a log, once: what is logged
// under it may name the source itself, for users that did not add it.
func ofSource(log *slog.Logger, source string) *slog.Logger {
	return slog.New(sourceHandler{log.Handler().WithAttrs([]slog.Attr{slog.String(sourceKey, source)})})
}

const sourceKey = "source"

// sourceHandler drops further attributes called "source".
type sourceHandler struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h sourceHandler) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != sourceKey {
			clean.AddAttrs(a)
		}
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

// WithAttrs implements [slog.Handler].
func (h sourceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	kept := slices.DeleteFunc(slices.Clone(attrs), func(a slog.Attr) bool { return a.Key == sourceKey })
	return sourceHandler{h.Handler.WithAttrs(kept)}
}

// WithGroup implements [slog.Handler].
func (h sourceHandler) WithGroup(name string) slog.Handler { return h.Handler.WithGroup(name) }

func slogLevel(l config.Level) slog.Level {
	switch l {
	case config.LevelDebug:
		return slog.LevelDebug
	case config.LevelWarn:
		return slog.LevelWarn
	case config.LevelError:
		return slog.LevelError
	}
	return slog.LevelInfo
}
