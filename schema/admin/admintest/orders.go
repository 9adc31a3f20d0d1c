package admintest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

func orderTests() []test {
	return []test{
		{"N7_RetrySendsBackWhatHasEnded", retryEnded},
		{"N7_RetriedDeliveryGetsItsAttempt", retriedGetsAttempt},
		{"N7_ResetAttemptsIsAChoice", resetAttempts},
		{"Q38_ThreeRetriesAreThree_OneRequestIsOne", oneRequest},
		{"N7_AuditNamesWhoWhatAndHowMany", auditLine},
		{"N7_NoAuditNoChange", noAudit},
		{"N7_OrdersAreBoundedAndRefuseWhatTheyNeverTouch", bounded},
		{"N7_AnOrderOfSeveralPartsRetriesEachOnce", partsRetryOnce},
		{"N7_OrdersLeaveLeasedDeliveriesAlone", leasedAlone},
		{"N7_Discard", discard},
	}
}

func retryEnded(s *suite) {
	for _, c := range []struct {
		row       Row
		succeeded bool
		want      int64
	}{
		{Row{State: delivery.Dead, Reason: "permanent", LastError: "http_410", Attempts: 3, Claims: 3}, false, 1},
		{Row{State: delivery.Expired, Reason: "age", Attempts: 9, Claims: 9, Age: 30 * 24 * time.Hour}, false, 1},
		{Row{State: delivery.Blocked, Reason: "no_handler"}, false, 1},
		{Row{State: delivery.Discarded, Reason: "by_hand", Foreign: true}, false, 1},
		{Row{State: delivery.Failed, Attempts: 2, Claims: 2, Due: time.Hour}, false, 1},
		{Row{State: delivery.Failed, Attempts: 2, Foreign: true, Due: time.Hour}, false, 1},
		{Row{State: delivery.Failed, Attempts: 2, Claims: 3, Leased: -time.Second, Due: -time.Second}, false, 1},
		{Row{State: delivery.Succeeded, Claims: 1}, true, 1},
		// No process can have leased it for so long: a clock went back.
		{Row{State: delivery.Failed, Attempts: 1, Claims: 2, Leased: 1000 * time.Hour, Due: 1000 * time.Hour}, false, 1},
		{Row{State: delivery.Pending, Due: time.Hour}, false, 0},
		{Row{State: delivery.Failed, Attempts: 1, Claims: 2, Leased: time.Hour, Due: time.Hour}, false, 0},
		{Row{State: delivery.Pending, Claims: 1, Leased: time.Hour, Due: time.Hour}, true, 0},
		{Row{State: delivery.Succeeded, Claims: 1}, false, 0},
	} {
		name := fmt.Sprintf("%s %s", c.row.State, c.row.Reason)
		id := s.insert(c.row)
		before := s.show(id)
		if done := s.retry(admin.Retry{Filter: one(id), Succeeded: c.succeeded}); done.Count != c.want {
			s.Errorf("%s: %d changed, want %d", name, done.Count, c.want)
		}
		after := s.show(id)
		if c.want == 0 {
			s.equal(name+": must not be touched", before, after)
			continue
		}
		if after.State != delivery.Pending || after.Claims != 0 || after.Attempts != c.row.Attempts || after.Reason != "" ||
			after.LastError != "" || !after.Finished.IsZero() || after.Leased || after.LeaseOwner != "" || after.Due.After(after.Updated) || after.Retried.IsZero() {
			s.Errorf("%s: became %+v", name, after.Delivery)
		}
		was := string(c.row.State)
		if c.row.Reason != "" {
			was += ": " + c.row.Reason
		}
		s.equal(name+": history", []admin.Attempt{
			{Attempt: before.Claims, Outcome: admin.ManualRetry, Reason: was, Error: c.row.LastError, Message: "by maria", Started: after.Updated},
		}, after.History)
	}
}

// Without a new window the claim would expire it again, without an attempt.
func retriedGetsAttempt(s *suite) {
	for handler, r := range map[string]Row{
		"expired":   {State: delivery.Expired, Age: 30 * 24 * time.Hour, Attempts: 40, Claims: 40},
		"exhausted": {State: delivery.Dead, Reason: "attempts", Attempts: 5, Claims: 5},
		"foreign":   {State: delivery.Expired, Age: 30 * 24 * time.Hour, Attempts: 5, Foreign: true},
	} {
		r.Handler = handler
		id := s.insert(r)
		s.retry(admin.Retry{Filter: one(id)})
		got := s.claim(handler, week, 5)
		if len(got.Claimed) != 1 || got.Claimed[0].Claims != 1 || got.Claimed[0].Attempts != r.Attempts {
			s.Errorf("%s: claim = %+v", handler, got)
			continue
		}
		settled, err := s.Store.Settle(s.Context(), []delivery.Outcome{{
			ID: id, Token: got.Claimed[0].Token, Verdict: delivery.Retry, Delay: time.Hour, Window: week, MaxAttempts: 5,
		}})
		if err != nil || len(settled) != 1 || settled[0].State != delivery.Failed {
			s.Errorf("%s: settled = %+v, %v; want another attempt to be planned", handler, settled, err)
		}
	}
}

