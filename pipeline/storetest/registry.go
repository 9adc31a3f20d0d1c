package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

func registryTests() []test {
	return []test{
		{"HandlersAreRegisteredOnce", registered},
		{"PausesAreReported", paused},
		{"C72_DeliveriesWithoutAHandlerAreBlockedAfterAGracePeriod", blockOrphans},
		{"C72_AnAliasServes", aliasServes},
		{"M8_Q33_UnblockedDeliveriesWaitFromTheirRelease", unblock},
		{"BlockManyNames", blockMany},
		{"LockedDeliveriesStopNoStep", stepsPassLocks},
		{"ARenamedHandlerStaysPaused", renamedWhilePaused},
		{"HandlersOfOthersAreReported", others},
		{"LeasesOfAWrongClockAreShortened", wrongClock},
		{"GapsAreRecordedOnceAndClosed", gaps},
		{"GapsThatComeLaterStayOpen", laterGaps},
	}
}

func (s *suite) sync(owner string, handlers ...delivery.Handler) map[string]delivery.Pause {
	s.Helper()
	return s.register(owner, handlers...).Paused
}

func (s *suite) register(owner string, handlers ...delivery.Handler) delivery.Registry {
	s.Helper()
	registry, err := s.Store.SyncHandlers(s.Context(), owner, handlers)
	if err != nil {
		s.Fatal(err)
	}
	return registry
}

func registered(s *suite) {
	mail := delivery.Handler{Name: "mail", Types: []string{"a", "b.*"}}
	billing := delivery.Handler{Name: "billing", Aliases: []string{"invoices", `odd "name"`}, Types: []string{"*"}}
	s.sync("one", mail, billing)
	s.SetNow(s, noon.Add(time.Minute))
	s.sync("two", mail)
	billing.Types = []string{"order.*"}
	s.sync("two", billing)
	s.sync("two")
	s.equal("registry", []Registered{
		{
			Name: "billing", Aliases: billing.Aliases, Types: billing.Types, Generation: 2,
			LastOwner: "two", LastSeen: noon.Add(time.Minute),
		},
		{Name: "mail", Aliases: []string{}, Types: mail.Types, Generation: 1, LastOwner: "two", LastSeen: noon.Add(time.Minute)},
	}, s.Handlers(s))
}

func paused(s *suite) {
	handlers := []delivery.Handler{{Name: "billing"}, {Name: "mail"}}
	s.equal("pauses", 0, len(s.sync("one", handlers...)))
	p := delivery.Pause{By: "ann", Reason: "maintenance", At: noon.Add(-time.Minute)}
	s.Pause(s, "mail", p)
	s.equal("pauses", map[string]delivery.Pause{"mail": p}, s.sync("one", handlers...))
	s.equal("pauses of others", 0, len(s.sync("one", handlers[0])))
}

func (s *suite) block(grace time.Duration) int {
	s.Helper()
	n, err := s.Store.BlockOrphans(s.Context(), grace)
	if err != nil {
		s.Fatal(err)
	}
	return n
}

