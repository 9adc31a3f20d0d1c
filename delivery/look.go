package delivery

import (
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// Undelivered asks for events that no path has fanned out yet, oldest first.
type Undelivered struct {
	// Source is who asks. For a table whose looks are bounded (look_back) it says how far back this
	// one must go: from the last complete look of the source, or from the detection of its oldest open gap,
	// whichever is earlier, and never later than from the database's now. See pipeline.PollStore.
	Source string
	Types  Match
	Limit  int
	// MaxBytes bounds the payloads, parameters and headers of the result; 0 means no bound. The oldest
	// event is returned whatever its size.
	MaxBytes int
	// Skip excludes ids that the caller is already working on.
	Skip []string
	// After goes on behind an earlier look: it is that one's [Found.Next]. It is for the pages of one
	// pass over the table only. A new pass begins without it, because rows may have come
	// into sight anywhere.
	After string
}

// Found is what one look at the event table brought.
type Found struct {
	Events []event.Event
	// More says that the look met one of its bounds, so that there may be more events.
	More bool
	// Next is where the next page begins. It is empty when there is none, and for a store whose
	// table needs no pages: what has been fanned out is marked, and the next look
	// does not find it.
	Next string
	// At is the database's now when the look began. It only ever goes back to the store: see
	// pipeline.PollStore and pipeline.GapStore.
	At time.Time
	// LeftOut says that rows were left out because they cannot be read for now.
	LeftOut bool
	// Traceless says that the table has no mark: an event without deliveries leaves no trace and comes back
	// in every look, so fanning it out is of no use.
	Traceless bool
}

// LongestLease is the longest lease that a process may ask for. A lease that ends later than the
// database's now plus LongestLease is the work of a clock that has come back since.
const LongestLease = time.Hour

// A claim that finds the lease of an earlier claim run out, and neither settled nor given back, counts
// a lost claim. An outcome of any kind sets the count to zero.
const (
	// LostForFree is how many lost claims on end cost nothing: a process may be killed.
	LostForFree = 2
	// LostAtMost is how many lost claims on end make a delivery DEAD with the reason
	// [ReasonCrashes]. Between the two, each one makes it wait like a failure.
	LostAtMost = 10
)

// HandlerLive is how long after its last registration a handler counts as served by somebody.
const HandlerLive = time.Minute
