package mysql

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// catchingUpAfter is how old a commit must be, when it is read, for the stream to count
// as behind.
const catchingUpAfter = 5 * time.Second

// status is what a Source says about itself. The atomics are written by the goroutine that
// owns the matter and read by anybody; the rest is behind mu.
type status struct {
	lag        atomic.Int64 // of the last commit, nanoseconds
	waiting    atomic.Bool  // for the consumer
	foreign    atomic.Int64
	gaps       atomic.Int64
	reconnects atomic.Int64
	lastByte   atomic.Int64 // Unix nanoseconds
	received   atomic.Pointer[cdc.Position]
	serverEnd  atomic.Pointer[place]

	mu       sync.Mutex
	mode     cdc.Mode
	detail   string
	warnings []string
}

func (s *status) setMode(mode cdc.Mode, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.detail = mode, detail
}

// started: a stream has begun.
func (s *status) started(st *stream) {
	s.lag.Store(0)
	s.received.Store(ptr(st.start.position()))
	s.serverEnd.Store(ptr(st.facts.current))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.detail, s.warnings = cdc.ModeStreaming, "", st.facts.warnings
}

// seen: the server was looked at.
func (s *status) seen(f facts) {
	s.serverEnd.Store(ptr(f.current))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = f.warnings
}

// Status implements [cdc.Reporter]. Lag in bytes exists only where positions are offsets of
// one file; elsewhere the age of the last commit tells whether the stream is behind.
func (s *Source) Status() cdc.Status {
	st := &s.status
	st.mu.Lock()
	mode, detail, warnings := st.mode, st.detail, st.warnings
	st.mu.Unlock()
	now := cdc.Status{
		Mode: mode, Detail: detail, LagBytes: -1, RetainedBytes: -1, RetainLimitBytes: -1,
		StaleAfter:  s.cfg.ReadTimeout,
		Reconnects:  st.reconnects.Load(),
		Gaps:        st.gaps.Load(),
		ForeignRows: st.foreign.Load(),
	}
	now.Durable, now.Confirmed = s.positions()
	if received := st.received.Load(); received != nil {
		now.Received = *received
	}
	if end := st.serverEnd.Load(); end != nil {
		now.ServerEnd = end.position()
		now.LagBytes = lagBytes(*end, now.Confirmed)
	}
	if last := st.lastByte.Load(); last != 0 {
		now.LastByte = time.Unix(0, last)
	}
	if mode != cdc.ModeStreaming {
		return now
	}
	if detail == "" {
		now.Detail = strings.Join(warnings, "; ")
	}
	switch {
	case st.waiting.Load():
		now.Mode, now.Detail = cdc.ModeCatchingUp, "waiting for the consumer"
		now.LastByte = time.Now() // nothing is read, so silence says nothing
	case time.Duration(st.lag.Load()) > catchingUpAfter:
		now.Mode = cdc.ModeCatchingUp
	}
	return now
}

// lagBytes is known within one file only.
func lagBytes(end place, confirmed cdc.Position) int64 {
	at, err := parsePlace(confirmed)
	if err != nil || end.mode != modeFile || at.mode != modeFile || at.server != end.server || at.file != end.file {
		return -1
	}
	return max(0, int64(end.offset)-int64(at.offset))
}