func blockOrphans(s *suite) {
	const grace = 10 * time.Minute
	served, gone, unknown, fresh := pending(1, "served"), pending(2, "gone"), pending(3, "unknown"), pending(4, "unknown")
	leased, done := pending(5, "gone"), pending(6, "gone")
	for _, r := range []*Row{&served, &gone, &unknown, &leased, &done} {
		r.NextRetryAt = noon.Add(-grace)
	}
	fresh.NextRetryAt = noon.Add(-grace + time.Microsecond)
	token := newLease().Token
	leased.LeaseToken, leased.LeaseUntil, leased.NextRetryAt = &token, noon.Add(time.Second), noon.Add(time.Second)
	done.State = delivery.Succeeded
	unknown.Attempts, unknown.ClaimCount = 2, 3

	s.SetNow(s, noon.Add(-grace))
	s.sync("one", delivery.Handler{Name: "gone"})
	s.SetNow(s, noon)
	s.sync("one", delivery.Handler{Name: "served"})
	s.put(served, gone, unknown, fresh, leased, done)

	s.equal("blocked", 2, s.block(grace))
	states := map[string]delivery.State{}
	for name, r := range map[string]Row{"served": served, "gone": gone, "unknown": unknown, "fresh": fresh, "leased": leased, "done": done} {
		states[name] = s.row(r.ID).State
	}
	s.equal("states", map[string]delivery.State{
		"served": delivery.Pending, "gone": delivery.Blocked, "unknown": delivery.Blocked,
		"fresh": delivery.Pending, "leased": delivery.Pending, "done": delivery.Succeeded,
	}, states)
	want := unknown
	want.State, want.Reason, want.UpdatedDate = delivery.Blocked, delivery.ReasonNoHandler, noon
	s.equal("blocked row", want, s.row(unknown.ID))
	s.equal("blocked again", 0, s.block(grace))
}

func aliasServes(s *suite) {
	r := pending(1, "old")
	s.put(r)
	s.sync("one", delivery.Handler{Name: "new", Aliases: []string{"older", "old"}})
	s.equal("blocked", 0, s.block(time.Minute))
	s.SetNow(s, noon.Add(time.Minute))
	s.equal("blocked", 1, s.block(time.Minute))
}

func unblock(s *suite) {
	noHandler, alias, other, undecodable := pending(1, "new"), pending(2, "old"), pending(3, "other"), pending(4, "new")
	for _, r := range []*Row{&noHandler, &alias, &other, &undecodable} {
		r.State, r.Reason, r.Attempts, r.ClaimCount = delivery.Blocked, delivery.ReasonNoHandler, 1, 2
	}
	undecodable.Reason = delivery.ReasonUndecodable
	s.put(noHandler, alias, other, undecodable)
	released := noon.Add(time.Hour)
	s.SetNow(s, released)
	n, err := s.Store.Unblock(s.Context(), []string{"new", "old"})
	if err != nil || n != 2 {
		s.Errorf("unblocked %d, %v", n, err)
	}
	for _, r := range []Row{noHandler, alias} {
		want := r
		want.State, want.Reason, want.NextRetryAt, want.UpdatedDate = delivery.Pending, "", released, released
		s.equal("row", want, s.row(r.ID))
	}
	for _, r := range []Row{other, undecodable} {
		s.equal("row", r, s.row(r.ID))
	}
	if n, err := s.Store.Unblock(s.Context(), nil); n != 0 || err != nil {
		s.Errorf("unblocked %d, %v", n, err)
	}
}

func blockMany(s *suite) {
	var rows []Row
	for i := range 2200 {
		rows = append(rows, pending(i, fmt.Sprint("gone-", i%40)))
	}
	s.put(rows...)
	s.sync("one", delivery.Handler{Name: "gone-7"})
	s.equal("blocked", 2200-55, s.block(time.Minute))
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprint("gone-", i))
	}
	n, err := s.Store.Unblock(s.Context(), names)
	if err != nil || n != 2200-55 {
		s.Errorf("unblocked %d, %v", n, err)
	}
}

