package admintest

import (
	"errors"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func overviewTests() []test {
	return []test{
		{"Overview", overview},
		{"Q31_CountsAreCapped", countsAreCapped},
		{"Q31_ASlowPartIsLeftOutAndNamed", slowPart},
	}
}

func overview(s *suite) {
	s.serve(delivery.Handler{Name: "billing", Types: []string{"order.*"}}, delivery.Handler{Name: "mailer", Aliases: []string{"mail"}, Types: []string{"invoice.sent"}})
	if _, err := s.admin.PauseHandler(s.Context(), "mailer", "maria", "smtp"); err != nil {
		s.Fatal(err)
	}
	for _, r := range []Row{
		{Age: 2 * time.Hour}, {}, {Claims: 1, Leased: time.Hour, Due: time.Hour}, {State: delivery.Failed, Attempts: 1},
		{State: delivery.Dead}, {State: delivery.Dead}, {State: delivery.Blocked}, {State: delivery.Succeeded}, {State: delivery.Discarded},
		{Handler: "mail"}, {Handler: "gone", State: delivery.Expired}, {Handler: "orphan"},
	} {
		s.insert(r)
	}
	for _, e := range []EventRow{
		{"order.placed", time.Hour, false, 2}, {"order.placed", 9 * time.Hour, true, 5}, {"invoice.sent", time.Minute, false, 1},
		{"unknown.type", 9 * time.Hour, false, 3}, {"", 9 * time.Hour, false, 4},
		{"Order.placed", 9 * time.Hour, false, 1}, {"orderXplaced", 9 * time.Hour, false, 1},
	} {
		s.PutEvents(s, e)
	}
	gap := cdc.Gap{Reason: "slot_lost", Detail: "d", From: "0/1", To: "0/2"}
	if err := s.Store.RecordGap(s.Context(), "main", gap); err != nil {
		s.Fatal(err)
	}
	if err := s.Store.RecordSource(s.Context(), "main", "host/1", cdc.Status{Mode: cdc.ModeStreaming, Confirmed: "0/3"}); err != nil {
		s.Fatal(err)
	}

	got := s.overview()
	n := func(n int64) admin.Count { return admin.Count{N: n} }
	want := []admin.HandlerOverview{
		{Handler: "billing", Registered: true, Leased: 1, States: map[delivery.State]admin.Count{
			delivery.Pending: n(3), delivery.Failed: n(1), delivery.Dead: n(2), delivery.Blocked: n(1), delivery.Succeeded: n(1), delivery.Discarded: n(1)}},
		{Handler: "gone", States: map[delivery.State]admin.Count{delivery.Expired: n(1)}},
		{Handler: "mail", Registered: true, States: map[delivery.State]admin.Count{delivery.Pending: n(1), delivery.Failed: n(0)}},
		{Handler: "mailer", Registered: true, Paused: &delivery.Pause{By: "maria", Reason: "smtp"}, States: map[delivery.State]admin.Count{}},
		{Handler: "orphan", States: map[delivery.State]admin.Count{delivery.Pending: n(1), delivery.Failed: n(0)}},
	}
	if diff := cmp.Diff(want, got.Handlers, cmpopts.IgnoreFields(admin.HandlerOverview{}, "Oldest"), cmpopts.IgnoreFields(delivery.Pause{}, "At")); diff != "" {
		s.Errorf("handlers (-want +got):\n%s", diff)
	}
	if age := got.Handlers[0].Oldest; age < 2*time.Hour || age > 3*time.Hour {
		s.Errorf("oldest open delivery is %v old, want 2 h", age)
	}
	if got.Undelivered != n(8) || got.Wanted != n(3) || got.Unidentifiable != n(0) {
		s.Errorf("undelivered %v, wanted %v, unidentifiable %v", got.Undelivered, got.Wanted, got.Unidentifiable)
	}
	if got.OldestWanted < time.Hour || got.OldestWanted > 2*time.Hour {
		s.Errorf("oldest wanted event has waited for %v, want 1 h: the others are delivered, or nobody's", got.OldestWanted)
	}
	if len(got.Gaps) != 1 || got.Gaps[0].Source != "main" || got.Gaps[0].Reason != "slot_lost" || got.Gaps[0].From != "0/1" || got.Gaps[0].Detected.IsZero() {
		s.Errorf("gaps = %+v", got.Gaps)
	}
	if len(got.Sources) != 1 || got.Sources[0].Name != "main" || got.Sources[0].Mode != "streaming" || got.Sources[0].Silent < 0 || got.Sources[0].Updated.IsZero() {
		s.Errorf("sources = %+v", got.Sources)
	}
	if now := s.Now(s); got.Now.Before(now.Add(-time.Hour)) || got.Now.After(now) || got.Incomplete != nil {
		s.Errorf("now %v, incomplete %v", got.Now, got.Incomplete)
	}
	s.closeGaps()
	if v := s.overview(); len(v.Gaps) != 0 {
		s.Errorf("closed gaps are shown: %+v", v.Gaps)
	}
}

// Q31: what the overview costs does not grow with the tables.
func countsAreCapped(s *suite) {
	for range 5 {
		s.insert(Row{})
		s.insert(Row{State: delivery.Dead})
		s.insert(Row{State: delivery.Succeeded})
	}
	s.insert(Row{Handler: "small", State: delivery.Dead})
	s.PutEvents(s, EventRow{"order.placed", time.Hour, false, 5})
	s.admin = s.NewAdmin(admin.Config{CountLimit: 3})
	got := s.overview()
	states := got.Handlers[0].States
	if states[delivery.Pending].String() != "3+" || states[delivery.Dead].String() != "3+" || !states[delivery.Succeeded].More {
		s.Errorf("states = %v", states)
	}
	if small := got.Handlers[1].States[delivery.Dead].String(); small != "1" {
		s.Errorf("a small number is shown as %s", small)
	}
	if got.Undelivered.String() != "3+" {
		s.Errorf("undelivered %v", got.Undelivered)
	}
	if n, err := s.admin.CountDeliveries(s.Context(), admin.Filter{}); err != nil || n.String() != "3+" {
		s.Errorf("count = %v, %v", n, err)
	}
}

func slowPart(s *suite) {
	id := s.insert(Row{})
	s.overview() // the event table is looked up while nothing is locked
	s.admin = s.NewAdmin(admin.Config{Timeout: 50 * time.Millisecond})
	unlock := s.LockDeliveries(s)
	defer unlock()
	// On a busy machine any part may be slow; those that wait for the lock must be.
	slow := map[string]bool{}
	for _, part := range s.overview().Incomplete {
		slow[part] = true
	}
	if !slow["open"] || !slow["stuck"] || !slow["ended"] {
		s.Errorf("incomplete = %v", slow)
	}
	if _, err := s.admin.ShowDelivery(s.Context(), id); !errors.Is(err, admin.ErrSlow) {
		s.Errorf("show = %v", err)
	}
}
