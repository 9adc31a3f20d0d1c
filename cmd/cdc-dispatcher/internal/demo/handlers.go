package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// order is what the handler "ok" decodes payloads into.
type order struct {
	OrderID    string `json:"order_id"`
	Customer   string `json:"customer"`
	TotalCents int64  `json:"total_cents"`
}

// role is a handler together with the words that explain it on the screen.
type role struct {
	pipeline.Handler
	about string
}

// The retry policy of the demo: quick, so that retries are seen to happen.
var quickRetry = pipeline.RetryPolicy{Base: 200 * time.Millisecond, Cap: 2 * time.Second, Window: 7 * 24 * time.Hour}

// roles are the four handlers, each wrapped so that the ledger sees every start.
func roles(receipts *ledger.Recorder) []role {
	giveUp := quickRetry
	giveUp.MaxAttempts = 3
	all := []role{
		{pipeline.Handler{
			Name: "ok", On: []string{"*"}, Retry: quickRetry,
			Handler: event.Typed(func(context.Context, event.Envelope, order) error { return nil }),
		}, "returns at once; cannot decode one payload in 40"},
		{pipeline.Handler{
			Name: "slow", On: []string{"order.shipped"}, Retry: quickRetry,
			Handler: event.HandlerFunc(slow),
		}, "takes 100 to 300 ms"},
		{pipeline.Handler{
			Name: "flaky", On: []string{"*"}, Retry: quickRetry,
			Handler: event.HandlerFunc(flaky),
		}, "fails once or twice on one event in five"},
		{pipeline.Handler{
			Name: "failing", On: []string{"order.cancelled"}, Retry: giveUp,
			Handler: event.HandlerFunc(failing),
		}, "always fails; given up after 3 attempts"},
	}
	for i := range all {
		all[i].Handler.Handler = receipts.Wrap(all[i].Handler.Handler)
	}
	return all
}

// subscribers names the handlers that an event of a type fans out to, spelt out
// here a second time so that the ledger does not ask the code that it checks.
func subscribers(eventType string) []string {
	switch eventType {
	case "order.shipped":
		return []string{"ok", "slow", "flaky"}
	case "order.cancelled":
		return []string{"ok", "flaky", "failing"}
	default:
		return []string{"ok", "flaky"}
	}
}

func slow(ctx context.Context, e event.Envelope) error {
	timer := time.NewTimer(100*time.Millisecond + time.Duration(dice(e.ID)%200)*time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var (
	errFlaky   = errors.New("the demo's flaky handler had a bad moment")
	errFailing = errors.New("the demo's failing handler always fails")
)

// flaky fails once on a tenth of the events and twice on another.
func flaky(_ context.Context, e event.Envelope) error {
	if d := dice(e.ID) % 10; d < 2 && e.Attempt <= int(d)+1 {
		return errFlaky
	}
	return nil
}

func failing(context.Context, event.Envelope) error { return errFailing }

// dice is a number that is random among events and the same for each attempt.
func dice(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return binary.BigEndian.Uint64(h.Sum(nil)) >> 16
}

// drawing makes the application's events: mostly orders, one in 40 with a
// payload that "ok" cannot decode, one in 40 dated back beyond every retry window, as
// an import of old records would be. They are counted out, so that a short demo has some too.
func drawing() func(r *rand.Rand) workload.Spec {
	var n atomic.Int64
	return func(r *rand.Rand) workload.Spec {
		s := workload.Orders(r)
		switch n.Add(1) % 40 { // some of them are rolled back
		case 10:
			s.Payload = fmt.Appendf(nil, `{"order_id": "o-%08x", "customer": "c-0000", "total_cents": "one hundred"}`, r.Uint32())
		case 30:
			s.Age = quickRetry.Window + time.Hour
		}
		return s
	}
}
