package integration

import (
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// kills is how often a dispatcher is killed under load.
func kills() int { return testbed.Size(6, 24) }

// The dispatcher is killed with SIGKILL at random points of its life, from its
// first connection on, while 16 writers go on committing. Nothing is lost, and
// what ran twice had not been acknowledged. The same property is asked for by
// B5 (a position one byte too far) with its own figures.
func TestGuarantee_NoLossUnderKill9OfDispatcher(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		end := w.write(workload.Config{Writers: 16, Rate: 250})
		for i := range kills() {
			c := w.spawn(childLife{})
			if i%3 == 0 { // while it starts
				w.letPass(w.rng.IntN(200))
			} else {
				w.letSucceed(w.rng.IntN(300))
			}
			c.kill()
		}
		last := w.spawn(childLife{})
		w.letPass(200)
		end()
		w.settle()
		t.Logf("last life: %s", last.stop())
		w.verdict()
	})
}

// letPass waits until the writers have committed n more events.
func (w *world) letPass(n int) {
	w.t.Helper()
	before, _, _ := w.writers.Counts()
	testdb.WaitFor(w.t, "more commits", func() bool {
		now, _, _ := w.writers.Counts()
		return now >= before+n
	})
}

// letSucceed waits until n more deliveries have succeeded.
func (w *world) letSucceed(n int) {
	w.t.Helper()
	const query = `SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`
	target := w.number(query) + int64(n)
	testdb.WaitFor(w.t, "more deliveries to succeed", func() bool { return w.number(query) >= target })
}

// Two processes share the work and are killed in turn: the log is taken over by
// the other, and so are the leases.
func TestGuarantee_NoLossUnderKill9OfOneOfTwoReplicas(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		end := w.write(workload.Config{Writers: 8, Rate: 300})
		replicas := []*child{w.spawn(childLife{}), w.spawn(childLife{})}
		for i := range 6 {
			w.letPass(50 + w.rng.IntN(200))
			replicas[i%2].kill()
			replicas[i%2] = w.spawn(childLife{})
		}
		w.letPass(100)
		end()
		w.settle()
		for _, r := range replicas {
			t.Logf("%s: %s", r.process, r.stop())
		}
		w.verdict()
	})
}

// B1: a keepalive's position must not be confirmed while fan-out has not
// finished. Fan-out is blocked by a lock, unrelated log brings keepalives, the process is
// killed: the event is delivered after the restart, and meanwhile the slot
// stayed below its commit.
func TestB1_KeepalivePositionIsNotConfirmedWhileFanOutIsOpen(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		w.exec(`CREATE TABLE neighbour (filler text)`)
		w.senderTimeout(2 * time.Second)
		c := w.spawn(childLife{})
		w.streaming()
		unlock := w.lockDeliveries(true)
		w.emit(1, "order.placed", `{"n": 1}`)
		commit := w.text(`SELECT pg_current_wal_insert_lsn()::text`)
		for range 3 {
			w.exec(`INSERT INTO neighbour SELECT repeat(md5(i::text), 30) FROM generate_series(1, 2000) i`)
			w.heard(w.text(`SELECT pg_current_wal_lsn()::text`))
			if n := w.number(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn < $2::pg_lsn`,
				slotName, commit); n != 1 {
				t.Fatalf("the slot is at %s, beyond the blocked event's commit at %s",
					w.text(`SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, slotName), commit)
			}
		}
		c.kill()
		unlock()
		w.spawn(childLife{})
		w.settle()
		w.verdict()
	})
}

// heard waits until the server has sent its log up to lsn and has had an answer
// since.
func (w *world) heard(lsn string) {
	w.t.Helper()
	const query = `SELECT count(*) FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid
		WHERE s.slot_name = $1 AND r.sent_lsn >= $2::pg_lsn AND r.reply_time > $3::timestamptz`
	testdb.WaitFor(w.t, "the server to send "+lsn, func() bool { return w.number(query, slotName, lsn, "-infinity") == 1 })
	sent := w.text(`SELECT clock_timestamp()::text`)
	testdb.WaitFor(w.t, "an answer after "+lsn, func() bool { return w.number(query, slotName, lsn, sent) == 1 })
}

// lockDeliveries locks the delivery table against writers, or against everybody. The
// returned function unlocks it.
func (w *world) lockDeliveries(all bool) (unlock func()) {
	w.t.Helper()
	end, err := w.db.LockDeliveries(w.t.Context(), all)
	if err != nil {
		w.t.Fatal(err)
	}
	open := true
	unlock = func() {
		if open {
			open = false
			if err := end(); err != nil {
				w.t.Error(err)
			}
		}
	}
	w.t.Cleanup(unlock)
	return unlock
}

// B3: the process dies after its fan-out is durable and before it confirms, and a
// second event came in between: that one must not have been confirmed with the first.
func TestB3_EventBetweenFanOutAndConfirmIsDelivered(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		w.senderTimeout(2 * time.Second)
		c := w.spawn(childLife{options: options{HangAfterFanOut: true}})
		w.streaming()
		w.emit(1, "order.placed", `{"n": 1}`)
		testdb.WaitFor(t, "the first fan-out to be durable", func() bool {
			return w.number(`SELECT count(*) FROM eventlog.event_notifications`) == 2
		})
		w.emit(1, "order.placed", `{"n": 2}`)
		w.heard(w.text(`SELECT pg_current_wal_lsn()::text`))
		c.kill()
		w.spawn(childLife{})
		w.settle()
		w.verdict()
	})
}

