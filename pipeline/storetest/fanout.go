package storetest

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func fanOutTests() []test {
	return []test{
		{"A46_OneDeliveryPerEventAndHandler", oneDeliveryPerHandler},
		{"A47_TheDeliveryCopiesTheEvent", deliveryCopiesEvent},
		{"A48_InitialValues", initialValues},
		{"A49_FirstDueAtTheEventsDate", firstDue},
		{"A50_B22_ARepeatedTriggerChangesNothing", repeatedTrigger},
		{"A55_ALaterSubscriberGetsNoHistory", laterSubscriber},
		{"A169_ANullPayloadStaysNull", nullPayload},
		{"B23_ConcurrentTriggersMakeOneSetOfDeliveries", concurrentTriggers},
		{"B24_B25_TheMarkSaysWhetherThereIsADelivery", markSays},
		{"FanOutAndPollerOverlap", fanOutAndPoller},
		{"LeaseAtFanOut", leaseAtFanOut},
		{"LeaseAtFanOutNotPastTheWindow", noLeasePastWindow},
		{"BlockedAtFanOut", blockedAtFanOut},
		{"AbsentRowsComeFromTheLogsImage", absentRows},
		{"ImageOnlyWaitsForNoLockOnTheRow", imageOnly},
		{"AnAbsentRowIsNotInventedForThePoller", absentFromPoller},
		{"AnEventDeletedAfterFanOutIsNotRepeated", deletedAfterFanOut},
		{"T51_DuplicateIDsInOneBatchAreReported", duplicateIDs},
		{"EmptyBatch", emptyBatch},
		{"LargeBatch", largeBatch},
	}
}

func oneDeliveryPerHandler(s *suite) {
	events := newEvents(3)
	s.InsertEvents(s, events...)
	list := fans(events, "billing", "mail")
	list[1].Targets = list[1].Targets[:1]
	result := s.fanOut(list...)

	if result.Fresh != 3 || result.Repeated != 0 || result.Absent != 0 || len(result.DuplicateIDs) != 0 {
		s.Errorf("got %+v", result)
	}
	got := map[uuid.UUID]delivery.Target{}
	for _, c := range result.Created {
		target := list[c.Fan].Targets[c.Target]
		got[target.ID] = target
	}
	rows := s.Deliveries(s)
	if len(rows) != 5 || len(got) != 5 {
		s.Fatalf("%d rows, %d created, want 5", len(rows), len(got))
	}
	for _, r := range rows {
		if got[r.ID].Handler != r.Handler {
			s.Errorf("delivery %s of %q is not among the created", r.ID, r.Handler)
		}
	}
}

func deliveryCopiesEvent(s *suite) {
	e := s.fanned(1, "billing")[0]
	s.equal("copy", s.comparable(e), s.comparable(s.only().Event))
}

func initialValues(s *suite) {
	e := s.fanned(1, "billing")[0]
	r := s.only()
	want := Row{
		ID: r.ID, Handler: "billing", Event: r.Event, State: delivery.Pending,
		NextRetryAt: e.Date, CreatedDate: noon, UpdatedDate: noon,
	}
	s.equal("row", want, r)
}

// firstDue: old events go first. A producer whose clock is ahead delays nothing.
func firstDue(s *suite) {
	old, ahead := newEvent(1), newEvent(2)
	ahead.Date = noon.Add(5 * time.Minute)
	s.InsertEvents(s, old, ahead)
	s.fanOut(fan(old, "billing"), fan(ahead, "billing"))
	for _, r := range s.Deliveries(s) {
		want := old.Date
		if r.Event.ID == ahead.ID {
			want = noon
		}
		if !r.NextRetryAt.Equal(want) {
			s.Errorf("event of %s is due at %s, want %s", r.Event.Date, r.NextRetryAt, want)
		}
	}
}

func repeatedTrigger(s *suite) {
	events := newEvents(3)
	s.InsertEvents(s, events...)
	s.fanOut(fans(events, "billing", "mail")...)
	before := s.Deliveries(s)
	s.SetNow(s, noon.Add(time.Hour))
	for _, fromLog := range []bool{true, false} {
		again := fans(events, "billing", "mail")
		for i := range again {
			again[i].FromLog = fromLog
			again[i].Targets[0].Lease = true
		}
		result := s.fanOut(again...)
		if len(result.Created) != 0 || result.Fresh != 0 || result.Repeated != 3 || result.Absent != 0 {
			s.Errorf("got %+v", result)
		}
	}
	s.equal("rows", before, s.Deliveries(s))
}

func laterSubscriber(s *suite) {
	e := s.fanned(1, "billing")[0]
	result := s.fanOut(fan(e, "billing", "new"))
	if len(result.Created) != 0 || result.Repeated != 1 {
		s.Errorf("got %+v", result)
	}
	if got := s.only().Handler; got != "billing" {
		s.Errorf("got a delivery for %q", got)
	}
}