// stepsPassLocks: what a session has locked is left out of what is done to many deliveries, and its turn comes later.
func stepsPassLocks(s *suite) {
	const grace, longest = time.Minute, time.Hour
	orphan, locked := pending(1, "gone"), pending(2, "gone")
	orphan.NextRetryAt, locked.NextRetryAt = noon.Add(-grace), noon.Add(-grace)
	s.put(orphan, locked)
	counts := func(step string, run func(context.Context) (int, error)) {
		s.Helper()
		unlock := s.LockDelivery(s, locked.ID)
		ctx, cancel := context.WithTimeout(s.Context(), time.Minute) // a step that waits for the lock would wait for ever
		defer cancel()
		n, err := run(ctx)
		if err != nil || n != 1 {
			s.Errorf("%s with a locked row: %d, %v, want 1", step, n, err)
		}
		unlock()
		if n, err := run(ctx); err != nil || n != 1 {
			s.Errorf("%s after that: %d, %v, want 1", step, n, err)
		}
	}
	counts("block", func(ctx context.Context) (int, error) { return s.Store.BlockOrphans(ctx, grace) })
	counts("unblock", func(ctx context.Context) (int, error) { return s.Store.Unblock(ctx, []string{"gone"}) })
	s.SetNow(s, noon.Add(100*time.Hour))
	s.equal("claimed", 2, len(s.claim(claimOf("gone", 2)).Claimed))
	s.SetNow(s, noon)
	counts("shorten", func(ctx context.Context) (int, error) { return s.Store.ShortenLeases(ctx, longest) })
}

// renamedWhilePaused: the new name takes the pause over, and the old one keeps it for the processes
// that have not been replaced yet. A pause of its own stands.
func renamedWhilePaused(s *suite) {
	s.sync("old", delivery.Handler{Name: "bills"}, delivery.Handler{Name: "invoices"}, delivery.Handler{Name: "mail"})
	p := delivery.Pause{By: "ann", Reason: "maintenance", At: noon.Add(-time.Minute)}
	own := delivery.Pause{By: "bob", Reason: "mine", At: noon.Add(-time.Second)}
	renamed := delivery.Handler{Name: "billing", Aliases: []string{"invoices", "bills", "unknown"}}
	post := delivery.Handler{Name: "post", Aliases: []string{"mail"}}
	s.equal("pauses before", 0, len(s.sync("other", post)))
	s.Pause(s, "invoices", p)
	s.Pause(s, "mail", p)
	s.Pause(s, "post", own)
	s.equal("a new name", map[string]delivery.Pause{"billing": p, "post": own}, s.sync("new", renamed, post))
	s.equal("once more", map[string]delivery.Pause{"billing": p, "post": own}, s.sync("new", renamed, post))
	s.equal("the old names", map[string]delivery.Pause{"invoices": p, "mail": p},
		s.sync("old", delivery.Handler{Name: "bills"}, delivery.Handler{Name: "invoices"}, delivery.Handler{Name: "mail"}))
	// A name that was registered before it became another's alias is taken over as well.
	s.Pause(s, "bills", p)
	known := delivery.Handler{Name: "known"}
	s.sync("new", known)
	known.Aliases = []string{"bills"}
	s.equal("a known name", map[string]delivery.Pause{"known": p}, s.sync("new", known))
}

func others(s *suite) {
	mine := delivery.Handler{Name: "mine", Aliases: []string{}, Types: []string{"a"}}
	theirs := delivery.Handler{Name: "theirs", Aliases: []string{"former"}, Types: []string{"b.*", "c"}}
	late := delivery.Handler{Name: "late", Aliases: []string{}, Types: []string{"*"}}
	s.equal("nobody", 0, len(s.register("one", mine).Others))
	s.register("two", theirs)
	s.equal("the others", []delivery.Handler{theirs}, s.register("one", mine).Others)
	s.equal("seen from there", []delivery.Handler{mine}, s.register("two", theirs).Others)
	s.SetNow(s, noon.Add(delivery.HandlerLive-time.Microsecond))
	s.register("three", late)
	s.equal("still alive", []delivery.Handler{late, theirs}, s.register("one", mine).Others)
	s.SetNow(s, noon.Add(delivery.HandlerLive))
	s.equal("gone", []delivery.Handler{late}, s.register("one", mine).Others)
	s.equal("asking only", []delivery.Handler{late, mine}, s.register("nobody").Others)
}

