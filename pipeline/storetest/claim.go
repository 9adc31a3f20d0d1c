package storetest

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func claimTests() []test {
	return []test{
		{"A90_TheEnvelopeIsComplete", envelope},
		{"A100_OnlyDueAndOpenDeliveriesOldestFirst", onlyDue},
		{"A81_AliasesDrainOldRows", aliases},
		{"A101_ExpiryIsStrictlyLaterThanTheWindow", expiryBoundary},
		{"C59_AnEndedLeaseIsClaimedAgain", endedLease},
		{"C64_ALastAttemptWhoseLeaseEndedIsDead", lastAttempt},
		{"C65_ALoweredLimitEndsWaitingDeliveries", loweredLimit},
		{"Q6_NoRegistryRowIsNeededToClaimAgain", claimWithoutRegistry},
		{"Q8_ABusyHandlerInFrontHidesNoOther", busyHandler},
		{"Q9_NeverMoreThanTheLimit", neverMoreThanLimit},
		{"Q27_ABacklogThatExpiredIsClearedInOneClaim", expiredBacklog},
		{"T37_ARetryOfAnOldDeliveryGetsAWholeLease", oldRetry},
		{"SeveralHandlersInOneClaim", severalHandlers},
		{"UnknownHandlersAreUntouched", unknownHandlers},
		{"ForeignRowsAreClaimed", foreignRows},
		{"ForeignRowsWithAbsurdDatesStopNothing", absurdDates},
		{"NothingToClaim", nothingToClaim},
		{"NextDue", nextDue},
	}
}

func envelope(s *suite) {
	e := s.fanned(1, "billing")[0]
	lease := newLease()
	s.SetNow(s, noon.Add(time.Second))
	result, err := s.Store.Claim(s.Context(), lease, []delivery.Claim{claimOf("billing", 1)})
	if err != nil {
		s.Fatal(err)
	}
	if len(result.Claimed) != 1 || len(result.Ended) != 0 {
		s.Fatalf("got %+v", result)
	}
	c := result.Claimed[0]
	s.equal("event", s.comparable(e), s.comparable(c.Event))
	before := c
	before.Event = event.Event{}
	s.equal("claim", delivery.Claimed{
		ID: s.only().ID, Token: lease.Token, Handler: "billing", Stored: "billing", Attempts: 0, Claims: 1,
	}, before)

	r := s.only()
	end := noon.Add(time.Second + leaseFor)
	if r.State != delivery.Pending || r.ClaimCount != 1 || *r.LeaseToken != lease.Token || r.LeaseOwner != lease.Owner ||
		!r.LeaseUntil.Equal(end) || !r.NextRetryAt.Equal(end) || !r.UpdatedDate.Equal(noon.Add(time.Second)) {
		s.Errorf("got %+v", r)
	}
}

func onlyDue(s *suite) {
	var rows []Row
	for i := range 6 {
		r := pending(i, "billing")
		r.NextRetryAt = noon.Add(-time.Duration(i) * time.Second)
		rows = append(rows, r)
	}
	rows[1].State = delivery.Failed
	later := pending(10, "billing")
	later.NextRetryAt = noon.Add(time.Microsecond)
	for i, state := range []delivery.State{
		delivery.Succeeded, delivery.Expired, delivery.Dead, delivery.Blocked, delivery.Discarded,
	} {
		r := pending(20+i, "billing")
		r.State = state
		rows = append(rows, r)
	}
	s.put(append(slices.Clone(rows), later)...)
	var got []uuid.UUID
	for _, c := range s.claim(claimOf("billing", 4)).Claimed {
		got = append(got, c.ID)
	}
	s.equal("first claim", []uuid.UUID{rows[5].ID, rows[4].ID, rows[3].ID, rows[2].ID}, got)
	got = nil
	for _, c := range s.claim(claimOf("billing", 4)).Claimed {
		got = append(got, c.ID)
	}
	s.equal("second claim", []uuid.UUID{rows[1].ID, rows[0].ID}, got)
	s.equal("third claim", 0, len(s.claim(claimOf("billing", 4)).Claimed))
}