func nullPayload(s *suite) {
	e := newEvent(1)
	e.Payload = nil
	s.InsertEvents(s, e)
	f := fan(e, "billing")
	f.Targets[0].Blocked = delivery.ReasonNullPayload
	s.fanOut(f)
	if r := s.only(); r.Event.Payload != nil || r.State != delivery.Blocked || r.Reason != delivery.ReasonNullPayload {
		s.Errorf("got %+v", r)
	}
}

func concurrentTriggers(s *suite) {
	const workers = 8
	events := newEvents(200)
	s.InsertEvents(s, events...)
	var (
		wg                       sync.WaitGroup
		fresh, repeated, created atomic.Int64
	)
	for w := range workers {
		wg.Go(func() {
			mine := fans(events, "billing", "mail")
			// Every worker has its own order, as batches of a log and of a poller do.
			slices.SortStableFunc(mine, func(a, b delivery.Fan) int { return int(a.Event.ID[w]) - int(b.Event.ID[w]) })
			for chunk := range slices.Chunk(mine, 50) {
				result, err := s.Store.FanOut(s.Context(), delivery.FanOut{Lease: newLease(), Fans: chunk})
				if err != nil {
					s.Error(err)
					return
				}
				fresh.Add(int64(result.Fresh))
				repeated.Add(int64(result.Repeated))
				created.Add(int64(len(result.Created)))
			}
		})
	}
	wg.Wait()
	if s.Mark != MarkNone && (fresh.Load() != 200 || repeated.Load() != (workers-1)*200) {
		s.Errorf("%d fresh, %d repeated", fresh.Load(), repeated.Load())
	}
	if rows := s.Deliveries(s); len(rows) != 400 || created.Load() != 400 {
		s.Errorf("%d rows, %d created, want 400", len(rows), created.Load())
	}
}

func markSays(s *suite) {
	events := newEvents(3)
	s.InsertEvents(s, events...)
	result := s.fanOut(fan(events[0], "billing"), fan(events[1]))
	if len(result.Created) != 1 || result.Fresh != 2 {
		s.Errorf("got %+v", result)
	}
	want := map[Mark][3]string{
		MarkBoolean: {"done", "done", "pending"},
		MarkStatus:  {"done", "none", "pending"},
		MarkNone:    {"", "", ""},
	}[s.Mark]
	for i, e := range events {
		mark, at := s.EventMark(s, e.ID)
		if mark != want[i] {
			s.Errorf("event %d is %q, want %q", i, mark, want[i])
		}
		if stamped := s.Mark == MarkStatus && mark != "pending"; stamped != at.Equal(noon) {
			s.Errorf("event %d (%s) is stamped %s", i, mark, at)
		}
	}
	// Both states are final (B26).
	s.SetNow(s, noon.Add(time.Hour))
	s.fanOut(fan(events[0]), fan(events[1], "billing"))
	for i, e := range events {
		if mark, _ := s.EventMark(s, e.ID); mark != want[i] {
			s.Errorf("event %d turned from %q to %q", i, want[i], mark)
		}
	}
}

// fanOutAndPoller: both take the same events; neither makes a second delivery nor misses one.
func fanOutAndPoller(s *suite) {
	events := newEvents(300)
	s.InsertEvents(s, events...)
	var wg sync.WaitGroup
	wg.Go(func() {
		for chunk := range slices.Chunk(events, 20) {
			list := fans(chunk, "billing")
			for i := range list {
				list[i].FromLog = true
			}
			if _, err := s.Store.FanOut(s.Context(), delivery.FanOut{Lease: newLease(), Fans: list}); err != nil {
				s.Error(err)
			}
		}
	})
	wg.Go(func() {
		for {
			found, err := s.Store.Undelivered(s.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 30})
			if err != nil {
				s.Error(err)
				return
			}
			if len(found.Events) == 0 {
				return
			}
			if _, err := s.Store.FanOut(s.Context(), delivery.FanOut{Lease: newLease(), Fans: fans(found.Events, "billing")}); err != nil {
				s.Error(err)
				return
			}
		}
	})
	wg.Wait()
	var got []string
	for _, r := range s.Deliveries(s) {
		got = append(got, r.Event.ID)
	}
	s.equal("events with a delivery", ids(byID(events)), got)
}

