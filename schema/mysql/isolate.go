package mysql

import (
	"sync"
	"time"
)

// A row that the database refuses to update, because of a user's trigger or constraint,
// would otherwise stop every claim that meets it: claims begin at the oldest row, and
// that is where it stays.

// refusedFor is how long such a row is left out before it is tried again.
const refusedFor = time.Minute

// refusedMost bounds the list; beyond it the oldest entry is tried again early.
const refusedMost = 1000

// refusals is the list of rows to leave out. It is a hint of this process and no truth: an
// entry that is missing costs a slow claim.
type refusals struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// add reports whether the id is new on the list.
func (r *refusals) add(id string) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.until[id]
	if r.until == nil {
		r.until = map[string]time.Time{}
	}
	r.until[id] = now.Add(refusedFor)
	for len(r.until) > refusedMost {
		var oldest string
		for id, until := range r.until {
			if oldest == "" || until.Before(r.until[oldest]) {
				oldest = id
			}
		}
		delete(r.until, oldest)
	}
	return !known
}

// list returns what is to be left out now.
func (r *refusals) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]string, 0, len(r.until))
	now := time.Now()
	for id, until := range r.until {
		if now.After(until) {
			delete(r.until, id)
			continue
		}
		ids = append(ids, id)
	}
	return ids
}
