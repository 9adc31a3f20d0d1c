package storetest

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

func settleTests() []test {
	return []test{
		{"M4_2_Transitions", transitions},
		{"A111_RetryBoundary", retryBoundary},
		{"A112_ASuccessAddsNoAttempt", successAddsNothing},
		{"M3_ClaimsAreWhatTheLimitCounts", claimsAreLimited},
		{"C73_GivingBackIsFree", givingBackIsFree},
		{"HistoryOfAttempts", history},
		{"LongAndOddTextsAreStored", oddTexts},
		{"Q34_OnlyTheDatabasesClockCounts", onlyDatabaseClock},
		{"SettleMany", settleMany},
	}
}

// transition is one line of the table of states: how a delivery that was claimed ends.
type transition struct {
	name    string
	verdict delivery.Verdict
	// change adjusts the row before the claim, tweak the outcome.
	change func(*Row)
	tweak  func(*delivery.Outcome)
	// want is applied to the row as the claim left it.
	want func(*Row)
}

// transitions is the state machine from "leased" on, one line each (behaviours 4.2). Those at the claim
// are in the claim tests.
func transitions(s *suite) {
	at := noon.Add(10 * time.Second)
	end := func(state delivery.State, reason, lastError string) func(*Row) {
		return func(r *Row) { r.State, r.Reason, r.LastError, r.Finished = state, reason, lastError, at }
	}
	failure := func(o *delivery.Outcome) { o.Error, o.Delay = "http_503", 30*time.Second }
	cases := []transition{
		{
			name: "success", verdict: delivery.Success,
			change: func(r *Row) { r.State, r.Attempts, r.ClaimCount, r.LastError = delivery.Failed, 2, 2, "dial" },
			want:   end(delivery.Succeeded, "", ""),
		},
		{
			name: "failure", verdict: delivery.Retry, tweak: failure,
			want: func(r *Row) {
				r.State, r.Attempts, r.LastError, r.NextRetryAt = delivery.Failed, 1, "http_503", at.Add(30*time.Second)
			},
		},
		{
			name: "another failure", verdict: delivery.Retry, tweak: failure,
			change: func(r *Row) { r.State, r.Attempts, r.ClaimCount, r.LastError = delivery.Failed, 2, 2, "dial" },
			want: func(r *Row) {
				r.Attempts, r.LastError, r.NextRetryAt = 3, "http_503", at.Add(30*time.Second)
			},
		},
		{
			name: "failure past the window", verdict: delivery.Retry,
			tweak: func(o *delivery.Outcome) { failure(o); o.Delay = window },
			want:  func(r *Row) { end(delivery.Expired, delivery.ReasonAge, "http_503")(r); r.Attempts = 1 },
		},
		{
			name: "failure without a window", verdict: delivery.Retry,
			tweak: func(o *delivery.Outcome) { failure(o); o.Window, o.Delay = 0, window },
			want: func(r *Row) {
				r.State, r.Attempts, r.LastError, r.NextRetryAt = delivery.Failed, 1, "http_503", at.Add(window)
			},
		},
		{
			name: "last failure", verdict: delivery.Retry,
			change: func(r *Row) { r.ClaimCount = 4 },
			tweak:  func(o *delivery.Outcome) { failure(o); o.MaxAttempts = 5 },
			want:   func(r *Row) { end(delivery.Dead, delivery.ReasonAttempts, "http_503")(r); r.Attempts = 1 },
		},
		{
			name: "last but one failure", verdict: delivery.Retry,
			change: func(r *Row) { r.ClaimCount = 3 },
			tweak:  func(o *delivery.Outcome) { failure(o); o.MaxAttempts = 5 },
			want: func(r *Row) {
				r.State, r.Attempts, r.LastError, r.NextRetryAt = delivery.Failed, 1, "http_503", at.Add(30*time.Second)
			},
		},
		{
			name: "permanent", verdict: delivery.Fail,
			tweak: func(o *delivery.Outcome) { o.Error, o.Message = "http_410", "gone" },
			want:  func(r *Row) { end(delivery.Dead, delivery.ReasonPermanent, "http_410: gone")(r); r.Attempts = 1 },
		},
		{
			name: "undecodable", verdict: delivery.Block,
			tweak: func(o *delivery.Outcome) { o.Reason, o.Error = delivery.ReasonUndecodable, "decode" },
			want: func(r *Row) {
				r.State, r.Reason, r.LastError, r.ClaimCount = delivery.Blocked, delivery.ReasonUndecodable, "decode", 0
			},
		},
		{
			name: "cancel", verdict: delivery.Discard,
			tweak: func(o *delivery.Outcome) { o.Reason = "order was withdrawn" },
			want:  end(delivery.Discarded, "order was withdrawn", ""),
		},
		{
			name: "give back", verdict: delivery.GiveBack,
			change: func(r *Row) { r.State, r.Attempts, r.ClaimCount, r.LastError = delivery.Failed, 2, 2, "dial" },
			want:   func(r *Row) { r.ClaimCount, r.NextRetryAt = 2, at },
		},
		{
			name: "snooze", verdict: delivery.GiveBack,
			tweak: func(o *delivery.Outcome) { o.Delay = 2 * window },
			want:  func(r *Row) { r.ClaimCount, r.NextRetryAt = 0, at.Add(2*window) },
		},
	}
	for i, c := range cases {
		s.transition(i, at, c)
	}
}

