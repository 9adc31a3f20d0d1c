package event

import (
	"encoding/json"
	"time"
)

// Event is one immutable row of an event table, as its transaction committed
// it. The fields carry the meaning of the columns of eventlog.events; a custom
// table fills those it has a column for and leaves the others zero.
//
// All times are UTC with microsecond precision (A19).
type Event struct {
	// ID identifies the event: the canonical lower-case text of a UUID. A table
	// whose key is not a UUID gets one derived from the key's text, the same on
	// every path and in every process.
	ID string
	// Key is the text of the table's own key when ID had to be derived from it;
	// empty when ID is the key. It finds the row again during fan-out and is not
	// stored with a delivery.
	Key string
	// Namespace names the producer; empty when the table has no such column.
	Namespace string
	// ActionID is shared by all events of one action (A6).
	ActionID   string
	ActionName string
	// ActionParams is the JSON object of the action's parameters (A8); nil when absent.
	ActionParams json.RawMessage

	StartedDate    time.Time
	CompletionDate time.Time

	// ModelID and ModelType name the changed model; empty when null.
	ModelID   string
	ModelType string
	// Type is the routing key; empty means a sentinel row, which is never
	// fanned out (A23, A53).
	Type string
	// Payload is the stored payload, byte for byte as the database prints it; nil
	// when the column is null (A169: such an event is BLOCKED, not skipped).
	Payload json.RawMessage
	// Date is when the event happened by the producer's clock; it starts the
	// retry window (A125).
	Date time.Time
	// Traceparent is the W3C trace context of the producer; empty when absent.
	Traceparent string
	// Headers are the producer's own headers, a JSON object; nil when absent.
	Headers json.RawMessage
}

// Envelope is what a [Handler] receives: the event, and the identity of the
// delivery that carries it (A90, A91).
type Envelope struct {
	Event
	// Handler is the canonical name of the handler that is invoked.
	Handler string
	// DeliveryID is the primary key of the delivery row.
	DeliveryID string
	// IdempotencyKey is the same for every attempt of this (event, handler) pair,
	// in every process and after a manual retry. It has no full stop, so it can be
	// signed as a Standard Webhooks id.
	IdempotencyKey string
	// Attempt is 1 for the first try and counts claims, not failures.
	Attempt int
	// Deadline is when the handler's context ends, by this process's clock.
	Deadline time.Time
}
