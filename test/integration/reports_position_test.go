package integration

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// The tests of files reports_*_test.go are named by the number of the report against other
// dispatchers, see docs/guarantees.md.

// T11: the process is killed after its handlers have succeeded and before any outcome is
// written. Each delivery is made again, once, and nothing else is: this is the window in which
// at least once means twice. (The other window, between fan-out and its confirmation, is B3's.)
func TestT11_KilledBetweenSuccessAndItsRecord(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		o := options{SettleGate: t.TempDir() + "/never"}
		c := w.spawn(childLife{options: o})
		w.streaming()
		const events, deliveries = 20, 40
		w.emit(events, "order.placed", `{}`)
		testdb.WaitFor(t, "all handlers to have returned, and outcomes to be written", func() bool {
			_, err := os.Stat(o.SettleGate + ".waiting")
			return err == nil && c.started() >= deliveries && c.running() == 0
		})
		if n := w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE state <> 'PENDING' OR attempts <> 0`); n != 0 {
			t.Errorf("%d outcomes are recorded", n)
		}
		c.kill()
		lost := c.started() // as many as there are deliveries, unless leases ran out
		// One that ran out here would be a duplicate more.
		d := w.dispatch(options{Lease: time.Minute}, steadyAndMoody(), hooks{})
		w.settle()
		d.stop()
		if report := w.verdict(); report.Duplicates != lost {
			t.Errorf("duplicates = %d, want %d: one for each attempt whose outcome died with the process", report.Duplicates, lost)
		}
	})
}

// T13: the slot is dropped and made again by hand while the reader is cut off: nobody gets an error,
// and what was committed in between is not in the log. A gap with its two ends is recorded, the poller
// delivers all of it, and the state is good again by itself.
func TestT13_SlotRecreatedByHand(t *testing.T) {
	lostByHand(t, "slot recreated by hand", func(w *world) {
		w.exec(`SELECT pg_drop_replication_slot($1)`, slotName)
		w.emit(100, "order.unseen", `{}`)
		w.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slotName)
	})
}

// T14: the same, with a slot that somebody moves past what was read.
func TestT14_SlotMovedByHand(t *testing.T) {
	lostByHand(t, "slot moved by hand", func(w *world) {
		w.emit(100, "order.unseen", `{}`)
		w.exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, slotName)
	})
}

// lostByHand cuts the reader off while lose takes 100 events out of the log.
func lostByHand(t *testing.T, what string, lose func(w *world)) {
	eachPostgres(t, func(t *testing.T, w *world) {
		proxy, dsn := w.throughPostgres()
		// The poller alone would find the events as well, after an hour.
		o := neverPoll
		o.LogDSN = dsn
		soon := hooks{config: func(c *pipeline.Config) { c.Poller.SweepAgain = 300 * time.Millisecond }}
		d := w.dispatch(o, steadyAndMoody(), soon)
		w.streaming()
		w.emit(10, "order.seen", `{}`)
		w.settle()
		proxy.Refuse(true)
		proxy.Cut()
		testdb.WaitFor(t, "the slot to be free", func() bool {
			return w.number(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`, slotName) == 1
		})
		lose(w)
		w.wrecked = append(w.wrecked, what)
		proxy.Refuse(false)
		w.settle()
		w.streaming()
		w.progress("the gap to be closed", `SELECT count(*) FROM eventlog.gaps WHERE closed_date IS NOT NULL`, 1)
		if n := w.number(`SELECT count(*) FROM eventlog.gaps WHERE reason = 'slot_moved' AND from_position <> '' AND to_position <> ''
			AND from_position::pg_lsn < to_position::pg_lsn`); n != 1 {
			t.Errorf("gaps: %v, want one slot_moved with both ends", w.pairs(`SELECT reason, concat(from_position, ' to ', to_position) FROM eventlog.gaps`))
		}
		w.logBrings(d)
		said := ""
		testdb.WaitFor(t, "health to be good by itself", func() bool {
			ready, reasons := d.pipe.Health().Ready()
			if now := fmt.Sprintf("ready: %v, %q", ready, reasons); now != said {
				t.Log(now)
				said = now
			}
			return ready && len(reasons) == 0
		})
		w.settle()
		d.stop()
		if got := d.counts.totals(); got.Via["poll"] < 100 {
			t.Errorf("the poller brought %d events, want the 100 that the log lost: %s", got.Via["poll"], got)
		}
		w.verdict()
	})
}

// T19: the server invalidates the slot while nobody reads, because more log was written than
// max_slot_wal_keep_size allows. The next process makes one new slot, the poller drains the table,
// and the gap stays on record, with its setting, when it is closed; the process after that finds nothing to mend.
func TestT19_SlotInvalidatedWhileNobodyReads(t *testing.T) {
	settings := map[string]string{"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "48MB", "fsync": "off"}
	eachPostgresServer(t, settings, func(t *testing.T, w *world) {
		soon := hooks{config: func(c *pipeline.Config) { c.Poller.SweepAgain = 300 * time.Millisecond }}
		d := w.dispatch(neverPoll, steadyAndMoody(), soon)
		w.streaming()
		w.emit(10, "order.before", `{}`)
		w.settle()
		d.stop()
		w.emit(testbed.Size(200, 10_000), "order.lost", `{}`)
		testdb.WaitFor(t, "the slot to be lost", func() bool {
			w.exec(`SELECT pg_logical_emit_message(false, 'noise', 'x'); SELECT pg_switch_wal(); CHECKPOINT`)
			return w.text(`SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1`, slotName) == "lost"
		})
		w.wrecked = append(w.wrecked, "slot invalidated")
		for life := range 2 {
			d = w.dispatch(neverPoll, steadyAndMoody(), soon)
			w.settle()
			w.streaming()
			w.logBrings(d)
			w.progress("the gap to be closed", `SELECT count(*) FROM eventlog.gaps WHERE closed_date IS NULL`, 0)
			w.settle()
			d.stop()
			if n := w.number(`SELECT count(*) FROM eventlog.gaps`); n != 1 {
				t.Errorf("%d gaps after life %d, want 1", n, life)
			}
		}
		if n := w.number(`SELECT count(*) FROM eventlog.gaps WHERE reason = 'slot_lost' AND detail LIKE '%max_slot_wal_keep_size%'`); n != 1 {
			t.Errorf("gaps: %v", w.pairs(`SELECT reason, detail FROM eventlog.gaps`))
		}
		w.verdict()
	})
}
