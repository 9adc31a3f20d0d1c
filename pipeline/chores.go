package pipeline

import (
	"context"
	"log/slog"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

const (
	// orphansEvery is how often a process looks for deliveries that nobody serves, and for those that were
	// blocked for want of a handler of its own.
	orphansEvery = time.Minute
	// leasesEvery is how often it looks for leases that a clock has left behind that jumped
	// ahead and came back. The look reads everything that is due in the far future.
	leasesEvery = 10 * time.Minute
)

// chores are what this process does now and then to many deliveries at once. Each is tried for itself, and may
// take long or fail without holding up anything else: its turn comes again. One goroutine.
//
// They wait for a heartbeat that has just succeeded. After an outage of the database the handlers of this process look as if
// nobody served them, until it has said otherwise.
type chores struct {
	store    RegistryStore
	handlers []delivery.Handler
	// names is every name and alias.
	names []string
	grace time.Duration
	slots slots
	log   *slog.Logger
	obs   Observer
	// beaten is the heartbeat's.
	beaten <-chan struct{}
}

// chore is one of them.
type chore struct {
	every time.Duration
	next  time.Time
	do    func(ctx context.Context) error
	// trouble is logged and counted, and is no part of the health of the database.
	trouble *trouble
}

// run does what is due after each heartbeat, until ctx ends.
func (c *chores) run(ctx context.Context) error {
	now := time.Now()
	later := now.Add(jittered(orphansEvery))
	list := []*chore{
		{every: orphansEvery, next: now, do: c.unblock, trouble: newTrouble(c.log, "freeing deliveries that had no handler")},
		{every: orphansEvery, next: later, do: c.block, trouble: newTrouble(c.log, "blocking deliveries that no process serves")},
		{every: leasesEvery, next: later, do: c.shorten, trouble: newTrouble(c.log, "shortening leases that end too late")},
	}
	for {
		select {
		case <-c.beaten:
		case <-ctx.Done():
			return nil
		}
		for _, one := range list {
			if time.Now().Before(one.next) {
				continue
			}
			one.next = time.Now().Add(jittered(one.every))
			switch err := one.do(ctx); {
			case ended(ctx):
				return nil
			case err != nil:
				c.obs.Count(CountRegistryError, "", 1)
				one.trouble.failed(err)
			default:
				one.trouble.recovered()
			}
		}
	}
}

// unblock frees deliveries that were blocked for want of one of our handlers. It
// is repeated, because another process that had not yet heard of us may block more. Like the others it may have changed
// many before it fails.
func (c *chores) unblock(ctx context.Context) error {
	if len(c.names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	n, err := c.store.Unblock(ctx, c.names)
	if n > 0 {
		c.obs.Count(CountUnblocked, "", n)
		c.log.Info("deliveries that had no handler are due again", slog.Int("deliveries", n))
		for _, handler := range c.handlers {
			c.slots.wake(handler.Name)
		}
	}
	return err
}

// block ends the wait of deliveries that no process serves.
func (c *chores) block(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	n, err := c.store.BlockOrphans(ctx, c.grace)
	if n > 0 {
		c.obs.Count(CountOrphaned, "", n)
		c.log.Warn("deliveries are BLOCKED because no process serves their handler; they are freed when one does",
			slog.Int("deliveries", n), slog.Duration("waited_at_least", c.grace))
	}
	return err
}

// shorten makes leases that no process can have asked for end in a foreseeable time.
func (c *chores) shorten(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	n, err := c.store.ShortenLeases(ctx, delivery.LongestLease)
	if n > 0 {
		c.obs.Count(CountLeaseShortened, "", n)
		c.log.Warn("leases ended later than any lease can; the database's clock must have been wrong; they end soon now",
			slog.Int("deliveries", n), slog.Duration("within", delivery.LongestLease))
	}
	return err
}
