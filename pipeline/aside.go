package pipeline

import (
	"cmp"
	"sync"
	"time"
)

const (
	// asideFirst and asideMost bound how long an event that was set aside waits for
	// its next try.
	asideFirst = time.Minute
	asideMost  = time.Hour
	// asideLimit bounds how many events are remembered, and so the size of the
	// poller's query.
	asideLimit = 20_000
)

// aside remembers events that this process cannot get out of the way for now, so
// that they do not fill every look of the poller, which takes the oldest first.
// They stay undelivered in their table and come up again when their time is over.
// It is memory only: a new process tries them at once. It may be used by several goroutines.
type aside struct {
	limit int // asideLimit when 0

	mu   sync.Mutex
	held map[string]heldEvent
	// full counts events that failed and did not fit.
	full int
}

type heldEvent struct {
	until time.Time
	times int
	// failed says that it is here because it could not be fanned out.
	failed bool
}

// fail sets an event aside that could not be fanned out.
func (a *aside) fail(id string, now time.Time) {
	fits := a.put(id, now)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !fits {
		a.full++
		return
	}
	h := a.held[id]
	h.failed = true
	a.held[id] = h
}

// refusals counts the events that failed and did not fit, so far.
func (a *aside) refusals() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.full
}

// passed says whether a pass over the whole table that began at the given time leaves no failed
// event. Those whose time was over then were looked for: they are not failed any more, unless
// they were set aside again.
func (a *aside) passed(begun time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	none := true
	for id, h := range a.held {
		switch {
		case !h.failed:
		case begun.Before(h.until):
			none = false
		default:
			h.failed = false
			a.held[id] = h
		}
	}
	return none
}

// put sets an event aside, longer every time; false means that there are too
// many of them.
func (a *aside) put(id string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, known := a.held[id]
	if limit := cmp.Or(a.limit, asideLimit); !known && len(a.held) >= limit {
		a.forget(now)
		if len(a.held) >= limit {
			return false
		}
	}
	if a.held == nil {
		a.held = make(map[string]heldEvent)
	}
	wait := asideMost
	if h.times < 6 {
		wait = min(asideFirst<<h.times, asideMost)
	}
	a.held[id] = heldEvent{until: now.Add(wait), times: h.times + 1, failed: h.failed}
	return true
}

// known says that the event was set aside before.
func (a *aside) known(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.held[id]
	return ok
}

// skip lists the events that are still to be left out.
func (a *aside) skip(now time.Time) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ids []string
	for id, h := range a.held {
		if now.Before(h.until) {
			ids = append(ids, id)
		}
	}
	return ids
}

// forget drops the events whose time is over. Until there is need for the room
// they are kept, so that one that fails again waits longer.
func (a *aside) forget(now time.Time) {
	for id, h := range a.held {
		if !now.Before(h.until) {
			if h.failed {
				a.full++
			}
			delete(a.held, id)
		}
	}
}

// size is how many events are left out now.
func (a *aside) size(now time.Time) int { return len(a.skip(now)) }
