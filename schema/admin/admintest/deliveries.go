package admintest

import (
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func deliveryTests() []test {
	return []test{
		{"ListDeliveries_Filters", listDeliveriesFilters},
		{"ListDeliveries_PagesDoNotShift", listDeliveriesPages},
		{"ShowDelivery", showDelivery},
	}
}

func listDeliveriesFilters(s *suite) {
	s.serve(delivery.Handler{Name: "mailer", Aliases: []string{"mail", "post"}, Types: []string{"*"}})
	event := uuid.New()
	a := s.insert(Row{Handler: "billing", State: delivery.Dead, Reason: "permanent", Type: "order.placed", Age: time.Hour, Claims: 1})
	b := s.insert(Row{Handler: "mail", State: delivery.Pending, Type: "order.cancelled", Age: 3 * time.Hour, Event: event})
	c := s.insert(Row{Handler: "mailer", State: delivery.Succeeded, Type: "invoice.sent", Age: 5 * time.Hour, Event: event, Claims: 1})
	now := s.Now(s)
	for _, f := range []struct {
		filter admin.Filter
		want   []uuid.UUID
	}{
		{admin.Filter{}, []uuid.UUID{c, b, a}},
		{admin.Filter{IDs: []uuid.UUID{a, c}}, []uuid.UUID{c, a}},
		{admin.Filter{IDs: []uuid.UUID{}}, nil},
		{admin.Filter{Event: event.String()}, []uuid.UUID{c, b}},
		{admin.Filter{Event: strings.ToUpper(event.String())}, []uuid.UUID{c, b}},
		{admin.Filter{Event: "42"}, nil},
		{admin.Filter{Handler: "billing"}, []uuid.UUID{a}},
		{admin.Filter{Handler: "Billing"}, nil},
		{admin.Filter{Handler: "mailer"}, []uuid.UUID{c, b}},
		{admin.Filter{Handler: "mail"}, []uuid.UUID{b}},
		{admin.Filter{Handler: `nobody'; --\`}, nil},
		{admin.Filter{States: []delivery.State{delivery.Dead, delivery.Pending}}, []uuid.UUID{b, a}},
		{admin.Filter{Type: "order.placed"}, []uuid.UUID{a}},
		{admin.Filter{Type: "order.*"}, []uuid.UUID{b, a}},
		{admin.Filter{Type: "Order.*"}, nil},
		{admin.Filter{Type: "*"}, []uuid.UUID{c, b, a}},
		{admin.Filter{Type: "order_*"}, nil},
		{admin.Filter{Type: "ord%*"}, nil},
		{admin.Filter{Reason: "permanent"}, []uuid.UUID{a}},
		{admin.Filter{Since: now.Add(-4 * time.Hour)}, []uuid.UUID{b, a}},
		{admin.Filter{Until: now.Add(-2 * time.Hour).In(time.FixedZone("x", 5*3600))}, []uuid.UUID{c, b}},
		{admin.Filter{Handler: "mailer", States: []delivery.State{delivery.Pending}, Type: "order.*", Since: now.Add(-4 * time.Hour)}, []uuid.UUID{b}},
	} {
		list, err := s.admin.ListDeliveries(s.Context(), f.filter, admin.Page{})
		if err != nil {
			s.Errorf("%s: %v", f.filter, err)
			continue
		}
		var got []uuid.UUID
		for _, d := range list.Deliveries {
			got = append(got, d.ID)
		}
		s.equal(f.filter.String(), f.want, got)
		if list.Next != "" {
			s.Errorf("%s: next %q", f.filter, list.Next)
		}
		if n, err := s.admin.CountDeliveries(s.Context(), f.filter); err != nil || n != (admin.Count{N: int64(len(f.want))}) {
			s.Errorf("%s: count = %v, %v", f.filter, n, err)
		}
	}
}

func listDeliveriesPages(s *suite) {
	want := map[uuid.UUID]bool{}
	for range 25 {
		want[s.insert(Row{})] = true
	}
	page := admin.Page{Limit: 10}
	for n := 1; ; n++ {
		list, err := s.admin.ListDeliveries(s.Context(), admin.Filter{}, page)
		if err != nil {
			s.Fatal(err)
		}
		for _, d := range list.Deliveries {
			if !want[d.ID] {
				s.Errorf("page %d shows %s twice, or a newer one", n, d.ID)
			}
			delete(want, d.ID)
		}
		s.insert(Row{}) // appears in front, and must not push anything over the edge
		if page.After = list.Next; page.After == "" {
			break
		}
	}
	if len(want) > 0 {
		s.Errorf("%d deliveries were on no page", len(want))
	}
	if _, err := s.admin.ListDeliveries(s.Context(), admin.Filter{}, admin.Page{After: "x"}); err == nil {
		s.Error("a page key of nobody's was accepted")
	}
}

func showDelivery(s *suite) {
	id := s.insert(Row{State: delivery.Failed, Attempts: 2, Foreign: true, LastError: "http_503", Leased: time.Hour})
	at := time.Date(2026, 1, 1, 0, 0, 0, 123456000, time.UTC)
	history := []admin.Attempt{
		{Attempt: 1, Outcome: "FAILED", Error: "http_503", Message: "m", Started: at, Took: time.Millisecond},
		{Attempt: 2, Outcome: "FAILED", Reason: "r", Error: "http_503", Started: at, Took: 2 * time.Millisecond},
	}
	for _, line := range history {
		s.PutAttempt(s, id, line)
	}
	got := s.show(id)
	if got.Handler != "billing" || got.EventType != "order.placed" || got.ModelID != "o-7" || got.ModelType != "Order" || !got.Leased || got.LeaseOwner != "worker" ||
		got.Claims != 2 || got.Attempts != 2 || got.LastError != "http_503" || got.State != delivery.Failed || !got.Finished.IsZero() || !got.Retried.IsZero() {
		s.Errorf("delivery = %+v", got.Delivery)
	}
	if got.Event.ID != got.EventID || got.Event.Namespace != "n" || string(got.Event.Payload) != `{"total": 1}` || string(got.Event.ActionParams) != `{"x": 1}` {
		s.Errorf("event = %+v", got.Event)
	}
	if now := s.Now(s); got.LeaseUntil.Before(now) || got.LeaseUntil.After(now.Add(time.Hour)) || got.Updated.After(now) || got.LeaseUntil.Location() != time.UTC {
		s.Errorf("now %s, leased until %s, updated %s", now, got.LeaseUntil, got.Updated)
	}
	s.equal("history", history, got.History)

	s.SetRawPayload(s, id, []byte("\x00\xff"))
	if got = s.show(id); string(got.Event.Payload) != "\x00\xff" {
		s.Errorf("payload = %q", got.Event.Payload)
	}
	if _, err := s.admin.ShowDelivery(s.Context(), uuid.New()); !errors.Is(err, admin.ErrNotFound) {
		s.Errorf("unknown delivery = %v", err)
	}
}
