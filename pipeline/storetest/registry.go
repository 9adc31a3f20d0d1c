package storetest

import (
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
		{"GapsAreRecordedOnceAndClosed", gaps},
	}
}

func (s *suite) sync(owner string, handlers ...delivery.Handler) map[string]delivery.Pause {
	s.Helper()
	pauses, err := s.Store.SyncHandlers(s.Context(), owner, handlers)
	if err != nil {
		s.Fatal(err)
	}
	return pauses
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

func gaps(s *suite) {
	record := func(source string, g cdc.Gap) {
		s.Helper()
		if err := s.Store.RecordGap(s.Context(), source, g); err != nil {
			s.Fatal(err)
		}
	}
	known := cdc.Gap{Reason: "slot_lost", Detail: "max_slot_wal_keep_size", From: "0/1", To: "0/2"}
	record("a", known)
	record("a", known)
	record("b", known)
	record("a", cdc.Gap{Reason: "slot_missing"})
	record("a", cdc.Gap{Reason: "slot_missing"})
	s.SetNow(s, noon.Add(time.Minute))
	if err := s.Store.CloseGaps(s.Context(), "a"); err != nil {
		s.Fatal(err)
	}
	record("a", cdc.Gap{Reason: "slot_missing"})
	closed := noon.Add(time.Minute)
	s.equal("gaps", []Gap{
		{Source: "a", Reason: "slot_lost", Detail: known.Detail, From: "0/1", To: "0/2", Detected: noon, Closed: closed},
		{Source: "b", Reason: "slot_lost", Detail: known.Detail, From: "0/1", To: "0/2", Detected: noon},
		{Source: "a", Reason: "slot_missing", Detected: noon, Closed: closed},
		{Source: "a", Reason: "slot_missing", Detected: noon.Add(time.Minute)},
	}, s.Gaps(s))
}
