// Package admin is the vocabulary in which an operator asks about events, deliveries,
// handlers and sources, and gives orders. It becomes a leaf with the next commit, when its
// names move here from schema/postgres.
package admin

import "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"

// The vocabulary.
type (
	Config          = postgres.AdminConfig
	Order           = postgres.Order
	Done            = postgres.Done
	Retry           = postgres.Retry
	Discard         = postgres.Discard
	HandlerInfo     = postgres.HandlerInfo
	Delivery        = postgres.Delivery
	Attempt         = postgres.Attempt
	Page            = postgres.Page
	Deliveries      = postgres.Deliveries
	DeliveryStory   = postgres.DeliveryStory
	EventSummary    = postgres.EventSummary
	Events          = postgres.Events
	EventData       = postgres.EventData
	EventStory      = postgres.EventStory
	EventFilter     = postgres.EventFilter
	Emit            = postgres.Emit
	Emitted         = postgres.Emitted
	Overview        = postgres.Overview
	HandlerOverview = postgres.HandlerOverview
	SourceStatus    = postgres.SourceStatus
	OpenGap         = postgres.OpenGap
	Count           = postgres.Count
	Filter          = postgres.Filter
)

// Errors that an operator can act on.
var (
	ErrNotFound = postgres.ErrNotFound
	ErrSlow     = postgres.ErrSlow
	ErrStates   = postgres.ErrStates
)
