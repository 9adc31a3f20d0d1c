package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// lookTests are about how much, and how far back, one look sees.
func lookTests() []test {
	return []test{
		{"ALookKnowsItsTime", lookTime},
		{"ALookIsBoundedInBytes", boundedBytes},
		{"PagesReachTheEnd", pages},
		{"ANewPassBeginsAtTheBeginning", newPass},
		{"ALookGoesBackFromTheLastCompleteOne", lookBack},
		{"ALookGoesBackFromTheOldestOpenGap", lookBackFromGap},
	}
}

func lookTime(s *suite) {
	s.SetNow(s, noon.Add(time.Minute))
	for _, q := range []delivery.Undelivered{everything, {}} { // also for a caller who wants no events
		if found := s.look(q); !found.At.Equal(noon.Add(time.Minute)) || found.More || found.Next != "" || found.LeftOut {
			s.Errorf("got %+v", found)
		}
	}
	s.equal("traceless", s.Mark == MarkNone, s.look(everything).Traceless)
}

// boundedBytes: the oldest event is returned whatever its size, others only while they fit.
func boundedBytes(s *suite) {
	events := newEvents(6)
	for i := range events {
		events[i].ActionParams, events[i].Headers = json.RawMessage(`{}`), nil
		events[i].Payload = json.RawMessage(fmt.Sprintf(`{"text": "%s"}`, strings.Repeat("x", 1000)))
	}
	events[3].Payload = json.RawMessage(fmt.Sprintf(`{"text": "%s"}`, strings.Repeat("y", 5000)))
	s.InsertEvents(s, events...)
	for _, step := range []struct {
		max  int
		want []event.Event
		more bool
	}{
		{0, events, false},
		{2500, events[:2], true},
		{4500, events[2:3], true},
		{10, events[3:4], true},
		{1 << 20, events[4:], false},
	} {
		q := everything
		q.MaxBytes = step.max
		found := s.look(q)
		s.equal(fmt.Sprintf("at most %d bytes", step.max), ids(step.want), ids(found.Events))
		s.equal("content", s.comparable(step.want...), s.comparable(found.Events...))
		if found.More != step.more || (found.Next != "") != (step.more && s.Mark == MarkNone) {
			s.Errorf("at most %d bytes: got more %t, next %q", step.max, found.More, found.Next)
		}
		if step.max > 0 {
			s.fanOut(fans(found.Events, "billing")...)
		}
	}
}

// pages: without a mark, events that get no delivery stay. They hide nothing behind them, also where many have
// one date.
func pages(s *suite) {
	events := newEvents(25)
	for i := range events {
		events[i].Date = noon.Add(time.Duration(i/10-5) * time.Minute)
	}
	s.InsertEvents(s, events...)
	q := everything
	q.Limit = 4
	seen := map[string]int{}
	var dates []time.Time
	for range len(events) {
		found := s.look(q)
		for _, e := range found.Events {
			seen[e.ID]++
			dates = append(dates, e.Date)
		}
		if s.Mark != MarkNone { // what is fanned out is gone; nothing else is promised
			s.equal("next", "", found.Next)
			s.fanOut(fans(found.Events)...)
		} else if (found.Next != "") != found.More {
			s.Fatalf("got more %t, next %q", found.More, found.Next)
		}
		if q.After = found.Next; !found.More {
			break
		}
	}
	for _, e := range events {
		if seen[e.ID] != 1 {
			s.Errorf("event %s was seen %d times", e.ID, seen[e.ID])
		}
	}
	if !slices.IsSortedFunc(dates, time.Time.Compare) {
		s.Errorf("not oldest first: %v", dates)
	}
}

// newPass: a page is no "greater than the last seen".
func newPass(s *suite) {
	late := newEvent(100)
	late.Date = noon.Add(-time.Hour)
	commit := s.BeginEvent(s, late)
	s.InsertEvents(s, newEvents(6)...)
	q := everything
	q.Limit = 4
	first := s.look(q)
	commit()
	if s.Mark == MarkNone {
		q.After = first.Next
		s.equal("the second page", 2, len(s.look(q).Events))
	}
	q.After = ""
	s.equal("the oldest event of a new pass", late.ID, s.look(q).Events[0].ID)
}

func (s *suite) looked(source string, at time.Time) {
	s.Helper()
	if err := s.Store.Looked(s.Context(), source, at); err != nil {
		s.Fatal(err)
	}
}

// sees says whether a look of the source sees the one event.
func (s *suite) sees(source string) bool {
	s.Helper()
	q := everything
	q.Source = source
	return len(s.undelivered(q)) == 1
}

// lookBack: after an outage that is longer than the look back, nothing is out of sight that was not seen before.
func lookBack(s *suite) {
	e := newEvent(1)
	e.Date = noon.Add(-s.LookBack - time.Hour)
	s.InsertEvents(s, e)
	bounded := s.LookBack > 0
	s.equal("seen without an earlier look", !bounded, s.sees("a"))
	s.looked("a", noon.Add(-2*time.Hour))
	s.equal("seen from an earlier look", true, s.sees("a"))
	s.equal("seen by another source", !bounded, s.sees("b"))
	s.looked("a", noon.Add(-time.Hour)) // exactly
	s.equal("seen from the edge", true, s.sees("a"))
	s.looked("a", noon.Add(-time.Hour+time.Microsecond))
	s.equal("seen from behind the edge", !bounded, s.sees("a"))
	s.looked("a", noon.Add(-2*time.Hour)) // the latest stands
	s.equal("seen after a look that reports late", !bounded, s.sees("a"))
	s.looked("b", noon.Add(1000*time.Hour)) // by a clock that comes back
	s.equal("seen from the future", !bounded, s.sees("b"))
	s.looked("b", noon.Add(-2*time.Hour))
	s.equal("seen after the future was corrected", true, s.sees("b"))
}

func lookBackFromGap(s *suite) {
	e := newEvent(1)
	e.Date = noon.Add(-s.LookBack - time.Hour)
	s.InsertEvents(s, e)
	bounded := s.LookBack > 0
	s.looked("a", noon)
	s.SetNow(s, noon.Add(-30*time.Minute))
	s.recordGap("a", cdc.Gap{Reason: "young"})
	s.SetNow(s, noon)
	s.equal("seen from a young gap", !bounded, s.sees("a"))
	s.SetNow(s, noon.Add(-2*time.Hour))
	s.recordGap("a", cdc.Gap{Reason: "old"})
	s.SetNow(s, noon)
	s.equal("seen from an old gap", true, s.sees("a"))
	s.equal("seen by another source", !bounded, s.sees("b"))
	s.closeGaps("a", noon)
	s.equal("seen when the gap is closed", !bounded, s.sees("a"))
}
