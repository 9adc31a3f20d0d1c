package admintest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// Run runs the suite.
func Run(t *testing.T, server Server) {
	t.Helper()
	for i, l := range server.Layouts {
		t.Run(l.Name, func(t *testing.T) {
			tests := eventTests()
			if i == 0 {
				tests = append(tests, defaultTests()...)
			}
			if l.NullDates {
				tests = append(tests, test{"ListEvents_PagesOfRowsWithoutADate", listEventsWithoutDate})
			}
			runOn(t, server, l, tests)
		})
	}
	t.Run(server.Loose.Name, func(t *testing.T) { runOn(t, server, server.Loose, looseTests()) })
}

func defaultTests() []test {
	var all []test
	for _, group := range [][]test{defaultEventTests(), deliveryTests(), orderTests(), handlerTests(), overviewTests()} {
		all = append(all, group...)
	}
	return all
}

func runOn(t *testing.T, server Server, l Layout, tests []test) {
	b := server.Open(t, l)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b.Reset(t)
			test.run(&suite{T: t, Backend: b, layout: l, admin: b.NewAdmin(admin.Config{})})
		})
	}
}

type test struct {
	name string
	run  func(*suite)
}

// suite is one test's backend with shorthands.
type suite struct {
	*testing.T
	Backend
	layout Layout
	admin  Admin
}

const week = 7 * 24 * time.Hour

func (s *suite) insert(r Row) uuid.UUID {
	s.Helper()
	id := uuid.Must(uuid.NewV7())
	if r.Event == uuid.Nil {
		r.Event = uuid.New()
	}
	if r.Handler == "" {
		r.Handler = "billing"
	}
	if r.Type == "" {
		r.Type = "order.placed"
	}
	if r.State == "" {
		r.State = delivery.Pending
	}
	s.PutDelivery(s, id, r)
	return id
}

func (s *suite) show(id uuid.UUID) admin.DeliveryStory {
	s.Helper()
	d, err := s.admin.ShowDelivery(s.Context(), id)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

func (s *suite) retry(r admin.Retry) admin.Done {
	s.Helper()
	if r.Actor == "" {
		r.Actor = "maria"
	}
	done, err := s.admin.RetryDeliveries(s.Context(), r)
	if err != nil {
		s.Fatal(err)
	}
	return done
}

func (s *suite) overview() admin.Overview {
	s.Helper()
	o, err := s.admin.Overview(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return o
}

func (s *suite) claim(handler string, window time.Duration, maxAttempts int) delivery.ClaimResult {
	s.Helper()
	got, err := s.Store.Claim(s.Context(), delivery.Lease{Token: uuid.New(), Owner: "w", For: time.Minute},
		[]delivery.Claim{{Handler: handler, Names: []string{handler}, Limit: 100, Window: window, MaxAttempts: maxAttempts}})
	if err != nil {
		s.Fatal(err)
	}
	return got
}

func (s *suite) emit(e admin.Emit) admin.Emitted {
	s.Helper()
	if e.Actor == "" {
		e.Actor = "maria"
	}
	out, err := s.admin.EmitEvent(s.Context(), e)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

func (s *suite) equal(what string, want, got any) {
	s.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func one(id uuid.UUID) admin.Filter { return admin.Filter{IDs: []uuid.UUID{id}} }

// undelivered is what the poller finds.
func (s *suite) undelivered() []event.Event {
	s.Helper()
	found, err := s.Store.Undelivered(s.Context(), delivery.Undelivered{Source: "main", Types: delivery.Match{All: true}, Limit: 10})
	if err != nil {
		s.Fatal(err)
	}
	return found.Events
}

// serve registers handlers as a process does, and returns who is paused.
func (s *suite) serve(handlers ...delivery.Handler) map[string]delivery.Pause {
	s.Helper()
	registry, err := s.Store.SyncHandlers(s.Context(), "host/1", handlers)
	if err != nil {
		s.Fatal(err)
	}
	return registry.Paused
}

func (s *suite) closeGaps() {
	s.Helper()
	if err := s.Store.CloseGaps(s.Context(), "main", s.Now(s)); err != nil {
		s.Fatal(err)
	}
}