func aliases(s *suite) {
	var rows []Row
	for i, name := range []string{"invoices", "billing", "bills", "invoices"} {
		r := pending(i, name)
		r.NextRetryAt = noon.Add(time.Duration(i-10) * time.Second)
		rows = append(rows, r)
	}
	s.put(rows...)
	claim := delivery.Claim{Handler: "billing", Names: []string{"billing", "invoices", "bills"}, Limit: 3}
	claimed := s.claim(claim).Claimed
	var got []string
	for _, c := range claimed {
		if c.Handler != "billing" {
			s.Errorf("claimed for %q", c.Handler)
		}
		got = append(got, c.Stored)
	}
	s.equal("stored names", []string{"invoices", "billing", "bills"}, got)
	s.equal("the rest", 1, len(s.claim(claim).Claimed))
	for _, r := range s.Deliveries(s) {
		if !slices.ContainsFunc(rows, func(o Row) bool { return o.ID == r.ID && o.Handler == r.Handler }) {
			s.Errorf("the name of a row changed to %q", r.Handler)
		}
	}
}

func expiryBoundary(s *suite) {
	at, past, other := pending(1, "billing"), pending(2, "billing"), pending(3, "billing")
	at.Event.Date, past.Event.Date = noon.Add(-window), noon.Add(-window-time.Microsecond)
	other.Event.Date = noon.Add(-window - time.Hour)
	other.Handler = "patient"
	past.Attempts, past.ClaimCount, past.State = 3, 4, delivery.Failed
	s.put(at, past, other)
	patient := claimOf("patient", 5)
	patient.Window = 0
	result := s.claim(claimOf("billing", 5), patient)
	s.equal("ended", map[string]map[delivery.State]int{"billing": {delivery.Expired: 1}}, result.Ended)
	s.equal("claimed", 2, len(result.Claimed))
	r := s.row(past.ID)
	want := past
	want.State, want.Reason, want.Finished, want.UpdatedDate = delivery.Expired, delivery.ReasonAge, noon, noon
	s.equal("expired row", want, r)
}

func endedLease(s *suite) {
	s.fanned(1, "billing")
	first := s.claimOne("billing")
	s.equal("claims", 1, first.Claims)
	s.SetNow(s, noon.Add(leaseFor-time.Microsecond))
	s.equal("claimed while leased", 0, len(s.claim(claimOf("billing", 5)).Claimed))
	s.SetNow(s, noon.Add(leaseFor))
	second := s.claimOne("billing")
	if second.ID != first.ID || second.Token == first.Token || second.Claims != 2 || second.Attempts != 0 {
		s.Errorf("got %+v after %+v", second, first)
	}
}

func lastAttempt(s *suite) {
	s.fanned(1, "billing")
	limited := claimOf("billing", 5)
	limited.MaxAttempts = 2
	s.equal("claimed", 1, len(s.claim(limited).Claimed))
	s.SetNow(s, noon.Add(leaseFor))
	s.equal("claimed", 1, len(s.claim(limited).Claimed))
	s.SetNow(s, noon.Add(2*leaseFor))
	result := s.claim(limited)
	s.equal("ended", map[string]map[delivery.State]int{"billing": {delivery.Dead: 1}}, result.Ended)
	s.equal("claimed", 0, len(result.Claimed))
	r := s.only()
	if r.State != delivery.Dead || r.Reason != delivery.ReasonAttempts || r.ClaimCount != 2 || r.Attempts != 0 ||
		r.LeaseToken != nil || !r.LeaseUntil.IsZero() || r.LeaseOwner != "" || !r.Finished.Equal(noon.Add(2*leaseFor)) {
		s.Errorf("got %+v", r)
	}
}

func loweredLimit(s *suite) {
	tried, fresh := pending(1, "billing"), pending(2, "billing")
	tried.ClaimCount, tried.Attempts, tried.State = 3, 3, delivery.Failed
	s.put(tried, fresh)
	limited := claimOf("billing", 5)
	limited.MaxAttempts = 3
	result := s.claim(limited)
	s.equal("ended", map[string]map[delivery.State]int{"billing": {delivery.Dead: 1}}, result.Ended)
	s.equal("claimed", 1, len(result.Claimed))
	s.equal("state", delivery.Dead, s.row(tried.ID).State)
}