// B9: events that were committed while no dispatcher ran come through the log, all of
// them, from the slot's own position. B31: the clean stop left slot and publication.
func TestB9_EventsOfADowntimeComeThroughTheLog(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		first := w.dispatch(options{}, steadyAndMoody(), hooks{})
		w.streaming()
		w.emit(10, "order.placed", `{}`)
		w.settle()
		first.stop()
		if _, ok := w.db.(*postgres); ok {
			if n := w.number(`SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1)
				+ (SELECT count(*) FROM pg_publication WHERE pubname = $1)`, slotName); n != 2 {
				t.Errorf("after a clean stop %d of slot and publication are left, want both", n)
			}
		}
		for range 100 {
			w.emit(10, "order.placed", `{}`)
		}
		w.wrecked = append(w.wrecked, "downtime")
		second := w.dispatch(options{}, steadyAndMoody(), hooks{})
		w.settle()
		w.progressOf("the log to have brought them all", func() int64 { return int64(second.counts.totals().Captured["log"]) }, 1000)
		second.stop()
		w.verdict()
	})
}

// B32: killed again and again between the first drain and streaming, with a
// backlog from before the first start and writers that go on: the slot comes
// first, so the overlap is absorbed and there is no hole.
func TestB32_KilledDuringTheFirstDrain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		backlog := testbed.Size(4000, 100_000)
		w.emit(backlog, "order.placed", `{"old": true}`)
		end := w.write(workload.Config{Writers: 4, Rate: 100})
		for range 10 {
			c := w.spawn(childLife{options: options{Grace: 10 * time.Millisecond}})
			target := w.number(`SELECT count(*) FROM eventlog.event_notifications`) + int64(1+w.rng.IntN(2*backlog/12))
			testdb.WaitFor(t, "a part of the drain", func() bool {
				return w.number(`SELECT count(*) FROM eventlog.event_notifications`) >= target
			})
			c.kill()
		}
		w.spawn(childLife{})
		w.letPass(50)
		end()
		w.settle()
		w.verdict()
	})
}

// Q6: a process is killed with its handlers running, its registry rows are gone and
// the new process has the same host name: the rows are claimed again when their
// lease ends, and not before.
func TestQ6_RowsOfAKilledProcessAreClaimedAgain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		c := w.spawn(childLife{Gate: t.TempDir() + "/never"})
		w.streaming()
		w.emit(10, "order.placed", `{}`)
		testdb.WaitFor(t, "20 running handlers", func() bool { return c.running() == 20 })
		c.kill()
		w.exec(`DELETE FROM eventlog.handlers`)
		ends := w.leaseEnds()
		if len(ends) != 20 {
			t.Fatalf("%d rows are leased by the killed process, want 20", len(ends))
		}
		w.dispatch(options{}, steadyAndMoody(), hooks{})
		w.settle()
		for _, r := range w.accounts().Receipts {
			if r.Process != c.process && r.Attempt == 2 && r.Start.Before(ends[r.Pair]) {
				t.Errorf("%s was claimed again %s before its lease ended", r.Pair, ends[r.Pair].Sub(r.Start))
			}
		}
		w.verdict()
	})
}

// leaseEnds reads the leases, by pair, as instants of this machine's clock, which the
// server shares.
func (w *world) leaseEnds() map[ledger.Pair]time.Time {
	w.t.Helper()
	rows, err := w.db.Table(w.t.Context(), `SELECT event_id, handler_name, lease_until
		FROM eventlog.event_notifications WHERE lease_until IS NOT NULL AND state IN ('PENDING', 'FAILED')`)
	if err != nil {
		w.t.Fatal(err)
	}
	ends := map[ledger.Pair]time.Time{}
	for _, row := range rows {
		until, err := time.Parse("2006-01-02 15:04:05.999999", row[2])
		if err != nil {
			w.t.Fatal(err)
		}
		ends[ledger.Pair{Event: row[0], Handler: row[1]}] = until
	}
	return ends
}

// A process is frozen past its leases, another one takes its deliveries over and ends
// them; then the first wakes up and its handlers return success. Its late
// acknowledgements change nothing.
func TestGuarantee_StaleWorkerChangesNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		gate := t.TempDir() + "/gate"
		// No lease may run out before it is frozen, nor one of the taker's at all.
		stale := w.spawn(childLife{options: options{Lease: 10 * time.Second}, Gate: gate})
		w.streaming()
		w.emit(10, "order.placed", `{}`)
		testdb.WaitFor(t, "20 running handlers", func() bool { return stale.running() == 20 })
		stale.freeze()
		w.wrecked = append(w.wrecked, "frozen past its leases")

		taker := w.dispatch(options{Lease: time.Minute}, steadyAndMoody(), hooks{})
		w.settle()
		before := w.snapshotDeliveries()

		w.touch(gate)
		stale.thaw()
		testdb.WaitFor(t, "the stale handlers to return", func() bool { return stale.running() == 0 })
		if got := stale.stop(); got.Stale != 20 {
			t.Errorf("stale outcomes = %d, want 20: %s", got.Stale, got)
		}
		taker.stop()
		w.sameDeliveries(before)

		// The frozen attempts reach beyond the others' in time, but not in effect.
		report := ledger.Compare(w.accounts())
		if len(report.Overlaps) != 20 {
			t.Errorf("%d deliveries were taken over, want 20", len(report.Overlaps))
		}
		w.faults = append(w.faults, ledger.Fault{Process: stale.process, At: time.Now()})
		w.verdict(func(r *ledger.Report) { r.Overlaps = nil })
	})
}
