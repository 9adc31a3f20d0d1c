package pipeline

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

const (
	// heartbeatEvery is how often this process says which handlers it serves, and
	// learns which are paused.
	heartbeatEvery = 10 * time.Second
	// foreignEvery is how often the same handler of another process is warned of.
	foreignEvery = 10 * time.Minute
)

// heartbeat keeps what all processes must agree on about handlers up to date. It
// is also how health knows whether the database answers. One goroutine.
type heartbeat struct {
	store    RegistryStore
	owner    string
	handlers []delivery.Handler
	// names is every name and alias.
	names []string
	// marked is what this process marks as fanned out.
	marked  delivery.Match
	slots   slots
	log     *slog.Logger
	obs     Observer
	trouble *trouble
	warn    seldom
	// beaten tells that a beat succeeded, see [chores].
	beaten chan struct{}

	mu     sync.Mutex
	lastOK time.Time
}

// register announces the handlers for the first time. It tries until it succeeds; false means that ctx ended first.
// Nothing may be fanned out before: another process could take the new handlers' deliveries
// for orphans.
func (h *heartbeat) register(ctx context.Context) bool {
	wait := pause{base: 250 * time.Millisecond, cap: 10 * time.Second}
	for {
		err := h.beat(ctx)
		if err == nil {
			h.ok()
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		h.failed(err)
		if !sleep(ctx, wait.next()) {
			return false
		}
	}
}

// run beats until ctx ends.
func (h *heartbeat) run(ctx context.Context) error {
	for sleep(ctx, jittered(heartbeatEvery)) {
		switch err := h.beat(ctx); {
		case ended(ctx):
			return nil
		case err != nil:
			h.failed(err)
		default:
			h.ok()
		}
	}
	return nil
}

func (h *heartbeat) failed(err error) {
	h.obs.Count(CountRegistryError, "", 1)
	h.trouble.failed(err)
}

func (h *heartbeat) ok() {
	h.trouble.recovered()
	h.mu.Lock()
	h.lastOK = time.Now()
	h.mu.Unlock()
	select {
	case h.beaten <- struct{}{}:
	default: // the chores are busy, and see it later
	}
}

// beat says that this process serves its handlers, and learns which are paused.
func (h *heartbeat) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	registry, err := h.store.SyncHandlers(ctx, h.owner, h.handlers)
	if err != nil {
		return err
	}
	h.slots.setPaused(registry.Paused)
	h.warnOfOthers(registry.Others)
	return nil
}

// warnOfOthers looks for handlers of other processes that want what this one marks: whoever marks
// an event first decides who gets it, so those would get nothing of it.
func (h *heartbeat) warnOfOthers(others []delivery.Handler) {
	for _, o := range others {
		if h.serves(o) {
			continue
		}
		if types := shared(h.marked, o.Types); len(types) > 0 {
			if held, ok := h.warn.allow(o.Name); ok {
				h.log.Warn("another process serves a handler that this one does not know, for types that this one marks; if both read the same "+
					"event table, the handler misses what this process is first to see; give all processes of a table the same handlers",
					slog.String("handler", o.Name), slog.Any("types", types), slog.Int("held_back", held))
			}
			h.obs.Count(CountForeignHandler, o.Name, 1)
		}
	}
}

// serves says whether the handler of another process is one of ours, under its present name or a former one.
func (h *heartbeat) serves(o delivery.Handler) bool {
	return slices.ContainsFunc(append([]string{o.Name}, o.Aliases...), func(name string) bool { return slices.Contains(h.names, name) })
}
