package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

func fenceTests() []test {
	return []test{
		{"C62_AStaleTokenChangesNothing", staleToken},
		{"C62_SuccessNeedsALiveLeaseFailureDoesNot", successNeedsLease},
		{"A114_AnEndedDeliveryStaysAsItIs", endedStays},
		{"Q1_AnOldReadChangesNothing", oldRead},
		{"Q2_ALateBatchedAckChangesNothingOfTheStolenRow", lateBatchedAck},
		{"Q3_OneEndStateWhenRenewalFails", renewalFails},
		{"Q5_ARenewedLeaseIsNotTakenOver", renewedLease},
		{"RenewTellsWhatIsHeld", renewTells},
		{"RenewAndSettleAtOnce", renewAndSettle},
		{"ALockedRowHoldsUpNoOther", lockedRow},
	}
}

func staleToken(s *suite) {
	s.fanned(1, "billing")
	claimed := s.claimOne("billing")
	before := s.only()
	for v := delivery.Success; v <= delivery.GiveBack; v++ {
		o := outcome(claimed, v)
		o.Token = uuid.New()
		s.equal(v.String(), 0, len(s.settle(o)))
	}
	s.equal("held", 0, len(s.renew(delivery.LeaseRef{ID: claimed.ID, Token: uuid.New()})))
	s.equal("row", before, s.only())
	s.equal("history", 0, len(s.Attempts(s, claimed.ID)))
}

// successNeedsLease: a worker that overslept may say that it failed, but not that it succeeded,
// because another one may have begun.
func successNeedsLease(s *suite) {
	s.fanned(1, "a", "b", "c")
	byHandler := map[string]delivery.Claimed{}
	for _, c := range s.claim(claimOf("a", 1), claimOf("b", 1), claimOf("c", 1)).Claimed {
		byHandler[c.Handler] = c
	}
	s.SetNow(s, noon.Add(leaseFor-time.Microsecond))
	s.equal("in time", 1, len(s.settle(outcome(byHandler["a"], delivery.Success))))
	s.SetNow(s, noon.Add(leaseFor))
	before := s.row(byHandler["b"].ID)
	s.equal("too late", 0, len(s.settle(outcome(byHandler["b"], delivery.Success))))
	s.equal("row", before, s.row(byHandler["b"].ID))
	s.equal("a failure", 1, len(s.settle(outcome(byHandler["c"], delivery.Retry))))
}

func endedStays(s *suite) {
	s.fanned(1, "billing")
	claimed := s.claimOne("billing")
	s.settle(outcome(claimed, delivery.Success))
	before := s.only()
	for v := delivery.Success; v <= delivery.GiveBack; v++ {
		s.equal(v.String(), 0, len(s.settle(outcome(claimed, v))))
	}
	s.equal("held", 0, len(s.renew(delivery.LeaseRef{ID: claimed.ID, Token: claimed.Token})))
	s.equal("row", before, s.only())
}

// oldRead: two rows are read as overdue; one is then settled, the other claimed by another
// worker. Ending both by what was read changes neither.
func oldRead(s *suite) {
	s.fanned(2, "billing")
	read := s.claim(claimOf("billing", 2)).Claimed
	s.SetNow(s, noon.Add(leaseFor))
	again := s.claim(claimOf("billing", 2)).Claimed
	s.settle(outcome(again[0], delivery.Success))
	before := s.Deliveries(s)
	s.equal("settled", 0, len(s.settle(outcome(read[0], delivery.Retry), outcome(read[1], delivery.Retry))))
	s.equal("rows", before, s.Deliveries(s))
}

func lateBatchedAck(s *suite) {
	s.fanned(11, "billing")
	first := s.claim(claimOf("billing", 11)).Claimed
	stolen := first[4]
	var leases []delivery.LeaseRef
	for _, c := range first {
		if c.ID != stolen.ID {
			leases = append(leases, delivery.LeaseRef{ID: c.ID, Token: c.Token})
		}
	}
	s.SetNow(s, noon.Add(leaseFor/2))
	s.renew(leases...)
	s.SetNow(s, noon.Add(leaseFor))
	second := s.claimOne("billing")
	s.equal("stolen", stolen.ID, second.ID)

	var outcomes []delivery.Outcome
	for _, c := range first {
		outcomes = append(outcomes, outcome(c, delivery.Success))
	}
	settled := s.settle(outcomes...)
	if len(settled) != 10 || slices.ContainsFunc(settled, func(d delivery.Settled) bool { return d.ID == stolen.ID }) {
		s.Errorf("settled %d", len(settled))
	}
	r := s.row(stolen.ID)
	if r.State != delivery.Pending || *r.LeaseToken != second.Token {
		s.Errorf("got %+v", r)
	}
	s.equal("the second worker's ack", 1, len(s.settle(outcome(second, delivery.Success))))
}

// renewalFails: the first worker cannot renew and succeeds all the same, after a second one began.
func renewalFails(s *suite) {
	s.fanned(1, "billing")
	first := s.claimOne("billing")
	s.SetNow(s, noon.Add(leaseFor+time.Second))
	second := s.claimOne("billing")
	s.equal("first", 0, len(s.settle(outcome(first, delivery.Success))))
	s.equal("second", 1, len(s.settle(outcome(second, delivery.Retry))))
	s.equal("first again", 0, len(s.settle(outcome(first, delivery.Success))))
	r := s.only()
	if r.State != delivery.Failed || r.Attempts != 1 || r.ClaimCount != 2 {
		s.Errorf("got %+v", r)
	}
}

