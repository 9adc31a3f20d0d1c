package admintest

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// eventTests run on every layout.
func eventTests() []test {
	return []test{
		{"EmitEvent_IsFoundListedAndShown", emitEvent},
		{"ListEvents_PagesAndBounds", listEventsPages},
	}
}

func defaultEventTests() []test {
	return []test{
		{"EmitEvent_Refusals", emitRefusals},
		{"ListEvents_Filters", listEventsFilters},
	}
}

// looseTests run on the loose table.
func looseTests() []test {
	return []test{
		{"ShowEvent_UnknownAndDuplicate", showUnknown},
		{"Overview_RowsWithoutKey", overviewWithoutKey},
	}
}

// An event that is emitted by hand is like one of an application's: it is found, and listed, and shown.
func emitEvent(s *suite) {
	payload := s.layout.Payload
	out := s.emit(admin.Emit{
		Type: "order.placed", Payload: json.RawMessage(payload), ModelType: "Order", ModelID: `o\'7`,
		Headers: json.RawMessage(`{"h": 1}`), Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	found := s.undelivered()
	if len(found) != 1 || found[0].ID != out.ID || found[0].Type != "order.placed" || string(found[0].Payload) != payload {
		s.Fatalf("the poller finds %+v; want %+v", found, out)
	}
	if s.Table.Columns.ModelID != "" && found[0].ModelID != `o\'7` {
		s.Errorf("model id = %q", found[0].ModelID)
	}
	list, err := s.admin.ListEvents(s.Context(), admin.EventFilter{Type: "order.*", Pending: true}, admin.Page{})
	if err != nil || len(list.Events) != 1 || list.Events[0].ID != out.ID || !list.Events[0].Pending || len(list.Events[0].Deliveries) != 0 {
		s.Errorf("list = %+v, %v", list, err)
	}

	if o := s.overview(); o.Undelivered.N != 1 || o.Unidentifiable.N != 0 {
		s.Errorf("before it is fanned out: %v undelivered, %v unidentifiable", o.Undelivered, o.Unidentifiable)
	}

	id := uuid.Must(uuid.NewV7())
	if _, err := s.Store.FanOut(s.Context(), delivery.FanOut{Fans: []delivery.Fan{{Event: found[0], Targets: []delivery.Target{{ID: id, Handler: "billing"}}}}}); err != nil {
		s.Fatal(err)
	}
	for _, key := range []string{out.ID, out.Key, strings.ToUpper(out.ID)} {
		story, err := s.admin.ShowEvent(s.Context(), key)
		if err != nil || len(story.Deliveries) != 1 || story.Deliveries[0].ID != id || string(story.Event.Payload) != payload || story.Event.ID != out.ID || story.Pending {
			s.Errorf("show %s = %+v, %v", key, story, err)
		}
		if key == out.Key && (!story.InTable || story.Rows != 1) {
			s.Errorf("show %s: in table %v, rows %d", key, story.InTable, story.Rows)
		}
	}
	list, err = s.admin.ListEvents(s.Context(), admin.EventFilter{}, admin.Page{})
	if err != nil || len(list.Events) != 1 || list.Events[0].Pending || list.Events[0].Deliveries[delivery.Pending] != 1 {
		s.Errorf("list = %+v, %v", list, err)
	}
	if list, err = s.admin.ListEvents(s.Context(), admin.EventFilter{Pending: true}, admin.Page{}); err != nil || len(list.Events) != 0 || list.Next != "" {
		s.Errorf("pending = %+v, %v", list, err)
	}
	if o := s.overview(); o.Undelivered.N != 0 {
		s.Errorf("after it is fanned out: %v undelivered", o.Undelivered)
	}
	s.DeleteEvents(s)
	story, err := s.admin.ShowEvent(s.Context(), out.ID)
	if err != nil || story.InTable || story.Event.ID != out.ID || string(story.Event.Payload) != payload {
		s.Errorf("after the row is gone: %+v, %v", story, err)
	}
	log := s.AuditLog(s)
	if len(log) != 1 || log[0].Actor != "maria" || log[0].Action != "events.emit" || log[0].Target != out.ID || log[0].Affected != 1 {
		s.Errorf("audit log = %+v", log)
	}
}

func emitRefusals(s *suite) {
	for name, e := range map[string]admin.Emit{
		"no actor":        {Type: "t"},
		"no type":         {Actor: "m"},
		"payload no JSON": {Actor: "m", Type: "t", Payload: json.RawMessage("{")},
		"id too long":     {Actor: "m", Type: "t", ID: strings.Repeat("4", 300)},
	} {
		if out, err := s.admin.EmitEvent(s.Context(), e); err == nil {
			s.Errorf("%s: accepted as %+v", name, out)
		}
	}
	id := uuid.NewString()
	for n := range 2 {
		out, err := s.admin.EmitEvent(s.Context(), admin.Emit{Actor: "m", Type: "t", ID: id})
		if n == 0 && (err != nil || out.ID != id) || n == 1 && err == nil {
			s.Errorf("emission %d with one id = %+v, %v", n+1, out, err)
		}
	}
	if n := len(s.AuditLog(s)); n != 1 {
		s.Errorf("%d audit lines for one event", n)
	}
}

// allPages reads the pages of pending events, each of which must be in want, and takes them out of it.
func (s *suite) allPages(limit int, want map[string]bool, see func(admin.EventSummary)) {
	s.Helper()
	page := admin.Page{Limit: limit}
	for pages := 1; ; pages++ {
		list, err := s.admin.ListEvents(s.Context(), admin.EventFilter{Pending: true}, page)
		if err != nil {
			s.Fatal(err)
		}
		for _, e := range list.Events {
			if !want[e.ID] {
				s.Errorf("page %d of %d each shows %s again", pages, limit, e.ID)
			}
			delete(want, e.ID)
			see(e)
		}
		if page.After = list.Next; page.After == "" {
			break
		}
	}
	if len(want) > 0 {
		s.Errorf("%d events on no page of %d", len(want), limit)
	}
}

func listEventsPages(s *suite) {
	want := map[string]bool{}
	for range 7 {
		want[s.emit(admin.Emit{Type: "order.placed", Payload: json.RawMessage(`{}`)}).ID] = true
	}
	dated := s.Table.Columns.Date != ""
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	if dated {
		// All at one instant: the key tells them apart.
		s.DateEvents(s, noon)
	}
	s.allPages(3, want, func(e admin.EventSummary) {
		if dated && !e.Date.Equal(noon) {
			s.Errorf("date = %s, want %s", e.Date, noon)
		}
	})
	if _, err := s.admin.ListEvents(s.Context(), admin.EventFilter{}, admin.Page{After: "x"}); err == nil {
		s.Error("a page key of nobody's was accepted")
	}
	list, err := s.admin.ListEvents(s.Context(), admin.EventFilter{Since: noon}, admin.Page{})
	if !dated && err == nil {
		s.Error("a bound on a date that the table does not have was accepted")
	}
	if dated && (err != nil || len(list.Events) != 7) {
		s.Errorf("since noon: %d events, %v; want 7", len(list.Events), err)
	}
	if list, err = s.admin.ListEvents(s.Context(), admin.EventFilter{Until: noon}, admin.Page{}); dated && (err != nil || len(list.Events) != 0) {
		s.Errorf("until noon: %d events, %v; want none", len(list.Events), err)
	}
}

// Rows without a date come first or last, as the server sorts them. A page may end among them, or just before.
func listEventsWithoutDate(s *suite) {
	var ids []string
	emit := func(n int) {
		for range n {
			ids = append(ids, s.emit(admin.Emit{Type: "order.placed", Payload: json.RawMessage(`{}`)}).ID)
		}
	}
	emit(3)
	s.DateEvents(s, time.Time{})
	emit(2)
	for limit := range 5 {
		want := map[string]bool{}
		for _, id := range ids {
			want[id] = true
		}
		s.allPages(limit+1, want, func(admin.EventSummary) {})
	}
}

func listEventsFilters(s *suite) {
	s.PutEvents(s, EventRow{Type: "order.placed", Age: time.Hour, Rows: 1})
	s.PutEvents(s, EventRow{Type: "order.cancelled", Age: 3 * time.Hour, Delivered: true, Rows: 1})
	s.PutEvents(s, EventRow{Type: "invoice.sent", Age: 5 * time.Hour, Rows: 1})
	s.PutEvents(s, EventRow{Age: time.Hour, Rows: 1})
	now := s.Now(s)
	for _, c := range []struct {
		filter admin.EventFilter
		want   string
	}{
		{admin.EventFilter{}, "order.placed order.cancelled invoice.sent"},
		{admin.EventFilter{Type: "order.*"}, "order.placed order.cancelled"},
		{admin.EventFilter{Type: "*"}, "order.placed order.cancelled invoice.sent"},
		{admin.EventFilter{Type: "invoice.sent"}, "invoice.sent"},
		{admin.EventFilter{Type: "Invoice.sent"}, ""},
		{admin.EventFilter{Type: "order_*"}, ""},
		{admin.EventFilter{Pending: true}, "order.placed invoice.sent"},
		{admin.EventFilter{Since: now.Add(-4 * time.Hour)}, "order.placed order.cancelled"},
		{admin.EventFilter{Until: now.Add(-2 * time.Hour)}, "order.cancelled invoice.sent"},
		{admin.EventFilter{Since: now.Add(-4 * time.Hour), Until: now.Add(-2 * time.Hour)}, "order.cancelled"},
	} {
		list, err := s.admin.ListEvents(s.Context(), c.filter, admin.Page{})
		if err != nil {
			s.Fatal(err)
		}
		var types []string
		for _, e := range list.Events {
			types = append(types, e.Type)
		}
		if got := strings.Join(types, " "); got != c.want {
			s.Errorf("%+v: %s, want %s", c.filter, got, c.want)
		}
	}
}

func showUnknown(s *suite) {
	seven, a := 7, "a"
	s.PutLoose(s, &seven, &a, false)
	s.PutLoose(s, &seven, &a, false)
	for _, id := range []string{"8", "7x", "07", "7.0", "99999999999", "999999999999999999999999", "", "'; --", uuid.NewString()} {
		if story, err := s.admin.ShowEvent(s.Context(), id); !errors.Is(err, admin.ErrNotFound) {
			s.Errorf("%q: %+v, %v, want not found", id, story, err)
		}
	}
	story, err := s.admin.ShowEvent(s.Context(), "7")
	if err != nil || story.Rows != 2 || !story.Pending || story.Event.Type != "a" {
		s.Errorf("story = %+v, %v", story, err)
	}
	if want, _ := schema.EventID(s.Table.QualifiedName(), "7"); story.Event.ID != want {
		s.Errorf("event id = %s, want %s", story.Event.ID, want)
	}
}

func overviewWithoutKey(s *suite) {
	a, one := "a", 1
	s.PutLoose(s, nil, &a, false)
	s.PutLoose(s, &one, &a, false)
	s.PutLoose(s, nil, nil, false)
	s.PutLoose(s, nil, &a, true)
	if got := s.overview(); got.Unidentifiable.N != 1 || got.OldestWanted != 0 {
		s.Errorf("unidentifiable = %v, oldest = %v", got.Unidentifiable, got.OldestWanted)
	}
}
