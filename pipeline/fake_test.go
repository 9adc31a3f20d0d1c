package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// fakeStore is a HandlingStore in memory with the rules of behaviours.md 4.2. Its
// clock is time.Now, so that it follows a synctest bubble.
type fakeStore struct {
	// before runs before a statement takes effect, after when it has; an error from
	// either is what the caller gets. They tell statements apart by op: "claim",
	// "next", "settle", "renew".
	before, after func(ctx context.Context, op string) error
	// bad says that the database refuses this outcome.
	bad func(delivery.Outcome) bool
	// locked says that another session has the row locked. It is called with mu held.
	locked func(uuid.UUID) bool

	mu    sync.Mutex
	ids   uint64
	rows  map[uuid.UUID]*fakeRow
	calls map[string]int
	// largest is the largest number of items in one statement, by op.
	largest map[string]int
}

type fakeRow struct {
	id               uuid.UUID
	handler          string
	ev               event.Event
	state            delivery.State
	attempts, claims int
	due              time.Time
	token            uuid.UUID
	until            time.Time
	reason, code     string
	message          string
}

var errRejected = errors.New("value is not acceptable")

func newFakeStore() *fakeStore {
	return &fakeStore{rows: map[uuid.UUID]*fakeRow{}, calls: map[string]int{}, largest: map[string]int{}}
}

// add inserts n due deliveries.
func (s *fakeStore) add(handler string, n int) []uuid.UUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.insert(handler, n)
}

func (s *fakeStore) insert(handler string, n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		r := &fakeRow{
			id: s.newID(), handler: handler, state: delivery.Pending, due: time.Now(),
			ev: event.Event{ID: s.newID().String(), Type: "t", Payload: []byte(`{}`), Date: time.Now()},
		}
		s.rows[r.id], ids[i] = r, r.id
	}
	return ids
}

func (s *fakeStore) newID() (id uuid.UUID) {
	s.ids++
	binary.BigEndian.PutUint64(id[8:], s.ids)
	return id
}

// lease does what a fan-out with reserved slots does.
func (s *fakeStore) lease(sub *subscriber, n int, lease time.Duration) []job {
	at := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.insert(sub.Name, n)
	jobs := make([]job, n)
	for i, id := range ids {
		r := s.rows[id]
		r.lease(s.newID(), lease)
		jobs[i] = job{id: id, token: r.token, sub: sub, stored: r.handler, ev: r.ev, claims: 1, leasedAt: at}
	}
	return jobs
}

func (r *fakeRow) lease(token uuid.UUID, d time.Duration) {
	r.token, r.until = token, time.Now().Add(d)
	r.due = r.until
	r.claims++
}

func (r *fakeRow) unlease() { r.token, r.until = uuid.Nil, time.Time{} }

func (s *fakeStore) row(id uuid.UUID) fakeRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.rows[id]
}

func (s *fakeStore) states() map[delivery.State]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[delivery.State]int{}
	for _, r := range s.rows {
		out[r.state]++
	}
	return out
}

