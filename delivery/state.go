package delivery

import "errors"

// State is the stored state of a delivery. "Leased" is not a state: a delivery
// is leased while lease_until is later than the database's now.
type State string

// The states. PENDING, FAILED, SUCCEEDED and EXPIRED have the meaning of the
// published table (A71); FAILED means that a retry is planned.
const (
	Pending   State = "PENDING"
	Failed    State = "FAILED"
	Succeeded State = "SUCCEEDED"
	// Expired: the retry window passed (age).
	Expired State = "EXPIRED"
	// Dead: attempts used up, or a permanent error.
	Dead State = "DEAD"
	// Blocked: no compatible handler, or the payload cannot be decoded.
	Blocked State = "BLOCKED"
	// Discarded: ended by a person, or by the handler's own Cancel.
	Discarded State = "DISCARDED"
)

// States lists every state in the order in which tables and pages show them.
func States() []State {
	return []State{Pending, Failed, Succeeded, Expired, Dead, Blocked, Discarded}
}

// Open says whether the delivery can still be attempted without anybody's help.
func (s State) Open() bool { return s == Pending || s == Failed }

// Reasons that this product writes into event_notifications.reason.
const (
	// ReasonAge: the retry window passed (EXPIRED).
	ReasonAge = "age"
	// ReasonAttempts: the attempt limit was reached (DEAD).
	ReasonAttempts = "attempts"
	// ReasonCrashes: [LostAtMost] claims on end had no outcome: the process died each time, or its
	// handler never came back (DEAD).
	ReasonCrashes = "crashes"
	// ReasonPermanent: the handler said that no attempt can help (DEAD).
	ReasonPermanent = "permanent"
	// ReasonNoHandler: nobody serves this handler name (BLOCKED). Ends by itself when
	// one registers.
	ReasonNoHandler = "no_handler"
	// ReasonUndecodable: the handler cannot read the payload (BLOCKED).
	ReasonUndecodable = "undecodable"
	// ReasonNullPayload: the event row has a type but no payload (BLOCKED, A169).
	ReasonNullPayload = "null_payload"
	// ReasonOversize: the payload is larger than the configured bound (BLOCKED).
	ReasonOversize = "oversize"
	// ReasonCondition: the handler's condition could not be evaluated (BLOCKED).
	ReasonCondition = "condition"
	// ReasonRejected: the database refused the row as it was; a reduced one stands
	// for it (BLOCKED).
	ReasonRejected = "rejected"
)

// ErrAbsent is wrapped by what a store's Quarantine returns and says that the event has no row in its table, so that
// nothing but the log holds it.
var ErrAbsent = errors.New("the event has no row in its table")
