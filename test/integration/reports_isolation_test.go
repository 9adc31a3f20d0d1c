package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// T23: a destination that is not there when the process starts. The other handlers get
// everything, this one's deliveries are FAILED in sight, with a retry planned; when the destination
// comes it gets them, without a restart.
func TestT23_DestinationThatIsNotThereAtTheStart(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		w.subscribers = func(string) []string { return []string{"steady", "moody", "absent"} }
		var arrived atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
		t.Cleanup(server.Close)
		away := faultproxy.New(t, strings.TrimPrefix(server.URL, "http://"))
		away.Refuse(true)
		hook, err := webhook.New(webhook.Config{URL: "http://" + away.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = hook.Close() }) // nothing is left in it
		d := w.dispatch(options{}, append(steadyAndMoody(), handle("absent", hook.Handle)), hooks{})
		w.streaming()
		const events = 30
		w.emit(events, "order.placed", `{}`)
		w.progress("the other handlers to have everything",
			`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED' AND handler_name <> 'absent'`, 2*events)
		w.progress("the deliveries to the absent to be FAILED, each with a retry planned",
			`SELECT count(*) FROM eventlog.event_notifications WHERE handler_name = 'absent' AND state = 'FAILED' AND attempts > 0 AND last_error <> ''`, events)
		away.Refuse(false)
		w.settle()
		d.stop()
		if n := arrived.Load(); n < events {
			t.Errorf("%d requests arrived, want one for each of %d events", n, events)
		}
		w.wrecked = append(w.wrecked, "absent destination")
		w.verdict()
	})
}

// T24: the dispatcher's own statements hang for longer than the server waits for its reader, then they cannot
// be sent at all. The reader keeps its session and its slot, health says what is wrong, and everything
// goes on without a restart.
func TestT24_StatementsHangAndTheReaderStays(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		const timeout = 6 * time.Second
		w.senderTimeout(timeout)
		direct := w.db
		pool, dsn := w.throughPostgres()
		w.db = reachedBy{direct, dsn}
		d := w.dispatch(options{LogDSN: direct.DSN(), Lease: 20 * time.Second}, steadyAndMoody(), hooks{})
		w.db = direct
		w.streaming()
		end := w.write(workload.Config{Writers: 4, Rate: 100})
		w.letSucceed(50)
		sender, stalls := w.number(senderPID, slotName), w.watchStalls()
		pool.Stall()
		since := w.text(`SELECT clock_timestamp()::text`)
		testdb.WaitFor(t, "longer than wal_sender_timeout", func() bool {
			return w.number(`SELECT (clock_timestamp() - $1::timestamptz > interval '9 s')::int`, since) == 1
		})
		sender = w.sameSender(sender, timeout, stalls)
		w.wrecked = append(w.wrecked, "statements hang")
		pool.Resume()
		w.letSucceed(50)

		pool.Refuse(true)
		pool.Cut()
		testdb.WaitFor(t, "health to say so", func() bool { return d.pipe.Health().FanOut.Present() })
		w.wrecked = append(w.wrecked, "no connection for statements")
		pool.Refuse(false)
		testdb.WaitFor(t, "health to be good again", func() bool { return !d.pipe.Health().FanOut.Present() })
		w.letSucceed(50)
		end()
		w.settle()
		w.sameSender(sender, timeout, stalls)
		if n := w.number(`SELECT count(*) FROM eventlog.gaps`); n != 0 {
			t.Errorf("%d gaps, want none", n)
		}
		d.stop()
		w.verdict()
	})
}

// T27: thousands of deliveries that always fail stand in front of five good ones. The good ones
// are tried before any of the others is tried a third time, and those that are used up are out of the way.
func TestT27_FailuresInFrontStarveNobody(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		w.subscribers = func(string) []string { return []string{"picky"} }
		all := make(chan struct{}) // closed when there is a delivery of every event
		h := handle("picky", func(_ context.Context, e event.Envelope) error {
			<-all
			if e.Type == "order.bad" {
				return errors.New("never")
			}
			return nil
		})
		h.Concurrency, h.Retry.Base, h.Retry.MaxAttempts = 8, time.Millisecond, 4
		bad := testbed.Size(300, 5000)
		tx := w.begin()
		events := append(w.insert(tx, bad, "order.bad", `{}`), w.insert(tx, 5, "order.good", `{}`)...)
		w.commit(tx, events)
		d := w.dispatch(options{Grace: time.Millisecond, Lease: time.Minute}, []pipeline.Handler{h}, hooks{})
		w.progress("the events to be fanned out", `SELECT count(*) FROM eventlog.event_notifications`, int64(bad)+5)
		close(all)
		w.settle()
		d.stop()
		good := map[string]bool{}
		for _, e := range events[bad:] {
			good[e.ID] = true
		}
		var last time.Time
		receipts := w.accounts().Receipts
		for _, r := range receipts {
			if good[r.Event] && r.Start.After(last) {
				last = r.Start
			}
		}
		before := map[string]int{}
		for _, r := range receipts {
			if !good[r.Event] && r.Start.Before(last) {
				before[r.Event]++
			}
		}
		for id, n := range before {
			if n > 2 {
				t.Fatalf("%s, which always fails, was tried %d times before the last good event", id, n)
			}
		}
		want := map[string]string{"order.bad": fmt.Sprintf("DEAD attempts %d", bad), "order.good": "SUCCEEDED  5"}
		got := w.pairs(`SELECT event_type, concat(state, ' ', coalesce(reason, ''), ' ', count(*)) FROM eventlog.event_notifications GROUP BY event_type, state, reason`)
		for k := range want {
			if got[k] != want[k] {
				t.Errorf("deliveries of %s: %q, want %q", k, got[k], want[k])
			}
		}
		w.wrecked = append(w.wrecked, "failures in front")
		w.verdict()
	})
}

