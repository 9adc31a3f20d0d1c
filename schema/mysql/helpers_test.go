package mysql

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func itoa(n int) string { return strconv.Itoa(n) }

// someEvents are events of ten minutes ago. Their ids are the same in every call.
func someEvents(n int) []event.Event {
	at := time.Now().UTC().Add(-10 * time.Minute).Truncate(time.Second)
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{
			ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i)).String(), Namespace: "shop", ActionID: uuid.NewString(), ActionName: "Place",
			ActionParams: json.RawMessage(`{}`), StartedDate: at, CompletionDate: at, Type: "order.placed",
			Payload: json.RawMessage(fmt.Sprintf(`{"n": %d}`, i)), Date: at.Add(time.Duration(i) * time.Millisecond),
		}
	}
	return events
}

// someFan is a fan of the log.
func someFan(e event.Event, handlers ...string) delivery.Fan {
	f := delivery.Fan{Event: e, FromLog: true}
	for _, h := range handlers {
		f.Targets = append(f.Targets, delivery.Target{ID: uuid.New(), Handler: h})
	}
	return f
}

func someLease() delivery.Lease {
	return delivery.Lease{Token: uuid.New(), Owner: "me", For: time.Minute}
}

func (w world) fanOut(t testing.TB, fans ...delivery.Fan) delivery.FanOutResult {
	t.Helper()
	result, err := w.store.FanOut(t.Context(), delivery.FanOut{Source: "src", Lease: someLease(), Fans: fans})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func (w world) undelivered(t testing.TB, q delivery.Undelivered) []event.Event {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	found, err := w.store.Undelivered(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return found.Events
}

func allTypes() delivery.Undelivered { return delivery.Undelivered{Types: delivery.Match{All: true}} }

func claimOf(handler string, limit int) []delivery.Claim {
	return []delivery.Claim{{Handler: handler, Names: []string{handler}, Limit: limit}}
}
