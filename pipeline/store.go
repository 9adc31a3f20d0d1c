package pipeline

import (
	"context"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// FanOutStore creates deliveries.
type FanOutStore interface {
	// FanOut marks the events and inserts their deliveries in one transaction,
	// guarded so that a repeated call changes nothing. It returns after the commit is
	// durable. An error for which the store's Rejected says true was caused by a
	// row, not by the database's condition; what was leased by then has been given back.
	FanOut(ctx context.Context, batch delivery.FanOut) (delivery.FanOutResult, error)
	// Quarantine stands in for a fan that the database refuses as it is: one BLOCKED delivery per
	// target with reduced content and the reason "rejected". When those are refused too, deliveries
	// with nothing but the ids, the handler, the type, and a code and a hash of the payload in last_error are
	// tried. When even they are refused, and the event has no row in its table, the error wraps
	// [delivery.ErrAbsent] as well.
	Quarantine(ctx context.Context, fan delivery.Fan, cause error) error
	// Rejected says whether err means that the data of a row is at fault, so that
	// trying the same batch again cannot help.
	Rejected(err error) bool
}

// PollStore finds what the log did not bring.
type PollStore interface {
	// Undelivered returns events that are not fanned out, oldest first. It selects
	// by state, never by "greater than the last seen", from the primary.
	//
	// A table without a mark may bound its looks (look_back). Such a look goes back from the earliest of
	// the database's now, the time kept by Looked for the source, and the detection of the source's oldest open
	// gap; without the first and the last it is from now.
	Undelivered(ctx context.Context, q delivery.Undelivered) (delivery.Found, error)
	// Looked keeps, per source, that everything which a complete pass that began at the time at found has been
	// dealt with. The latest time stands; one that lies in the future, which a clock has left behind that has
	// come back since, is replaced. To lose it in a crash only makes the next look go further back.
	Looked(ctx context.Context, source string, at time.Time) error
}

// HandlingStore leases deliveries and writes outcomes.
type HandlingStore interface {
	// Claim leases due deliveries for several handlers in one statement. It counts lost claims, see
	// [delivery.LostForFree].
	Claim(ctx context.Context, lease delivery.Lease, claims []delivery.Claim) (delivery.ClaimResult, error)
	// NextDue returns how long it is until the earliest delivery of the named
	// handlers is due, by the database's clock; ok is false when there is none.
	NextDue(ctx context.Context, names []string) (in time.Duration, ok bool, err error)
	// Settle writes outcomes, each fenced by its token. It waits for no row lock. The
	// result lists those that took effect and those whose row is locked, together with an error too:
	// the others may or may not have been written, unless the store's Rejected says true, which means that
	// the data of at least one of them is at fault and none of them was written.
	Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error)
	// Renew extends leases in one statement, waits for no row lock, and says which leases
	// are held and which it cannot tell of.
	Renew(ctx context.Context, leases []delivery.LeaseRef, by time.Duration) (delivery.Renewal, error)
}

// RegistryStore keeps what all processes must agree on about handlers.
type RegistryStore interface {
	// SyncHandlers records that this process serves the handlers, and returns the paused ones and those
	// that others serve. A handler that is not paused, one of whose aliases is registered and paused, takes that
	// pause over; the alias keeps it, for processes that still know the handler by that name.
	SyncHandlers(ctx context.Context, owner string, handlers []delivery.Handler) (delivery.Registry, error)
	// BlockOrphans turns due deliveries whose handler no process has served for
	// grace into BLOCKED with reason "no_handler".
	BlockOrphans(ctx context.Context, grace time.Duration) (int, error)
	// Unblock makes deliveries that were blocked for want of one of the named
	// handlers due again (C72, M8).
	Unblock(ctx context.Context, names []string) (int, error)
	// ShortenLeases makes leases that end later than now plus longest end then, and the deliveries due
	// then. It ends no lease: whoever holds one renews it.
	ShortenLeases(ctx context.Context, longest time.Duration) (int, error)
}

// GapStore remembers stretches of log that were not read.
type GapStore interface {
	// RecordGap stores a gap; the same gap recorded again is stored once.
	RecordGap(ctx context.Context, source string, gap cdc.Gap) error
	// CloseGaps marks those open gaps of the source as swept that were detected no later than at the time at, or
	// by a clock that has come back since: later than now. at is when the first pass of the sweep began, see
	// [delivery.Found].
	CloseGaps(ctx context.Context, source string, at time.Time) error
}

// Store is everything the pipeline asks of a database. Every implementation
// passes package storetest.
type Store interface {
	FanOutStore
	PollStore
	HandlingStore
	RegistryStore
	GapStore
}
