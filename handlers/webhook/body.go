package webhook

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

const (
	contentJSON       = "application/json"
	contentStructured = "application/cloudevents+json; charset=UTF-8"

	headerContentType = "Content-Type"
	headerTraceparent = "Traceparent"
)

// errNotJSON is what an event gets that the format cannot carry.
var errNotJSON = errors.New("payload, action parameters or headers are not JSON; only format raw can send this event")

// render returns the body of the request for e, and sets the headers that
// belong to the format. The same event gives the same bytes on every attempt.
func (w *Webhook) render(e event.Envelope, h http.Header) ([]byte, error) {
	if w.cfg.Format == Raw {
		h.Set(headerContentType, w.cfg.ContentType)
		return e.Payload, nil
	}
	if !json.Valid(e.Payload) {
		return nil, errNotJSON
	}
	switch w.cfg.Format {
	case CloudEvents:
		h.Set(headerContentType, contentJSON)
		a := w.attributes(e)
		for name, value := range a.each() {
			h.Set("Ce-"+name, percentEncode(value))
		}
		return e.Payload, nil
	case CloudEventsStructured:
		h.Set(headerContentType, contentStructured)
		a := w.attributes(e)
		a.DataContentType = contentJSON
		return withData(a, e.Payload)
	default:
		h.Set(headerContentType, contentJSON)
		return withData(newEnvelope(e), e.Payload)
	}
}

// envelope is the body of format [Envelope] but for data.
type envelope struct {
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	Timestamp    string          `json:"timestamp,omitempty"`
	Namespace    string          `json:"namespace,omitempty"`
	ActionID     string          `json:"action_id,omitempty"`
	ActionName   string          `json:"action_name,omitempty"`
	ActionParams json.RawMessage `json:"action_params,omitempty"`
	ModelID      string          `json:"model_id,omitempty"`
	ModelType    string          `json:"model_type,omitempty"`
	Headers      json.RawMessage `json:"headers,omitempty"`
}

func newEnvelope(e event.Envelope) envelope {
	return envelope{
		ID: e.ID, Type: e.Type, Timestamp: timestamp(e.Date), Namespace: e.Namespace,
		ActionID: e.ActionID, ActionName: e.ActionName, ActionParams: e.ActionParams,
		ModelID: e.ModelID, ModelType: e.ModelType, Headers: e.Headers,
	}
}

// attributes are those of CloudEvents 1.0 that an event has.
type attributes struct {
	SpecVersion     string `json:"specversion"`
	ID              string `json:"id"`
	Source          string `json:"source"`
	Type            string `json:"type"`
	Subject         string `json:"subject,omitempty"`
	Time            string `json:"time,omitempty"`
	DataContentType string `json:"datacontenttype,omitempty"`
	Traceparent     string `json:"traceparent,omitempty"`
}

func (w *Webhook) attributes(e event.Envelope) attributes {
	source := w.cfg.Source
	if source == "" {
		source = "/cdc-dispatcher"
		if e.Namespace != "" {
			source += "/" + url.PathEscape(e.Namespace)
		}
	}
	return attributes{
		SpecVersion: "1.0", ID: e.ID, Source: source, Type: e.Type, Subject: e.ModelID,
		Time: timestamp(e.Date), Traceparent: traceparent(e.Traceparent),
	}
}

// each yields the attributes that become headers in binary mode: all that are set,
// without the content type, which Content-Type carries.
func (a attributes) each() func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		for _, kv := range [][2]string{
			{"Specversion", a.SpecVersion}, {"Id", a.ID}, {"Source", a.Source}, {"Type", a.Type},
			{"Subject", a.Subject}, {"Time", a.Time}, {"Traceparent", a.Traceparent},
		} {
			if kv[1] != "" && !yield(kv[0], kv[1]) {
				return
			}
		}
	}
}

// withData renders head and puts the payload behind it as member "data", byte for
// byte: encoding/json would compact and escape it, and a number in it is not ours to touch.
func withData(head any, payload []byte) ([]byte, error) {
	b, err := json.Marshal(head)
	if err != nil {
		return nil, errNotJSON
	}
	body := make([]byte, 0, len(b)+len(payload)+len(`,"data":`))
	body = append(body, b[:len(b)-1]...)
	body = append(body, `,"data":`...)
	body = append(body, payload...)
	return append(body, '}'), nil
}

// timestamp prints a time of the database in RFC 3339; empty for a table that has none.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// percentEncode encodes a header value as the HTTP binding of CloudEvents asks:
// UTF-8 bytes, with space, double quote, percent and all outside of the printable
// ASCII range as %XX.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	s = strings.ToValidUTF8(s, "\uFFFD")
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x21 || c > 0x7e || c == '"' || c == '%':
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

var traceparentForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceparent returns s if it has the form of a W3C trace context, else nothing: a
// broken one must neither reach the receiver nor stop the event.
func traceparent(s string) string {
	if !traceparentForm.MatchString(s) {
		return ""
	}
	return s
}

func basicAuth(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}
