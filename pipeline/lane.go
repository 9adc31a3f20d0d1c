package pipeline

import (
	"context"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Bounds of the local queue of deliveries that are leased but not started.
const (
	// prefetchFor is how much work, by the handler's own pace, may wait here: enough
	// to bridge a round trip to the database, too little to matter to another process.
	prefetchFor = 250 * time.Millisecond
	// maxPrefetch bounds the queue of one handler in deliveries.
	maxPrefetch = 4096
	// maxQueuedBytes bounds the payloads in the queues of all handlers together.
	// Only a handler with idle workers may go beyond it, by one delivery for each.
	maxQueuedBytes = 32 << 20
	// outlier bounds how far one attempt moves the pace, as a multiple of it, and hiccup is what is within bounds anyway.
	outlier = 8
	hiccup  = time.Millisecond
	// shedAfter is how long deliveries beyond the prefetch, which shrinks when a handler
	// becomes slow, may wait before they are given back for others to run.
	shedAfter = time.Second
)

// phase is where an attempt is on its way.
type phase uint8

const (
	// phaseQueued: leased, not started.
	phaseQueued phase = iota
	// phaseRunning: the handler has been called and has not returned.
	phaseRunning
	// phaseEnded: it has an outcome that is not written yet.
	phaseEnded
	// phaseGone: removed from the in-flight set.
	phaseGone
)

// attempt is one leased delivery on its way through this process. Its fields
// are guarded by handling.mu, except where noted.
type attempt struct {
	job
	lane  *lane
	phase phase
	// tracked says that the in-flight set holds it; false only for a second lease
	// of a delivery whose first one is still in this process.
	tracked bool
	// queuedAt is when it was accepted, startedAt when its handler was called (zero
	// if never).
	queuedAt, startedAt time.Time
	// ctx is the handler's context without its timeout, cancel ends it. Both are set
	// when the attempt starts.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// lost: the lease was not to be trusted, and the handler was told so. gone: the
	// database said that this process does not hold it.
	lost, gone bool
	// stuck: the handler ignores the end of its context, and that was reported.
	stuck bool
	// size is the payload's length in bytes.
	size int64

	// Written by the worker while phaseRunning, read after phaseEnded.
	outcome    delivery.Outcome
	wait, took time.Duration
	// ambiguous: a statement with this outcome failed without saying whether it
	// took effect. reduced: the text of the outcome was refused and left out. Owned by
	// the writer.
	ambiguous, reduced bool
	// notBefore is when the outcome is tried again after its row was found locked. Guarded by
	// handling.mu.
	notBefore time.Time
}

// trustedUntil is when this process stops trusting its lease: early enough for
// the handler to notice before another process may claim the delivery.
func (a *attempt) trustedUntil(lease time.Duration) time.Time {
	return a.leasedAt.Add(lease - lease/10)
}

// lane is one handler's share of the process: its running attempts, its queue
// and its pace. Guarded by handling.mu.
type lane struct {
	sub *subscriber
	// queue holds leased attempts, oldest first.
	queue []*attempt
	// workers counts goroutines, each of which runs one attempt at a time or waits
	// for room for its outcome. Never above the handler's concurrency.
	workers int
	// reserved slots are promised to a fan-out or claim under way, and reservedBytes
	// is the guess at what they will bring.
	reserved      int
	reservedBytes int64
	paused        *delivery.Pause
	// more: the database may hold due deliveries that nobody leases.
	more bool
	pace pace
	// progress is when an attempt last started or ended.
	progress time.Time
}

// room is how many more deliveries the lane can take, given the bytes that all
// queues may still take.
func (l *lane) room(bytesLeft int64) int {
	taken := l.workers + len(l.queue) + l.reserved
	free := l.sub.Concurrency + l.pace.prefetch(l.sub.Concurrency) - taken
	idle := l.sub.Concurrency - taken
	return max(min(free, int(bytesLeft/l.pace.bytes())), idle, 0)
}

// worthClaiming says whether a claim would bring enough for its cost: half of
// the prefetch, or anything at all for a handler that would otherwise run dry.
func (l *lane) worthClaiming(room int) bool {
	return room > 0 && (len(l.queue)+l.reserved == 0 || room >= l.pace.prefetch(l.sub.Concurrency)/2)
}

// surplus is how many queued deliveries, from the end of the queue, the handler
// is now too slow for.
func (l *lane) surplus(now time.Time) int {
	if len(l.queue) == 0 || l.workers < l.sub.Concurrency || now.Sub(l.queue[0].queuedAt) < shedAfter {
		return 0
	}
	return max(len(l.queue)-l.pace.prefetch(l.sub.Concurrency), 0)
}

// pop takes the oldest queued attempt, nil when there is none.
func (l *lane) pop() *attempt {
	if len(l.queue) == 0 {
		return nil
	}
	a := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	return a
}

// pace learns how long a handler takes and how large its payloads are. It looks at
// attempts, not at traffic, so that a burst after a quiet night finds the right
// prefetch.
type pace struct {
	// mean is the moving average of an attempt's run time in ns, 0 while unknown.
	mean float64
	// largest is a slowly falling maximum of payload sizes in bytes.
	largest float64
}

// ended learns from one attempt that took so long.
func (p *pace) ended(took time.Duration) {
	sample := max(float64(took), 1)
	if p.mean == 0 {
		p.mean = sample
		return
	}
	// Attempts that waited for a processor, all that run at that moment, say little about the next ones. A handler
	// that has become slow is believed after some tens of attempts.
	sample = min(sample, max(outlier*p.mean, float64(hiccup)))
	p.mean += (sample - p.mean) / 64
}

// stalled learns that all workers have been busy for so long without any of
// them ending.
func (p *pace) stalled(since time.Duration) { p.mean = max(p.mean, float64(since)) }

// carried learns the size of one payload.
func (p *pace) carried(size int64) {
	p.largest = max(float64(size), p.largest-p.largest/64)
}

// bytes is what the next payload is assumed to weigh.
func (p *pace) bytes() int64 { return int64(p.largest) + 1024 }

// prefetch is how many deliveries may wait for a handler with n workers. While
// its pace is unknown, as many as it has workers.
func (p *pace) prefetch(n int) int {
	if p.mean == 0 {
		return n
	}
	return int(min(float64(prefetchFor)/p.mean*float64(n), maxPrefetch))
}
