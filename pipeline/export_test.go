package pipeline

import "time"

// HurryFanOut shortens the timeouts of fan-out, so that a test with a lock does
// not take minutes. It must be called before Run.
func (p *Pipeline) HurryFanOut(timeout time.Duration) {
	p.fanOut.timeout, p.fanOut.partTimeout = timeout, timeout
}
