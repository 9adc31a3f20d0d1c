package integration

import (
	"context"
	"sync"
	"time"
)

// senderPID is the server's process that sends the log.
const senderPID = `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`

// stalls measures how long this process and the server stood still together at most: one question follows
// the other, and on a machine that has stopped for a while the next answer is late.
type stalls struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
}

// beat notes an answer, or that it was asked how late the next one is.
func (s *stalls) beat(answered bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.longest = max(s.longest, now.Sub(s.last))
	if answered {
		s.last = now
	}
	return s.longest
}

// watchStalls measures until the test ends. A dispatcher that is stuck does not hold it up.
func (w *world) watchStalls() *stalls {
	s, db := &stalls{last: time.Now()}, w.db
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if _, err := db.Table(ctx, `SELECT 1`); err == nil {
				s.beat(true)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	return s
}

// sameSender fails the test when the log is sent by another process than before, and returns the one that sends it
// now. The reader answers twice in the timeout: when the machine stood still for about the other half, the server was
// right to cut the stream, and it must only be there again.
func (w *world) sameSender(before int64, timeout time.Duration, s *stalls) int64 {
	w.t.Helper()
	now := w.number(senderPID, slotName)
	if now == before {
		return now
	}
	longest := s.beat(false)
	if longest < timeout/3 {
		w.t.Errorf("the sender's process was %d and is %d: the stream was cut", before, now)
		return now
	}
	w.t.Logf("the sender's process was %d and is %d: this machine stood still for %s", before, now, longest)
	w.streaming()
	return w.number(senderPID, slotName)
}
