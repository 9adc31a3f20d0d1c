package integration

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// T41: events of 2 MB, more of them than the bound has room for, go from the log to two handlers, of which one
// refuses all. T40: what is left of them, dead deliveries with their payloads, costs the next process nothing. The
// same with MySQL is 44 in the list of binlog readers.
func TestT40_T41_MemoryBesideManyLargeEvents(t *testing.T) {
	const working, starting, size = 256 << 20, 96 << 20, 2 << 20
	if os.Getenv("SOAK") == "" {
		testdb.Note(t, "only in a soak: events that do not fit into the bound take a minute to write")
		return
	}
	path := testbed.Build(t)
	eachPostgres(t, func(t *testing.T, w *world) {
		w.subscribers = func(string) []string { return []string{"refused", "taken"} }
		// The server compresses for longer than everything else takes.
		w.exec(`ALTER TABLE eventlog.events ALTER COLUMN payload SET STORAGE EXTERNAL;
			ALTER TABLE eventlog.event_notifications ALTER COLUMN payload SET STORAGE EXTERNAL`)
		w.receiver = testbed.Receive(t, func(_ context.Context, p ledger.Pair, _ int) error {
			if p.Handler == "refused" {
				return errMoody
			}
			return nil
		})
		handlers := strings.ReplaceAll(w.receiver.Webhooks("PROCESS", "    concurrency: 4\n", "refused"), "cap: 1s", "cap: 1s, max_attempts: 1") +
			w.receiver.Webhooks("PROCESS", "    concurrency: 4\n", "taken")
		p := w.run(path, handlers, ``)
		w.streaming()
		const n = 400
		unlock := w.lockDeliveries(true) // so that all of them queue
		payload := `{"filler": "` + filler(size) + `"}`
		for range n {
			w.emit(1, "order.heavy", payload)
		}
		unlock()
		w.settle()
		peak := testbed.PeakMemory(t, p.PID())
		p.stop()
		if peak > working {
			t.Errorf("peak of resident memory at work = %d MB, want at most %d MB", peak>>20, working>>20)
		}
		const dead = `SELECT count(*) FROM eventlog.event_notifications WHERE state = 'DEAD'`
		if got := w.number(dead); got != n {
			t.Errorf("%d deliveries are dead, want %d", got, n)
		}

		p = w.run(path, handlers, ``)
		w.streaming()
		w.succeedAt("taken", w.emit(1, "order.light", `{}`)[0])
		w.settle()
		rest := testbed.PeakMemory(t, p.PID())
		p.stop()
		if rest > starting {
			t.Errorf("peak of resident memory beside %d dead deliveries of 2 MB = %d MB, want at most %d MB", n, rest>>20, starting>>20)
		}
		w.wrecked = append(w.wrecked, fmt.Sprintf("%d events of 2 MB, peak %d MB, then %d MB", n, peak>>20, rest>>20))
		w.verdict()
	})
}

// succeedAt waits until one delivery of an event has succeeded.
func (w *world) succeedAt(handler, id string) {
	w.t.Helper()
	testdb.WaitFor(w.t, "the delivery to "+handler, func() bool {
		return w.text(`SELECT state FROM eventlog.event_notifications WHERE event_id = $1 AND handler_name = $2`, id, handler) == "SUCCEEDED"
	})
}
