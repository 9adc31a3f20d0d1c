package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// feedSource streams what the test puts into feed, and notes when it was stopped.
type feedSource struct {
	ackSource
	feed    chan cdc.Transaction
	mode    cdc.Mode
	mu      sync.Mutex
	stopped time.Time
	atStop  []cdc.Position
}

func (s *feedSource) Run(ctx context.Context, out chan<- cdc.Transaction) error {
	for {
		select {
		case tx := <-s.feed:
			select {
			case out <- tx:
			case <-ctx.Done():
			}
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.stopped, s.atStop = time.Now(), s.acked()
			return nil
		}
	}
}

func (s *feedSource) Status() cdc.Status {
	return cdc.Status{Mode: s.mode, LastByte: time.Now(), StaleAfter: time.Minute}
}

// engine is a whole pipeline over fakes.
type engine struct {
	*Pipeline
	store  *pipelineStore
	source *feedSource
	obs    *fanRecorder
	book   *logBook
	stop   context.CancelFunc
	done   chan error
	mu     sync.Mutex
	got    map[string]int
}

func newEngine(t *testing.T, change func(*Config)) *engine {
	t.Helper()
	e := &engine{store: newPipelineStore(), source: &feedSource{feed: make(chan cdc.Transaction), mode: cdc.ModeStreaming},
		obs: &fanRecorder{}, book: &logBook{}, done: make(chan error, 1), got: map[string]int{}}
	c := Config{
		Source: "test", Store: e.store, Log: e.source, Table: "eventlog.events", Decode: decodeRow,
		Handlers: []Handler{{Name: "h", On: []string{"*"}, Handler: event.HandlerFunc(e.handle)}},
		Observer: e.obs, Logger: slog.New(slog.NewTextHandler(e.book, nil)),
	}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	e.Pipeline = p
	return e
}

func (e *engine) handle(_ context.Context, env event.Envelope) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got[env.ID]++
	return nil
}

func (e *engine) launch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e.stop = cancel
	go func() { e.done <- e.Run(ctx) }()
}

// halt stops the pipeline, which has to be clean.
func (e *engine) halt(t *testing.T) {
	t.Helper()
	e.stop()
	if err := <-e.done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// commit puts an event into the table, and into the log.
func (e *engine) commit(n int) {
	id := fmt.Sprintf("e-%04d", n)
	e.store.commit(event.Event{ID: id, Type: "x", Payload: []byte(`{}`), Date: time.Now()})
	e.source.feed <- cdc.Transaction{Position: cdc.Position(fmt.Sprintf("0/%d", n)), CommitTime: time.Now(), Records: []cdc.Record{row(id, "x")}}
}

func TestPipelineFromCommitToHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.launch(t)
		synctest.Wait()
		start := time.Now()
		for n := 1; n <= 100; n++ {
			e.commit(n)
		}
		synctest.Wait()
		if len(e.got) != 100 {
			t.Errorf("%d events handled without time passing since %s", len(e.got), time.Since(start))
		}
		elapse(time.Minute)
		if ready, why := e.Health().Ready(); !ready || len(why) != 0 {
			t.Errorf("ready %t, %v", ready, why)
		}
		if diff := cmp.Diff(map[delivery.State]int{delivery.Succeeded: 100}, e.store.states()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		for id, n := range e.got {
			if n != 1 {
				t.Errorf("%s handled %d times", id, n)
			}
		}
		if n := e.obs.count(CountPolledMissed); n != 0 {
			t.Errorf("the poller found %d events in steady state", n)
		}
		e.halt(t)
		if e.Health().Running {
			t.Error("still running")
		}
	})
}

