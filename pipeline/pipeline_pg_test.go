package pipeline_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// Promise 1 and 3, on the way that all is built for: commit, log, fan-out,
// handler, beside transactions that are rolled back or held open.
func TestEventsFlowFromCommitToHandlers(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("all", "*"), on("orders", "order.*"), on("paid", "order.paid"))
		p := w.start("one")
		p.streaming(w)
		w.write(1500, false)
		report := w.settled()
		if report.Starts != report.Deliveries {
			t.Errorf("%d starts of %d deliveries: without a failure each runs once", report.Starts, report.Deliveries)
		}
		if p.obs.viaLog.Load() == 0 {
			t.Error("nothing came by the log")
		}
		if ready, why := p.Health().Ready(); !ready {
			t.Errorf("not ready: %v", why)
		}
		p.stop()
		w.check()
	})
}

func TestPollOnlyModeDeliversEverything(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("all", "*"), on("paid", "order.paid"))
		p := w.start("one", pollOnly)
		w.write(800, false)
		w.settled()
		if p.obs.count(pipeline.CountPolledPollMode)+p.obs.count(pipeline.CountPolledStartup) == 0 {
			t.Error("the poller counted nothing")
		}
		if n := w.count(`SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`); n != 0 {
			t.Errorf("%d slots in poll-only mode", n)
		}
		if h := p.Health(); h.Mode != cdc.ModePolling || h.Log != nil {
			t.Errorf("health says %s", h.Mode)
		}
	})
}

// twice hands every transaction over twice.
type twice struct{ cdc.Source }

func (s twice) Run(ctx context.Context, out chan<- cdc.Transaction) error {
	between := make(chan cdc.Transaction)
	done := make(chan error, 1)
	go func() { done <- s.Source.Run(ctx, between) }()
	for {
		select {
		case err := <-done:
			return err
		case tx := <-between:
			for range 2 {
				select {
				case out <- tx:
				case <-ctx.Done():
				}
			}
		}
	}
}

// Promise 1 (M14): a trigger that fires twice, and a poller that sees the event as
// well, make one delivery per handler.
func TestDuplicateTriggerMakesOneDeliveryPerHandler(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"), on("b", "*"))
		w.start("log", func(c *pipeline.Config) { c.Log = twice{c.Log} }).streaming(w)
		w.start("poll", pollOnly)
		w.write(600, false)
		report := w.settled()
		if report.Starts != report.Deliveries {
			t.Errorf("%d starts of %d deliveries", report.Starts, report.Deliveries)
		}
	})
}

