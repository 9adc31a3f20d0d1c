package admintest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// Admin is what the suite tests.
type Admin interface {
	Overview(context.Context) (admin.Overview, error)
	ListEvents(context.Context, admin.EventFilter, admin.Page) (admin.Events, error)
	ShowEvent(ctx context.Context, id string) (admin.EventStory, error)
	EmitEvent(context.Context, admin.Emit) (admin.Emitted, error)
	ListDeliveries(context.Context, admin.Filter, admin.Page) (admin.Deliveries, error)
	CountDeliveries(context.Context, admin.Filter) (admin.Count, error)
	ShowDelivery(context.Context, uuid.UUID) (admin.DeliveryStory, error)
	RetryDeliveries(context.Context, admin.Retry) (admin.Done, error)
	DiscardDeliveries(context.Context, admin.Discard) (admin.Done, error)
	ListHandlers(context.Context) ([]admin.HandlerInfo, error)
	PauseHandler(ctx context.Context, name, by, why string) (changed bool, err error)
	ResumeHandler(ctx context.Context, name, by, why string) (changed bool, err error)
}

// Store is the store that the Admin belongs to.
type Store interface {
	pipeline.Store
	RecordSource(ctx context.Context, source, owner string, status cdc.Status) error
}

// Layout is an event table of some form.
type Layout struct {
	Name  string
	Table schema.Table
	// Payload is a document that the table gives back as it was written.
	Payload string
	// NullDates says that rows of the table need no date.
	NullDates bool
}

// Server is what the suite runs on.
type Server struct {
	// Layouts to run the tests of events on. The first is the default one, on which
	// all others run too.
	Layouts []Layout
	// Loose is a table whose key is a nullable integer that need not be unique, with a mark of
	// kind boolean and no date.
	Loose Layout
	// Open makes the tables of a layout. It is called once for each.
	Open func(t *testing.T, l Layout) Backend
}

// Backend is a store on migrated tables.
type Backend struct {
	Store Store
	// Table is the event table.
	Table schema.Table
	// NewAdmin returns an Admin of the store.
	NewAdmin func(admin.Config) Admin
	Hooks
}

// Hooks let a test arrange and read tables. They fail the test on an error.
type Hooks interface {
	// Reset empties all tables.
	Reset(t testing.TB)
	// Now reads the database's clock, in UTC.
	Now(t testing.TB) time.Time

	// PutDelivery inserts a delivery with an event of the namespace "n", the model Order
	// "o-7", the action parameters {"x": 1} and the payload {"total": 1}.
	PutDelivery(t testing.TB, id uuid.UUID, r Row)
	// PutAttempt adds a line to a delivery's history.
	PutAttempt(t testing.TB, id uuid.UUID, a admin.Attempt)
	// SetRawPayload makes bytes that are no JSON the payload of a delivery.
	SetRawPayload(t testing.TB, id uuid.UUID, payload []byte)
	// KillDeliveries makes all deliveries DEAD after one claim.
	KillDeliveries(t testing.TB)
	// LeaseUncommitted leases a delivery for an hour, in a transaction that commit ends.
	LeaseUncommitted(t testing.TB, id uuid.UUID) (commit func())
	// Waiting says whether a statement waits for a lock of another.
	Waiting(t testing.TB) bool
	// LockDeliveries keeps every statement from reading deliveries, until unlock.
	LockDeliveries(t testing.TB) (unlock func())

	// PutEvents inserts rows into the event table of the default layout.
	PutEvents(t testing.TB, e EventRow)
	// PutLoose inserts a row into the loose table; nil is NULL.
	PutLoose(t testing.TB, key *int, typ *string, delivered bool)
	// DateEvents gives all rows of the event table one date; the zero time is NULL.
	DateEvents(t testing.TB, at time.Time)
	// DeleteEvents empties the event table.
	DeleteEvents(t testing.TB)

	// AuditLog returns the audit log, oldest first.
	AuditLog(t testing.TB) []AuditLine
	// RefuseAudit makes the database refuse audit lines of an actor, until allow.
	RefuseAudit(t testing.TB, actor string) (allow func())
}

// Row describes a delivery to insert. Zero fields have harmless values.
type Row struct {
	// Handler is "billing", Type "order.placed" unless set.
	Handler, Type     string
	Reason, LastError string
	// State is PENDING unless set.
	State    delivery.State
	Attempts int
	// Claims are the claims that were counted; Foreign rows have none, as another program
	// writes them.
	Claims  int
	Foreign bool
	// Leased is how long the owner "worker" has it from now on; negative is a lease that has
	// ended, 0 is none.
	Leased time.Duration
	// Age of the event and of the delivery.
	Age time.Duration
	// Due is when it may be claimed, from now on.
	Due time.Duration
	// Event is random unless set.
	Event uuid.UUID
}

// EventRow describes rows of the event table.
type EventRow struct {
	// Type "" makes a sentinel.
	Type      string
	Age       time.Duration
	Delivered bool
	// Rows is how many.
	Rows int
}

// AuditLine is a row of the audit log.
type AuditLine struct {
	Actor, Action, Target, Reason string
	Affected                      int64
	Detail                        json.RawMessage
}