// T29: handlers ignore their context, and the process is told to stop. It ends all the same, its
// session with the log too, and the next process reads on and takes the deliveries over when their leases end.
func TestT29_StuckHandlersHoldUpNoSuccessor(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		stuck := w.spawn(childLife{options: options{Shutdown: 200 * time.Millisecond}, Gate: t.TempDir() + "/never"})
		w.streaming()
		w.emit(10, "order.placed", `{}`)
		testdb.WaitFor(t, "20 running handlers", func() bool { return stuck.running() == 20 })
		stuck.signal(syscall.SIGTERM)
		t.Logf("the stuck process ended: %v", stuck.wait())
		w.fault(stuck.process)
		w.wrecked = append(w.wrecked, "SIGTERM beside stuck handlers")
		// The server learns of it at once, and takes a moment to end the session.
		testdb.WaitFor(t, "no session to read the log any more", func() bool { return !w.db.Streaming(t.Context()) })
		d := w.dispatch(options{}, steadyAndMoody(), hooks{})
		w.streaming()
		w.logBrings(d)
		w.settle()
		d.stop()
		w.verdict()
	})
}

// T29, the other half: the process is frozen and cannot stop. The server takes the log from it
// after wal_sender_timeout, and the next process reads on.
func TestT29_FrozenReaderIsReplaced(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		w.senderTimeout(2 * time.Second)
		frozen := w.spawn(childLife{options: neverPoll})
		w.streaming()
		w.emit(10, "order.before", `{}`)
		w.settle()
		frozen.freeze()
		w.wrecked = append(w.wrecked, "reader frozen")
		d := w.dispatch(neverPoll, steadyAndMoody(), hooks{})
		w.logBrings(d) // which only its own stream can
		w.emit(10, "order.after", `{}`)
		w.settle()
		frozen.thaw()
		t.Logf("frozen: %s", frozen.stop())
		d.stop()
		w.verdict()
	})
}

// T31: the reader ends by itself, with an error, and with none. Health says so until it reads again, one
// line names it, and it is run again.
func TestT31_ReaderThatEndsIsRunAgain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		var book lineBook
		m := &mortal{orders: make(chan error), again: make(chan struct{})}
		d := w.dispatch(seldomPoll, steadyAndMoody(), hooks{
			source: func(s cdc.Source) cdc.Source { m.Source = s; return m },
			config: func(c *pipeline.Config) { c.Logger = slog.New(slog.NewTextHandler(&book, nil)) },
		})
		w.streaming()
		w.logBrings(d)
		for i, err := range []error{errors.New("cannot go on"), nil} {
			m.orders <- err
			testdb.WaitFor(t, "health to say that the log is not read", func() bool { return d.pipe.Health().LogTrouble.Present() })
			w.emit(10, "order.meanwhile", `{}`)
			m.again <- struct{}{} // it waits for that, or who is slow to look would see no trouble any more
			w.logBrings(d)
			testdb.WaitFor(t, "health to be good again", func() bool { return !d.pipe.Health().LogTrouble.Present() })
			if n := book.count("reading the log failed"); n <= i {
				t.Errorf("%d lines say that the log is not read, want %d at least:\n%s", n, i+1, book.String())
			}
			w.wrecked = append(w.wrecked, "reader ended")
		}
		w.settle()
		d.stop()
		if n := m.runs.Load(); n < 3 {
			t.Errorf("the reader was run %d times, want 3 at least", n)
		}
		w.leftToLog(d)
		w.verdict()
	})
}

// mortal is a source that ends when it is told to, and reads again when it is told to.
type mortal struct {
	cdc.Source
	orders chan error
	again  chan struct{}
	ended  atomic.Bool
	runs   atomic.Int64
}

// Status implements cdc.Reporter.
func (m *mortal) Status() cdc.Status { return m.Source.(cdc.Reporter).Status() }

// Run implements cdc.Source.
func (m *mortal) Run(ctx context.Context, out chan<- cdc.Transaction) error {
	m.runs.Add(1)
	if m.ended.Swap(false) {
		select {
		case <-m.again:
		case <-ctx.Done():
			return nil
		}
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.Source.Run(inner, out) }()
	select {
	case err := <-done:
		return err
	case err := <-m.orders:
		m.ended.Store(true)
		cancel()
		return errors.Join(err, <-done)
	}
}

