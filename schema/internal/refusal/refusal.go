// Package refusal remembers rows that a database refuses to change, for the SQL stores. It
// holds nothing but the list: no goroutine, no connection. What is forgotten costs a slow claim, never a row.
package refusal

import (
	"sync"
	"time"
)

// A row that the database refuses to update, because of a user's trigger or constraint,
// would otherwise stop every claim that meets it: claims begin at the oldest row, and
// that is where it stays.

// For is how long such a row is left out before it is tried again.
const For = time.Minute

// most bounds the list; beyond it the oldest entry is tried again early.
const most = 1000

// List is the list of rows to leave out. It is a hint of this process and no truth: an
// entry that is missing costs a slow claim.
type List struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// Add reports whether the id is new on the list.
func (r *List) Add(id string) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.until[id]
	if r.until == nil {
		r.until = map[string]time.Time{}
	}
	r.until[id] = now.Add(For)
	for len(r.until) > most {
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

// List returns what is to be left out now, never nil.
func (r *List) List() []string {
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