// A session that locks the delivery table holds the fan-out up, and nothing is
// lost or reported as lost meanwhile.
func TestFanOutBlockedByALockGoesOnAfterIt(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"))
		p := w.start("one")
		p.streaming(w)
		w.insert("order.placed", 5)
		w.settled()
		tx, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // after a commit it says so
		if _, err := tx.Exec(t.Context(), `LOCK TABLE eventlog.event_notifications IN EXCLUSIVE MODE`); err != nil {
			t.Fatal(err)
		}
		w.insert("order.placed", 1)
		var blocked string // the log's end after the first commit that cannot be made durable
		if err := w.pool.QueryRow(t.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&blocked); err != nil {
			t.Fatal(err)
		}
		w.insert("order.placed", 3000)
		testdb.WaitFor(t, "the fan-out waits for the lock", func() bool {
			return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		})
		if n := w.count(`SELECT count(*) FROM eventlog.event_notifications`); n != 5 {
			t.Errorf("%d deliveries while the table is locked", n)
		}
		if n := w.count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn >= $2::pg_lsn`, w.slot(), blocked); n != 0 {
			t.Error("the slot moved past a commit that is not durable")
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.settled()
	})
}

// One event whose row cannot be marked for a while, because somebody holds a lock
// that it needs, holds up no other, and is delivered from the log's image itself.
func TestLockedEventRowHoldsUpNothingElse(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"))
		w.hurry = 500 * time.Millisecond
		// An advisory lock stands for the row lock: a transaction that holds one of those
		// would also hold up the making of the slot.
		w.exec(`CREATE FUNCTION await() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.event_type = 'locked' THEN PERFORM pg_advisory_xact_lock(42); END IF; RETURN NEW; END $$;
			CREATE TRIGGER await BEFORE UPDATE ON eventlog.events FOR EACH ROW EXECUTE FUNCTION await()`)
		conn, err := w.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock(42)`); err != nil {
			t.Fatal(err)
		}
		p := w.start("one", func(c *pipeline.Config) {
			c.Poller.Interval, c.Poller.Grace = 200*time.Millisecond, 100*time.Millisecond
		})
		p.streaming(w)
		locked := w.insert("locked", 1)[0]
		w.insert("x", 300)
		testdb.WaitFor(t, "all events are handled", func() bool {
			return w.count(`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`) == 301
		})
		unmarked := `SELECT count(*) FROM eventlog.events WHERE NOT delivered`
		// The marks of events that share the locked one's batch come later, by the poller.
		testdb.WaitFor(t, "all but the locked event to be marked", func() bool { return w.count(unmarked) == 1 })
		if got := w.states(locked); got["a SUCCEEDED"] != 1 {
			t.Errorf("the locked event is %v", got)
		}
		if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock(42)`); err != nil {
			t.Fatal(err)
		}
		p.stop()
		w.start("two") // what the poller set aside would wait a minute
		testdb.WaitFor(t, "the mark", func() bool { return w.count(unmarked) == 0 })
		w.settled()
	})
}

const refuse = `
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF %s THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON eventlog.event_notifications FOR EACH ROW EXECUTE FUNCTION refuse()`

// Promise 5: a row that the database refuses stops no other, and has a delivery
// that says so.
func TestPoisonEventIsIsolatedAndQuarantined(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"), on("b", "*"))
		w.exec(fmt.Sprintf(refuse, `NEW.payload ? 'poison'`))
		p := w.start("one")
		p.streaming(w)
		tx, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var bad string
		for i := range 200 {
			payload := fmt.Sprintf(`{"n": %d}`, i)
			if i == 77 {
				payload = `{"poison": true}`
			}
			id := w.insertBy(tx, "x", payload)
			if i == 77 {
				bad = id
			}
			w.writers.Committed(ledger.Event{ID: id, Type: "x", At: time.Now()})
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.settled()
		if diff := cmp.Diff(map[string]int{"a BLOCKED:rejected": 1, "b BLOCKED:rejected": 1}, w.states(bad)); diff != "" {
			t.Errorf("deliveries of the bad event (-want +got):\n%s", diff)
		}
		// The second sweep may have met it at the same time as the log.
		if n := p.obs.count(pipeline.CountQuarantined); n == 0 || p.log.lines(bad, "code=sqlstate_P0001") != n {
			t.Errorf("counted %d times, log:\n%s", p.obs.count(pipeline.CountQuarantined), p.log)
		}
		if p.log.lines("not this one") != 0 {
			t.Error("the log quotes the database's words, which may hold values of the row (C70)")
		}
	})
}

// An event that is refused in every form stays undelivered in its table. It stops
// no other, by the log or by the poller, and goes its way once the reason is gone.
func TestEventRefusedInEveryFormWaitsInItsTable(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, mode := range []struct {
			name    string
			options []option
		}{{"log", nil}, {"poll", []option{pollOnly}}} {
			t.Run(mode.name, func(t *testing.T) {
				w := newWorld(t, major, on("a", "*"))
				w.exec(fmt.Sprintf(refuse, `NEW.action_name = 'act' AND NEW.model_id = 'm' OR NEW.event_type = 'bad'`))
				w.exec(`CREATE FUNCTION spare() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF NEW.event_type <> 'bad' THEN NEW.model_id := 'spared'; END IF; RETURN NEW; END $$;
					CREATE TRIGGER a_spare BEFORE INSERT ON eventlog.event_notifications FOR EACH ROW EXECUTE FUNCTION spare()`)
				bad := w.insert("bad", 1)[0]
				p := w.start("one", mode.options...)
				testdb.WaitFor(t, "the event is set aside", func() bool { return p.obs.count(pipeline.CountSetAside) > 0 })
				w.insert("good", 300)
				testdb.WaitFor(t, "the good events are handled", func() bool {
					return w.count(`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`) == 300
				})
				if len(w.states(bad)) != 0 || w.count(`SELECT count(*) FROM eventlog.events WHERE NOT delivered`) != 1 {
					t.Error("the bad event was delivered")
				}
				if _, why := p.Health().Ready(); !strings.Contains(strings.Join(why, ";"), "1 events are set aside") {
					t.Errorf("health does not tell: %v", why)
				}
				p.stop()
				w.exec(`DROP TRIGGER refuse ON eventlog.event_notifications`)
				w.start("two", mode.options...)
				w.settled()
			})
		}
	})
}

// Promise 4: the slot is dropped under load. A gap is recorded, reading begins
// anew, the poller sweeps, and the gap is closed.
func TestSlotDroppedUnderLoadIsSweptByThePoller(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"), on("b", "order.*"))
		p := w.start("one")
		p.streaming(w)
		stop := w.writing(false)
		testdb.WaitFor(t, "events before the drop", func() bool { return p.obs.viaLog.Load() > 200 })
		testdb.WaitFor(t, "the slot is dropped", func() bool {
			_, err := w.pool.Exec(t.Context(), `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, w.slot())
			if err != nil {
				return false
			}
			_, err = w.pool.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, w.slot())
			return err == nil
		})
		testdb.WaitFor(t, "the gap is recorded", func() bool { return p.obs.count(pipeline.CountGap) > 0 })
		before := p.obs.viaLog.Load()
		testdb.WaitFor(t, "the log is read again", func() bool { return p.obs.viaLog.Load() > before+100 })
		stop()
		w.settled()
		testdb.WaitFor(t, "the gap is closed", func() bool {
			return w.count(`SELECT count(*) FROM eventlog.gaps WHERE reason LIKE 'slot%' AND closed_date IS NOT NULL`) > 0 &&
				w.count(`SELECT count(*) FROM eventlog.gaps WHERE closed_date IS NULL`) == 0
		})
	})
}