func renewedLease(s *suite) {
	s.fanned(1, "billing")
	claimed := s.claimOne("billing")
	now := noon
	for range 10 {
		now = now.Add(leaseFor - time.Second)
		s.SetNow(s, now)
		s.equal("held", []uuid.UUID{claimed.ID}, s.renew(delivery.LeaseRef{ID: claimed.ID, Token: claimed.Token}))
		s.equal("taken over", 0, len(s.claim(claimOf("billing", 1)).Claimed))
		r := s.only()
		if !r.LeaseUntil.Equal(now.Add(leaseFor)) || !r.NextRetryAt.Equal(r.LeaseUntil) {
			s.Errorf("got %+v", r)
		}
	}
	s.equal("settled", 1, len(s.settle(outcome(claimed, delivery.Success))))
	s.equal("claims", 1, s.only().ClaimCount)
}

func renewTells(s *suite) {
	s.fanned(4, "billing")
	claimed := s.claim(claimOf("billing", 4)).Claimed
	s.settle(outcome(claimed[1], delivery.Success))
	s.SetNow(s, noon.Add(leaseFor))
	// The first was taken over; the third ran out and is free, so it is still ours.
	s.equal("taken over", 1, len(s.claim(claimOf("billing", 1)).Claimed))
	var taken uuid.UUID
	for _, c := range claimed {
		if r := s.row(c.ID); r.LeaseToken != nil && *r.LeaseToken != c.Token {
			taken = c.ID
		}
	}
	leases := []delivery.LeaseRef{{ID: uuid.New(), Token: uuid.New()}}
	var want []uuid.UUID
	for i, c := range claimed {
		leases = append(leases, delivery.LeaseRef{ID: c.ID, Token: c.Token})
		if i != 1 && c.ID != taken {
			want = append(want, c.ID)
		}
	}
	held := s.renew(leases...)
	order := func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
	slices.SortFunc(held, order)
	slices.SortFunc(want, order)
	s.equal("held", want, held)
	s.equal("nothing", 0, len(s.renew()))
}

// renewAndSettle touch the same rows in opposite order; neither fails, and what one finds locked by the
// other is written when it is tried again.
func renewAndSettle(s *suite) {
	const n = 200
	var rows []Row
	for i := range n {
		rows = append(rows, pending(i, "billing"))
	}
	s.put(rows...)
	claimed := s.claim(claimOf("billing", n)).Claimed
	var (
		leases   []delivery.LeaseRef
		outcomes []delivery.Outcome
	)
	for _, c := range claimed {
		leases = append(leases, delivery.LeaseRef{ID: c.ID, Token: c.Token})
		outcomes = append(outcomes, outcome(c, delivery.Success))
	}
	slices.Reverse(outcomes)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 10 {
			if _, err := s.Store.Renew(s.Context(), leases, leaseFor); err != nil {
				s.Error(err)
			}
		}
	})
	settled := 0
	wg.Go(func() {
		for chunk := range slices.Chunk(outcomes, n/10) {
			for len(chunk) > 0 {
				done, err := s.Store.Settle(s.Context(), chunk)
				if err != nil {
					s.Error(err)
					return
				}
				locked := map[uuid.UUID]bool{}
				for _, one := range done {
					if one.Locked {
						locked[one.ID] = true
					} else {
						settled++
					}
				}
				chunk = slices.DeleteFunc(slices.Clone(chunk), func(o delivery.Outcome) bool { return !locked[o.ID] })
			}
		}
	})
	wg.Wait()
	s.equal("settled", n, settled)
}

// lockedRow: another session locks a delivery. What is written about the others is written at once, and the
// locked one is neither stale nor lost.
func lockedRow(s *suite) {
	s.fanned(5, "billing")
	claimed := s.claim(claimOf("billing", 5)).Claimed
	locked := claimed[2]
	unlock := s.LockDelivery(s, locked.ID)
	var leases []delivery.LeaseRef
	var outcomes []delivery.Outcome
	for _, c := range claimed {
		leases = append(leases, delivery.LeaseRef{ID: c.ID, Token: c.Token})
		outcomes = append(outcomes, outcome(c, delivery.Success))
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	renewal, err := s.Store.Renew(ctx, leases, leaseFor)
	if err != nil || len(renewal.Held) != 4 || !slices.Equal(renewal.Locked, []uuid.UUID{locked.ID}) {
		s.Fatalf("renewed %+v, %v", renewal, err)
	}
	settled, err := s.Store.Settle(ctx, outcomes)
	if err != nil || len(settled) != 5 {
		s.Fatalf("settled %+v, %v", settled, err)
	}
	for _, one := range settled {
		if want := (delivery.Settled{ID: one.ID, State: delivery.Succeeded}); one.ID != locked.ID && one != want {
			s.Errorf("got %+v", one)
		}
		if want := (delivery.Settled{ID: locked.ID, Locked: true}); one.ID == locked.ID && one != want {
			s.Errorf("got %+v", one)
		}
	}
	// A stale token is stale, whoever locks the row.
	stale := outcome(locked, delivery.Success)
	stale.Token = uuid.New()
	s.equal("stale", 0, len(s.settle(stale)))
	s.equal("lost", 0, len(s.renew(delivery.LeaseRef{ID: locked.ID, Token: stale.Token})))
	unlock()
	s.equal("held", []uuid.UUID{locked.ID}, s.renew(delivery.LeaseRef{ID: locked.ID, Token: locked.Token}))
	s.equal("settled", []delivery.Settled{{ID: locked.ID, State: delivery.Succeeded}}, s.settle(outcome(locked, delivery.Success)))
}
