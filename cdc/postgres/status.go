package postgres

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// silenceWithoutLimit is how long a silent stream counts as alive when the
// server has no wal_sender_timeout.
const silenceWithoutLimit = 45 * time.Second

// catchingUpAfter is how old a commit must be, when the server sends it, for the
// stream to count as behind.
const catchingUpAfter = 5 * time.Second

// status is what a Source says about itself. The atomics are written by the
// goroutine that owns the matter and read by anybody; the rest is behind mu.
type status struct {
	// Written by the stream; serverEnd by the watcher, too.
	epoch                        atomic.Uint64
	received, durable, confirmed atomic.Uint64
	serverEnd                    atomic.Uint64
	lag                          atomic.Int64 // of the last commit, nanoseconds
	waiting                      atomic.Bool  // for the consumer
	foreign                      atomic.Int64
	gaps                         atomic.Int64
	// Written below the stream, by the connection itself.
	lastByte atomic.Int64 // Unix nanoseconds
	// Written by the goroutine that supervises.
	reconnects atomic.Int64
	staleAfter atomic.Int64 // nanoseconds
	// Written by the watcher.
	retained, retainLimit atomic.Int64
	heldByStandby         atomic.Bool

	mu     sync.Mutex
	mode   cdc.Mode
	detail string
}

func (s *status) init() {
	s.mode = cdc.ModeStopped
	s.retained.Store(-1)
	s.retainLimit.Store(-1)
}

func (s *status) setMode(mode cdc.Mode, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.detail = mode, detail
}

// raiseServerEnd notes how far the server's log reaches. Stream and watcher both
// hear of it.
func (s *status) raiseServerEnd(end uint64) {
	for {
		last := s.serverEnd.Load()
		if end <= last || s.serverEnd.CompareAndSwap(last, end) {
			return
		}
	}
}

// Status implements [cdc.Reporter].
func (s *Source) Status() cdc.Status {
	st := &s.status
	st.mu.Lock()
	mode, detail := st.mode, st.detail
	st.mu.Unlock()
	epoch := st.epoch.Load()
	at := func(p *atomic.Uint64) cdc.Position { return mark{epoch, resumePoint(p.Load())}.position() }
	now := cdc.Status{
		Mode:             mode,
		Detail:           detail,
		Received:         at(&st.received),
		Durable:          at(&st.durable),
		Confirmed:        at(&st.confirmed),
		ServerEnd:        at(&st.serverEnd),
		LagBytes:         -1,
		RetainedBytes:    st.retained.Load(),
		RetainLimitBytes: st.retainLimit.Load(),
		StaleAfter:       time.Duration(st.staleAfter.Load()),
		Reconnects:       st.reconnects.Load(),
		Gaps:             st.gaps.Load(),
		ForeignRows:      st.foreign.Load(),
	}
	if last := st.lastByte.Load(); last != 0 {
		now.LastByte = time.Unix(0, last)
	}
	if end, confirmed := st.serverEnd.Load(), st.confirmed.Load(); end != 0 && confirmed != 0 {
		now.LagBytes = int64(max(end, confirmed) - confirmed)
	}
	if mode != cdc.ModeStreaming {
		return now
	}
	switch {
	case st.heldByStandby.Load():
		now.Mode = cdc.ModeWaitingForStandby
		now.Detail = "the server waits for a standby in synchronized_standby_slots before it sends more"
	case st.waiting.Load():
		now.Mode, now.Detail = cdc.ModeCatchingUp, "waiting for the consumer"
		now.LastByte = time.Now() // nothing is read, so silence says nothing
	case time.Duration(st.lag.Load()) > catchingUpAfter:
		now.Mode = cdc.ModeCatchingUp
	}
	return now
}
