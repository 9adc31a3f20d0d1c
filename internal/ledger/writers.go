package ledger

import (
	"sync"
	"time"
)

// Event is one event row that a writer inserted.
type Event struct {
	ID, Type string
	// At is when its writer sent COMMIT, by the writer's clock: the database's own
	// flush counts as part of the way to the handler.
	At time.Time
}

// Writers is what the writers know about their own transactions. The zero value
// is ready to use.
type Writers struct {
	mu         sync.Mutex
	committed  map[string]Event
	rolledBack map[string]Event
	unknown    map[string]Event
}

// Committed records events whose COMMIT was answered.
func (w *Writers) Committed(events ...Event) { w.put(&w.committed, events) }

// RolledBack records events that were undone: by ROLLBACK, by ROLLBACK TO a
// savepoint, or because their transaction failed before its COMMIT was sent.
func (w *Writers) RolledBack(events ...Event) { w.put(&w.rolledBack, events) }

// Unknown records events whose COMMIT was sent but never answered, because the
// connection or the server died. [Snapshot.Resolve] settles them.
func (w *Writers) Unknown(events ...Event) { w.put(&w.unknown, events) }

func (w *Writers) put(set *map[string]Event, events []Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *set == nil {
		*set = map[string]Event{}
	}
	for _, e := range events {
		(*set)[e.ID] = e
	}
}

// Counts returns how many events were committed, rolled back and left unknown so far.
func (w *Writers) Counts() (committed, rolledBack, unknown int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.committed), len(w.rolledBack), len(w.unknown)
}

// Snapshot copies the account.
func (w *Writers) Snapshot() Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Snapshot{
		Committed:  clone(w.committed),
		RolledBack: clone(w.rolledBack),
		Unknown:    clone(w.unknown),
	}
}

// Snapshot is the writers' account at one moment, by event id.
type Snapshot struct {
	Committed, RolledBack, Unknown map[string]Event
}

// Resolve returns the account with its unknown events settled by what the event
// table holds: a row that is there was committed, one that is not was rolled
// back. Nobody may have deleted event rows in between.
func (s Snapshot) Resolve(stored map[string]struct{}) Snapshot {
	out := Snapshot{Committed: clone(s.Committed), RolledBack: clone(s.RolledBack), Unknown: map[string]Event{}}
	for id, e := range s.Unknown {
		if _, ok := stored[id]; ok {
			out.Committed[id] = e
		} else {
			out.RolledBack[id] = e
		}
	}
	return out
}

// ResolveAfterLoss is Resolve for a database whose primary was lost for good. An unknown event that is not there any more may
// have been in the log of the one that is lost, for everybody to read, and stays unknown.
func (s Snapshot) ResolveAfterLoss(stored map[string]struct{}) Snapshot {
	out := s.Resolve(stored)
	for id, e := range s.Unknown {
		if _, ok := stored[id]; !ok {
			delete(out.RolledBack, id)
			out.Unknown[id] = e
		}
	}
	return out
}

func clone(m map[string]Event) map[string]Event {
	out := make(map[string]Event, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