func leaseAtFanOut(s *suite) {
	events := newEvents(2)
	s.InsertEvents(s, events...)
	list := fans(events, "billing")
	list[0].Targets[0].Lease = true
	lease := newLease()
	result, err := s.Store.FanOut(s.Context(), delivery.FanOut{Lease: lease, Fans: list})
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range result.Created {
		if c.Leased != (c.Fan == 0) {
			s.Errorf("got %+v", c)
		}
	}
	end := noon.Add(leaseFor)
	r := s.row(list[0].Targets[0].ID)
	if r.State != delivery.Pending || r.ClaimCount != 1 || r.Attempts != 0 || r.LeaseToken == nil || *r.LeaseToken != lease.Token ||
		!r.LeaseUntil.Equal(end) || !r.NextRetryAt.Equal(end) || r.LeaseOwner != lease.Owner {
		s.Errorf("got %+v", r)
	}
	if got := s.claimOne("billing"); got.ID != list[1].Targets[0].ID {
		s.Errorf("claimed the leased delivery")
	}
	settled := s.settle(delivery.Outcome{ID: r.ID, Token: lease.Token, Verdict: delivery.Success})
	s.equal("settled", []delivery.Settled{{ID: r.ID, State: delivery.Succeeded}}, settled)
}

// noLeasePastWindow: the store refuses the lease, not the row. Exactly at the window is not past it.
func noLeasePastWindow(s *suite) {
	past, at, none := newEvent(1), newEvent(2), newEvent(3)
	past.Date, at.Date, none.Date = noon.Add(-window-time.Microsecond), noon.Add(-window), noon.Add(-10*window)
	s.InsertEvents(s, past, at, none)
	list := []delivery.Fan{fan(past, "billing"), fan(at, "billing"), fan(none, "billing")}
	for i := range list {
		list[i].Targets[0].Lease = true
	}
	list[2].Targets[0].Window = 0
	result := s.fanOut(list...)
	if len(result.Created) != 3 {
		s.Fatalf("got %+v", result)
	}
	for _, c := range result.Created {
		if c.Leased != (c.Fan != 0) {
			s.Errorf("event %d: leased is %v", c.Fan, c.Leased)
		}
	}
	if r := s.row(list[0].Targets[0].ID); r.LeaseToken != nil || r.ClaimCount != 0 || !r.NextRetryAt.Equal(past.Date) {
		s.Errorf("got %+v", r)
	}
	claimed := s.claim(claimOf("billing", 10))
	if claimed.Ended["billing"][delivery.Expired] != 1 || len(claimed.Claimed) != 0 {
		s.Errorf("got %+v", claimed)
	}
}

func blockedAtFanOut(s *suite) {
	e := newEvent(1)
	s.InsertEvents(s, e)
	f := fan(e, "billing")
	f.Targets[0].Blocked, f.Targets[0].Detail, f.Targets[0].Lease = delivery.ReasonCondition, "no such field\x00", true
	result := s.fanOut(f)
	if len(result.Created) != 1 || result.Created[0].Leased {
		s.Errorf("got %+v", result)
	}
	r := s.only()
	if r.State != delivery.Blocked || r.Reason != delivery.ReasonCondition || r.LastError != "no such field" || r.LeaseToken != nil || r.ClaimCount != 0 {
		s.Errorf("got %+v", r)
	}
	if got := s.claim(claimOf("billing", 10)); len(got.Claimed) != 0 {
		s.Error("claimed a blocked delivery")
	}
}

// absentRows: the row is not visible yet, or was deleted by its own transaction. Its commit is certain.
func absentRows(s *suite) {
	events := newEvents(4)
	s.InsertEvents(s, events[0])
	commit := s.BeginEvent(s, events[1])
	list := fans(events, "billing", "mail")
	for i := range list {
		list[i].FromLog = true
		list[i].Targets[0].Lease = true
	}
	list[3].Targets = nil
	result := s.fanOut(list...)
	if s.Defers {
		if result.Fresh != 1 || result.Absent != 1 || result.Repeated != 0 || len(result.Created) != 4 || !slices.Equal(result.Deferred, []int{1}) {
			s.Errorf("got %+v", result)
		}
		// When the row appears, the poller finds it.
		commit()
		found := s.undelivered(everything)
		s.equal("undelivered", []string{events[1].ID}, ids(found))
		deferred := fan(found[0], "billing", "mail")
		deferred.Targets[0].Lease = true
		result = s.fanOut(deferred)
		commit = func() {}
	}
	if !s.Defers && (result.Fresh != 1 || result.Absent != 2 || result.Repeated != 0 || len(result.Created) != 6) {
		s.Errorf("got %+v", result)
	}
	rows := s.Deliveries(s)
	want := byID([]event.Event{events[0], events[0], events[1], events[1], events[2], events[2]})
	var got []event.Event
	for _, r := range rows {
		got = append(got, r.Event)
		if (r.LeaseToken != nil) != (r.Handler == "billing") {
			s.Errorf("lease of %q is %v", r.Handler, r.LeaseToken)
		}
	}
	s.equal("copies", s.comparable(want...), s.comparable(got...))

	// The row appears. The store may mark it by itself; else the poller finds it, and then its
	// deliveries exist.
	commit()
	found := s.undelivered(everything)
	if len(found) > 1 || (len(found) == 1 && found[0].ID != events[1].ID) || (len(found) > 0 && s.Mark == MarkNone) {
		s.Errorf("found %v", ids(found))
	}
	if result := s.fanOut(fans(found, "billing", "mail")...); len(result.Created) != 0 || result.Absent != 0 {
		s.Errorf("got %+v", result)
	}
	s.equal("undelivered", 0, len(s.undelivered(everything)))
	s.equal("rows", rows, s.Deliveries(s))
	if s.Mark == MarkNone {
		return
	}
	if mark, _ := s.EventMark(s, events[1].ID); mark != "done" {
		s.Errorf("the event is %q", mark)
	}
}