func (s *suite) transition(i int, at time.Time, c transition) {
	s.Helper()
	s.SetNow(s, noon)
	r := pending(i, c.name)
	if c.change != nil {
		c.change(&r)
	}
	s.put(r)
	claimed := s.claimOne(c.name)
	s.SetNow(s, at)
	o := outcome(claimed, c.verdict)
	if c.tweak != nil {
		c.tweak(&o)
	}
	want := s.row(r.ID)
	want.LeaseToken, want.LeaseUntil, want.LeaseOwner, want.UpdatedDate = nil, time.Time{}, "", at
	c.want(&want)
	settled := s.settle(o)
	s.equal(c.name+": settled", []delivery.Settled{{ID: r.ID, State: want.State}}, settled)
	s.equal(c.name, want, s.row(r.ID))
}

// retryBoundary: a next try exactly at the end of the window is still allowed.
func retryBoundary(s *suite) {
	e := s.fanned(1, "a", "b")[0]
	limit := e.Date.Add(window).Sub(noon)
	result := s.claim(claimOf("a", 1), claimOf("b", 1))
	states := map[string]delivery.State{}
	for _, c := range result.Claimed {
		o := outcome(c, delivery.Retry)
		o.Delay = limit
		if c.Handler == "b" {
			o.Delay += time.Microsecond
		}
		states[c.Handler] = s.settle(o)[0].State
	}
	s.equal("states", map[string]delivery.State{"a": delivery.Failed, "b": delivery.Expired}, states)
}

func successAddsNothing(s *suite) {
	s.fanned(1, "billing")
	s.settle(outcome(s.claimOne("billing"), delivery.Success))
	r := s.only()
	if r.Attempts != 0 || r.ClaimCount != 1 || !r.NextRetryAt.Equal(noon.Add(leaseFor)) {
		s.Errorf("got %+v", r)
	}
}

// claimsAreLimited: attempts that a crash cut short count, those that were given back do not.
func claimsAreLimited(s *suite) {
	s.fanned(1, "billing")
	limited := claimOf("billing", 1)
	limited.MaxAttempts = 3
	now := noon
	next := func() delivery.Claimed {
		s.Helper()
		now = now.Add(leaseFor)
		s.SetNow(s, now)
		claimed := s.claim(limited).Claimed
		if len(claimed) != 1 {
			s.Fatalf("claimed %d", len(claimed))
		}
		return claimed[0]
	}
	end := func(c delivery.Claimed, v delivery.Verdict) delivery.State {
		s.Helper()
		o := outcome(c, v)
		o.MaxAttempts = 3
		return s.settle(o)[0].State
	}
	next() // crashed
	s.equal("snoozed", delivery.Pending, end(next(), delivery.GiveBack))
	s.equal("second", delivery.Failed, end(next(), delivery.Retry))
	s.equal("snoozed", delivery.Failed, end(next(), delivery.GiveBack))
	s.equal("third", delivery.Dead, end(next(), delivery.Retry))
	r := s.only()
	if r.Attempts != 2 || r.ClaimCount != 3 || r.Reason != delivery.ReasonAttempts {
		s.Errorf("got %+v", r)
	}
}

