package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

var (
	errAway   = errors.New("the database is away")
	errBadRow = error(refusal{})
)

// refusal is what a database says of a row: its message quotes a value.
type refusal struct{}

func (refusal) Error() string    { return "invalid input syntax: \"secret value\"" }
func (refusal) SQLState() string { return "22P02" }

// pipelineStore is a whole [Store] in memory: fakeStore's deliveries behind an
// event table.
type pipelineStore struct {
	*fakeStore

	// gate runs before a statement takes effect, lost after it has: an error of
	// either is what the caller gets. ids are the events of the statement.
	gate, lost func(ctx context.Context, op string, ids []string) error
	// refused are events that the database refuses, hopeless those that it refuses
	// in every form, markless those whose mark does not stick.
	refused, hopeless, markless map[string]bool

	tmu   sync.Mutex
	table []*tableRow
	keys  map[string]uuid.UUID // event and handler to delivery
	calls []string
	skips [][]string
	// shown are the events that looks have brought.
	shown map[string]bool
	gaps  []cdc.Gap
	// closed counts CloseGaps.
	closed int
	// closedAt is its last time, lookedAt the last of Looked.
	closedAt, lookedAt time.Time
	// traceless makes it a table without a mark.
	traceless  bool
	quarantine []string
	batches    []delivery.FanOut
	paused     map[string]delivery.Pause
	others     []delivery.Handler
	// unblocked is how many deliveries Unblock frees, also when it fails after that.
	unblocked int
}

type tableRow struct {
	ev        event.Event
	delivered bool
}

func newPipelineStore() *pipelineStore {
	return &pipelineStore{
		fakeStore: newFakeStore(), keys: map[string]uuid.UUID{}, shown: map[string]bool{},
		refused: map[string]bool{}, hopeless: map[string]bool{}, markless: map[string]bool{},
	}
}

// commit adds events to the table.
func (s *pipelineStore) commit(events ...event.Event) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	for _, ev := range events {
		s.table = append(s.table, &tableRow{ev: ev})
	}
}

// undelivered counts events that are not marked.
func (s *pipelineStore) undelivered() int {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	n := 0
	for _, r := range s.table {
		if !r.delivered {
			n++
		}
	}
	return n
}

// deliveries counts the delivery rows.
func (s *pipelineStore) deliveries() int {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return len(s.keys)
}

func (s *pipelineStore) note(op string) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.calls = append(s.calls, op)
}

// noted counts the calls of an operation.
func (s *pipelineStore) noted(op string) int {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == op {
			n++
		}
	}
	return n
}

