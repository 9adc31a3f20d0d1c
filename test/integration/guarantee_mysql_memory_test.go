package integration

import (
	"fmt"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// 44: a transaction of 200,000 rows, and rows of 8 MB, compressed where a session can, are read
// while the program stays below 256 MB of resident memory. Most of the rows are for nobody, so that
// what is measured is the way from the log to the table; those that are for somebody arrive.
func TestMySQL44_MemoryBound(t *testing.T) {
	const bound = 256 << 20
	path := testbed.Build(t)
	eachMySQL(t, func(t *testing.T, w *world) {
		w.subscribers = func(eventType string) []string {
			if eventType == "order.bulk" {
				return nil
			}
			return []string{"reader"}
		}
		p := w.run(path, `  - {name: reader, on: ["order.placed", "order.heavy"], concurrency: 4, logger: {level: debug}}`, ``)
		w.streaming()
		n := testbed.Size(50_000, 200_000)
		w.emit(n, "order.bulk", `{"filler": "`+filler(400)+`"}`)
		heavy := `{"filler": "` + filler(8<<20-100) + `"}`
		s := w.session()
		if !w.mysql().Kind.IsMariaDB() {
			s.exec("SET SESSION binlog_transaction_compression = ON")
		}
		const heavies = 6
		for range heavies {
			s.emit(1, "order.heavy", heavy)
		}
		end := w.executed()
		w.emit(5, "order.placed", `{}`)
		testdb.WaitFor(t, "the log to be read to its end", func() bool { return w.contains(w.position(), end) })
		w.progress("what is for somebody to be delivered",
			`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`, heavies+5)
		peak := testbed.PeakMemory(t, p.PID())
		p.stop()
		if peak > bound {
			t.Errorf("peak of resident memory = %d MB, want at most %d MB", peak>>20, bound>>20)
		}
		w.wrecked = append(w.wrecked, fmt.Sprintf("%d rows at once, rows of 8 MB, peak %d MB", n, peak>>20))
		// The logger keeps no receipts: that SUCCEEDED is true is shown elsewhere.
		w.verdict(func(r *ledger.Report) { r.Phantom = nil })
	})
}