// Queues 26: a transaction that began first commits last. Nothing is selected by
// "greater than the last seen".
func TestQ26_LateCommitIsDelivered(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, mode := range []struct {
			name    string
			options []option
		}{{"log", nil}, {"poll", []option{pollOnly}}} {
			t.Run(mode.name, func(t *testing.T) {
				w := newWorld(t, major, on("a", "*"))
				if p := w.start("one", mode.options...); mode.options == nil {
					p.streaming(w) // the slot is made before the transaction begins
				}
				tx, err := w.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				late := w.insertBy(tx, "late", `{}`)
				undone, err := w.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				w.writers.RolledBack(ledger.Event{ID: w.insertBy(undone, "undone", `{}`), Type: "undone"})
				w.insert("early", 20)
				w.settled()
				if err := undone.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.writers.Committed(ledger.Event{ID: late, Type: "late", At: time.Now()})
				w.settled()
			})
		}
	})
}

// A54, A55: an event without a subscriber waits for one that is deployed later,
// and does not keep others from their turn.
func TestA54_EventsWithoutSubscriberWaitForOne(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "known"))
		p := w.start("one", func(c *pipeline.Config) { c.Poller.Batch = 10 })
		p.streaming(w)
		w.insert("unknown", 50)
		w.insert("known", 50)
		w.settled()
		testdb.WaitFor(t, "the events are counted", func() bool { return p.obs.count(pipeline.CountUnsubscribed) >= 50 })
		if n := w.count(`SELECT count(*) FROM eventlog.events WHERE NOT delivered`); n != 50 {
			t.Errorf("%d events wait, want 50", n)
		}
		p.stop()
		w.handlers = append(w.handlers, on("b", "unknown"))
		w.start("two").streaming(w)
		w.settled()
		if n := w.count(`SELECT count(*) FROM eventlog.events WHERE NOT delivered`); n != 0 {
			t.Errorf("%d events still wait", n)
		}
	})
}

func TestMarkUnsubscribedLeavesNothingUndelivered(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, mode := range []struct {
			name    string
			options []option
		}{{"log", nil}, {"poll", []option{pollOnly}}} {
			t.Run(mode.name, func(t *testing.T) {
				w := newWorld(t, major, on("a", "known"))
				w.start("one", append(mode.options, func(c *pipeline.Config) { c.FanOut.MarkUnsubscribed = true })...)
				w.insert("unknown", 20)
				w.insertBy(w.pool, "", "") // a sentinel is never marked (A53)
				w.insert("known", 20)
				w.settled()
				testdb.WaitFor(t, "all but the sentinel are marked", func() bool {
					return w.count(`SELECT count(*) FROM eventlog.events WHERE NOT delivered`) == 1
				})
			})
		}
	})
}