func givingBackIsFree(s *suite) {
	r := pending(1, "billing")
	r.Foreign = true
	s.put(r)
	for range 5 {
		s.settle(outcome(s.claimOne("billing"), delivery.GiveBack))
	}
	got := s.row(r.ID)
	if got.ClaimCount != 0 || got.Attempts != 0 || got.State != delivery.Pending || !got.NextRetryAt.Equal(noon) {
		s.Errorf("got %+v", got)
	}
	s.equal("history", 0, len(s.Attempts(s, r.ID)))
}

func history(s *suite) {
	s.fanned(1, "billing")
	id := s.only().ID
	now := noon
	for i, v := range []delivery.Verdict{delivery.Retry, delivery.GiveBack, delivery.Retry, delivery.Success} {
		o := outcome(s.claimOne("billing"), v)
		if v == delivery.Retry {
			o.Error, o.Message, o.Took, o.Delay = "http_503", "busy", time.Duration(i+1)*time.Second, time.Second
		}
		s.settle(o)
		now = now.Add(leaseFor)
		s.SetNow(s, now)
	}
	s.equal("history", []Attempt{
		{Attempt: 1, Outcome: delivery.Failed, Error: "http_503", Message: "busy", Started: noon.Add(-time.Second), Took: time.Second},
		{
			Attempt: 2, Outcome: delivery.Failed, Error: "http_503", Message: "busy",
			Started: noon.Add(2*leaseFor - 3*time.Second), Took: 3 * time.Second,
		},
	}, s.Attempts(s, id))
	if r := s.only(); r.State != delivery.Succeeded || r.LastError != "" {
		s.Errorf("got %+v", r)
	}
}

func oddTexts(s *suite) {
	s.fanned(1, "billing")
	o := outcome(s.claimOne("billing"), delivery.Retry)
	o.Error, o.Message, o.Reason = "code\x00", "bad \xff\xfe byte "+strings.Repeat("x", 5000), "r\x00"
	s.settle(o)
	r := s.only()
	if r.State != delivery.Failed || len(r.LastError) > 1100 || !strings.HasPrefix(r.LastError, "code: bad \uFFFD byte") || r.Reason != "r" {
		s.Errorf("got %+v", r)
	}
}

// onlyDatabaseClock: the database's clock goes forth and back; delays are kept by it alone.
func onlyDatabaseClock(s *suite) {
	for i, offset := range []time.Duration{5 * time.Minute, -5 * time.Minute, -40 * 365 * 24 * time.Hour} {
		now := noon.Add(offset)
		s.SetNow(s, now)
		r := pending(i, "billing")
		r.Event.Date, r.NextRetryAt = now.Add(-time.Minute), now
		s.put(r)
		claimed := s.claimOne("billing")
		s.equal("lease end", now.Add(leaseFor), s.row(r.ID).LeaseUntil)
		s.equal("held", []uuid.UUID{r.ID}, s.renew(delivery.LeaseRef{ID: r.ID, Token: claimed.Token}))
		o := outcome(claimed, delivery.Retry)
		o.Delay = 30 * time.Second
		s.settle(o)
		s.equal("next due", now.Add(30*time.Second), s.row(r.ID).NextRetryAt)
		s.SetNow(s, now.Add(30*time.Second))
		s.settle(outcome(s.claimOne("billing"), delivery.Success))
	}
}

func settleMany(s *suite) {
	const n = 2000
	var rows []Row
	for i := range n {
		rows = append(rows, pending(i, "billing"))
	}
	s.put(rows...)
	var outcomes []delivery.Outcome
	for i, c := range s.claim(claimOf("billing", n)).Claimed {
		outcomes = append(outcomes, outcome(c, delivery.Verdict(i%6)))
	}
	// One that succeeded too late, among others that did not succeed, takes no other with it.
	outcomes[0].Token = uuid.New()
	s.equal("settled", n-1, len(s.settle(outcomes...)))
	states := map[delivery.State]int{}
	for _, r := range s.Deliveries(s) {
		states[r.State]++
	}
	const each = n / 6 // of the six verdicts; the first two have one more
	s.equal("states", map[delivery.State]int{
		delivery.Succeeded: each, delivery.Failed: each + 1, delivery.Dead: each, delivery.Blocked: each, delivery.Discarded: each, delivery.Pending: each + 1,
	}, states)
	s.equal("settled again", 0, len(s.settle(outcomes...)))
	s.equal("settled nothing", 0, len(s.settle()))
}
