package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func pollTests() []test {
	return []test{
		{"A43_OldestFirst", oldestFirst},
		{"A53_SentinelsAreSkipped", sentinelsSkipped},
		{"A54_OnlyWantedTypes", onlyWantedTypes},
		{"UndeliveredReadsWhatWasWritten", undeliveredContent},
		{"UndeliveredSkipsAndLimits", skipsAndLimits},
		{"Q26_ALateCommitWithAnOlderIDIsFound", lateCommit},
	}
}

var everything = delivery.Undelivered{Types: delivery.Match{All: true}} //nolint:gochecknoglobals // a constant

func oldestFirst(s *suite) {
	events := newEvents(20)
	shuffled := byID(events)
	s.InsertEvents(s, shuffled...)
	s.equal("order", ids(events), ids(s.undelivered(everything)))
	s.fanOut(fans(events[:5], "billing")...)
	s.equal("what is left", ids(events[5:]), ids(s.undelivered(everything)))
}

func sentinelsSkipped(s *suite) {
	sentinel, real := newEvent(1), newEvent(2)
	sentinel.Type, sentinel.Payload = "", nil
	s.InsertEvents(s, sentinel, real)
	s.equal("events", []string{real.ID}, ids(s.undelivered(everything)))
}

func onlyWantedTypes(s *suite) {
	types := []string{"order.placed", "order.paid", "orders", "invoice.sent", "Order.placed", "order_placed"}
	var events []event.Event
	for i, typ := range slices.Concat(types, types) {
		e := newEvent(i)
		e.Type = typ
		events = append(events, e)
	}
	s.InsertEvents(s, events...)
	for _, tc := range []struct {
		match delivery.Match
		want  []string
	}{
		{delivery.Match{}, nil},
		{delivery.Match{Exact: []string{"orders"}}, []string{"orders", "orders"}},
		{delivery.Match{Exact: []string{"orders", "none", "orders"}}, []string{"orders", "orders"}},
		{
			delivery.Match{Exact: []string{"orders", "order.paid"}},
			[]string{"order.paid", "orders", "order.paid", "orders"},
		},
		{
			delivery.Match{Prefixes: []string{"order."}},
			[]string{"order.placed", "order.paid", "order.placed", "order.paid"},
		},
		{
			delivery.Match{Prefixes: []string{"order.", "inv"}, Exact: []string{"order.paid"}},
			[]string{"order.placed", "order.paid", "invoice.sent", "order.placed", "order.paid", "invoice.sent"},
		},
		{delivery.Match{All: true}, slices.Concat(types, types)},
	} {
		var got []string
		for _, e := range s.undelivered(delivery.Undelivered{Types: tc.match}) {
			got = append(got, e.Type)
		}
		s.equal(fmt.Sprintf("%+v", tc.match), tc.want, got)
	}
}

func undeliveredContent(s *suite) {
	events := newEvents(2)
	events[1].Payload, events[1].ModelID, events[1].ModelType = nil, "", ""
	events[1].Traceparent, events[1].Headers = "", nil
	s.InsertEvents(s, events...)
	s.equal("events", s.comparable(events...), s.comparable(s.undelivered(everything)...))
}

func skipsAndLimits(s *suite) {
	events := newEvents(10)
	s.InsertEvents(s, events...)
	q := everything
	q.Limit, q.Skip = 3, []string{events[1].ID, events[2].ID}
	s.equal("events", []string{events[0].ID, events[3].ID, events[4].ID}, ids(s.undelivered(q)))
	q.Types = delivery.Match{Exact: []string{"order.placed"}}
	s.equal("events", []string{events[0].ID, events[3].ID, events[4].ID}, ids(s.undelivered(q)))
	q.Limit = -1
	s.equal("events", 0, len(s.undelivered(q)))
}

// lateCommit: the poller selects by state, never by "greater than the last seen".
func lateCommit(s *suite) {
	late, early := newEvent(1), newEvent(2)
	late.Date = noon.Add(-time.Hour)
	commit := s.BeginEvent(s, late)
	s.InsertEvents(s, early)
	found := s.undelivered(everything)
	s.equal("first look", []string{early.ID}, ids(found))
	s.fanOut(fans(found, "billing")...)
	commit()
	s.equal("second look", []string{late.ID}, ids(s.undelivered(everything)))
}
