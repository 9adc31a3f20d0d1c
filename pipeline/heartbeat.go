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
	// orphansEvery is how often it looks for deliveries that nobody serves.
	orphansEvery = time.Minute
	// leasesEvery is how often it looks for leases that a clock has left behind that jumped
	// ahead and came back. The look reads everything that is due in the far future.
	leasesEvery = 10 * time.Minute
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
	grace   time.Duration
	slots   slots
	log     *slog.Logger
	obs     Observer
	trouble *trouble
	warn    seldom

	mu     sync.Mutex
	lastOK time.Time
}

// register announces the handlers for the first time, and releases what was
// blocked for want of them. It tries until it succeeds; false means that ctx ended first.
// Nothing may be fanned out before: another process could take the new handlers' deliveries
// for orphans.
func (h *heartbeat) register(ctx context.Context) bool {
	wait := pause{base: 250 * time.Millisecond, cap: 10 * time.Second}
	for {
		err := h.beat(ctx)
		if err == nil {
			if err = h.unblock(ctx); err == nil {
				h.ok()
				return true
			}
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
	orphans, leases := time.Now().Add(jittered(orphansEvery)), time.Now()
	for sleep(ctx, jittered(heartbeatEvery)) {
		err := h.beat(ctx)
		if err == nil && !time.Now().Before(orphans) {
			orphans = time.Now().Add(jittered(orphansEvery))
			if err = h.unblock(ctx); err == nil {
				err = h.block(ctx)
			}
			if err == nil && !time.Now().Before(leases) {
				leases = time.Now().Add(jittered(leasesEvery))
				err = h.shorten(ctx)
			}
		}
		switch {
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
	defer h.mu.Unlock()
	h.lastOK = time.Now()
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

// unblock frees deliveries that were blocked for want of one of our handlers. It
// is repeated, because another process that had not yet heard of us may block more.
func (h *heartbeat) unblock(ctx context.Context) error {
	if len(h.names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	n, err := h.store.Unblock(ctx, h.names)
	if err != nil || n == 0 {
		return err
	}
	h.obs.Count(CountUnblocked, "", n)
	h.log.Info("deliveries that had no handler are due again", slog.Int("deliveries", n))
	for _, handler := range h.handlers {
		h.slots.wake(handler.Name)
	}
	return nil
}

// block ends the wait of deliveries that no process serves.
func (h *heartbeat) block(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	n, err := h.store.BlockOrphans(ctx, h.grace)
	if err != nil || n == 0 {
		return err
	}
	h.obs.Count(CountOrphaned, "", n)
	h.log.Warn("deliveries are BLOCKED because no process serves their handler; they are freed when one does",
		slog.Int("deliveries", n), slog.Duration("waited_at_least", h.grace))
	return nil
}

// shorten makes leases that no process can have asked for end in a foreseeable time.
func (h *heartbeat) shorten(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	n, err := h.store.ShortenLeases(ctx, delivery.LongestLease)
	if err != nil || n == 0 {
		return err
	}
	h.obs.Count(CountLeaseShortened, "", n)
	h.log.Warn("leases ended later than any lease can; the database's clock must have been wrong; they end soon now",
		slog.Int("deliveries", n), slog.Duration("within", delivery.LongestLease))
	return nil
}
