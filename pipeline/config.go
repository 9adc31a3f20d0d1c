package pipeline

import (
	"context"
	"log/slog"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// Config describes one source and everything that hangs on it. The zero value of
// each optional field is its default. Several sources in one process are several
// pipelines; they share nothing, so that an unreachable one slows no other.
type Config struct {
	// Source names the database in logs, metrics and tables. Required.
	Source string
	// Log reads the database's log. Nil means poll-only mode.
	Log cdc.Source
	// Store is the database's tables. Required.
	Store Store
	// Table is "schema.table" of the event table. Required with Log.
	Table string
	// Decode turns a row image of Table into an event. Required with Log.
	Decode func(cdc.Record) (event.Event, error)
	// Handlers subscribe to events.
	Handlers []Handler
	// Triggers are further recordCreatedTrigger registrations beside fan-out's own.
	Triggers []Trigger

	// FanOut bounds one fan-out statement.
	FanOut FanOutConfig
	// Poller is the fallback.
	Poller PollerConfig
	// Lease is how long a claim lasts before another process may take it over.
	// It is renewed while a handler runs, at a third of its length. Default 60 s, at most
	// [delivery.LongestLease].
	Lease time.Duration
	// ShutdownTimeout is how long Run waits for running handlers after its context
	// ended before it cancels them. Deliveries that had not started are given back at
	// once. Default 20 s.
	ShutdownTimeout time.Duration
	// OrphanGrace is how long a due delivery may wait for a process that serves its
	// handler before it becomes BLOCKED. Default 10 min, at least [delivery.HandlerLive].
	OrphanGrace time.Duration
	// MaxPayload is the largest payload, in bytes, that is handed to handlers; larger ones
	// become BLOCKED deliveries with the reason "oversize". Default 16 MiB.
	MaxPayload int
	// StoreErrorMessages keeps the text of handler errors in last_error, capped at
	// 500 bytes. Off by default: messages may carry personal data (C70).
	StoreErrorMessages bool
	// Owner identifies this process in leases. Default: host, process id and a random part.
	Owner string

	// Logger may be nil, which is silent.
	Logger *slog.Logger
	// Observer receives what happens, for metrics. May be nil.
	Observer Observer
}

// FanOutConfig bounds one fan-out statement.
type FanOutConfig struct {
	// BatchEvents is the most events in one statement. Default 2000.
	BatchEvents int
	// BatchBytes is the most payload held for one statement. Default 8 MiB.
	BatchBytes int
	// MarkUnsubscribed says what happens to an event that no handler subscribes to:
	// false leaves it undelivered, so that a handler deployed later receives it
	// (A54); true marks it (status tables then say NO_DELIVERY, B25).
	MarkUnsubscribed bool
}

// PollerConfig paces the fallback.
type PollerConfig struct {
	// Interval between looks while the log is healthy. Default 10 s. In poll-only
	// mode, and while the log is not being read, ActiveInterval applies instead.
	Interval time.Duration
	// ActiveInterval is the pace of poll-only mode. Default 500 ms.
	ActiveInterval time.Duration
	// Grace is how long an event must have been visible to the poller before it is taken
	// while the log is healthy, so that it does not race the log. Default 5 s.
	Grace time.Duration
	// Batch is the most events per look. Default 1000.
	Batch int
	// SweepAgain is when a sweep after a gap is repeated. Default 30 s.
	SweepAgain time.Duration
}

// Handler is a subscription: a durable name, what it listens to, and how it is
// run. Name is stored in delivery rows; rename only with Aliases (A80, A81).
type Handler struct {
	Name    string
	Aliases []string
	// On lists event types: exact, "order.*" for a prefix, "*" for all.
	On []string
	// When is an optional CEL condition over `event`; see package documentation.
	When    string
	Handler event.Handler
	// Concurrency is the most deliveries of this handler that run at once in this
	// process. Default 16.
	Concurrency int
	// Timeout of one attempt; it must be below the lease. Default 30 s.
	Timeout time.Duration
	// Retry is when a failed delivery is tried again. The zero policy is
	// [RetryDefault]; [RetryEkbatan] and [RetryVernac] are those products' figures.
	Retry RetryPolicy
}

// Trigger is a recordCreatedTrigger: a callback for rows inserted into a table.
// Fan-out is the trigger on the event table.
//
// The callback runs after the commit, in commit order, and must have made the
// records durable, or have handled them, when it returns: the position moves on
// after that. It may be called more than once for a record (B22). An error is retried with the
// same records, and the position waits; the poller and the handlers go on.
//
// When the pipeline stops, the callback's context ends after 5 s. One that is still running 2 s later is
// abandoned: Run returns without it, its records come again after the next start, and whatever it does then is
// its own affair.
type Trigger struct {
	// Name identifies the trigger in logs and metrics. Required, unique.
	Name string
	// Table is "schema.table"; the source must publish it. Required.
	Table string
	// When is an optional CEL condition over `record`, the row's columns by name in
	// the database's text form: `int(record.amount) > 100`, `record.note == null`.
	When string
	// OnRecordCreated receives the matching records of one or more commits. Required.
	OnRecordCreated func(ctx context.Context, records []RecordCreated) error
}

// RecordCreated is one committed insert.
type RecordCreated struct {
	Record cdc.Record
	// CommitTime is the server's commit time; zero when unknown.
	CommitTime time.Time
	// ConditionError is set when the trigger's condition could not be evaluated for
	// this record. The record is handed over nevertheless, because "cannot tell" is not
	// "no": the callback decides what becomes of it.
	ConditionError error
}

// Observer receives what happens inside a pipeline. Its methods are called from
// several goroutines and must not block. Implement it by embedding
// [NopObserver] so that new methods break nobody.
type Observer interface {
	// Captured: n event rows arrived via "log" or "poll"; lag is commit to arrival of
	// the newest, 0 when unknown.
	Captured(via string, n int, lag time.Duration)
	// FannedOut: one fan-out statement committed.
	FannedOut(FanOutStats)
	// Attempted: one attempt ended and its outcome was written (or found stale).
	Attempted(AttemptStats)
	// Count: something else happened n times. The names are listed in counters.go.
	Count(name Counter, handler string, n int)
}

// FanOutStats describes one committed fan-out statement.
type FanOutStats struct {
	Via                         string
	Events, Deliveries, Leased  int
	Repeated, Absent, Unmatched int
	Took                        time.Duration
}

// AttemptStats describes one ended attempt.
type AttemptStats struct {
	Handler string
	Verdict delivery.Verdict
	// State is what the outcome led to; empty when it was stale.
	State delivery.State
	// Wait is commit (or event date) to handler start, Took the handler's run time.
	Wait, Took time.Duration
	Attempt    int
}

// NopObserver does nothing.
type NopObserver struct{}

// Captured implements [Observer].
func (NopObserver) Captured(string, int, time.Duration) {}

// FannedOut implements [Observer].
func (NopObserver) FannedOut(FanOutStats) {}

// Attempted implements [Observer].
func (NopObserver) Attempted(AttemptStats) {}

// Count implements [Observer].
func (NopObserver) Count(Counter, string, int) {}

// Counter names an occurrence that is counted.
type Counter string

// RetryPolicy is when a failed delivery is tried again, and when it is given up.
// The delay after the n-th failure is min(Cap, Base × 2^(n−1)), n from 1. A handler's
// [event.RetryAfter] lengthens it, up to a day. The zero policy is [RetryDefault],
// which has jitter; one that sets anything has jitter only when it says so.
type RetryPolicy struct {
	// Base delay. Default 1 s.
	Base time.Duration
	// Cap on the delay. Default 5 min.
	Cap time.Duration
	// Jitter draws the delay between 0 and its value ("full jitter"). A Retry-After
	// is never shortened by it.
	Jitter bool
	// Window is how long after event_date a delivery may still be tried. Default 7 days;
	// negative means no window.
	Window time.Duration
	// MaxAttempts, counted by claims. 0 means no limit.
	MaxAttempts int
}
