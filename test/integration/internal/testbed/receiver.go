package testbed

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

// Receiver is a webhook receiver that keeps receipts: it outlives every dispatcher. An error
// of what it does with an attempt becomes the answer 503.
type Receiver struct {
	URL string

	do       func(ctx context.Context, p ledger.Pair, attempt int) error
	mu       sync.Mutex
	attempts map[ledger.Pair]int
	lives    map[string]*ledger.Recorder
}

// Receive starts a receiver that the test's cleanup stops. It numbers the attempts itself.
func Receive(t testing.TB, do func(ctx context.Context, p ledger.Pair, attempt int) error) *Receiver {
	t.Helper()
	r := &Receiver{do: do, attempts: map[ledger.Pair]int{}, lives: map[string]*ledger.Recorder{}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if err := r.take(req); err != nil {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

// Receipts is what all processes delivered.
func (r *Receiver) Receipts() (all []ledger.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, life := range r.lives {
		all = append(all, life.Receipts()...)
	}
	return all
}

// Webhooks is a list of handlers of the receiver for the configuration of one process.
func (r *Receiver) Webhooks(process, settings string, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, `  - name: %s
    on: ["*"]
    retry: {base: 50ms, cap: 1s}
    webhook: {url: %q, format: cloudevents, headers: {X-Process: %s, X-Handler: %s}}
%s`, name, r.URL, process, name, settings)
	}
	return b.String()
}

func (r *Receiver) take(req *http.Request) error {
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return err
	}
	pair := ledger.Pair{Event: req.Header.Get("Ce-Id"), Handler: req.Header.Get("X-Handler")}
	r.mu.Lock()
	r.attempts[pair]++
	attempt := r.attempts[pair]
	process := req.Header.Get("X-Process")
	life := r.lives[process]
	if life == nil {
		life = ledger.NewRecorder(process)
		r.lives[process] = life
	}
	r.mu.Unlock()
	return life.Wrap(event.HandlerFunc(func(ctx context.Context, _ event.Envelope) error {
		return r.do(ctx, pair, attempt)
	})).Handle(req.Context(), event.Envelope{
		Event: event.Event{ID: pair.Event}, Handler: pair.Handler, Attempt: attempt, DeliveryID: pair.String(),
	})
}