func (s *fakeStore) called(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

// do wraps a statement in the hooks.
func (s *fakeStore) do(ctx context.Context, op string, items int, effect func()) error {
	s.mu.Lock()
	s.calls[op]++
	s.largest[op] = max(s.largest[op], items)
	s.mu.Unlock()
	if s.before != nil {
		if err := s.before(ctx, op); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	effect()
	s.mu.Unlock()
	if s.after != nil {
		return s.after(ctx, op)
	}
	return nil
}

func (s *fakeStore) Claim(ctx context.Context, lease delivery.Lease, claims []delivery.Claim) (delivery.ClaimResult, error) {
	result := delivery.ClaimResult{Ended: map[string]map[delivery.State]int{}}
	err := s.do(ctx, "claim", len(claims), func() {
		for _, c := range claims {
			s.claim(lease, c, &result)
		}
	})
	if err != nil {
		return delivery.ClaimResult{}, err
	}
	return result, nil
}

func (s *fakeStore) claim(lease delivery.Lease, c delivery.Claim, result *delivery.ClaimResult) {
	now := time.Now()
	var due []*fakeRow
	for _, r := range s.rows {
		if slices.Contains(c.Names, r.handler) && r.state.Open() && !r.due.After(now) {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *fakeRow) int { return a.due.Compare(b.due) })
	for _, r := range due[:min(c.Limit, len(due))] {
		end := delivery.State("")
		switch {
		case c.Window > 0 && now.After(r.ev.Date.Add(c.Window)):
			end, r.reason = delivery.Expired, delivery.ReasonAge
		case c.MaxAttempts > 0 && r.claims >= c.MaxAttempts:
			end, r.reason = delivery.Dead, delivery.ReasonAttempts
		}
		if end != "" {
			r.state = end
			r.unlease()
			if result.Ended[c.Handler] == nil {
				result.Ended[c.Handler] = map[delivery.State]int{}
			}
			result.Ended[c.Handler][end]++
			continue
		}
		r.lease(lease.Token, lease.For)
		result.Claimed = append(result.Claimed, delivery.Claimed{
			ID: r.id, Token: r.token, Handler: c.Handler, Stored: r.handler, Event: r.ev, Attempts: r.attempts, Claims: r.claims,
		})
	}
}

func (s *fakeStore) NextDue(ctx context.Context, names []string) (in time.Duration, ok bool, err error) {
	err = s.do(ctx, "next", len(names), func() {
		for _, r := range s.rows {
			if d := time.Until(r.due); r.state.Open() && slices.Contains(names, r.handler) && (!ok || d < in) {
				in, ok = d, true
			}
		}
	})
	return in, ok, err
}

func (s *fakeStore) Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	var settled []delivery.Settled
	if s.bad != nil && slices.ContainsFunc(outcomes, s.bad) {
		return nil, cmp.Or(s.do(ctx, "settle", len(outcomes), func() {}), errRejected)
	}
	err := s.do(ctx, "settle", len(outcomes), func() {
		for _, o := range outcomes {
			if s.locked != nil && s.locked(o.ID) {
				settled = append(settled, delivery.Settled{ID: o.ID, Locked: true})
				continue
			}
			if r := s.rows[o.ID]; r != nil && r.state.Open() && r.token == o.Token && r.settle(o) {
				settled = append(settled, delivery.Settled{ID: r.id, State: r.state})
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return settled, nil
}

// Rejected recognises what Settle returns for a bad outcome.
func (s *fakeStore) Rejected(err error) bool { return errors.Is(err, errRejected) }

func (r *fakeRow) settle(o delivery.Outcome) bool {
	now := time.Now()
	r.reason, r.code, r.message = o.Reason, o.Error, o.Message
	switch o.Verdict {
	case delivery.Success:
		if !r.until.After(now) {
			return false
		}
		r.state = delivery.Succeeded
	case delivery.Retry:
		r.attempts++
		r.state, r.due = delivery.Failed, now.Add(o.Delay)
		switch {
		case o.Window > 0 && r.due.After(r.ev.Date.Add(o.Window)):
			r.state, r.reason = delivery.Expired, delivery.ReasonAge
		case o.MaxAttempts > 0 && r.claims >= o.MaxAttempts:
			r.state, r.reason = delivery.Dead, delivery.ReasonAttempts
		}
	case delivery.Fail:
		r.attempts++
		r.state = delivery.Dead
	case delivery.Block:
		r.claims--
		r.state = delivery.Blocked
	case delivery.Discard:
		r.state = delivery.Discarded
	case delivery.GiveBack:
		r.claims--
		r.due = now.Add(o.Delay)
	}
	r.unlease()
	return true
}

func (s *fakeStore) Renew(ctx context.Context, leases []delivery.LeaseRef, by time.Duration) (delivery.Renewal, error) {
	var result delivery.Renewal
	err := s.do(ctx, "renew", len(leases), func() {
		for _, l := range leases {
			if s.locked != nil && s.locked(l.ID) {
				result.Locked = append(result.Locked, l.ID)
				continue
			}
			if r := s.rows[l.ID]; r != nil && r.state.Open() && r.token == l.Token {
				r.until = time.Now().Add(by)
				r.due = r.until
				result.Held = append(result.Held, r.id)
			}
		}
	})
	return result, err
}

// recorder is an Observer that adds up.
type recorder struct {
	NopObserver
	mu       sync.Mutex
	counts   map[Counter]int
	attempts []AttemptStats
}

func (r *recorder) Count(c Counter, _ string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[Counter]int{}
	}
	r.counts[c] += n
}

func (r *recorder) Attempted(s AttemptStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts = append(r.attempts, s)
}

func (r *recorder) count(c Counter) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[c]
}

// logBook is a log that tests can read.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBook) lines(with string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), with)
}

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// process is the handling of one process, ready to run.
type process struct {
	*handling
	obs  *recorder
	book *logBook
	stop context.CancelFunc
	done chan error
}

// subscription is a handler with its defaults applied.
func subscription(h Handler) *subscriber {
	h.Concurrency = cmp.Or(h.Concurrency, defaultConcurrency)
	h.Timeout = cmp.Or(h.Timeout, defaultTimeout)
	h.Retry = h.Retry.withDefaults()
	return &subscriber{Handler: h, names: append([]string{h.Name}, h.Aliases...)}
}

// does makes a Handler named "h" of a function.
func does(fn func(ctx context.Context, e event.Envelope) error) Handler {
	return Handler{Name: "h", Handler: event.HandlerFunc(fn)}
}

// newProcess makes a handling with a shutdown timeout of 20 s.
func newProcess(store outcomeStore, lease time.Duration, handlers ...Handler) *process {
	p := &process{obs: &recorder{}, book: &logBook{}, done: make(chan error, 1)}
	c := handlingConfig{
		store: store, lease: lease, shutdownTimeout: 20 * time.Second, maxPayload: 1 << 20,
		owner: "test", observer: p.obs, logger: slog.New(slog.NewTextHandler(p.book, nil)),
	}
	for _, h := range handlers {
		c.subs = append(c.subs, subscription(h))
	}
	p.handling = newHandling(c)
	return p
}

// launch runs it until the test ends or halt is called.
func (p *process) launch(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	go func() { p.done <- p.run(ctx) }()
	t.Cleanup(func() {
		if p.stop != nil {
			if err := p.halt(); err != nil {
				t.Errorf("stop: %v", err)
			}
		}
	})
}

// halt stops softly and waits.
func (p *process) halt() error {
	p.stop()
	p.stop = nil
	return <-p.done
}

// bench is a process on a fake store.
type bench struct {
	*process
	store *fakeStore
}

// newBench makes one with a lease of 60 s.
func newBench(store *fakeStore, handlers ...Handler) *bench {
	return &bench{process: newProcess(store, time.Minute, handlers...), store: store}
}

// elapse lets a bubble's time pass, and everything settle that happens then.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// fanOut leases what there is room for and hands it over, as fan-out does.
func (b *bench) fanOut(name string, n int) int {
	got := b.reserve(name, n)
	b.accept(b.store.lease(b.lanes[name].sub, got, b.lease))
	return got
}
