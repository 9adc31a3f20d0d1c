package delivery

import (
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// Lease is how long and for whom deliveries are claimed. Each claiming
// statement draws a fresh token, which fences every later write (C62).
type Lease struct {
	// Token is random and never used again.
	Token uuid.UUID
	// Owner identifies the process, for people: "host/pid/instance".
	Owner string
	// For is the length of the lease, counted from the database's now.
	For time.Duration
}

// Target is one handler that an event fans out to.
type Target struct {
	// ID becomes the primary key of the delivery row.
	ID uuid.UUID
	// Handler is the canonical name (A46).
	Handler string
	// Lease asks that the new delivery be leased at once, because the process has
	// a free worker for it. The store refuses the lease, not the row, when the
	// retry window has already passed.
	Lease bool
	// Window is the handler's retry window; 0 means none.
	Window time.Duration
	// Blocked, when not empty, creates the row as BLOCKED with this reason and Detail.
	Blocked, Detail string
}

// Fan is one event and the handlers it fans out to; no targets means that the
// event is only marked.
type Fan struct {
	Event   event.Event
	Targets []Target
	// FromLog says that Event is the complete row image of a committed
	// transaction. If the table does not have the row (not visible yet, or deleted in the
	// same transaction), its deliveries are created from the image.
	FromLog bool
	// ImageOnly, only with FromLog, says that the row cannot be written for now: the
	// store creates the deliveries from the image, takes no lock on the event's row and does
	// not mark it. The poller marks it later, which changes nothing else.
	ImageOnly bool
}

// FanOut is one fan-out statement: a batch of events, guarded and idempotent.
type FanOut struct {
	// Source names the source, and Position the place in its log that the batch
	// completes; a store that keeps positions writes it in the same transaction.
	// Empty for a batch that came from the poller or ends inside a transaction.
	Source   string
	Position cdc.Position
	// Epoch is that of the transaction that Position is from. A store that keeps
	// positions writes Position only while the source's row has this epoch; the
	// deliveries are written all the same.
	Epoch uint64
	Lease Lease
	Fans  []Fan
}

// Created is a delivery row that a fan-out inserted.
type Created struct {
	// Fan and Target index into FanOut.Fans and its Targets.
	Fan, Target int
	// Leased says that the row was inserted with the batch's lease.
	Leased bool
}

// FanOutResult says what a fan-out did.
type FanOutResult struct {
	Created []Created
	// Fresh counts events that this call marked; Repeated those that had been
	// fanned out before (a trigger that fired again); Absent those created from the log's
	// image because the table had no such row; Unmarked those that were fanned out although the database
	// did not let their row be marked.
	Fresh, Repeated, Absent, Unmarked int
	// DuplicateIDs lists event ids that more than one row of the table carries.
	DuplicateIDs []string
	// Stored holds, by index into FanOut.Fans, the events as the table's rows have them. A
	// store whose log writes a value in another form than a query does fills it, and
	// workers get these, so that both paths deliver the same bytes.
	Stored map[int]event.Event
	// Deferred are indexes into FanOut.Fans of events from the log whose rows the table
	// does not show yet, although the store has looked again. Nothing was written for them: they
	// are committed and undelivered, so the poller finds them.
	Deferred []int
}

// Claim asks for due deliveries of one handler.
type Claim struct {
	// Handler is the canonical name, Names it and its aliases (A81).
	Handler string
	Names   []string
	// Limit bounds the rows leased; the store never leases more.
	Limit int
	// Window is the retry window: strictly older rows become EXPIRED (A101). 0 means none.
	Window time.Duration
	// MaxAttempts: rows already claimed this often become DEAD (C64, C65). 0 means no limit.
	MaxAttempts int
	// Base and Cap of the handler's backoff, for deliveries whose claims are lost, see [LostForFree]: the
	// n-th lost claim on end makes them wait between half and all of min(Cap, Base × 2^(n−1)).
	Base, Cap time.Duration
}

// Claimed is a leased delivery.
type Claimed struct {
	ID    uuid.UUID
	Token uuid.UUID
	// Handler is the canonical name that was claimed for; Stored is the name in the
	// row, which may be an alias.
	Handler, Stored string
	Event           event.Event
	// Attempts counts failed attempts so far, Claims the claims including this one.
	Attempts, Claims int
}

// ClaimResult is what a claim found.
type ClaimResult struct {
	Claimed []Claimed
	// Ended lists deliveries that the claim ended without an attempt, by canonical
	// handler name and state (EXPIRED, DEAD).
	Ended map[string]map[State]int
	// Postponed counts, by canonical handler name, deliveries that were not leased and wait again because
	// too many claims of them were lost.
	Postponed map[string]int
}

// Verdict is what an attempt asks for.
type Verdict int

// The verdicts.
const (
	// Success needs the current token and a live lease.
	Success Verdict = iota
	// Retry needs the current token. It ends as EXPIRED when the next due time is
	// strictly after the window, as DEAD when the claims are used up (A111, M3).
	Retry
	// Fail is a permanent error: DEAD.
	Fail
	// Block: BLOCKED, the claim is given back.
	Block
	// Discard: DISCARDED.
	Discard
	// GiveBack: due again after Delay, the claim is given back (snooze, soft stop).
	GiveBack
)

func (v Verdict) String() string {
	return [...]string{"success", "retry", "fail", "block", "discard", "give_back"}[v]
}

// Outcome is the end of one attempt.
type Outcome struct {
	ID, Token uuid.UUID
	Verdict   Verdict
	// Delay until the next attempt, for Retry and GiveBack.
	Delay time.Duration
	// Window and MaxAttempts are the handler's limits, for Retry; 0 means none.
	Window      time.Duration
	MaxAttempts int
	// Reason is stored for every end but Success.
	Reason string
	// Error is the error's class or code; Message its text, empty unless the operator
	// asked for it, capped and redacted by the caller (M19).
	Error, Message string
	// Attempt is the claim number, Took the handler's run time; both go into the
	// attempt history of everything but Success and GiveBack.
	Attempt int
	Took    time.Duration
}

// Settled is an outcome that was written, and the state it led to. An outcome
// without one was stale: another worker holds the delivery now (M32).
type Settled struct {
	ID    uuid.UUID
	State State
	// Locked says that the outcome was not written, because another session has the row
	// locked; State is empty. The same outcome may be written later.
	Locked bool
}

// Renewal says what became of leases that were to be extended. Those in neither list are lost.
type Renewal struct {
	// Held leases are extended.
	Held []uuid.UUID
	// Locked leases are not: another session has the row locked, and whether it will be
	// ours afterwards is unknown.
	Locked []uuid.UUID
}

// LeaseRef names a held lease.
type LeaseRef struct{ ID, Token uuid.UUID }

// Match is a set of event types: exact names, prefixes ("order." from "order.*"), or all.
type Match struct {
	All      bool
	Exact    []string
	Prefixes []string
}

// Handler is a row of eventlog.handlers.
type Handler struct {
	Name    string
	Aliases []string
	Types   []string
}

// Registry is what a process learns when it registers its handlers.
type Registry struct {
	// Paused holds those of the caller's handlers that are paused, by canonical name.
	Paused map[string]Pause
	// Others are the handlers that processes other than the caller have registered within
	// [HandlerLive], ordered by name.
	Others []Handler
}

// Pause says who paused a handler, and why.
type Pause struct {
	By, Reason string
	At         time.Time
}
