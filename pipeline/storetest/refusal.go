package storetest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// refusalTests are item 25 of the queue reference: one row that always errors, in the first
// batch of every step. The others move, and the bad one is isolated.
func refusalTests() []test {
	return []test{
		{"Q25_FanOut", refusedFanOut},
		{"Q25_QuarantineReducesLongValues", reducedValues},
		{"Q25_TheLastResortHasNoContent", lastResort},
		{"Q25_WhatIsRefusedInEveryForm", refusedAlways},
		{"Q25_Claim", refusedClaim},
		{"Q25_Settle", refusedSettle},
		{"Q25_Renew", refusedRenew},
		{"Q25_BlockAndUnblock", refusedBlock},
	}
}

// refusedFanOut: the batch fails as a whole and says that a row is at fault; halving finds the row,
// and a reduced delivery stands for it.
func refusedFanOut(s *suite) {
	events := newEvents(8)
	s.InsertEvents(s, events...)
	bad := events[3]
	s.RefuseInserts(s, bad.ID, RefusePayload)
	_, err := s.Store.FanOut(s.Context(), delivery.FanOut{Lease: newLease(), Fans: fans(events, "billing")})
	if err == nil || !s.Store.Rejected(err) {
		s.Fatalf("got %v", err)
	}
	s.equal("rows after the failure", 0, len(s.Deliveries(s)))
	s.equal("undelivered", 8, len(s.undelivered(everything)))

	good := slices.DeleteFunc(fans(events, "billing"), func(f delivery.Fan) bool { return f.Event.ID == bad.ID })
	s.fanOut(good...)
	one := fan(bad, "billing", "mail")
	_, err = s.Store.FanOut(s.Context(), delivery.FanOut{Lease: newLease(), Fans: []delivery.Fan{one}})
	if !s.Store.Rejected(err) {
		s.Fatalf("got %v", err)
	}
	for range 2 { // a repeated call changes nothing
		if err := s.Store.Quarantine(s.Context(), one, err); err != nil {
			s.Fatal(err)
		}
	}
	s.equal("undelivered", 0, len(s.undelivered(everything)))
	reduced := 0
	for _, r := range s.Deliveries(s) {
		if r.Event.ID != bad.ID {
			continue
		}
		reduced++
		if r.State != delivery.Blocked || r.Reason != delivery.ReasonRejected || r.Event.Payload != nil || r.Event.Type != bad.Type ||
			r.LastError == "" || strings.Contains(r.LastError, "order") || !r.Event.Date.Equal(bad.Date) {
			s.Errorf("got %+v", r)
		}
	}
	s.equal("reduced deliveries", 2, reduced)
	if mark, _ := s.EventMark(s, bad.ID); s.Mark != MarkNone && mark != "done" {
		s.Errorf("the event is %q", mark)
	}
	if s.Store.Rejected(errors.New("anything else")) || s.Store.Rejected(nil) {
		s.Error("any error counts as a rejection")
	}
}

func reducedValues(s *suite) {
	e := newEvent(1)
	e.Type, e.ModelType, e.ActionName = strings.Repeat("t", 300)+"\x00", strings.Repeat("m", 300), "\xff"
	f := fan(e, "billing")
	f.FromLog = true
	_, err := s.Store.FanOut(s.Context(), delivery.FanOut{Lease: newLease(), Fans: []delivery.Fan{f}})
	if !s.Store.Rejected(err) {
		s.Fatalf("got %v", err)
	}
	if err := s.Store.Quarantine(s.Context(), f, err); err != nil {
		s.Fatal(err)
	}
	if r := s.only(); len(r.Event.Type) != 255 || len(r.Event.ModelType) != 255 || r.Event.Payload != nil {
		s.Errorf("got %+v", r)
	}
	if err := s.Store.Quarantine(s.Context(), fan(e), nil); err == nil {
		s.Error("an event without targets was quarantined")
	}
}

// lastResort: the database refuses the reduced form too. What is left says which event it is.
func lastResort(s *suite) {
	events := newEvents(2)
	s.InsertEvents(s, events[0]) // the other one is in the log only
	for _, e := range events {
		s.RefuseInserts(s, e.ID, RefuseContent)
		f := fan(e, "billing", "mail")
		f.FromLog = true
		_, err := s.Store.FanOut(s.Context(), delivery.FanOut{Lease: newLease(), Fans: []delivery.Fan{f}})
		if !s.Store.Rejected(err) {
			s.Fatalf("got %v", err)
		}
		for range 2 {
			if err := s.Store.Quarantine(s.Context(), f, err); err != nil {
				s.Fatal(err)
			}
		}
	}
	rows := s.Deliveries(s)
	s.equal("rows", 4, len(rows))
	for _, r := range rows {
		if r.State != delivery.Blocked || r.Reason != delivery.ReasonRejected || r.Event.Payload != nil || r.Event.Type != "order.placed" ||
			r.Event.Namespace != "" || r.Event.ModelID != "" || !strings.Contains(r.LastError, "sha256 ") || strings.Contains(r.LastError, "Gr") {
			s.Errorf("got %+v", r)
		}
	}
	s.equal("undelivered", 0, len(s.undelivered(everything)))
}