func (s *pipelineStore) enter(ctx context.Context, op string, ids []string) error {
	s.note(op)
	if s.gate != nil {
		if err := s.gate(ctx, op, ids); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *pipelineStore) leave(ctx context.Context, op string, ids []string) error {
	if s.lost != nil {
		return s.lost(ctx, op, ids)
	}
	return nil
}

func (s *pipelineStore) Rejected(err error) bool {
	return errors.Is(err, errBadRow) || s.fakeStore.Rejected(err)
}

func (s *pipelineStore) FanOut(ctx context.Context, b delivery.FanOut) (delivery.FanOutResult, error) {
	var ids []string
	op := "image" // no row of the event table is touched
	for _, f := range b.Fans {
		ids = append(ids, f.Event.ID)
		if !f.ImageOnly {
			op = "fanout"
		}
	}
	if err := s.enter(ctx, op, ids); err != nil {
		return delivery.FanOutResult{}, err
	}
	for _, id := range ids {
		if s.refused[id] || s.hopeless[id] {
			return delivery.FanOutResult{}, errBadRow
		}
	}
	result := s.fan(b)
	return result, s.leave(ctx, op, ids)
}

func (s *pipelineStore) fan(b delivery.FanOut) delivery.FanOutResult {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	// A caller may go on to use its batch.
	kept := b
	kept.Fans = slices.Clone(b.Fans)
	for i := range kept.Fans {
		kept.Fans[i].Targets = slices.Clone(kept.Fans[i].Targets)
	}
	s.batches = append(s.batches, kept)
	var result delivery.FanOutResult
	for i, f := range b.Fans {
		row := s.find(f.Event.ID)
		switch {
		case f.ImageOnly && !f.FromLog:
			panic("no image of " + f.Event.ID)
		case f.FromLog && (row == nil || f.ImageOnly):
			result.Absent++
		case row == nil || row.delivered:
			result.Repeated++
			continue
		default:
			row.delivered = !s.markless[f.Event.ID] && (len(f.Targets) > 0 || !s.traceless)
			result.Fresh++
		}
		for j, t := range f.Targets {
			key := f.Event.ID + "\x00" + t.Handler
			if _, ok := s.keys[key]; ok {
				continue
			}
			s.keys[key] = t.ID
			r := &fakeRow{id: t.ID, handler: t.Handler, ev: f.Event, state: delivery.Pending, due: time.Now()}
			switch {
			case t.Blocked != "":
				r.state, r.reason = delivery.Blocked, t.Blocked
			case t.Lease:
				r.lease(b.Lease.Token, b.Lease.For)
			}
			s.rows[t.ID] = r
			result.Created = append(result.Created, delivery.Created{Fan: i, Target: j, Leased: t.Lease && t.Blocked == ""})
		}
	}
	return result
}

func (s *pipelineStore) find(id string) *tableRow {
	for _, r := range s.table {
		if r.ev.ID == id {
			return r
		}
	}
	return nil
}

func (s *pipelineStore) Quarantine(ctx context.Context, f delivery.Fan, _ error) error {
	if err := s.enter(ctx, "quarantine", []string{f.Event.ID}); err != nil {
		return err
	}
	if len(f.Targets) == 0 {
		return errors.New("it has no targets")
	}
	s.tmu.Lock()
	defer s.tmu.Unlock()
	if s.hopeless[f.Event.ID] {
		if s.find(f.Event.ID) == nil {
			return errors.Join(errBadRow, delivery.ErrAbsent)
		}
		return errBadRow
	}
	s.quarantine = append(s.quarantine, f.Event.ID)
	if r := s.find(f.Event.ID); r != nil {
		r.delivered = true
	}
	return nil
}

func (s *pipelineStore) Undelivered(ctx context.Context, q delivery.Undelivered) (delivery.Found, error) {
	at := time.Now()
	if err := s.enter(ctx, "look", nil); err != nil {
		return delivery.Found{}, err
	}
	m := matcher{Match: q.Types, exact: map[string]struct{}{}}
	for _, t := range q.Types.Exact {
		m.exact[t] = struct{}{}
	}
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.skips = append(s.skips, q.Skip)
	skip := make(map[string]bool, len(q.Skip))
	for _, id := range q.Skip {
		skip[id] = true
	}
	var all []event.Event
	for _, r := range s.table {
		if !r.delivered && m.matches(r.ev.Type) && !skip[r.ev.ID] && (q.After == "" || placeOf(r.ev) > q.After) {
			all = append(all, r.ev)
		}
	}
	slices.SortFunc(all, func(a, b event.Event) int { return cmp.Or(a.Date.Compare(b.Date), cmp.Compare(a.ID, b.ID)) })
	found := delivery.Found{At: at, Traceless: s.traceless}
	bytes := 0
	for _, ev := range all {
		bytes += len(ev.Payload)
		if found.More = len(found.Events) == q.Limit || q.MaxBytes > 0 && bytes > q.MaxBytes && len(found.Events) > 0; found.More {
			break
		}
		found.Events = append(found.Events, ev)
		s.shown[ev.ID] = true
	}
	if found.More && s.traceless {
		found.Next = placeOf(found.Events[len(found.Events)-1])
	}
	return found, nil
}

// placeOf is where an event stands in the order of the looks.
func placeOf(ev event.Event) string { return fmt.Sprintf("%020d %s", ev.Date.UnixNano(), ev.ID) }

func (s *pipelineStore) Looked(ctx context.Context, _ string, at time.Time) error {
	if err := s.enter(ctx, "looked", nil); err != nil {
		return err
	}
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.lookedAt = at
	return nil
}

// showed says whether a look has brought an event.
func (s *pipelineStore) showed(id string) bool {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return s.shown[id]
}

// looked is the time that [pipelineStore.Looked] kept last.
func (s *pipelineStore) looked() time.Time {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return s.lookedAt
}

func (s *pipelineStore) SyncHandlers(ctx context.Context, _ string, _ []delivery.Handler) (delivery.Registry, error) {
	if err := s.enter(ctx, "sync", nil); err != nil {
		return delivery.Registry{}, err
	}
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return delivery.Registry{Paused: s.paused, Others: s.others}, nil
}

func (s *pipelineStore) ShortenLeases(ctx context.Context, _ time.Duration) (int, error) {
	return 0, s.enter(ctx, "shorten", nil)
}

func (s *pipelineStore) BlockOrphans(ctx context.Context, _ time.Duration) (int, error) {
	return 0, s.enter(ctx, "orphans", nil)
}

func (s *pipelineStore) Unblock(ctx context.Context, _ []string) (int, error) {
	return s.unblocked, s.enter(ctx, "unblock", nil)
}

func (s *pipelineStore) RecordGap(ctx context.Context, _ string, gap cdc.Gap) error {
	if err := s.enter(ctx, "gap", nil); err != nil {
		return err
	}
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.gaps = append(s.gaps, gap)
	return nil
}

func (s *pipelineStore) CloseGaps(ctx context.Context, _ string, at time.Time) error {
	if err := s.enter(ctx, "close", nil); err != nil {
		return err
	}
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.closed++
	s.closedAt = at
	return nil
}

var _ Store = (*pipelineStore)(nil)

// fakeSlots records what fan-out asks of handling.
type fakeSlots struct {
	mu                          sync.Mutex
	free                        map[string]int
	reserved, released, accepts map[string]int
	jobs                        []job
	woken                       map[string]int
	paused                      map[string]delivery.Pause
	// breaths counts the waits for outcomes.
	breaths int
}

func newFakeSlots(free map[string]int) *fakeSlots {
	if free == nil {
		free = map[string]int{}
	}
	return &fakeSlots{free: free, reserved: map[string]int{}, released: map[string]int{}, accepts: map[string]int{}, woken: map[string]int{}}
}

func (s *fakeSlots) reserve(handler string, want int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := min(want, s.free[handler])
	s.free[handler] -= got
	s.reserved[handler] += got
	return got
}

func (s *fakeSlots) release(handler string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free[handler] += n
	s.released[handler] += n
}

func (s *fakeSlots) breathe(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaths++
}

func (s *fakeSlots) accept(jobs []job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = append(s.jobs, jobs...)
	for _, j := range jobs {
		s.accepts[j.sub.Name]++
	}
}

func (s *fakeSlots) wake(handler string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken[handler]++
}

func (s *fakeSlots) setPaused(p map[string]delivery.Pause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = p
}

func (s *fakeSlots) health() handlingHealth { return handlingHealth{} }
