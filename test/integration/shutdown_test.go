package integration

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// Q20: the program is stopped while 500 handlers finish: no acknowledgement is
// lost. The race detector watches.
func TestQ20_StopWhileManyHandlersFinish(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		const n = 500
		w.subscribers = func(string) []string { return []string{"held"} }
		for range testbed.Size(3, 50) {
			var running atomic.Int64
			release := make(chan struct{})
			h := handle("held", func(ctx context.Context, _ event.Envelope) error {
				running.Add(1)
				<-release
				return nil
			})
			h.Concurrency = n
			d := w.dispatch(options{Lease: time.Minute}, []pipeline.Handler{h}, hooks{})
			w.streaming()
			w.emit(n, "order.placed", `{}`)
			testdb.WaitFor(t, "all handlers to run", func() bool { return running.Load() == n })
			close(release)
			d.stop()
			if left := w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE state <> 'SUCCEEDED'`); left != 0 {
				t.Fatalf("%d acknowledgements are missing after a clean stop", left)
			}
		}
		w.wrecked = append(w.wrecked, "stop with 500 handlers finishing")
		if report := w.verdict(); report.Duplicates != 0 {
			t.Errorf("duplicates = %d after clean stops, want none", report.Duplicates)
		}
	})
}

// Q21: acknowledgements wait for a lock that somebody holds. Handlers slow down instead
// of piling up, and every acknowledgement lands once the lock is gone.
func TestQ21_AcknowledgementsWaitForALock(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		w.subscribers = func(string) []string { return []string{"held"} }
		release := make(chan struct{})
		h := handle("held", func(ctx context.Context, _ event.Envelope) error {
			<-release
			return nil
		})
		d := w.dispatch(options{Lease: time.Minute}, []pipeline.Handler{h}, hooks{})
		w.streaming()
		w.emit(testbed.Size(2000, 50_000), "order.placed", `{}`)
		testdb.WaitFor(t, "the events to be fanned out", func() bool {
			return w.number(`SELECT count(*) FROM eventlog.events WHERE NOT delivered`) == 0
		})
		// Blocks every update of a delivery row, and no read.
		unlock := w.lockDeliveries(false)
		close(release)
		locked := time.Now()
		testdb.WaitFor(t, "acknowledgements to have waited", func() bool { return time.Since(locked) > time.Duration(testbed.Size(5, 30))*time.Second })
		if n := w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`); n != 0 {
			t.Errorf("%d acknowledgements passed the lock", n)
		}
		unlock()
		w.settle()
		d.stop()
		w.wrecked = append(w.wrecked, "acknowledgements blocked")
		if report := w.verdict(); report.Duplicates != 0 {
			t.Errorf("duplicates = %d, want none: the leases were long enough", report.Duplicates)
		}
	})
}

// Q23: a stop during the last attempt that is allowed gives it back: due at once,
// no attempt counted, no error recorded, and the next process succeeds.
func TestQ23_StopDuringTheLastAttemptGivesItBack(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		w.subscribers = func(string) []string { return []string{"last"} }
		var running atomic.Int64
		h := handle("last", func(ctx context.Context, _ event.Envelope) error {
			running.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})
		h.Retry.MaxAttempts = 1
		d := w.dispatch(options{Shutdown: 50 * time.Millisecond, Lease: time.Minute}, []pipeline.Handler{h}, hooks{})
		w.streaming()
		w.emit(5, "order.placed", `{}`)
		testdb.WaitFor(t, "the handlers to run", func() bool { return running.Load() == 5 })
		d.stop()
		w.fault(d.process)
		if n := w.number(`SELECT count(*) FROM eventlog.event_notifications
			WHERE state = 'PENDING' AND attempts = 0 AND coalesce(claim_count, 0) = 0 AND last_error IS NULL AND reason IS NULL
			  AND lease_until IS NULL AND next_retry_at <= {now}`); n != 5 {
			t.Errorf("%d of 5 deliveries were given back", n)
		}
		if n := w.number(`SELECT count(*) FROM eventlog.event_notification_attempts`); n != 0 {
			t.Errorf("%d attempts are recorded, want none", n)
		}
		again := handle("last", func(context.Context, event.Envelope) error { return nil })
		again.Retry.MaxAttempts = 1
		w.dispatch(options{}, []pipeline.Handler{again}, hooks{})
		w.settle()
		w.wrecked = append(w.wrecked, "soft stop in the last attempt")
		w.verdict()
	})
}
