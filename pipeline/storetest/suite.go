package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// Run runs the suite. make is called once per test.
func Run(t *testing.T, newBackend func(t *testing.T) Backend) {
	t.Helper()
	for _, group := range [][]test{fanOutTests(), pollTests(), lookTests(), claimTests(), lostTests(), settleTests(), fenceTests(), refusalTests(), registryTests()} {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) {
				b := newBackend(t)
				b.SetNow(t, noon)
				test.run(&suite{T: t, Backend: b})
			})
		}
	}
}

type test struct {
	name string
	run  func(*suite)
}

// suite is one test's backend with shorthands.
type suite struct {
	*testing.T
	Backend
}

// noon is when every test begins, by the database's clock.
var noon = time.Date(2031, 5, 17, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

const (
	leaseFor = time.Minute
	window   = 7 * 24 * time.Hour
)

// newEvent returns an event of ten minutes ago with every field set.
func newEvent(n int) event.Event {
	return event.Event{
		ID:             uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n)).String(),
		Namespace:      "shop",
		ActionID:       uuid.NewSHA1(uuid.Nil, fmt.Append(nil, "action", n)).String(),
		ActionName:     "PlaceOrder",
		ActionParams:   json.RawMessage(`{"n": 1}`),
		StartedDate:    noon.Add(-11 * time.Minute),
		CompletionDate: noon.Add(-10*time.Minute - time.Second),
		ModelID:        fmt.Sprint("order-", n),
		ModelType:      "Order",
		Type:           "order.placed",
		Payload:        json.RawMessage(fmt.Sprintf(`{"text": "Grüße, \"%d\"", "total": 10.25}`, n)),
		Date:           noon.Add(-10*time.Minute + time.Duration(n)*time.Millisecond),
		Traceparent:    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		Headers:        json.RawMessage(`{"tenant": "a"}`),
	}
}

func newEvents(n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		events[i] = newEvent(i)
	}
	return events
}

// fan asks for one unleased delivery per handler.
func fan(e event.Event, handlers ...string) delivery.Fan {
	f := delivery.Fan{Event: e}
	for _, h := range handlers {
		f.Targets = append(f.Targets, delivery.Target{ID: uuid.New(), Handler: h, Window: window})
	}
	return f
}

func fans(events []event.Event, handlers ...string) []delivery.Fan {
	list := make([]delivery.Fan, len(events))
	for i, e := range events {
		list[i] = fan(e, handlers...)
	}
	return list
}

func newLease() delivery.Lease {
	return delivery.Lease{Token: uuid.New(), Owner: "host/1/a", For: leaseFor}
}

func (s *suite) fanOut(list ...delivery.Fan) delivery.FanOutResult {
	s.Helper()
	result, err := s.Store.FanOut(s.Context(), delivery.FanOut{Source: "test", Lease: newLease(), Fans: list})
	if err != nil {
		s.Fatal(err)
	}
	return result
}

// fanned inserts events and fans them out.
func (s *suite) fanned(n int, handlers ...string) []event.Event {
	s.Helper()
	events := newEvents(n)
	s.InsertEvents(s, events...)
	s.fanOut(fans(events, handlers...)...)
	return events
}

// pending is a delivery row that is due.
func pending(n int, handler string) Row {
	e := newEvent(n)
	return Row{
		ID: uuid.New(), Handler: handler, Event: e, State: delivery.Pending,
		NextRetryAt: e.Date, CreatedDate: e.Date, UpdatedDate: e.Date,
	}
}

func (s *suite) put(rows ...Row) {
	s.Helper()
	s.PutDeliveries(s, rows...)
}

func claimOf(handler string, limit int) delivery.Claim {
	return delivery.Claim{Handler: handler, Names: []string{handler}, Limit: limit, Window: window}
}

func (s *suite) claim(claims ...delivery.Claim) delivery.ClaimResult {
	s.Helper()
	result, err := s.Store.Claim(s.Context(), newLease(), claims)
	if err != nil {
		s.Fatal(err)
	}
	return result
}

// claimOne claims the one delivery that is due.
func (s *suite) claimOne(handler string) delivery.Claimed {
	s.Helper()
	result := s.claim(claimOf(handler, 10))
	if len(result.Claimed) != 1 {
		s.Fatalf("claimed %d deliveries, want 1", len(result.Claimed))
	}
	return result.Claimed[0]
}

func (s *suite) settle(outcomes ...delivery.Outcome) []delivery.Settled {
	s.Helper()
	settled, err := s.Store.Settle(s.Context(), outcomes)
	if err != nil {
		s.Fatal(err)
	}
	return settled
}

func outcome(c delivery.Claimed, v delivery.Verdict) delivery.Outcome {
	return delivery.Outcome{ID: c.ID, Token: c.Token, Verdict: v, Attempt: c.Claims, Window: window}
}

func (s *suite) renew(leases ...delivery.LeaseRef) []uuid.UUID {
	s.Helper()
	renewal, err := s.Store.Renew(s.Context(), leases, leaseFor)
	if err != nil {
		s.Fatal(err)
	}
	if len(renewal.Locked) > 0 {
		s.Errorf("%d leases are reported as locked, and nobody locks them", len(renewal.Locked))
	}
	return renewal.Held
}

func (s *suite) undelivered(q delivery.Undelivered) []event.Event {
	s.Helper()
	return s.look(q).Events
}

func (s *suite) look(q delivery.Undelivered) delivery.Found {
	s.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	found, err := s.Store.Undelivered(s.Context(), q)
	if err != nil {
		s.Fatal(err)
	}
	return found
}

// row returns the one delivery row with the id.
func (s *suite) row(id uuid.UUID) Row {
	s.Helper()
	for _, r := range s.Deliveries(s) {
		if r.ID == id {
			return r
		}
	}
	s.Fatalf("no delivery %s", id)
	return Row{}
}

// only returns the only delivery row.
func (s *suite) only() Row {
	s.Helper()
	rows := s.Deliveries(s)
	if len(rows) != 1 {
		s.Fatalf("there are %d deliveries, want 1", len(rows))
	}
	return rows[0]
}

func (s *suite) equal(what string, want, got any) {
	s.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// comparable reduces an event to the fields that the backend's table keeps.
func (s *suite) comparable(events ...event.Event) []event.Event {
	list := slices.Clone(events)
	for i := range list {
		list[i].Key = ""
		if !s.Full {
			e := &list[i]
			*e = event.Event{ID: e.ID, Type: e.Type, Payload: e.Payload, ModelID: e.ModelID, ModelType: e.ModelType, Date: e.Date}
		}
	}
	return list
}

func byID(events []event.Event) []event.Event {
	return slices.SortedFunc(slices.Values(events), func(a, b event.Event) int { return strings.Compare(a.ID, b.ID) })
}

func ids(events []event.Event) []string {
	list := make([]string, len(events))
	for i := range events {
		list[i] = events[i].ID
	}
	return list
}
