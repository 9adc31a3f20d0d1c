package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// The server crashes under load, three times (twenty in a soak), and comes back on its own data.
// The dispatcher and the writers keep running all the while (T30).
func TestGuarantee_ServerCrashAndRestart(t *testing.T) {
	eachServer(t, func(t *testing.T, w *world) {
		d := w.dispatch(options{}, steadyAndMoody(), hooks{})
		w.streaming()
		end := w.write(workload.Config{Writers: 8, Rate: 200, Faults: true})
		for range testbed.Size(3, 20) {
			w.letPass(50 + w.rng.IntN(150))
			if err := w.db.Crash(); err != nil {
				t.Fatal(err)
			}
			w.fault("")
			w.wrecked = append(w.wrecked, "server crash")
			if err := w.db.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.letPass(100)
		end()
		w.settle()
		d.stop()
		t.Logf("%s", d.counts.totals())
		w.verdict()
	})
}

// The slot is dropped under load: by an operator's mistake, or by a provider that
// removes slots. A gap is recorded, a new slot made, and the poller finds what
// the log no longer tells (B26).
func TestGuarantee_SlotDroppedUnderLoad(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		d := w.dispatch(options{}, steadyAndMoody(), hooks{})
		w.streaming()
		end := w.write(workload.Config{Writers: 8, Rate: 200})
		for round := range 2 {
			w.letPass(100)
			w.dropSlot()
			w.wrecked = append(w.wrecked, "slot dropped")
			testdb.WaitFor(t, "the gap to be recorded", func() bool {
				return w.number(`SELECT count(*) FROM eventlog.gaps`) >= int64(round+1)
			})
			w.streaming()
		}
		w.letPass(100)
		end()
		w.settle()
		d.stop()
		t.Logf("%s", d.counts.totals())
		w.verdict()
	})
}

// B26: the slot is dropped while no dispatcher runs. The next one records the gap, which it cannot know of by itself, and
// what was committed meanwhile is delivered from the table.
func TestB26_SlotDroppedWhileNoDispatcherRuns(t *testing.T) {
	path := testbed.Build(t)
	eachPostgres(t, func(t *testing.T, w *world) {
		r := w.receive()
		handlers := r.Webhooks("PROCESS", "", "steady", "moody")
		first := w.run(path, handlers, ``)
		w.streaming()
		w.emit(10, "order.placed", `{}`)
		w.settle()
		first.stop()
		if n := w.number(`SELECT count(*) FROM eventlog.gaps`); n != 0 {
			t.Errorf("%d gaps are recorded after a first start", n)
		}
		position := w.text(`SELECT position FROM eventlog.sources`)
		w.dropSlot()
		w.emit(10, "order.placed", `{}`)
		second := w.run(path, handlers, ``)
		w.streaming()
		w.settle()
		w.progress("the gap to be closed", `SELECT count(*) FROM eventlog.gaps WHERE closed_date IS NOT NULL AND reason = 'slot_missing'`, 1)
		if from := w.text(`SELECT from_position FROM eventlog.gaps`); position == "" || from != position {
			t.Errorf("the gap begins at %q, want %q", from, position)
		}
		second.stop()
		w.wrecked = append(w.wrecked, "slot dropped while nobody ran")
		w.verdict()
	})
}

// dropSlot ends the session that holds the slot and drops it before it is taken again.
func (w *world) dropSlot() {
	w.t.Helper()
	testdb.WaitFor(w.t, "the slot to be dropped", func() bool {
		err := w.db.Exec(w.t.Context(), `
			SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, slotName)
		if err != nil {
			w.t.Fatal(err)
		}
		// Fails while the session is still there, or when a new one was quicker.
		return w.db.Exec(w.t.Context(), `SELECT pg_drop_replication_slot($1)`, slotName) == nil
	})
}

// Fan-out waits for a lock twice as long as the server waits for an answer,
// while events queue: the stream is neither cut nor restarted (B15).
func TestGuarantee_FanOutBlockedWhileWalSenderTimeout5s(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		const timeout = 5 * time.Second
		w.senderTimeout(timeout)
		d := w.dispatch(options{Lease: 30 * time.Second}, steadyAndMoody(), hooks{})
		w.streaming()
		w.emit(1, "order.placed", `{}`)
		w.settle()
		sender, stalls := w.number(senderPID, slotName), w.watchStalls()

		unlock := w.lockDeliveries(true)
		w.wrecked = append(w.wrecked, "fan-out blocked for 2 × wal_sender_timeout")
		locked := w.text(`SELECT clock_timestamp()::text`)
		for range 10 {
			w.emit(testbed.Size(400, 5000), "order.placed", `{"filler": "`+filler(2000)+`"}`)
		}
		testdb.WaitFor(t, "twice wal_sender_timeout", func() bool {
			return w.number(`SELECT (clock_timestamp() - $1::timestamptz > interval '10.5 s')::int`, locked) == 1
		})
		sender = w.sameSender(sender, timeout, stalls)
		unlock()
		w.settle()
		w.sameSender(sender, timeout, stalls) // nor while it caught up
		d.stop()
		w.verdict()
	})
}

// filler is n bytes of text that does not compress to nothing.
func filler(n int) string {
	out := make([]byte, 0, n)
	for x := uint32(1); len(out) < n; x = x*1664525 + 1013904223 {
		out = fmt.Appendf(out, "%08x", x)
	}
	return string(out[:n])
}

// A fast shutdown of the server waits for its senders to be confirmed, for ever when
// wal_sender_timeout is 0. It must end while we are idle, while we stream, while
// fan-out is blocked, and while a handler runs (B17).
func TestGuarantee_CleanServerShutdownNotHeldUp(t *testing.T) {
	eachPostgresServer(t, map[string]string{"wal_sender_timeout": "0", "fsync": "off"}, func(t *testing.T, w *world) {
		release := make(chan struct{})
		handlers := steadyAndMoody()
		handlers[1].Handler = event.HandlerFunc(func(ctx context.Context, e event.Envelope) error {
			if e.Type == "order.held" {
				select {
				case <-release:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		d := w.dispatch(options{Lease: time.Minute}, handlers, hooks{})

		w.restart("while idle", func() {})

		end := w.write(workload.Config{Writers: 4, Rate: 100, Faults: true})
		w.restart("while streaming", func() { w.letPass(50) })
		end()
		w.settle()

		w.restart("while fan-out is blocked", func() {
			w.lockDeliveries(true) // the shutdown ends its session
			w.emit(1, "order.placed", `{}`)
		})
		w.settle()

		w.restart("while a handler runs", func() {
			w.emit(1, "order.held", `{}`)
			testdb.WaitFor(t, "the handler to run", func() bool {
				return w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE event_type = 'order.held' AND state = 'PENDING' AND lease_until IS NOT NULL`) > 0
			})
		})
		close(release)
		w.settle()
		d.stop()
		w.verdict()
	})
}

