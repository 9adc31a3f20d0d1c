package admin

import (
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Delivery is one row of event_notifications, without the copy of its event.
type Delivery struct {
	ID      uuid.UUID `json:"id"`
	EventID string    `json:"event_id"`
	// Handler is the stored name, which may be an alias.
	Handler   string         `json:"handler"`
	EventType string         `json:"event_type"`
	ModelType string         `json:"model_type,omitempty"`
	ModelID   string         `json:"model_id,omitempty"`
	EventDate time.Time      `json:"event_date"`
	State     delivery.State `json:"state"`
	// Attempts counts failed attempts, Claims all that began.
	Attempts int `json:"attempts"`
	Claims   int `json:"claims"`
	// Due is when the next attempt may begin; of a leased delivery, when its lease ends.
	Due time.Time `json:"due"`
	// Leased says that a process is working on it until LeaseUntil.
	Leased     bool      `json:"leased,omitempty"`
	LeaseOwner string    `json:"lease_owner,omitempty"`
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	Created    time.Time `json:"created"`
	Updated    time.Time `json:"updated"`
	Finished   time.Time `json:"finished,omitzero"`
	// Retried is when a person last asked for it again.
	Retried   time.Time `json:"retried,omitzero"`
	Reason    string    `json:"reason,omitempty"`
	LastError string    `json:"last_error,omitempty"`
}

// Attempt is one line of a delivery's history: an attempt that did not succeed, or what
// a person did.
type Attempt struct {
	// Attempt is the number of the claim; of a manual one, how many there had been.
	Attempt int `json:"attempt"`
	// Outcome is the state that it led to, [ManualRetry] or [ManualDiscard].
	Outcome string        `json:"outcome"`
	Reason  string        `json:"reason,omitempty"`
	Error   string        `json:"error,omitempty"`
	Message string        `json:"message,omitempty"`
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took_ns"`
}

// Outcomes of manual lines of the history. Their Reason and Error are what the delivery had
// before, their Message says who did it and why.
const (
	ManualRetry   = "MANUAL_RETRY"
	ManualDiscard = "MANUAL_DISCARD"
)

// Deliveries is one page, newest first.
type Deliveries struct {
	Deliveries []Delivery `json:"deliveries"`
	// Next is the After of the next page; empty when this is the last.
	Next string `json:"next,omitempty"`
}

// DeliveryStory is all that is known of one delivery.
type DeliveryStory struct {
	Delivery
	// Event is the copy of the event in the delivery row: what its handler is given.
	Event EventData `json:"event"`
	// History is what happened to it, oldest first, at most [HistoryLimit] lines from the end.
	History []Attempt `json:"history"`
}

// HistoryLimit is the most lines of one delivery's history that are shown.
const HistoryLimit = 500
