package storetest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// Mark is how the backend's event table says that an event is fanned out.
type Mark string

// The kinds of mark, see package schema.
const (
	MarkBoolean Mark = "boolean"
	MarkStatus  Mark = "status"
	MarkNone    Mark = "none"
)

// Backend is a store on empty tables.
type Backend struct {
	Store pipeline.Store
	Mark  Mark
	// Full says that the event table has a column for every field of an event. Without
	// it, only ID, Type, Payload, ModelID, ModelType and Date come back as they were.
	Full bool
	// LookBack bounds the poller's looks, in a table without a mark; 0 means that it does not.
	LookBack time.Duration
	// Defers says that the store leaves a row that the log has and the table does not show yet to the
	// poller. Otherwise it delivers it from the log's image.
	Defers bool
	Hooks
}

// Hooks let a test arrange and read tables. They fail the test on an error.
type Hooks interface {
	// SetNow sets the clock that the store's statements see, in UTC.
	SetNow(t testing.TB, now time.Time)

	// InsertEvents commits event rows that are not fanned out. An empty Type makes a
	// sentinel row, an empty ID a row without a key (where the table allows one), a
	// zero Date a row with the date of the clock.
	InsertEvents(t testing.TB, events ...event.Event)
	// BeginEvent inserts an event row in a transaction that commit ends.
	BeginEvent(t testing.TB, e event.Event) (commit func())
	// DeleteEvent removes an event row.
	DeleteEvent(t testing.TB, id string)
	// EventMark returns "pending", "done" or "none" (fanned out without a delivery), and the time
	// stamped with the status; for a table without a mark it returns "".
	EventMark(t testing.TB, id string) (mark string, at time.Time)

	// PutDeliveries inserts delivery rows. A row with Foreign set is written as another
	// program would: the columns of ours are null.
	PutDeliveries(t testing.TB, rows ...Row)
	// Deliveries returns all delivery rows, ordered by event id and handler.
	Deliveries(t testing.TB) []Row
	// Attempts returns the history of a delivery, oldest first.
	Attempts(t testing.TB, id uuid.UUID) []Attempt

	// LockEvent locks an event row in a transaction that unlock ends.
	LockEvent(t testing.TB, id string) (unlock func())
	// LockDelivery locks a delivery row in a transaction that unlock ends.
	LockDelivery(t testing.TB, id uuid.UUID) (unlock func())
	// RefuseUpdates makes every update of a delivery fail, as a trigger of the user may.
	RefuseUpdates(t testing.TB, id uuid.UUID)
	// RefuseInserts makes every insert of a delivery of the event fail while it has what is named.
	RefuseInserts(t testing.TB, eventID string, what Refused)

	// Pause pauses a handler, as an operator does.
	Pause(t testing.TB, handler string, p delivery.Pause)
	// Handlers returns the registry, ordered by name.
	Handlers(t testing.TB) []Registered
	// Gaps returns the recorded gaps, oldest first.
	Gaps(t testing.TB) []Gap
}

// Refused is what a constraint of the user is about.
type Refused string

// What inserts are refused for.
const (
	// RefusePayload: a payload.
	RefusePayload Refused = "payload"
	// RefuseContent: a payload, or a namespace or an action name that is not empty.
	RefuseContent Refused = "content"
	// RefuseAll: anything.
	RefuseAll Refused = "all"
)

// Row is a delivery row. Times are zero, and pointers nil, where the column is null.
type Row struct {
	ID      uuid.UUID
	Handler string
	// Event is the copy of the event's columns; its Key is empty.
	Event event.Event

	State                              delivery.State
	Attempts                           int
	NextRetryAt                        time.Time
	CreatedDate, UpdatedDate, Finished time.Time

	// Foreign rows have null in all fields below.
	Foreign    bool
	ClaimCount int
	LostClaims int
	LeaseToken *uuid.UUID
	LeaseUntil time.Time
	LeaseOwner string
	Reason     string
	LastError  string
}

// Attempt is a row of the attempt history.
type Attempt struct {
	Attempt                int
	Outcome                delivery.State
	Reason, Error, Message string
	Started                time.Time
	Took                   time.Duration
}

// Registered is a row of the handler registry.
type Registered struct {
	Name           string
	Aliases, Types []string
	Generation     int
	LastOwner      string
	LastSeen       time.Time
}

// Gap is a recorded gap.
type Gap struct {
	Source, Reason, Detail, From, To string
	Detected, Closed                 time.Time
}
