package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// Two large transactions are written in turns, so that the server has to spill
// both, while small ones commit in between. Nothing of the large ones is seen before their
// end; one is committed and seen whole, the other is rolled back and never seen (B23).
func TestGuarantee_RolledBackAndInterleaved(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		if _, ok := w.db.(*postgres); ok {
			w.alterDatabase("logical_decoding_work_mem = 64") // kB: the large ones are spilled
		}
		d := w.dispatch(options{}, steadyAndMoody(), hooks{})
		w.streaming()
		end := w.write(workload.Config{Writers: 8, Rate: 200})

		kept, undone := w.begin(), w.begin()
		var keptEvents, undoneEvents []ledger.Event
		for range 10 {
			n := testbed.Size(300, 30_000)
			keptEvents = append(keptEvents, w.insert(kept, n, "order.kept", `{"n": 1}`)...)
			undoneEvents = append(undoneEvents, w.insert(undone, n, "order.undone", `{"n": 2}`)...)
			after := w.emit(1, "order.between", `{}`)
			testdb.WaitFor(t, "an event committed in between", func() bool {
				return w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE event_id = $1 AND state = 'SUCCEEDED'`, after[0]) == 2
			})
		}
		const early = `SELECT count(*) FROM eventlog.event_notifications WHERE event_type IN ('order.kept', 'order.undone')`
		if n := w.number(early); n != 0 {
			t.Errorf("%d deliveries of transactions that have not committed", n)
		}
		w.rollback(undone, undoneEvents)
		w.commit(kept, keptEvents)
		w.letPass(50)
		end()
		w.settle()
		d.stop()
		w.wrecked = append(w.wrecked, "rollbacks, savepoints, spilled transactions")
		report := w.verdict()
		if report.RolledBack < 10*testbed.Size(300, 30_000) {
			t.Errorf("only %d events were rolled back", report.RolledBack)
		}
	})
}

// Every transaction of the log is handed over twice, nothing is ever confirmed,
// so that each life reads all of it again, and the poller takes events as early as it
// can. Each (event, handler) still has one delivery, and each handler ran once.
func TestGuarantee_DuplicateTriggerOneDeliveryPerHandler(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		// The slot must be there before the events, or the log would not have them.
		first := w.dispatch(options{}, steadyAndMoody(), hooks{source: deaf})
		w.streaming()
		first.stop()

		end := w.write(workload.Config{Writers: 8, Rate: 200})
		for range 3 {
			eager := options{Grace: time.Millisecond, PollInterval: 10 * time.Millisecond}
			d := w.dispatch(eager, steadyAndMoody(), hooks{source: deaf})
			w.streaming()
			w.letPass(150)
			w.caughtUp(d)
			d.stop()
			t.Logf("%s: %s", d.process, d.counts.totals())
			w.fault(d.process) // handlers that had started were told to stop
		}
		end()
		d := w.dispatch(options{}, steadyAndMoody(), hooks{source: deaf})
		w.settle()
		w.caughtUp(d)
		d.stop()
		committed, _, _ := w.writers.Counts()
		if got := d.counts.totals(); got.Repeated < committed {
			t.Errorf("the last life saw %d of %d events again: the log was not repeated", got.Repeated, committed)
		}
		w.wrecked = append(w.wrecked, "each trigger fired 2 to 8 times")
		w.verdict()
	})
}

// caughtUp waits until a deaf dispatcher has had every event of the log twice.
func (w *world) caughtUp(d *life) {
	w.t.Helper()
	committed, _, _ := w.writers.Counts()
	w.progressOf(fmt.Sprintf("the log to bring %d events twice", committed), func() int64 {
		return min(int64(d.counts.totals().Captured["log"]), 2*int64(committed))
	}, 2*int64(committed))
}

// stutter is a source that hands every transaction over twice and confirms none.
type stutter struct{ cdc.Source }

func deaf(s cdc.Source) cdc.Source { return stutter{s} }

// Ack implements cdc.Source.
func (stutter) Ack(cdc.Position) {}

// Run implements cdc.Source.
func (s stutter) Run(ctx context.Context, out chan<- cdc.Transaction) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	once := make(chan cdc.Transaction)
	done := make(chan error, 1)
	go func() { done <- s.Source.Run(ctx, once) }()
	for {
		select {
		case err := <-done:
			return err
		case tx := <-once:
			again := tx
			again.Partial, again.Position = true, ""
			// A store that keeps positions must not get one either.
			list := []cdc.Transaction{again, again}
			if tx.Gap != nil {
				list = []cdc.Transaction{tx}
			}
			for _, one := range list {
				select {
				case out <- one:
				case <-ctx.Done():
					return <-done
				}
			}
		}
	}
}
