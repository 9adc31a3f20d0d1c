package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Filter chooses deliveries. Its fields are combined with "and"; the zero value of each
// chooses all.
type Filter struct {
	// IDs of deliveries. A list that is empty and not nil chooses none.
	IDs []uuid.UUID `json:"ids,omitempty"`
	// Event is the id of their event, or the key of its row.
	Event string `json:"event,omitempty"`
	// Handler is a handler's name; deliveries that are stored under one of its aliases
	// belong to it.
	Handler string           `json:"handler,omitempty"`
	States  []delivery.State `json:"states,omitempty"`
	// Type of the event: exact, "order.*" for a prefix, "*" for all.
	Type string `json:"type,omitempty"`
	// Reason is what the delivery ended with, such as "permanent" or "no_handler".
	Reason string `json:"reason,omitempty"`
	// Since and Until bound the event's date: Since ≤ date < Until. Zero is no bound.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// String says in words what is chosen.
func (f Filter) String() string {
	var parts []string
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	switch len(f.IDs) {
	case 0:
	case 1:
		add(true, "id %s", f.IDs[0])
	default:
		add(true, "%d ids", len(f.IDs))
	}
	add(f.Event != "", "event %s", f.Event)
	add(f.Handler != "", "handler %s", f.Handler)
	states := make([]string, len(f.States))
	for i, s := range f.States {
		states[i] = string(s)
	}
	add(len(states) > 0, "state %s", strings.Join(states, "|"))
	add(f.Type != "", "type %s", f.Type)
	add(f.Reason != "", "reason %s", f.Reason)
	add(!f.Since.IsZero(), "since %s", f.Since.UTC().Format(time.RFC3339))
	add(!f.Until.IsZero(), "until %s", f.Until.UTC().Format(time.RFC3339))
	if len(parts) == 0 {
		return "all deliveries"
	}
	return strings.Join(parts, ", ")
}
