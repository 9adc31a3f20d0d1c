package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// pollBench is a poller over fakes.
type pollBench struct {
	*fanBench
	p       *poller
	settled chan struct{}
	source  sync.Mutex
	state   sourceState
}

func newPollBench(t *testing.T, hasLog bool, c PollerConfig, handlers ...Handler) *pollBench {
	t.Helper()
	if len(handlers) == 0 {
		handlers = []Handler{on("a", []string{"*"}, "")}
	}
	b := &pollBench{fanBench: newFanBench(t, nil, handlers...), settled: make(chan struct{})}
	cfg := Config{Source: "test", Store: b.store, Poller: c, Handlers: handlers, Observer: b.obs, Logger: slog.New(slog.NewTextHandler(b.book, nil))}
	plan, err := cfg.prepare()
	if err != nil {
		t.Fatal(err)
	}
	b.p = newPoller(plan, b.router, b.fanOut)
	if hasLog {
		b.state.reading = readingNow
		b.p.settled, b.p.state = b.settled, func() sourceState {
			b.source.Lock()
			defer b.source.Unlock()
			return b.state
		}
	}
	return b
}

func (b *pollBench) setState(s sourceState) {
	b.source.Lock()
	defer b.source.Unlock()
	b.state = s
}

func (b *pollBench) launch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.p.run(ctx, context.WithoutCancel(ctx))
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// insert commits n events of a type that the log does not bring.
func (b *pollBench) insert(prefix, typ string, n int) {
	for i := range n {
		b.store.commit(event.Event{ID: fmt.Sprintf("%s-%04d", prefix, i), Type: typ, Payload: json.RawMessage(`{}`), Date: time.Now()})
	}
}