// The fan-out in flight is acknowledged before the source is stopped, and the
// deliveries it leased still run or are given back.
func TestPipelineStopsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.launch(t)
		synctest.Wait()
		hold := make(chan struct{})
		e.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "fanout" {
				<-hold
			}
			return nil
		}
		e.commit(1)
		synctest.Wait()
		e.stop()
		elapse(2 * time.Second)
		if !e.source.stopped.IsZero() {
			t.Error("the source was stopped before the last acknowledgement")
		}
		close(hold)
		if err := <-e.done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]cdc.Position{"0/1"}, e.source.atStop); diff != "" {
			t.Errorf("acknowledged when the source was stopped (-want +got):\n%s", diff)
		}
		if s := e.store.states(); s[delivery.Succeeded]+s[delivery.Pending] != 1 {
			t.Errorf("states %v", s)
		}
	})
}

func TestPipelineStopIsBoundedWhenTheDatabaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.launch(t)
		synctest.Wait()
		e.store.gate = func(ctx context.Context, op string, _ []string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		e.commit(1)
		synctest.Wait()
		start := time.Now()
		e.stop()
		if err := <-e.done; err != nil {
			t.Log("the stop was not clean:", err)
		}
		if d := time.Since(start); d > finishTimeout+time.Second {
			t.Errorf("stopped after %s", d)
		}
		if len(e.source.atStop) != 0 {
			t.Errorf("acknowledged %v", e.source.atStop)
		}
	})
}

func TestPipelineRegistersBeforeAnythingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		back := time.Now().Add(5 * time.Minute)
		e.store.gate = func(_ context.Context, op string, _ []string) error {
			if time.Now().Before(back) {
				return errAway
			}
			return nil
		}
		e.launch(t)
		elapse(4 * time.Minute)
		if n := len(e.store.calls); n != e.store.noted("sync") {
			t.Errorf("calls before registration: %v", e.store.calls)
		}
		ready, why := e.Health().Ready()
		if ready || !strings.Contains(strings.Join(why, ";"), "the database has been failing for 4m0s") {
			t.Errorf("ready %t, %v", ready, why)
		}
		if e.book.lines("registering the handlers failed") != 1 {
			t.Errorf("log:\n%s", e.book)
		}
		elapse(2 * time.Minute)
		if ready, why := e.Health().Ready(); !ready {
			t.Errorf("not ready: %v", why)
		}
		e.halt(t)
	})
}

func TestPipelineStopsWhileTheDatabaseIsAwayAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.store.gate = func(context.Context, string, []string) error { return errAway }
		e.launch(t)
		elapse(time.Minute)
		e.halt(t)
	})
}

func TestPipelineRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.launch(t)
		synctest.Wait()
		if err := e.Run(t.Context()); err == nil {
			t.Error("ran twice")
		}
		e.halt(t)
	})
}

func TestPipelinePausesAndResumesByTheHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.store.paused = map[string]delivery.Pause{"h": {By: "me", Reason: "maintenance"}}
		e.launch(t)
		synctest.Wait()
		for n := 1; n <= 10; n++ {
			e.commit(n)
		}
		elapse(time.Minute)
		if len(e.got) != 0 || len(e.store.keys) != 10 {
			t.Errorf("%d handled, %d deliveries", len(e.got), len(e.store.keys))
		}
		if h := e.Health().Handlers; len(h) != 1 || h[0].Paused == nil || h[0].Paused.Reason != "maintenance" {
			t.Errorf("health %+v", h)
		}
		e.store.tmu.Lock()
		e.store.paused = nil
		e.store.tmu.Unlock()
		elapse(15 * time.Second)
		if len(e.got) != 10 {
			t.Errorf("%d handled after the resume", len(e.got))
		}
		e.halt(t)
	})
}

func TestPipelineLosingTheLogIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &scriptedSource{script: []func(context.Context, *scriptedSource) error{
			fails(cdc.Permanent(errors.New("wal_level is replica"), "set it to logical"))}}
		e := newEngine(t, func(c *Config) { c.Log = broken })
		e.launch(t)
		elapse(10 * time.Second)
		for n := range 20 {
			e.store.commit(event.Event{ID: fmt.Sprint(n), Type: "x", Payload: []byte(`{}`)})
		}
		elapse(2 * time.Second)
		if len(e.got) != 20 || e.obs.count(CountPolledLogDown) != 20 {
			t.Errorf("%d handled, counts %v", len(e.got), e.obs.counts)
		}
		ready, why := e.Health().Ready()
		if !ready || len(why) != 1 || !strings.Contains(why[0], "set it to logical") {
			t.Errorf("ready %t, %v", ready, why)
		}
		e.halt(t)
	})
}