// restart brings the world into a state, shuts the server down the fast way, and
// starts it again.
func (w *world) restart(when string, prepare func()) {
	w.t.Helper()
	w.streaming()
	prepare()
	// Held up, the shutdown would wait for ever; the bound is for a busy machine.
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	if err := w.db.Stop(ctx); err != nil {
		w.t.Fatalf("shutdown %s: %v", when, err)
	}
	w.t.Logf("shutdown %s took %s", when, time.Since(began).Round(time.Millisecond))
	w.fault("")
	w.wrecked = append(w.wrecked, "shutdown "+when)
	if err := w.db.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// The event table is idle while the neighbours write: a table of the same
// database that is not published, and another database. The slot follows, so no
// log is kept for us, and we write nothing to make it so (B11).
func TestGuarantee_EventTableIdleWhileNeighboursWrite1GB(t *testing.T) {
	settings := map[string]string{"fsync": "off", "full_page_writes": "off", "wal_sender_timeout": "4s", "max_wal_size": "4GB"}
	eachPostgresServer(t, settings, func(t *testing.T, w *world) {
		w.exec(`CREATE TABLE neighbour (filler text)`)
		w.exec(`CREATE DATABASE elsewhere`)
		w.subscribers = func(string) []string { return []string{"steady"} }
		// A lease that runs out would be one write more.
		d := w.dispatch(options{PollInterval: 10 * time.Second, Lease: time.Minute}, steadyAndMoody()[:1], hooks{})
		w.streaming()
		w.emit(1, "order.placed", `{}`)
		w.settle()

		half := testbed.Size(100, 512) // MB
		w.fillLog(w.db.DSN(), half)
		w.slotFollows("a busy table of the same database")
		w.fillLog(w.postgres().Server.DSN("elsewhere"), half)
		w.slotFollows("a busy database of the same server")

		d.stop()
		// The event and its delivery: one insert and one update each.
		if n := w.ourWrites(4); n != 4 {
			t.Errorf("rows written to our tables: %d, want the 4 that one event needs", n)
		}
		w.verdict()
	})
}

// ourWrites counts the rows ever written to our tables, at least the number that is
// known to be right, but for those of the migrations, and for the heartbeat of the handler registry, which has its own fixed pace. The
// sessions that wrote must have ended: a living one keeps its counts for a while.
func (w *world) ourWrites(want int64) int64 {
	w.t.Helper()
	testdb.WaitFor(w.t, "the dispatcher's sessions to end", func() bool {
		return w.number(`SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender')`) <=
			int64(w.postgres().Pool.Stat().TotalConns())
	})
	w.postgres().Pool.Reset() // ours too
	const query = `SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables
		WHERE schemaname = 'eventlog' AND relname NOT IN ('handlers', 'cdc_dispatcher_migrations')`
	testdb.WaitFor(w.t, "the counts of ended sessions", func() bool { return w.number(query) >= want })
	return w.number(query)
}

// fillLog writes n megabytes of log through another session.
func (w *world) fillLog(dsn string, n int) {
	w.t.Helper()
	w.onConn(dsn, func(exec func(string)) {
		exec(`CREATE TABLE IF NOT EXISTS neighbour (filler text)`)
		for range n {
			exec(`INSERT INTO neighbour SELECT repeat(md5(i::text), 31) FROM generate_series(1, 1000) i`)
		}
	})
}

// slotFollows waits until the slot has confirmed all that has been written, and the
// server, after a checkpoint, keeps no log for it from before.
func (w *world) slotFollows(what string) {
	w.t.Helper()
	here := w.text(`SELECT pg_current_wal_lsn()::text`)
	w.wrecked = append(w.wrecked, what)
	testdb.WaitFor(w.t, "confirmed_flush_lsn to follow "+what, func() bool {
		return w.number(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn >= $2::pg_lsn`,
			slotName, here) == 1
	})
	testdb.WaitFor(w.t, "restart_lsn to follow "+what, func() bool {
		w.exec(`CHECKPOINT`)
		return w.number(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND restart_lsn >= $2::pg_lsn`,
			slotName, here) == 1
	})
}