func resetAttempts(s *suite) {
	keep, reset := s.insert(Row{State: delivery.Dead, Attempts: 4, Claims: 4}), s.insert(Row{State: delivery.Dead, Attempts: 4, Claims: 4})
	s.retry(admin.Retry{Filter: one(keep)})
	s.retry(admin.Retry{Filter: one(reset), ResetAttempts: true})
	if k, r := s.show(keep), s.show(reset); k.Attempts != 4 || r.Attempts != 0 {
		s.Errorf("attempts = %d kept, %d reset", k.Attempts, r.Attempts)
	}
}

func oneRequest(s *suite) {
	id := s.insert(Row{State: delivery.Dead, Claims: 1})
	for n := 1; n <= 3; n++ {
		if done := s.retry(admin.Retry{Filter: one(id), Order: admin.Order{RequestID: fmt.Sprint("r", n)}}); done.Count != 1 || done.More || done.Repeated {
			s.Errorf("retry %d: %+v", n, done)
		}
		s.KillDeliveries(s)
	}
	if n := len(s.show(id).History); n != 3 {
		s.Errorf("history has %d lines, want 3", n)
	}

	var mu sync.Mutex
	var carried, repeated int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			done, err := s.admin.RetryDeliveries(s.Context(), admin.Retry{Filter: one(id), Order: admin.Order{Actor: "maria", RequestID: "double click"}})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil || done.Count != 1:
				s.Errorf("retry = %+v, %v", done, err)
			case done.Repeated:
				repeated++
			default:
				carried++
			}
		})
	}
	wg.Wait()
	if carried != 1 || repeated != 7 {
		s.Errorf("one request was carried out %d times, and recognised %d times", carried, repeated)
	}
	if n := len(s.AuditLog(s)); n != 4 {
		s.Errorf("%d audit lines, want 4", n)
	}
	// The same id for another action is another request.
	done, err := s.admin.DiscardDeliveries(s.Context(), admin.Discard{Filter: one(id), Order: admin.Order{Actor: "maria", RequestID: "double click"}})
	if err != nil || done.Repeated || done.Count != 1 {
		s.Errorf("discard = %+v, %v", done, err)
	}
}

