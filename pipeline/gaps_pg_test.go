package pipeline_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	store "github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// A session holds the rows of two hundred events, and deletes half of them in the end. All are delivered from
// the log's images meanwhile, and nothing else waits for them.
func TestTwoHundredLockedEventsAreDeliveredFromTheirImages(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"), on("b", "locked"))
		w.start("slot").streaming(w)
		w.hurry = 100 * time.Millisecond
		w.stopAll()
		w.insert("locked", 200)
		holder, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // after a commit it says so
		if _, err := holder.Exec(t.Context(), `SELECT FROM eventlog.events FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		w.insert("x", 50)
		p := w.start("one")
		testdb.WaitFor(t, "all events are handled", func() bool {
			return w.count(`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`) == 450
		})
		if n := w.count(`SELECT count(*) FROM eventlog.events WHERE NOT delivered`); n < 200 {
			t.Errorf("%d events without a mark, want the locked ones at least", n)
		}
		if _, err := holder.Exec(t.Context(), `DELETE FROM eventlog.events WHERE event_type = 'locked' AND (payload ->> 'n')::int % 2 = 0`); err != nil {
			t.Fatal(err)
		}
		if err := holder.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.stop()
		w.start("two") // what the poller set aside would wait a minute
		testdb.WaitFor(t, "the marks", func() bool { return w.count(`SELECT count(*) FROM eventlog.events WHERE NOT delivered`) == 0 })
		w.settled()
	})
}

// The database refuses every form of a delivery for an event that was deleted at once. The log stays before it, the
// poller brings the others, and it is delivered once the database takes it.
func TestEventThatIsNowhereElseHoldsTheLogAndNothingElse(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"))
		w.exec(fmt.Sprintf(refuse, `NEW.event_type = 'bad'`))
		p := w.start("one", func(c *pipeline.Config) {
			c.Poller.Interval, c.Poller.Grace = 200*time.Millisecond, 100*time.Millisecond
		})
		p.streaming(w)
		tx, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		bad := w.insertBy(tx, "bad", `{"n": 1}`)
		if _, err := tx.Exec(t.Context(), `DELETE FROM eventlog.events WHERE id = $1`, bad); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.writers.Committed(ledger.Event{ID: bad, Type: "bad", At: time.Now()})
		var end string
		if err := w.pool.QueryRow(t.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&end); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "health tells", func() bool { return p.Health().FanOut.Present() && p.log.lines(bad, "stays before it") > 0 })
		w.insert("good", 100)
		testdb.WaitFor(t, "the good events are handled", func() bool {
			return w.count(`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`) == 100
		})
		if n := w.count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn >= $2::pg_lsn`, w.slot(), end); n != 0 {
			t.Error("the slot moved past an event that is nowhere else")
		}
		// Between two tries, which are some way apart by now: in the middle of one, after the whole delivery was refused and
		// before the reduced one is, it would become a reduced one.
		tries := max(p.obs.count(pipeline.CountFanOutRetry), 4)
		testdb.WaitFor(t, "another try", func() bool { return p.obs.count(pipeline.CountFanOutRetry) > tries })
		w.exec(`DROP TRIGGER refuse ON eventlog.event_notifications`)
		w.settled()
		if got := w.states(bad); got["a SUCCEEDED"] != 1 {
			t.Errorf("the event is %v", got)
		}
	})
}

// A process that marks what the handlers of another one want says so.
func TestHandlersOfOtherProcessesAreWarnedOf(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major)
		serve := func(handlers ...pipeline.Handler) option {
			return func(c *pipeline.Config) { c.Handlers, c.Log = handlers, nil }
		}
		one := w.start("one", serve(on("orders", "order.*"), on("mail", "mail.sent")))
		testdb.WaitFor(t, "the first is registered", func() bool { return one.Health().Registered })
		renamed := on("post", "mail.*")
		renamed.Aliases = []string{"mail"}
		two := w.start("two", serve(on("paid", "order.paid"), renamed))
		testdb.WaitFor(t, "the second is registered", func() bool { return two.Health().Registered })
		if two.log.lines("handler=orders", "order.*") != 1 || two.log.lines("handler=mail") != 0 || two.obs.count(pipeline.CountForeignHandler) == 0 {
			t.Errorf("log of the second:\n%s", two.log)
		}
	})
}

// stopAll stops what runs.
func (w *world) stopAll() {
	for _, p := range w.processes {
		p.stop()
	}
}