func TestPausedHandlerLeavesItsRowsUntilItIsResumed(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"), on("b", "*"))
		first := w.start("first")
		testdb.WaitFor(t, "the handlers are registered", func() bool { return first.Health().Registered })
		first.stop()
		w.exec(`UPDATE eventlog.handlers SET paused_by = 'me', pause_reason = 'test', paused_date = clock_timestamp() AT TIME ZONE 'UTC' WHERE name = 'b'`)
		p := w.start("one")
		p.streaming(w)
		w.insert("x", 100)
		testdb.WaitFor(t, "the other handler goes on", func() bool {
			return w.count(`SELECT count(*) FROM eventlog.event_notifications WHERE handler_name = 'a' AND state = 'SUCCEEDED'`) == 100
		})
		if n := w.count(`SELECT count(*) FROM eventlog.event_notifications WHERE handler_name = 'b' AND state = 'PENDING'
			AND lease_token IS NULL AND COALESCE(claim_count, 0) = 0`); n != 100 {
			t.Errorf("%d deliveries of the paused handler are untouched, want 100", n)
		}
		if h := p.Health().Handlers; len(h) != 2 || h[1].Paused == nil || h[1].Paused.By != "me" {
			t.Errorf("health: %+v", h)
		}
		p.stop()
		w.exec(`UPDATE eventlog.handlers SET paused_by = NULL, pause_reason = NULL, paused_date = NULL`)
		w.start("two")
		w.settled()
	})
}

// Replicas: one reads, the other stands by; both handle; the second takes over.
func TestTwoPipelinesOnOneDatabase(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		open := make(chan struct{})
		slow := on("a", "*")
		slow.Concurrency = 2
		slow.Handler = event.HandlerFunc(func(context.Context, event.Envelope) error { <-open; return nil })
		w := newWorld(t, major, slow, on("b", "*"))
		one := w.start("one")
		one.streaming(w)
		two := w.start("two")
		testdb.WaitFor(t, "the second stands by", func() bool { return two.Health().Mode == cdc.ModeStandby })
		if ready, why := two.Health().Ready(); !ready || len(why) != 0 {
			t.Errorf("a healthy standby is ready: %t, %v", ready, why)
		}
		w.write(1000, false)
		testdb.WaitFor(t, "the standby handles what the reader has no room for", func() bool { return len(w.recorders[1].Receipts()) > 0 })
		close(open)
		w.settled()
		one.stop()
		two.streaming(w)
		before := two.obs.viaLog.Load()
		w.insert("x", 50)
		w.settled()
		if two.obs.viaLog.Load() == before {
			t.Error("the second reads nothing by the log after it took over")
		}
	})
}

// What bad input gets: each row a delivery with a reason, or a line with its place.
func TestBadInputHasAReasonAndStopsNothing(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, mode := range []struct {
			name    string
			options []option
		}{{"log", nil}, {"poll", []option{pollOnly}}} {
			t.Run(mode.name, func(t *testing.T) {
				picky := on("picky", "*")
				picky.When = `event.payload.n >= 0 && event.type != "declined"`
				w := newWorld(t, major, on("plain", "*"), picky)
				p := w.start("one", append(mode.options, func(c *pipeline.Config) { c.MaxPayload = 1000 })...)
				sentinel := w.insertBy(w.pool, "", "")
				null := w.insertBy(w.pool, "x", "")
				odd := w.insertBy(w.pool, "x", `{"m": 1}`)
				big := w.insertBy(w.pool, "x", `{"n": 1, "s": "`+strings.Repeat("x", 2000)+`"}`)
				declined := w.insertBy(w.pool, "declined", `{"n": 1}`)
				good := w.insertBy(w.pool, "x", `{"n": 1}`)
				for id, want := range map[string]map[string]int{
					sentinel: {},
					null:     {"plain BLOCKED:null_payload": 1, "picky BLOCKED:null_payload": 1},
					odd:      {"plain SUCCEEDED": 1, "picky BLOCKED:condition": 1},
					big:      {"plain BLOCKED:oversize": 1, "picky BLOCKED:oversize": 1},
					declined: {"plain SUCCEEDED": 1},
					good:     {"plain SUCCEEDED": 1, "picky SUCCEEDED": 1},
				} {
					testdb.WaitFor(t, fmt.Sprintf("deliveries %v of %s", want, id), func() bool { return cmp.Equal(want, w.states(id)) })
				}
				for c, want := range map[pipeline.Counter]int{
					pipeline.CountNullPayload: 2, pipeline.CountOversize: 2, pipeline.CountConditionError: 1,
				} {
					if got := p.obs.count(c); got != want {
						t.Errorf("%s counted %d times, want %d", c, got, want)
					}
				}
			})
		}
	})
}