// imageOnly: a session holds the row. The event gets its deliveries from the log's image meanwhile, without waiting,
// and its mark from the poller afterwards.
func imageOnly(s *suite) {
	events := newEvents(3)
	s.InsertEvents(s, events...)
	unlock := s.LockEvent(s, events[1].ID)
	list := fans(events, "billing", "mail")
	for i := range list {
		list[i].FromLog = true
	}
	list[1].ImageOnly = true
	list[1].Targets[0].Lease = true
	result := s.fanOut(list...)
	if result.Fresh != 2 || result.Absent != 1 || result.Repeated != 0 || len(result.Created) != 6 {
		s.Errorf("got %+v", result)
	}
	for _, c := range result.Created {
		if c.Leased != (c.Fan == 1 && c.Target == 0) {
			s.Errorf("got %+v", c)
		}
	}
	if again := s.fanOut(list...); len(again.Created) != 0 || again.Repeated != 3 {
		s.Errorf("a repeated call: %+v", again)
	}
	if mark, _ := s.EventMark(s, events[1].ID); s.Mark != MarkNone && mark != "pending" {
		s.Errorf("the locked event is %q", mark)
	}
	unlock()
	rows := s.Deliveries(s)
	var got []event.Event
	for _, r := range rows {
		got = append(got, r.Event)
	}
	want := byID([]event.Event{events[0], events[0], events[1], events[1], events[2], events[2]})
	s.equal("copies", s.comparable(want...), s.comparable(got...))
	found := s.undelivered(everything)
	if s.Mark == MarkNone {
		s.equal("found", 0, len(found))
		return
	}
	s.equal("found", []string{events[1].ID}, ids(found))
	if result := s.fanOut(fans(found, "billing", "mail")...); len(result.Created) != 0 || result.Fresh != 1 {
		s.Errorf("the poller's turn: %+v", result)
	}
	s.equal("rows", rows, s.Deliveries(s))
	if mark, _ := s.EventMark(s, events[1].ID); mark != "done" {
		s.Errorf("the event is %q", mark)
	}
}

func absentFromPoller(s *suite) {
	result := s.fanOut(fan(newEvent(1), "billing"))
	if len(result.Created) != 0 || result.Fresh != 0 || result.Absent != 0 {
		s.Errorf("got %+v", result)
	}
	if rows := s.Deliveries(s); len(rows) != 0 {
		s.Errorf("got %+v", rows)
	}
}

// deletedAfterFanOut: users prune their event table; the log may repeat itself after that.
func deletedAfterFanOut(s *suite) {
	e := s.fanned(1, "billing")[0]
	s.DeleteEvent(s, e.ID)
	f := fan(e, "billing", "new")
	f.FromLog = true
	result := s.fanOut(f)
	if len(result.Created) != 0 || result.Absent != 0 || result.Repeated != 1 {
		s.Errorf("got %+v", result)
	}
	s.only()
}

func duplicateIDs(s *suite) {
	first, second := newEvent(1), newEvent(1)
	second.Payload = json.RawMessage(`{"other": true}`)
	s.InsertEvents(s, first)
	list := []delivery.Fan{fan(first, "billing"), fan(newEvent(2), "billing"), fan(second, "billing"), fan(first, "billing")}
	for i := range list {
		list[i].FromLog = true
	}
	result := s.fanOut(list...)
	if len(result.Created) != 2 || result.Fresh != 1 || result.Absent != 1 || result.Repeated != 2 {
		s.Errorf("got %+v", result)
	}
	s.equal("duplicates", []string{first.ID}, result.DuplicateIDs)
}

func emptyBatch(s *suite) {
	if result := s.fanOut(); len(result.Created) != 0 {
		s.Errorf("got %+v", result)
	}
}

func largeBatch(s *suite) {
	const n = 2000
	events := s.fanned(n, "a", "b")
	if rows := s.Deliveries(s); len(rows) != 2*n {
		s.Errorf("got %d rows for %d events", len(rows), len(events))
	}
}
