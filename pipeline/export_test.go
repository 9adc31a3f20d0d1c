package pipeline

import "time"

// DefaultLease is the lease of a Config without one.
const DefaultLease = defaultLease

// HurryFanOut shortens the timeouts of fan-out, so that a test with a lock does
// not take minutes. It must be called before Run.
func (p *Pipeline) HurryFanOut(timeout time.Duration) {
	p.fanOut.timeout, p.fanOut.partTimeout = timeout, timeout
}

// AwaitLastWrites gives a stop so long to write its last outcomes and to end a claim under way, so that a test in
// which a stop loses nothing does not depend on the pace of its machine. It must be called before Run.
func (p *Pipeline) AwaitLastWrites(limit time.Duration) {
	p.handling.abandonAfter, p.handling.flushFor = limit, limit
}
