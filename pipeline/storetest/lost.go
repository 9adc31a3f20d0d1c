package storetest

import (
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// lostTests are about claims that never get an outcome, because the process dies.
func lostTests() []test {
	return []test{
		{"ADeliveryThatKillsItsProcessIsPutOffAndGivenUp", lostClaims},
		{"AnOutcomeForgetsLostClaims", outcomeForgetsLost},
		{"LostClaimsHideNothingBehindThem", lostHideNothing},
	}
}

// lostClaims: two crashes cost nothing. After that each one makes the delivery wait longer, and the tenth ends it.
func lostClaims(s *suite) {
	const base, limit = time.Second, 20 * time.Second
	s.fanned(1, "billing")
	claim := claimOf("billing", 5)
	claim.Base, claim.Cap = base, limit
	id, now := s.only().ID, noon
	at := func(t time.Time) { now = t; s.SetNow(s, now) }
	for lost := 0; lost < delivery.LostAtMost; lost++ {
		if lost > delivery.LostForFree {
			result := s.claim(claim)
			r := s.row(id)
			wait := min(base<<(lost-1), limit)
			if len(result.Claimed)+len(result.Ended) != 0 || result.Postponed["billing"] != 1 || r.LostClaims != lost || r.LeaseToken != nil ||
				!r.LeaseUntil.IsZero() || r.State != delivery.Pending || r.ClaimCount != lost || !r.Finished.IsZero() {
				s.Fatalf("after %d lost claims: got %+v, %+v", lost, result, r)
			}
			if due := r.NextRetryAt.Sub(now); due < wait/2 || due > wait {
				s.Errorf("after %d lost claims: due in %s, want between half and all of %s", lost, due, wait)
			}
			s.equal("claimed while it waits", 0, len(s.claim(claim).Claimed))
			at(r.NextRetryAt)
		}
		result := s.claim(claim)
		if r := s.row(id); len(result.Claimed) != 1 || len(result.Postponed) != 0 || r.LostClaims != lost || r.ClaimCount != lost+1 {
			s.Fatalf("after %d lost claims: got %+v, %+v", lost, result, r)
		}
		at(now.Add(leaseFor))
	}
	result := s.claim(claim)
	r := s.row(id)
	if len(result.Claimed)+len(result.Postponed) != 0 || result.Ended["billing"][delivery.Dead] != 1 || r.State != delivery.Dead ||
		r.Reason != delivery.ReasonCrashes || r.LostClaims != delivery.LostAtMost || !r.Finished.Equal(now) || r.LeaseToken != nil || r.Attempts != 0 {
		s.Errorf("in the end: got %+v, %+v", result, r)
	}
}

// outcomeForgetsLost: only claims that are lost on end count.
func outcomeForgetsLost(s *suite) {
	for i, v := range []delivery.Verdict{delivery.Retry, delivery.GiveBack} {
		handler := fmt.Sprint("h-", i)
		row := pending(i, handler)
		s.put(row)
		now := noon
		lose := func() delivery.Claimed {
			s.Helper()
			s.SetNow(s, now)
			now = now.Add(leaseFor)
			return s.claimOne(handler)
		}
		lose()
		lose()
		last := lose()
		s.equal("lost claims", 2, s.row(row.ID).LostClaims)
		s.settle(outcome(last, v))
		s.equal("lost claims after the outcome", 0, s.row(row.ID).LostClaims)
		for range 3 {
			lose()
		}
		s.equal("lost claims on end", 2, s.row(row.ID).LostClaims)
	}
}

// lostHideNothing: those that are put off do not take the room of others.
func lostHideNothing(s *suite) {
	var rows []Row
	token := newLease().Token
	for i := range 60 {
		r := pending(i, "billing")
		r.LeaseToken, r.LeaseUntil, r.LostClaims, r.ClaimCount = &token, noon.Add(-time.Minute), 5, 6
		rows = append(rows, r)
	}
	good := pending(100, "billing")
	s.put(append(rows, good)...)
	claim := claimOf("billing", 10)
	claim.Base, claim.Cap = time.Second, time.Minute
	result := s.claim(claim)
	if len(result.Claimed) != 1 || result.Claimed[0].ID != good.ID || result.Postponed["billing"] != 60 {
		s.Errorf("claimed %d, put off %v", len(result.Claimed), result.Postponed)
	}
}
