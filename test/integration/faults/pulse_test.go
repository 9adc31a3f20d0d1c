package faults

import (
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

// pulse watches whether this machine gives a process its time. On one that does not, nobody can
// watch a lease, and an overlap is no fault of the program's.
type pulse struct {
	mu    sync.Mutex
	gaps  []ledger.Fault
	worst time.Duration
}

const (
	beat = 20 * time.Millisecond
	// skipped is how late a beat must be to count. A lease leaves a tenth of itself as margin.
	skipped = lease / 20
)

// watch runs until the test ends.
func (p *pulse) watch(t testing.TB) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(beat)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			now := time.Now()
			p.note(last, now)
			last = now
		}
	})
	t.Cleanup(func() { close(done); wg.Wait() })
}

func (p *pulse) note(last, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := now.Sub(last) - beat
	p.worst = max(p.worst, late)
	if late > skipped {
		p.gaps = append(p.gaps, ledger.Fault{At: last, Until: now, Window: time.Second, Frozen: true})
	}
}

// faults are the moments in which the machine stood still, and how long the longest was.
func (p *pulse) faults() ([]ledger.Fault, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gaps, p.worst
}
