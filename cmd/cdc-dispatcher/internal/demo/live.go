package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// live is the observer of the pipeline: what the tables do not tell.
type live struct {
	pipeline.NopObserver

	phase             atomic.Value // string
	viaLog, viaPoller atomic.Int64
	starts            atomic.Int64

	mu    sync.Mutex
	waits []time.Duration // a ring of the latest first attempts
	next  int
}

// waitsKept is how many waits the picture's percentiles are over.
const waitsKept = 2048

func newLive() *live {
	l := &live{}
	l.phase.Store("starting")
	return l
}

// FannedOut implements pipeline.Observer.
func (l *live) FannedOut(s pipeline.FanOutStats) {
	n := int64(s.Events - s.Repeated)
	if s.Via == "log" {
		l.viaLog.Add(n)
	} else {
		l.viaPoller.Add(n)
	}
}

// Attempted implements pipeline.Observer.
func (l *live) Attempted(s pipeline.AttemptStats) {
	l.starts.Add(1)
	if s.Attempt != 1 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waits) < waitsKept {
		l.waits = append(l.waits, s.Wait)
		return
	}
	l.waits[l.next] = s.Wait
	l.next = (l.next + 1) % waitsKept
}

func (l *live) percentiles() (p50, p99 time.Duration) {
	l.mu.Lock()
	sorted := slices.Clone(l.waits)
	l.mu.Unlock()
	slices.Sort(sorted)
	return ledger.Percentile(sorted, 50), ledger.Percentile(sorted, 99)
}

const (
	// frameEvery and lineEvery are how often the picture and the line are renewed.
	frameEvery = 250 * time.Millisecond
	lineEvery  = time.Second
	// restFactor keeps the view's own query below a tenth of the time.
	restFactor = 10
)

// watch shows pictures until ctx ends, and a last one then.
func (s *stage) watch(ctx context.Context) error {
	every := lineEvery
	if s.Live {
		every = frameEvery
	}
	screen := &screen{out: s.Out}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last := false; ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			last = true
		}
		began := time.Now()
		err := s.show(context.WithoutCancel(ctx), screen)
		if err != nil || last {
			return errors.Join(err, screen.close())
		}
		timer.Reset(max(every, restFactor*time.Since(began)))
	}
}

// show shows one picture.
func (s *stage) show(ctx context.Context, screen *screen) error {
	p, err := s.look(ctx)
	if err != nil {
		return err
	}
	if s.Live {
		return screen.draw(frame(p, painter{on: s.Color}))
	}
	_, err = fmt.Fprintln(s.Out, line(p))
	return err
}

// look takes a picture of the tables.
func (s *stage) look(ctx context.Context) (picture, error) {
	p := picture{
		server: s.host.version + " (" + s.host.origin + ")", look: s.host.look,
		elapsed: time.Since(s.began), total: s.For, phase: s.live.phase.Load().(string),
		viaLog: int(s.live.viaLog.Load()), viaPoller: int(s.live.viaPoller.Load()), starts: int(s.live.starts.Load()),
		roles: s.roles, table: s.ground.table().Schema + ".event_notifications",
	}
	p.committed, p.undone, _ = s.writers.Counts()
	p.p50, p.p99 = s.live.percentiles()
	var err error
	if p.states, err = s.ground.states(ctx); err != nil {
		return p, fmt.Errorf("count deliveries: %w", err)
	}
	return p, nil
}
