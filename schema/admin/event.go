package admin

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// EventSummary is one row of the event table without its payload, and what became of it.
type EventSummary struct {
	ID string `json:"id"`
	// Key is the row's own key when the id is derived from it.
	Key       string    `json:"key,omitempty"`
	Type      string    `json:"type"`
	Date      time.Time `json:"date,omitzero"`
	Namespace string    `json:"namespace,omitempty"`
	ModelType string    `json:"model_type,omitempty"`
	ModelID   string    `json:"model_id,omitempty"`
	// Pending says that no path has fanned it out yet.
	Pending bool `json:"pending,omitempty"`
	// Deliveries counts its deliveries by state.
	Deliveries map[delivery.State]int `json:"deliveries"`
}

// EventFilter chooses events. Sentinel rows, which have no type, are never chosen.
type EventFilter struct {
	// Type is exact, "order.*" for a prefix, "*" or empty for all.
	Type string
	// Pending chooses those that no path has fanned out.
	Pending bool
	// Since and Until bound the event's date, Since ≤ date < Until, if the table has one.
	Since, Until time.Time
}

// Events is one page, newest first; by key when the table has no date.
type Events struct {
	Events []EventSummary `json:"events"`
	// Next is the After of the next page; empty when this is the last.
	Next string `json:"next,omitempty"`
}

// EventData is an event that can be shown: its JSON form takes payloads that are none.
type EventData struct{ event.Event }

// MarshalJSON writes a payload that is JSON as "payload", other text as "payload_text", and bytes that
// are no text as "payload_base64".
func (e EventData) MarshalJSON() ([]byte, error) {
	v := struct {
		ID             string          `json:"id"`
		Key            string          `json:"key,omitempty"`
		Type           string          `json:"type"`
		Date           time.Time       `json:"date,omitzero"`
		Namespace      string          `json:"namespace,omitempty"`
		ActionID       string          `json:"action_id,omitempty"`
		ActionName     string          `json:"action_name,omitempty"`
		ActionParams   json.RawMessage `json:"action_params,omitempty"`
		StartedDate    time.Time       `json:"started_date,omitzero"`
		CompletionDate time.Time       `json:"completion_date,omitzero"`
		ModelType      string          `json:"model_type,omitempty"`
		ModelID        string          `json:"model_id,omitempty"`
		Traceparent    string          `json:"traceparent,omitempty"`
		Headers        json.RawMessage `json:"headers,omitempty"`
		Payload        json.RawMessage `json:"payload,omitempty"`
		PayloadText    string          `json:"payload_text,omitempty"`
		PayloadBase64  []byte          `json:"payload_base64,omitempty"`
	}{
		ID: e.ID, Key: e.Key, Type: e.Type, Date: e.Date, Namespace: e.Namespace,
		ActionID: e.ActionID, ActionName: e.ActionName, ActionParams: e.ActionParams,
		StartedDate: e.StartedDate, CompletionDate: e.CompletionDate,
		ModelType: e.ModelType, ModelID: e.ModelID, Traceparent: e.Traceparent, Headers: e.Headers,
	}
	switch {
	case json.Valid(e.Payload):
		v.Payload = e.Payload
	case utf8.Valid(e.Payload):
		v.PayloadText = string(e.Payload)
	default:
		v.PayloadBase64 = e.Payload
	}
	return json.Marshal(v)
}

// EventStory is all that is known of one event.
type EventStory struct {
	// Event is the row of the event table; when that is gone, the copy in its oldest delivery.
	Event EventData `json:"event"`
	// InTable says that the event table has the row, Rows how many rows share the key.
	InTable bool `json:"in_table"`
	Rows    int  `json:"rows"`
	// Pending says that no path has fanned it out yet.
	Pending bool `json:"pending"`
	// Deliveries with their history, by handler name, at most 200.
	Deliveries []DeliveryStory `json:"deliveries"`
}

// Emit is an event to insert.
type Emit struct {
	// Actor is who does it. Required.
	Actor string
	// Type is required; Payload is the document, null when nil.
	Type    string
	Payload json.RawMessage
	// ID is the key of the row. Empty lets the column's default decide, or draws a UUID.
	ID string
	// The rest is stored if the table has a column for it.
	ModelType, ModelID, Namespace, ActionName string
	Headers                                   json.RawMessage
	Traceparent                               string
}

// Emitted is the inserted event.
type Emitted struct {
	// ID is the event id, Key the key of the row, the same where that is a UUID.
	ID  string `json:"id"`
	Key string `json:"key"`
}