func auditLine(s *suite) {
	for range 3 {
		s.insert(Row{State: delivery.Dead, Claims: 1})
	}
	s.insert(Row{State: delivery.Dead, Claims: 1, Handler: "other"})
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s.retry(admin.Retry{
		Filter: admin.Filter{Handler: "billing", States: []delivery.State{delivery.Dead, delivery.Expired}, Type: "order.*", Since: since},
		Order:  admin.Order{Actor: "maria", Reason: `billing is "up" again\`, RequestID: "r1"},
	})
	log := s.AuditLog(s)
	if len(log) != 1 {
		s.Fatalf("audit log = %+v", log)
	}
	var detail map[string]any
	if err := json.Unmarshal(log[0].Detail, &detail); err != nil {
		s.Fatal(err)
	}
	s.equal("detail", map[string]any{
		"request_id": "r1", "succeeded": false, "reset_attempts": false,
		"filter": map[string]any{"handler": "billing", "states": []any{"DEAD", "EXPIRED"}, "type": "order.*", "since": "2026-01-02T03:04:05Z"},
	}, detail)
	log[0].Detail = nil
	s.equal("audit line", AuditLine{
		Actor: "maria", Action: "deliveries.retry", Affected: 3, Reason: `billing is "up" again\`,
		Target: "handler billing, state DEAD|EXPIRED, type order.*, since 2026-01-02T03:04:05Z",
	}, log[0])
}

func noAudit(s *suite) {
	id := s.insert(Row{State: delivery.Dead, Claims: 1})
	allow := s.RefuseAudit(s, "mallory")
	defer allow()
	if _, err := s.admin.RetryDeliveries(s.Context(), admin.Retry{Filter: one(id), Order: admin.Order{Actor: "mallory"}}); err == nil {
		s.Error("an order was carried out that could not be audited")
	}
	if _, err := s.admin.RetryDeliveries(s.Context(), admin.Retry{Filter: one(id)}); !errors.Is(err, admin.ErrNoActor) {
		s.Errorf("an order without an actor: %v", err)
	}
	if d := s.show(id); d.State != delivery.Dead || len(d.History) != 0 {
		s.Errorf("delivery = %+v", d)
	}
}

func bounded(s *suite) {
	for range 5 {
		s.insert(Row{State: delivery.Dead, Claims: 1})
	}
	limited := admin.Retry{Filter: admin.Filter{States: []delivery.State{delivery.Dead}}, Order: admin.Order{Limit: 3}}
	if done := s.retry(limited); done.Count != 3 || !done.More {
		s.Errorf("first = %+v", done)
	}
	if done := s.retry(limited); done.Count != 2 || done.More {
		s.Errorf("second = %+v", done)
	}
	_, err := s.admin.RetryDeliveries(s.Context(), admin.Retry{Filter: admin.Filter{States: []delivery.State{delivery.Succeeded}}, Order: admin.Order{Actor: "m"}})
	if !errors.Is(err, admin.ErrStates) {
		s.Errorf("retry of SUCCEEDED without asking for it = %v", err)
	}
	_, err = s.admin.RetryDeliveries(s.Context(), admin.Retry{Filter: admin.Filter{States: []delivery.State{"GONE"}}, Order: admin.Order{Actor: "m"}})
	if err == nil {
		s.Error("an unknown state was accepted")
	}
}

// What fails again before the next part would otherwise sort first in it, without end.
func partsRetryOnce(s *suite) {
	for range 4 {
		s.insert(Row{State: delivery.Dead, Claims: 1})
	}
	part := admin.Retry{Filter: admin.Filter{States: []delivery.State{delivery.Dead}}, Order: admin.Order{Limit: 2}}
	first := s.retry(part)
	if first.Count != 2 || !first.More || first.At.IsZero() {
		s.Fatalf("first = %+v", first)
	}
	part.Before = first.At
	for n, want := range []int64{2, 0} {
		s.KillDeliveries(s)
		if done := s.retry(part); done.Count != want {
			s.Errorf("part %d: %+v, want %d changed", n+2, done, want)
		}
	}
	s.KillDeliveries(s)
	part.Before = time.Time{}
	if done := s.retry(part); done.Count != 2 {
		s.Errorf("another order = %+v", done)
	}
}

// A worker that holds a delivery keeps it, and an order that waits for its row sees the lease.
func leasedAlone(s *suite) {
	id := s.insert(Row{State: delivery.Failed, Attempts: 1, Claims: 1})
	commit := s.LeaseUncommitted(s, id)
	result := make(chan admin.Done, 1)
	go func() {
		done, err := s.admin.RetryDeliveries(s.Context(), admin.Retry{Filter: one(id), Order: admin.Order{Actor: "m"}})
		if err != nil {
			s.Error(err)
		}
		result <- done
	}()
	testdb.WaitFor(s, "the order to wait for the row", func() bool { return s.Waiting(s) })
	commit()
	if done := <-result; done.Count != 0 {
		s.Errorf("the order took a delivery from its worker: %+v", done)
	}
	done, err := s.admin.DiscardDeliveries(s.Context(), admin.Discard{Filter: one(id), Order: admin.Order{Actor: "m"}})
	if err != nil || done.Count != 0 {
		s.Errorf("discard = %+v, %v", done, err)
	}
	if d := s.show(id); !d.Leased || d.State != delivery.Failed {
		s.Errorf("delivery = %+v", d.Delivery)
	}
}

func discard(s *suite) {
	order := func(id uuid.UUID, why string) admin.Done {
		s.Helper()
		done, err := s.admin.DiscardDeliveries(s.Context(), admin.Discard{Filter: one(id), Order: admin.Order{Actor: "maria", Reason: why}})
		if err != nil {
			s.Fatal(err)
		}
		return done
	}
	for state, want := range map[delivery.State]int64{
		delivery.Pending: 1, delivery.Failed: 1, delivery.Dead: 1, delivery.Expired: 1, delivery.Blocked: 1,
		delivery.Succeeded: 0, delivery.Discarded: 0,
	} {
		id := s.insert(Row{State: state, Attempts: 2, Claims: 2, Reason: "permanent", LastError: "http_500"})
		if done := order(id, "wrong import"); done.Count != want {
			s.Errorf("%s: %+v", state, done)
		}
		if d := s.show(id); want == 1 && (d.State != delivery.Discarded || d.Reason != "wrong import" || d.Finished.IsZero() || d.LastError != "http_500" ||
			len(d.History) != 1 || d.History[0].Outcome != admin.ManualDiscard || d.History[0].Message != "by maria: wrong import") {
			s.Errorf("%s: became %+v", state, d)
		}
	}
	id := s.insert(Row{})
	order(id, "")
	if d := s.show(id); d.Reason != admin.ReasonByHand {
		s.Errorf("reason = %q", d.Reason)
	}
}