// outbox is a table without a mark, whose looks go an hour back, and the dispatchers on it.
type outbox struct {
	*world
	table   schema.Table
	handled atomic.Int32
}

func newOutbox(t *testing.T, major int) *outbox {
	t.Helper()
	w := newWorld(t, major)
	w.exec(`CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), type text, payload jsonb, at timestamp NOT NULL)`)
	table := schema.Custom("public", "outbox", schema.Columns{ID: "id", Type: "type", Payload: "payload", Date: "at"}, schema.Mark{Kind: schema.MarkNone})
	table.LookBack = time.Hour
	return &outbox{world: w, table: table}
}

// put inserts events that are so old.
func (o *outbox) put(typ string, n int, age time.Duration) {
	o.t.Helper()
	o.exec(`INSERT INTO public.outbox (type, payload, at) SELECT $1, '{"n": 1}', (now() AT TIME ZONE 'UTC') - $2::bigint * interval '1 microsecond'
		FROM generate_series(1, $3)`, typ, age.Microseconds(), n)
}

// run polls until the returned function is called.
func (o *outbox) run() (stop func()) {
	o.t.Helper()
	st, err := store.New(o.pool, store.Config{Table: o.table})
	if err != nil {
		o.t.Fatal(err)
	}
	count := func(context.Context, event.Envelope) error { o.handled.Add(1); return nil }
	log := &logBook{}
	p, err := pipeline.New(pipeline.Config{
		Source: "test", Store: st, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Poller: pipeline.PollerConfig{ActiveInterval: 50 * time.Millisecond, SweepAgain: 100 * time.Millisecond},
		Handlers: []pipeline.Handler{{Name: "a", On: []string{"x"}, Handler: event.HandlerFunc(count)},
			{Name: "picky", On: []string{"y"}, When: "event.payload.n > 1", Handler: event.HandlerFunc(count)}},
	})
	if err != nil {
		o.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(o.t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			o.t.Error(err)
		}
		if o.t.Failed() {
			o.t.Logf("log:\n%s", log)
		}
	}
}

// An outage that is longer than look_back, and more events that every condition declines than the poller can leave
// out: everything is delivered, and the gap is closed only then.
func TestOutageLongerThanLookBackLosesNothing(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		o := newOutbox(t, major)
		delivered := func() int {
			return o.count(`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`)
		}
		// A gap is closed once what it held has its deliveries; handlers come to them on their own time.
		fannedOut := func() int { return o.count(`SELECT count(*) FROM eventlog.event_notifications`) }
		open := func() int { return o.count(`SELECT count(*) FROM eventlog.gaps WHERE closed_date IS NULL`) }
		o.put("x", 5, 0)
		o.put("x", 1, 2*time.Hour) // before anybody looked: out of sight, as configured
		stop := o.run()
		testdb.WaitFor(t, "the first events and the first sweeps", func() bool {
			return delivered() == 5 && o.count(`SELECT count(*) FROM eventlog.sources WHERE looked_date IS NOT NULL`) == 1
		})
		stop()

		// Three days later.
		o.exec(`UPDATE eventlog.sources SET looked_date = looked_date - interval '3 days'`)
		o.exec(`INSERT INTO eventlog.gaps (source, reason, detail, from_position, to_position, detected_date)
			VALUES ('test', 'slot_lost', '', '', '', (now() AT TIME ZONE 'UTC') - interval '1 day')`)
		o.put("y", 25_000, 50*time.Hour)
		o.put("x", 20, 49*time.Hour)
		o.put("x", 20, time.Minute)
		stop = o.run()
		testdb.WaitFor(t, "the events of the outage, and the end of the gap", func() bool {
			if open() == 0 && fannedOut() < 45 {
				t.Error("the gap was closed before what it held had its deliveries")
				return true
			}
			return delivered() == 46 && open() == 0 // the one that was out of sight is in sight now
		})
		testdb.WaitFor(t, "the time of the last complete look", func() bool {
			return o.count(`SELECT count(*) FROM eventlog.sources WHERE looked_date > (now() AT TIME ZONE 'UTC') - interval '1 hour'`) == 1
		})
		o.put("x", 7, 0)
		testdb.WaitFor(t, "what comes later", func() bool { return delivered() == 53 })
		stop()
		if n := o.count(`SELECT count(*) FROM eventlog.event_notifications`); n != 53 || o.handled.Load() != 53 {
			t.Errorf("%d deliveries, %d attempts, want 53", n, o.handled.Load())
		}
	})
}