// claimWithoutRegistry: rows of a process that was killed come back with their lease, whatever the registry says.
func claimWithoutRegistry(s *suite) {
	s.fanned(3, "billing")
	s.equal("claimed by the first process", 3, len(s.claim(claimOf("billing", 5)).Claimed))
	s.SetNow(s, noon.Add(leaseFor))
	again, err := s.Store.Claim(s.Context(), newLease(), []delivery.Claim{claimOf("billing", 5)})
	if err != nil {
		s.Fatal(err)
	}
	s.equal("claimed by the second", 3, len(again.Claimed))
	s.equal("registered", 0, len(s.Handlers(s)))
}

// oldRetry: a lease counts from its claim, however long ago the event was or the attempts before.
func oldRetry(s *suite) {
	r := pending(1, "billing")
	old := noon.Add(-2 * time.Hour)
	r.Event.Date, r.CreatedDate, r.UpdatedDate, r.NextRetryAt = old, old, old.Add(time.Minute), old.Add(time.Hour)
	r.State, r.Attempts, r.ClaimCount = delivery.Failed, 1, 1
	s.put(r)
	first := s.claimOne("billing")
	s.equal("attempts and claims", []int{1, 2}, []int{first.Attempts, first.Claims})
	if until := s.row(r.ID).LeaseUntil; !until.Equal(noon.Add(leaseFor)) {
		s.Errorf("leased until %s, want %s", until, noon.Add(leaseFor))
	}
	s.SetNow(s, noon.Add(leaseFor-time.Microsecond))
	s.equal("claimed by another process within the lease", 0, len(s.claim(claimOf("billing", 1)).Claimed))
	s.settle(delivery.Outcome{ID: r.ID, Token: first.Token, Verdict: delivery.Success}) // needs a live lease
	s.equal("state", delivery.Succeeded, s.row(r.ID).State)
}

func busyHandler(s *suite) {
	var rows []Row
	for i := range 1000 {
		rows = append(rows, pending(i, "busy"))
	}
	free := pending(1001, "free")
	free.NextRetryAt = noon
	s.put(append(rows, free)...)
	result := s.claim(claimOf("free", 5), claimOf("busy", 2))
	got := map[string]int{}
	for _, c := range result.Claimed {
		got[c.Handler]++
	}
	s.equal("claimed", map[string]int{"free": 1, "busy": 2}, got)
}

// neverMoreThanLimit: eight claimers, no statistics, until nothing is left.
func neverMoreThanLimit(s *suite) {
	const n, limit = 1000, 10
	var rows []Row
	for i := range n {
		rows = append(rows, pending(i, fmt.Sprint("h", i%3)))
	}
	s.put(rows...)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[uuid.UUID]int{}
	)
	for range 8 {
		wg.Go(func() {
			for empty := 0; empty < 3; {
				total := 0
				result, err := s.Store.Claim(s.Context(), newLease(), []delivery.Claim{
					claimOf("h0", limit),
					{Handler: "h12", Names: []string{"h1", "h2"}, Limit: limit, Window: window},
				})
				if err != nil {
					s.Error(err)
					return
				}
				per := map[string]int{}
				mu.Lock()
				for _, c := range result.Claimed {
					per[c.Handler]++
					total++
					seen[c.ID]++
				}
				mu.Unlock()
				for handler, got := range per {
					if got > limit {
						s.Errorf("%s: leased %d, limit %d", handler, got, limit)
					}
				}
				if total == 0 {
					empty++
				}
			}
		})
	}
	wg.Wait()
	// A claimer gives up after three empty looks, which locked rows can cause.
	for _, c := range s.claim(claimOf("h0", n), claimOf("h1", n), claimOf("h2", n)).Claimed {
		seen[c.ID]++
	}
	if len(seen) != n {
		s.Errorf("%d of %d deliveries were leased", len(seen), n)
	}
	for id, times := range seen {
		if times != 1 {
			s.Errorf("%s was leased %d times", id, times)
		}
	}
}

func expiredBacklog(s *suite) {
	var rows []Row
	for i := range 4000 {
		r := pending(i, "billing")
		r.Event.Date = noon.Add(-window - time.Hour)
		r.NextRetryAt = r.Event.Date
		rows = append(rows, r)
	}
	live := pending(4001, "billing")
	s.put(append(rows, live)...)
	result := s.claim(claimOf("billing", 5))
	s.equal("ended", map[string]map[delivery.State]int{"billing": {delivery.Expired: 4000}}, result.Ended)
	if len(result.Claimed) != 1 || result.Claimed[0].ID != live.ID {
		s.Errorf("claimed %d", len(result.Claimed))
	}
}

