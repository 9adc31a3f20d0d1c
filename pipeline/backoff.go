package pipeline

import (
	"context"
	"math/rand/v2"
	"time"
)

// pause paces the retries of one loop: it doubles from base to cap, and draws
// the upper half at random so that processes that failed together do not come back
// together.
type pause struct {
	base, cap time.Duration
	n         int
}

// next returns the pause after one more failure.
func (p *pause) next() time.Duration {
	d := p.cap
	if p.n < 32 && p.base<<p.n < p.cap {
		d = p.base << p.n
	}
	p.n++
	return d/2 + rand.N(d/2+1)
}

// reset is called after a success.
func (p *pause) reset() { p.n = 0 }

// sleep waits for d; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ended says whether ctx has ended.
func ended(ctx context.Context) bool { return ctx.Err() != nil }

// jittered returns d ± 10 %, so that replicas do not act in step.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