// lineBook is a log that can be read while it is written.
type lineBook struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (b *lineBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lineBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *lineBook) count(s string) int { return strings.Count(b.String(), s) }

// T38: several processes find the same thousands of events, by the log and by the poller, all
// at once. Each handler is called once for each event: not even while all workers of all processes hold deliveries, and
// every process looks for more, is one taken twice.
func TestT38_ManyProcessesCallEachHandlerOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		const concurrency = 8
		w.subscribers = func(string) []string { return []string{"held"} }
		// Before the first process, so that only pollers find them.
		w.emit(testbed.Size(500, 10_000), "order.waiting", `{}`)
		var running atomic.Int64
		open := make(chan struct{})
		o := options{Grace: time.Millisecond, PollInterval: 20 * time.Millisecond, Lease: time.Minute}
		var lives []*life
		for range testbed.Size(3, 8) {
			h := handle("held", func(context.Context, event.Envelope) error {
				running.Add(1)
				<-open
				return nil
			})
			h.Concurrency = concurrency
			lives = append(lives, w.dispatch(o, []pipeline.Handler{h}, hooks{}))
		}
		w.streaming()
		testdb.WaitFor(t, "every worker of every process to be busy", func() bool { return running.Load() == int64(concurrency*len(lives)) })
		for range 10 { // by the log and by pollers
			w.emit(testbed.Size(30, 1000), "order.placed", `{}`)
		}
		close(open)
		w.settle()
		for _, d := range lives {
			d.stop()
		}
		took := map[string]int{}
		for _, r := range w.accounts().Receipts {
			took[r.Process]++
		}
		t.Logf("deliveries by process: %v", took)
		if len(took) != len(lives) {
			t.Errorf("%d of %d processes had work", len(took), len(lives))
		}
		w.wrecked = append(w.wrecked, fmt.Sprintf("%d processes", len(lives)))
		if report := w.verdict(); report.Duplicates != 0 {
			t.Errorf("duplicates = %d, want none: nothing failed", report.Duplicates)
		}
	})
}

// T39: every order of an operator has its effect at the destination, which is asked here, and not only in
// the tables. (A process that runs hears of a pause by its next heartbeat; this one is started anew
// after each order, and TestFaults pauses processes that run.)
func TestT39_OrdersAreSeenAtTheDestination(t *testing.T) {
	path := testbed.Build(t)
	eachDatabase(t, func(t *testing.T, w *world) {
		w.subscribers = func(string) []string { return []string{"steady", "other"} }
		var down atomic.Bool
		w.receiver = testbed.Receive(t, func(_ context.Context, p ledger.Pair, _ int) error {
			if down.Load() && p.Handler == "steady" {
				return errMoody
			}
			return nil
		})
		handlers := strings.ReplaceAll(w.receiver.Webhooks("PROCESS", "", "steady", "other"), "cap: 1s", "cap: 1s, max_attempts: 2")
		arrived := func(id string) (n int) {
			for _, r := range w.receiver.Receipts() {
				if r.Event == id && r.Handler == "steady" {
					n++
				}
			}
			return n
		}
		of := func(column, id, handler string) string {
			return w.text(`SELECT `+column+` FROM eventlog.event_notifications WHERE event_id = $1 AND handler_name = $2`, id, handler)
		}
		ended := func(id, handler, state string) {
			t.Helper()
			testdb.WaitFor(t, "the delivery to "+handler+" to be "+state, func() bool { return of("state", id, handler) == state })
		}
		p := w.run(path, handlers, ``)
		ended(w.emit(1, "order.first", `{}`)[0], "steady", "SUCCEEDED")
		p.stop()

		p.order("handlers", "pause", "steady", "--reason", "a test", "--yes")
		p = w.run(path, handlers, ``)
		held, gone := w.emit(1, "order.held", `{}`)[0], w.emit(1, "order.discarded", `{}`)[0]
		ended(held, "other", "SUCCEEDED")
		ended(gone, "other", "SUCCEEDED")
		p.order("deliveries", "discard", of("id", gone, "steady"), "--yes")
		ended(gone, "steady", "DISCARDED")
		p.stop()
		if arrived(held) != 0 || of("state", held, "steady") != "PENDING" {
			t.Errorf("a paused handler was called %d times", arrived(held))
		}
		p.order("handlers", "resume", "steady", "--yes")
		p = w.run(path, handlers, ``)
		ended(held, "steady", "SUCCEEDED")

		down.Store(true)
		dead := w.emit(1, "order.dead", `{}`)[0]
		ended(dead, "steady", "DEAD")
		down.Store(false)
		p.order("deliveries", "retry", of("id", dead, "steady"), "--yes")
		ended(dead, "steady", "SUCCEEDED")
		w.settle()
		p.stop()
		for id, want := range map[string]int{held: 1, gone: 0, dead: 3} {
			if got := arrived(id); got != want {
				t.Errorf("%s arrived %d times, want %d", id, got, want)
			}
		}
		w.wrecked = append(w.wrecked, "pause, resume, discard, retry")
		w.verdict()
	})
}
