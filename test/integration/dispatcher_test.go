package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// shortLease is the lease of a dispatcher under test unless the test says otherwise:
// short, as a killed one's deliveries wait for it.
const shortLease = 4 * time.Second

// options describe one life of a dispatcher. They travel to a child process as JSON.
type options struct {
	// DSN of the database. LogDSN is where the log is read from, DSN when empty.
	DSN, LogDSN string
	// Process names this life in receipts.
	Process string
	// Poll runs without the log.
	Poll bool
	// Lease, Grace (of the poller) and Shutdown are the pipeline's; zero is a short
	// value that suits a test.
	Lease, Grace, Shutdown time.Duration
	// PollInterval is the poller's pace beside a healthy log; zero is 1 s.
	PollInterval time.Duration
	// HangAfterFanOut stops before the position of the first fan-out can be confirmed (B3).
	HangAfterFanOut bool
	// FanOutGate, when not empty, is a file: before it exists no fan-out begins that ends a
	// transaction. Files with the endings .waiting and .done say how far one is.
	FanOutGate string
	// SettleGate, when not empty, is a file: before it exists no outcome is written. A file with the
	// ending .waiting says that one is to be.
	SettleGate string
	// Binlog is for MySQL and MariaDB.
	Binlog binlogOptions
}

// binlogOptions are settings of the reader of the binlog; zero is a value that suits a test.
type binlogOptions struct {
	ServerID                            uint32
	Heartbeat, SaveInterval, BackoffMin time.Duration
	MaxRecords                          int
}

// hooks are what only a dispatcher in this process can be given.
type hooks struct {
	// source stands between the reader and the pipeline.
	source func(cdc.Source) cdc.Source
	config func(*pipeline.Config)
}

// dispatcher is one life of the library, wired as a user's program would.
type dispatcher struct {
	pipe   *pipeline.Pipeline
	parts  parts
	counts *counts
}

// newDispatcher wires a pipeline over the handlers. Every handler must have been wrapped by rec.
func newDispatcher(ctx context.Context, o options, handlers []pipeline.Handler, rec *ledger.Recorder, logger *slog.Logger, h hooks) (*dispatcher, error) {
	p, err := partsOf(ctx, o)
	if err != nil {
		return nil, err
	}
	d := &dispatcher{parts: p, counts: newCounts()}
	config := pipeline.Config{
		Source:          "main",
		Store:           &spy{Store: p.store, receipts: rec, hang: o.HangAfterFanOut, gate: o.FanOutGate, settleGate: o.SettleGate},
		Handlers:        handlers,
		Lease:           orElse(o.Lease, shortLease),
		ShutdownTimeout: orElse(o.Shutdown, 10*time.Second),
		Poller: pipeline.PollerConfig{
			Interval: orElse(o.PollInterval, time.Second), ActiveInterval: 100 * time.Millisecond,
			Grace: orElse(o.Grace, 5*time.Second), SweepAgain: 5 * time.Second,
		},
		Owner:    o.Process,
		Logger:   logger,
		Observer: d.counts,
	}
	if !o.Poll {
		if err := p.readLog(&config, o, logger); err != nil {
			p.close()
			return nil, err
		}
		if h.source != nil {
			config.Log = h.source(config.Log)
		}
	}
	if h.config != nil {
		h.config(&config)
	}
	if d.pipe, err = pipeline.New(config); err != nil {
		p.close()
		return nil, err
	}
	return d, nil
}

// run blocks until ctx ends.
func (d *dispatcher) run(ctx context.Context) error {
	defer d.parts.close()
	return d.pipe.Run(ctx)
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// spy tells the recorder which outcomes have been written, so that the ledger
// knows which starts may be repeated after a kill.
type spy struct {
	pipeline.Store
	receipts *ledger.Recorder
	hang     bool
	gate     string

	settleGate string
}

// Settle implements pipeline.HandlingStore.
func (s *spy) Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	if s.settleGate != "" {
		if err := os.WriteFile(s.settleGate+".waiting", nil, 0o600); err != nil {
			return nil, err
		}
		awaitFile(s.settleGate)
	}
	settled, err := s.Store.Settle(ctx, outcomes)
	kept := map[uuid.UUID]bool{}
	for _, o := range outcomes {
		kept[o.ID] = o.Verdict != delivery.GiveBack // which leaves no trace of the attempt
	}
	var ids []string
	for _, one := range settled {
		if kept[one.ID] && !one.Locked {
			ids = append(ids, one.ID.String())
		}
	}
	return settled, errors.Join(err, s.receipts.Settled(ids...))
}

// FanOut implements pipeline.FanOutStore.
func (s *spy) FanOut(ctx context.Context, batch delivery.FanOut) (delivery.FanOutResult, error) {
	gated := s.gate != "" && batch.Position != ""
	if gated {
		if err := os.WriteFile(s.gate+".waiting", nil, 0o600); err != nil {
			return delivery.FanOutResult{}, err
		}
		awaitFile(s.gate)
	}
	result, err := s.Store.FanOut(ctx, batch)
	if gated && err == nil {
		err = os.WriteFile(s.gate+".done", nil, 0o600)
	}
	if err == nil && s.hang {
		<-ctx.Done()
	}
	return result, err
}

// counts is an observer that adds up.
type counts struct {
	pipeline.NopObserver

	mu       sync.Mutex
	captured map[string]int // events that arrived, by path
	via      map[string]int // events that a path was the first to fan out
	repeated int
	stale    int
	other    map[pipeline.Counter]int
}

func newCounts() *counts {
	return &counts{captured: map[string]int{}, via: map[string]int{}, other: map[pipeline.Counter]int{}}
}

// Captured implements pipeline.Observer.
func (c *counts) Captured(via string, n int, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.captured[via] += n
}

// FannedOut implements pipeline.Observer.
func (c *counts) FannedOut(s pipeline.FanOutStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.via[s.Via] += s.Events - s.Repeated
	c.repeated += s.Repeated
}

// Attempted implements pipeline.Observer.
func (c *counts) Attempted(s pipeline.AttemptStats) {
	if s.State == "" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stale++
	}
}

// Count implements pipeline.Observer.
func (c *counts) Count(name pipeline.Counter, _ string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.other[name] += n
}

// totals is a snapshot of counts; a child process prints it when it ends.
type totals struct {
	Captured, Via   map[string]int
	Repeated, Stale int
	Other           map[pipeline.Counter]int
}

func (c *counts) totals() totals {
	c.mu.Lock()
	defer c.mu.Unlock()
	return totals{Captured: maps.Clone(c.captured), Via: maps.Clone(c.via), Repeated: c.repeated, Stale: c.stale, Other: maps.Clone(c.other)}
}

// lapsed says that deliveries were lost to the end of their lease.
func (t totals) lapsed() bool { return t.Stale > 0 || t.Other[pipeline.CountLeaseLost] > 0 }

func (t totals) String() string {
	return fmt.Sprintf("captured %v, via %v, repeated %d, stale %d, %v", t.Captured, t.Via, t.Repeated, t.Stale, t.Other)
}

// newID is an event id.
func newID() string { return uuid.NewString() }
