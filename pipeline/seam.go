package pipeline

import (
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// subscriber is one registered handler with its defaults applied. It is
// immutable once the registry is built.
type subscriber struct {
	Handler
	match delivery.Match
	// cond is the compiled When, nil when the handler takes every event of its types.
	cond *condition
	// names is the canonical name followed by the aliases (A81).
	names []string
}

// job is one delivery that this process holds the lease of: what fan-out and
// claims hand to the workers.
type job struct {
	id, token uuid.UUID
	sub       *subscriber
	// stored is the handler name in the row, which may be an alias.
	stored string
	ev     event.Event
	// attempts counts failed attempts so far, claims the claims including this one.
	attempts, claims int
	// leasedAt was read from the monotonic clock before the statement that leased
	// the row was sent, so that the lease ends here no later than in the database.
	leasedAt time.Time
	// commitTime is the commit of the event, zero when it came from the poller.
	commitTime time.Time
}
