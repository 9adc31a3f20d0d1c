package admin

import (
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Order is what all changes by a person have in common.
type Order struct {
	// Actor is who asks for it. Required.
	Actor string
	// Reason is why; it may be empty.
	Reason string
	// RequestID, when not empty, makes the order idempotent: a second one with the same id,
	// within a day, changes nothing and returns what the first one did (Q38).
	RequestID string
	// Limit bounds the deliveries that one order changes. Default and most: 10,000.
	// Give the order again, with another RequestID, while More is true; a [Retry] with Before.
	Limit int
}

const orderLimit = 10_000

// Max is the number of deliveries that the order changes at most.
func (o Order) Max() int {
	if o.Limit <= 0 {
		return orderLimit
	}
	return min(o.Limit, orderLimit)
}

// Done is what an order did.
type Done struct {
	// Count of deliveries that were changed.
	Count int64 `json:"count"`
	// More says that the order's limit was reached; others may be left.
	More bool `json:"more,omitempty"`
	// At is the database's time at the beginning of the order; zero when it is Repeated.
	At time.Time `json:"at,omitzero"`
	// Repeated says that an order with this request id had been carried out before.
	Repeated bool `json:"repeated,omitempty"`
}

// Retry asks for deliveries to be tried again.
type Retry struct {
	Order
	Filter Filter
	// Succeeded includes deliveries that have succeeded; their handlers run again.
	Succeeded bool
	// ResetAttempts counts failed attempts from zero again, so that the retry delays start
	// small. The history keeps its lines either way.
	ResetAttempts bool
	// Before leaves out deliveries that were retried since then. Who gives an order of several parts sets it
	// to [Done].At of the first: those that fail again meanwhile would be chosen again, without end. Zero: none.
	Before time.Time
}

// States are the states that a person can send back: all but PENDING, which is waiting
// anyway, and SUCCEEDED, which must be asked for.
func (r Retry) States() []delivery.State {
	states := []delivery.State{delivery.Failed, delivery.Dead, delivery.Expired, delivery.Blocked, delivery.Discarded}
	if r.Succeeded {
		states = append(states, delivery.Succeeded)
	}
	return states
}

// Discard asks for deliveries to be given up.
type Discard struct {
	Order
	Filter Filter
}

// States are the states that a person can give up: those that have not succeeded, and are not given up.
func (Discard) States() []delivery.State {
	return []delivery.State{delivery.Pending, delivery.Failed, delivery.Dead, delivery.Expired, delivery.Blocked}
}

// ReasonByHand is the reason of deliveries that a person discarded without saying why.
const ReasonByHand = "by_hand"

// HandlerInfo is a row of the handlers table.
type HandlerInfo struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Types   []string `json:"types"`
	// Generation counts changes of aliases and types.
	Generation int64 `json:"generation"`
	// LastOwner is the process that served it last, LastSeen when, Silent for how long not.
	LastOwner string        `json:"last_owner"`
	LastSeen  time.Time     `json:"last_seen"`
	Silent    time.Duration `json:"silent_ns"`
	Created   time.Time     `json:"created"`
	// Paused is nil while it runs.
	Paused *delivery.Pause `json:"paused,omitempty"`
}