// A gap that cannot be recorded holds the log, which health tells.
func TestHealthTellsOfAGapThatCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, nil)
		e.store.gate = func(_ context.Context, op string, _ []string) error {
			if op == "gap" {
				return errAway
			}
			return nil
		}
		e.launch(t)
		synctest.Wait()
		e.source.feed <- cdc.Transaction{Gap: &cdc.Gap{Reason: "slot_lost"}, Position: "0/1"}
		elapse(time.Minute)
		h := e.Health()
		if _, why := h.Ready(); !h.FanOut.Present() || !strings.Contains(strings.Join(why, ";"), "fan-out has been failing") {
			t.Errorf("fan-out %+v, reasons %v", h.FanOut, why)
		}
		e.halt(t)
	})
}

func TestHealthReadiness(t *testing.T) {
	now := time.Now()
	good := Health{At: now, Running: true, Registered: true, Mode: cdc.ModeStreaming, PolledAt: now,
		Log: &cdc.Status{Mode: cdc.ModeStreaming, LastByte: now, StaleAfter: time.Minute}}
	bad := Trouble{Since: now.Add(-time.Minute), Err: errors.New("boom")}
	for _, tc := range []struct {
		name   string
		change func(*Health)
		ready  bool
		want   string
	}{
		{"streaming", func(*Health) {}, true, ""},
		{"not running", func(h *Health) { h.Running = false }, false, "not running"},
		{"database away", func(h *Health) { h.Database = bad }, false, "the database has been failing for 1m0s: boom"},
		{"not registered", func(h *Health) { h.Registered = false }, false, "not registered"},
		{"silent stream", func(h *Health) { h.Log.LastByte = now.Add(-2 * time.Minute) }, false, "silent for 2m0s"},
		{"standby", func(h *Health) { h.Mode = cdc.ModeStandby; h.Log.LastByte = time.Time{} }, true, ""},
		{"connecting, not polled since", func(h *Health) {
			h.Mode, h.LogTrouble, h.PolledAt = cdc.ModeConnecting, bad, now.Add(-2*time.Minute)
		}, false, "the poller has not looked yet"},
		{"log lost, polled since", func(h *Health) { h.Mode, h.LogTrouble = cdc.ModeConnecting, bad }, true, "reading the log has been failing"},
		{"log lost, poller failing", func(h *Health) { h.Mode, h.LogTrouble, h.Poller = cdc.ModeConnecting, bad, bad }, false, "the poller has been failing"},
		{"poll-only", func(h *Health) { h.Mode, h.Log = cdc.ModePolling, nil }, true, ""},
		{"poll-only, failing", func(h *Health) { h.Mode, h.Log, h.Poller = cdc.ModePolling, nil, bad }, false, "the poller has been failing"},
		{"fan-out failing", func(h *Health) { h.FanOut = bad }, true, "fan-out has been failing"},
		{"trigger failing", func(h *Health) { h.Triggers = map[string]Trouble{"t": bad} }, true, "trigger t has been failing"},
		{"set aside", func(h *Health) { h.SetAside = 3 }, true, "3 events are set aside"},
	} {
		h := good
		status := *good.Log
		h.Log = &status
		tc.change(&h)
		ready, why := h.Ready()
		if ready != tc.ready || !strings.Contains(strings.Join(why, "; "), tc.want) || (tc.want == "") != (len(why) == 0) {
			t.Errorf("%s: ready %t, %q; want %t, %q", tc.name, ready, why, tc.ready, tc.want)
		}
	}
}
