package postgres

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lateFor is how long an event is waited for. Beyond it, such as behind a stuck
	// synchronous standby, the poller finds it; a row that was deleted never comes.
	lateFor = time.Minute
	// lateEvery is the shortest time between two tries, lateMost how many are remembered.
	lateEvery = 50 * time.Millisecond
	lateMost  = 1000
)

// late remembers the events that were fanned out from the log's image and whose rows were
// not in sight even then, so that they are marked as soon as they are. It saves work only: what it
// forgets, the poller marks.
type late struct {
	mu     sync.Mutex
	events []lateEvent // oldest first
	tried  time.Time
}

// lateEvent is one of them.
type lateEvent struct {
	id, key string
	targets int64
	since   time.Time
}

func (l *late) add(events ...lateEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, events...)
	if n := len(l.events) - lateMost; n > 0 {
		l.events = slices.Delete(l.events, 0, n)
	}
}

// due takes all that is to be tried now.
func (l *late) due(now time.Time) []lateEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.tried) < lateEvery {
		return nil
	}
	l.tried = now
	all := l.events
	l.events = nil
	return slices.DeleteFunc(all, func(e lateEvent) bool { return now.Sub(e.since) > lateFor })
}

// markLateSQL marks the events of a batch that are in sight by now. They are other events than those that the
// caller works on, so it waits for none of them: a row that a session has locked is left for the next try.
const markLateSQL = `
WITH batch AS MATERIALIZED (
    SELECT b.id::uuid AS id, b.key::{key} AS key, b.targets
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS b (id, key, targets)
    JOIN {from} AS t ON {id} = ANY (ARRAY[b.key::{key}])
    WHERE {pending}
    FOR NO KEY UPDATE OF t SKIP LOCKED
)
{mark} RETURNING b.id::text`

// markLate marks what has come into sight. What goes wrong here goes wrong in the caller's own
// statement too and is reported there; the events are tried again.
func (s *Store) markLate(ctx context.Context, t *eventTable) {
	events := s.late.due(time.Now())
	if len(events) == 0 {
		return
	}
	var ids, keys []string
	var targets []int64
	for _, e := range events {
		ids, keys, targets = append(ids, e.id), append(keys, e.key), append(targets, e.targets)
	}
	marked, err := changeRows(ctx, s, durableFor(len(events)), pgx.RowTo[string], t.markLate, ids, keys, targets)
	if err == nil {
		events = slices.DeleteFunc(events, func(e lateEvent) bool { return slices.Contains(marked, e.id) })
	}
	s.late.add(events...)
}