func severalHandlers(s *suite) {
	s.fanned(10, "a", "b", "c")
	result := s.claim(claimOf("a", 2), claimOf("b", 0), claimOf("c", 20), claimOf("none", 5))
	got := map[string]int{}
	for _, c := range result.Claimed {
		got[c.Handler]++
	}
	s.equal("claimed", map[string]int{"a": 2, "c": 10}, got)
}

func unknownHandlers(s *suite) {
	s.fanned(1, "gone")
	before := s.Deliveries(s)
	s.equal("claimed", 0, len(s.claim(claimOf("billing", 5)).Claimed))
	s.equal("rows", before, s.Deliveries(s))
}

// foreignRows: rows that an Ekbatan process wrote have null in our columns.
func foreignRows(s *suite) {
	fresh, tried, spent := pending(1, "billing"), pending(2, "billing"), pending(3, "billing")
	tried.State, tried.Attempts = delivery.Failed, 2
	spent.State, spent.Attempts = delivery.Failed, 5
	for _, r := range []*Row{&fresh, &tried, &spent} {
		r.Foreign = true
		r.Event.Traceparent, r.Event.Headers = "", nil
	}
	s.put(fresh, tried, spent)
	limited := claimOf("billing", 5)
	limited.MaxAttempts = 5
	result := s.claim(limited)
	s.equal("ended", map[string]map[delivery.State]int{"billing": {delivery.Dead: 1}}, result.Ended)
	claims := map[uuid.UUID]int{}
	for _, c := range result.Claimed {
		claims[c.ID] = c.Claims
		want := fresh.Event
		if c.ID == tried.ID {
			want = tried.Event
		}
		s.equal("event", want, c.Event)
	}
	s.equal("claims", map[uuid.UUID]int{fresh.ID: 1, tried.ID: 3}, claims)
	for _, c := range result.Claimed {
		s.settle(outcome(c, delivery.Success))
	}
	s.equal("state", delivery.Succeeded, s.row(tried.ID).State)
}

// absurdDates: no date may take a statement out of the range of a timestamp.
func absurdDates(s *suite) {
	ancient, far := pending(1, "billing"), pending(2, "billing")
	ancient.Event.Date = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)
	far.Event.Date = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	s.put(ancient, far)
	long := claimOf("billing", 5)
	long.Window = math.MaxInt64
	result := s.claim(long)
	if len(result.Claimed) != 1 || result.Ended["billing"][delivery.Expired] != 1 {
		s.Fatalf("got %+v", result)
	}
	o := outcome(result.Claimed[0], delivery.Retry)
	o.Window, o.Delay = math.MaxInt64, 100*365*24*time.Hour
	s.equal("settled", []delivery.Settled{{ID: far.ID, State: delivery.Failed}}, s.settle(o))
}

func nothingToClaim(s *suite) {
	for _, claims := range [][]delivery.Claim{nil, {}, {claimOf("billing", 0)}, {{Handler: "x", Limit: 3}}} {
		if result := s.claim(claims...); len(result.Claimed) != 0 || result.Ended == nil {
			s.Errorf("got %+v", result)
		}
	}
}

func nextDue(s *suite) {
	check := func(want time.Duration, wantOK bool, names ...string) {
		s.Helper()
		in, ok, err := s.Store.NextDue(s.Context(), names)
		if err != nil || ok != wantOK || in != want {
			s.Errorf("%v: got %s, %v, %v; want %s, %v", names, in, ok, err, want, wantOK)
		}
	}
	check(0, false)
	check(0, false, "billing")
	soon, late, done := pending(1, "billing"), pending(2, "mail"), pending(3, "billing")
	soon.NextRetryAt, late.NextRetryAt = noon.Add(1500*time.Millisecond), noon.Add(time.Hour)
	done.State = delivery.Succeeded
	s.put(soon, late, done)
	check(1500*time.Millisecond, true, "billing")
	check(1500*time.Millisecond, true, "mail", "billing")
	check(time.Hour, true, "mail", "none")
	s.SetNow(s, noon.Add(time.Minute))
	check(0, true, "billing")
	s.claimOne("billing")
	check(leaseFor, true, "billing")
}