// wrongClock: leases that were taken while the clock was years ahead end in a foreseeable time, and whoever holds
// one still does.
func wrongClock(s *suite) {
	const longest = time.Hour
	s.SetNow(s, noon.Add(100*time.Hour))
	s.fanned(3, "billing")
	far := s.claim(claimOf("billing", 3)).Claimed
	s.SetNow(s, noon)
	snoozed, real := pending(10, "billing"), pending(11, "billing")
	snoozed.NextRetryAt = noon.Add(2000 * time.Hour)
	token := newLease().Token
	real.LeaseToken, real.LeaseUntil, real.NextRetryAt, real.ClaimCount = &token, noon.Add(longest), noon.Add(longest), 1
	s.put(snoozed, real)
	for i := range 2 {
		n, err := s.Store.ShortenLeases(s.Context(), longest)
		if want := 3 * (1 - i); err != nil || n != want {
			s.Errorf("shortened %d, %v, want %d", n, err, want)
		}
	}
	for _, c := range far {
		r := s.row(c.ID)
		if !r.LeaseUntil.Equal(noon.Add(longest)) || !r.NextRetryAt.Equal(noon.Add(longest)) || *r.LeaseToken != c.Token {
			s.Errorf("got %+v", r)
		}
	}
	s.equal("a planned delivery", snoozed, s.row(snoozed.ID))
	s.equal("a real lease", real, s.row(real.ID))
	s.equal("claimed", 0, len(s.claim(claimOf("billing", 5)).Claimed))
	s.equal("the holder's outcome", []delivery.Settled{{ID: far[0].ID, State: delivery.Succeeded}}, s.settle(outcome(far[0], delivery.Success)))
	s.SetNow(s, noon.Add(longest))
	s.equal("claimed later", 3, len(s.claim(claimOf("billing", 5)).Claimed))
}

func (s *suite) recordGap(source string, g cdc.Gap) {
	s.Helper()
	if err := s.Store.RecordGap(s.Context(), source, g); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) closeGaps(source string, at time.Time) {
	s.Helper()
	if err := s.Store.CloseGaps(s.Context(), source, at); err != nil {
		s.Fatal(err)
	}
}

// laterGaps: a sweep closes what had been detected when it began, and nothing of a clock that came back stays
// open for years.
func laterGaps(s *suite) {
	s.recordGap("a", cdc.Gap{Reason: "before"})
	s.SetNow(s, noon.Add(2*time.Second))
	s.recordGap("a", cdc.Gap{Reason: "during"})
	s.SetNow(s, noon.Add(1000*time.Hour))
	s.recordGap("a", cdc.Gap{Reason: "future"})
	s.SetNow(s, noon.Add(3*time.Second))
	s.closeGaps("a", noon.Add(time.Second))
	closed := map[string]bool{}
	for _, g := range s.Gaps(s) {
		closed[g.Reason] = !g.Closed.IsZero()
	}
	s.equal("closed", map[string]bool{"before": true, "during": false, "future": true}, closed)
}

func gaps(s *suite) {
	record := s.recordGap
	known := cdc.Gap{Reason: "slot_lost", Detail: "max_slot_wal_keep_size", From: "0/1", To: "0/2"}
	record("a", known)
	record("a", known)
	record("b", known)
	record("a", cdc.Gap{Reason: "slot_missing"})
	record("a", cdc.Gap{Reason: "slot_missing"})
	s.SetNow(s, noon.Add(time.Minute))
	s.closeGaps("a", noon)
	record("a", cdc.Gap{Reason: "slot_missing"})
	closed := noon.Add(time.Minute)
	s.equal("gaps", []Gap{
		{Source: "a", Reason: "slot_lost", Detail: known.Detail, From: "0/1", To: "0/2", Detected: noon, Closed: closed},
		{Source: "b", Reason: "slot_lost", Detail: known.Detail, From: "0/1", To: "0/2", Detected: noon},
		{Source: "a", Reason: "slot_missing", Detected: noon, Closed: closed},
		{Source: "a", Reason: "slot_missing", Detected: noon.Add(time.Minute)},
	}, s.Gaps(s))
}