// refusedAlways: the caller is told whether the event has a row that can be looked at again.
func refusedAlways(s *suite) {
	events := newEvents(2)
	s.InsertEvents(s, events[0])
	for i, e := range events {
		s.RefuseInserts(s, e.ID, RefuseAll)
		f := fan(e, "billing")
		f.FromLog = true
		err := s.Store.Quarantine(s.Context(), f, errors.New("refused"))
		if !s.Store.Rejected(err) || errors.Is(err, delivery.ErrAbsent) != (i == 1) {
			s.Errorf("event %d: got %v", i, err)
		}
	}
	s.equal("rows", 0, len(s.Deliveries(s)))
	s.equal("undelivered", []string{events[0].ID}, ids(s.undelivered(everything)))
}

func refusedClaim(s *suite) {
	var rows []Row
	for i := range 20 {
		rows = append(rows, pending(i, "billing"))
	}
	s.put(rows...)
	for _, i := range []int{0, 1, 5} {
		s.RefuseUpdates(s, rows[i].ID)
	}
	got := map[uuid.UUID]bool{}
	for range 3 {
		claimed := s.claim(claimOf("billing", 10)).Claimed
		if len(claimed) > 10 {
			s.Errorf("claimed %d, limit 10", len(claimed))
		}
		for _, c := range claimed {
			got[c.ID] = true
		}
	}
	s.equal("claimed", 17, len(got))
	for i, r := range rows {
		if bad := i == 0 || i == 1 || i == 5; got[r.ID] == bad {
			s.Errorf("delivery %d: claimed is %v", i, got[r.ID])
		}
	}
	// Nobody is told to come back at once for what cannot be had.
	if in, ok, err := s.Store.NextDue(s.Context(), []string{"billing"}); err != nil || !ok || in != leaseFor {
		s.Errorf("next due in %s, %v, %v", in, ok, err)
	}
}

// refusedSettle: nothing is written, so that the caller can halve the batch.
func refusedSettle(s *suite) {
	s.fanned(4, "billing")
	claimed := s.claim(claimOf("billing", 4)).Claimed
	s.RefuseUpdates(s, claimed[2].ID)
	var outcomes []delivery.Outcome
	for _, c := range claimed {
		outcomes = append(outcomes, outcome(c, delivery.Success))
	}
	before := s.Deliveries(s)
	if _, err := s.Store.Settle(s.Context(), outcomes); !s.Store.Rejected(err) {
		s.Errorf("got %v", err)
	}
	s.equal("rows", before, s.Deliveries(s))
	s.equal("the good ones", 3, len(s.settle(outcomes[0], outcomes[1], outcomes[3])))
}

func refusedRenew(s *suite) {
	s.fanned(9, "billing")
	var leases []delivery.LeaseRef
	for _, c := range s.claim(claimOf("billing", 9)).Claimed {
		leases = append(leases, delivery.LeaseRef{ID: c.ID, Token: c.Token})
	}
	s.RefuseUpdates(s, leases[4].ID)
	held := s.renew(leases...)
	if len(held) != 8 || slices.Contains(held, leases[4].ID) {
		s.Errorf("held %d", len(held))
	}
}

func refusedBlock(s *suite) {
	var rows []Row
	for i := range 30 {
		r := pending(i, "gone")
		r.NextRetryAt = noon.Add(-time.Hour)
		rows = append(rows, r)
	}
	stuck := pending(100, "gone")
	stuck.State, stuck.Reason = delivery.Blocked, delivery.ReasonNoHandler
	s.put(append(rows, stuck)...)
	s.RefuseUpdates(s, rows[7].ID)
	s.RefuseUpdates(s, stuck.ID)
	n, err := s.Store.BlockOrphans(s.Context(), time.Minute)
	if err != nil || n != 29 {
		s.Errorf("blocked %d, %v", n, err)
	}
	n, err = s.Store.Unblock(s.Context(), []string{"gone"})
	if err != nil || n != 29 {
		s.Errorf("unblocked %d, %v", n, err)
	}
}
