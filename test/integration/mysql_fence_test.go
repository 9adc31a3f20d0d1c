package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// A reader is frozen just before it writes a position, past the end of its tenure; another
// reads on. When it wakes up its write changes no position: the epoch is another's.
func TestGuarantee_StaleReaderMovesNoPosition(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		w.exec(`CREATE TABLE eventlog.history (id int AUTO_INCREMENT PRIMARY KEY, position longtext)`)
		w.exec(`CREATE TRIGGER eventlog.remember AFTER UPDATE ON eventlog.sources FOR EACH ROW
			INSERT INTO history (position) VALUES (NEW.position)`)
		o := neverPoll
		o.FanOutGate = t.TempDir() + "/gate"
		stale := w.spawn(childLife{options: o})
		w.streaming()
		w.emit(1, "order.first", `{}`)
		exists := func(ending string) bool { _, err := os.Stat(o.FanOutGate + ending); return err == nil }
		testdb.WaitFor(t, "the fan-out to begin", func() bool { return exists(".waiting") })
		stale.freeze()

		taker := w.dispatch(neverPoll, steadyAndMoody(), hooks{})
		// The server would end the idle session by itself, after half a minute.
		w.exec("KILL CONNECTION " + w.holder(taker))
		w.wrecked = append(w.wrecked, "frozen past its tenure")
		w.settle()
		for range 5 {
			w.logBrings(taker)
		}
		w.settle()
		before := w.snapshotDeliveries()
		at := w.position()

		w.touch(o.FanOutGate)
		stale.thaw()
		testdb.WaitFor(t, "the stale fan-out to end", func() bool { return exists(".done") })
		if now := w.position(); now != at {
			t.Errorf("the position is %s and was %s", now, at)
		}
		w.sameDeliveries(before)
		w.logBrings(taker)
		w.settle()
		if got := stale.stop(); got.Repeated == 0 {
			t.Errorf("the stale reader repeated nothing: %s", got)
		}
		taker.stop()

		rows, err := w.db.Table(t.Context(), `SELECT position FROM eventlog.history WHERE position <> '' ORDER BY id`)
		if err != nil {
			t.Fatal(err)
		}
		for i := 1; i < len(rows); i++ {
			if _, last, _ := strings.Cut(rows[i-1][0], ":"); !w.contains(rows[i][0], last) {
				t.Errorf("the position went back from %s to %s", rows[i-1][0], rows[i][0])
			}
		}
		w.verdict()
	})
}

// holder is the session of the process that a standby waits for.
func (w *world) holder(standby *life) (id string) {
	w.t.Helper()
	session := regexp.MustCompile(`session (\d+)`)
	testdb.WaitFor(w.t, "the standby to name the reader", func() bool {
		if h := standby.pipe.Health(); h.Log != nil {
			if m := session.FindStringSubmatch(h.Log.Detail); m != nil {
				id = m[1]
			}
		}
		return id != ""
	})
	return id
}

// 48: the connection ends between any two statements of a fan-out, before the statement
// reaches the server, or after it was carried out and before its answer came. Deliveries and
// position are written together or not at all.
func TestMySQL48_CrashBetweenTheStatementsOfAFanOut(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		m := w.mysql()
		cut := newStepCutter(t, m.Name)
		defer func() { cut.begin(); cut.release() }() // a test that fails must be able to stop
		cfg, err := driver.ParseDSN(m.DSN())
		if err != nil {
			t.Fatal(err)
		}
		cfg.Net = cut.network
		o := neverPoll
		o.LogDSN, o.Binlog.SaveInterval = m.DSN(), time.Hour
		w.db = reachedBy{m, cfg.FormatDSN()}
		d := w.dispatch(o, steadyAndMoody(), hooks{config: func(c *pipeline.Config) { c.Poller.SweepAgain = time.Hour }})
		w.db = m
		w.streaming()
		// What the sweep of the start took would be fanned out without a position.
		testdb.WaitFor(t, "the poller's first look", func() bool { return !d.pipe.Health().PolledAt.IsZero() })
		w.logBrings(d)
		w.settle()

		for _, after := range []bool{false, true} {
			step := 0
			for ; ; step++ {
				tx := w.begin()
				events := w.insert(tx, 1, "order.placed", `{}`)
				id := events[0].ID
				at := w.position()
				cut.arm(id, step, after)
				w.commit(tx, events)
				cut.begin()
				const ended = `SELECT count(*) FROM eventlog.event_notifications WHERE event_id = $1 AND state = 'SUCCEEDED'`
				testdb.WaitFor(t, "the cut, or the end", func() bool { return cut.fired() || w.number(ended, id) == 2 })
				if !cut.fired() {
					break
				}
				testdb.WaitFor(t, "the server to end the transaction", func() bool {
					return w.number(`SELECT 1 FROM eventlog.events WHERE id = $1 FOR UPDATE SKIP LOCKED`, id) == 1
				})
				rows := w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE event_id = $1`, id)
				if moved := w.position() != at; rows != 0 && rows != 2 || moved != (rows == 2) {
					t.Errorf("step %d (after %t): %d deliveries, position moved: %t", step, after, rows, moved)
				}
				cut.release()
				w.succeed(id)
			}
			if step < 4 {
				t.Errorf("a fan-out has %d statements: the test does not find them", step)
			}
			w.wrecked = append(w.wrecked, fmt.Sprintf("%d cuts between statements", step))
		}
		w.settle()
		d.stop()
		w.verdict()
	})
}

// stepCutter counts the statements of the transaction that fans an event out, and ends
// its connection at one of them.
type stepCutter struct {
	network string

	mu      sync.Mutex
	id      []byte
	step    int // statements to go
	after   bool
	hit     bool
	opening chan struct{} // closed by begin
	holding chan struct{} // closed by release

	// begin lets the event be fanned out. Its commit must have returned: the log brings it earlier, and a fan-out
	// that finds the row still locked takes two transactions. release lets it be fanned out again after the cut.
	// Only the test's goroutine uses them.
	begin, release func()
}

func newStepCutter(t *testing.T, name string) *stepCutter {
	t.Helper()
	c := &stepCutter{network: "cut-" + name, begin: func() {}, release: func() {}}
	driver.RegisterDialContext(c.network, func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &steppedConn{Conn: conn, c: c}, nil
	})
	t.Cleanup(func() { driver.DeregisterDialContext(c.network) })
	return c
}

// arm prepares a cut, and holds the event's fan-out until begin.
func (c *stepCutter) arm(id string, step int, after bool) {
	opening, holding := make(chan struct{}), make(chan struct{})
	c.begin, c.release = sync.OnceFunc(func() { close(opening) }), sync.OnceFunc(func() { close(holding) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id, c.step, c.after, c.hit = []byte(id), step, after, false
	c.opening, c.holding = opening, holding
}

func (c *stepCutter) fired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hit
}

// steppedConn is a connection of the store.
type steppedConn struct {
	net.Conn
	c         *stepCutter
	following bool // the transaction that is being counted
}

var errStep = errors.New("cut by the test")

// Write implements net.Conn. The driver writes each statement with one call.
func (s *steppedConn) Write(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	if bytes.Contains(p, []byte("COMMIT")) || bytes.Contains(p, []byte("ROLLBACK")) {
		defer func() { s.following = false }()
	}
	if !s.following && len(c.id) > 0 && bytes.Contains(p, c.id) {
		if c.hit {
			holding := c.holding
			c.mu.Unlock()
			<-holding
			return s.Conn.Write(p)
		}
		opening := c.opening
		c.mu.Unlock()
		<-opening
		c.mu.Lock()
		s.following = bytes.Contains(p, []byte("SKIP LOCKED"))
	}
	now := s.following && !c.hit && c.step == 0
	if s.following {
		c.step--
	}
	after := c.after
	c.hit = c.hit || now
	c.mu.Unlock()
	switch {
	case !now:
		return s.Conn.Write(p)
	case after:
		if _, err := s.Conn.Write(p); err == nil {
			_, _ = s.Read(make([]byte, 1)) // the server has carried it out
		}
	}
	_ = s.Close() // the point of it
	return 0, errStep
}

// Payloads are delivered byte for byte as the row has them, whichever way the event came.
func TestGuarantee_SameBytesByTheLogAndByThePoller(t *testing.T) {
	documents := []string{
		`{}`, `[]`, `null`, `"text"`, `12345678901234567890`,
		`{"b":  1,"a":[1 ,2,  3 ] , "aa":{ "z":null,"y":true}}`,
		`{"n":[1.0,1.50,1e2,1E+2,-0,-0.0,1e-7,123456789012345678,1.7976931348623157e308,0.1]}`,
		`{"s":"\u00e9 \/ \\ \" \u2028 é 😀 \ud83d\ude00 \t"}`,
		`{"k":1,"k":2,"":3}`,
		"{\n\t\"lines\": [\n\t]\n}",
	}
	eachMySQL(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		got := map[string]string{}
		handlers := steadyAndMoody()
		handlers[0].Handler = event.HandlerFunc(func(_ context.Context, e event.Envelope) error {
			mu.Lock()
			defer mu.Unlock()
			got[e.ID] = string(e.Payload)
			return nil
		})
		// The seam wraps the handlers of its argument, so each life gets a copy.
		life := func(o options) *life { return w.dispatch(o, append([]pipeline.Handler(nil), handlers...), hooks{}) }
		d := life(neverPoll)
		w.streaming()
		w.logBrings(d)
		var ids [2][]string
		logged, unlogged := w.session(), w.session("SET SESSION sql_log_bin = 0")
		for _, document := range documents {
			ids[0] = append(ids[0], logged.emit(1, "order.logged", document)...)
		}
		w.settle()
		testdb.WaitFor(t, "the log to bring them", func() bool { return d.byLog() == 1+len(documents) })
		d.stop()
		for _, document := range documents {
			ids[1] = append(ids[1], unlogged.emit(1, "order.unlogged", document)...)
		}
		d = life(options{Poll: true})
		w.settle()
		d.stop()
		mu.Lock()
		defer mu.Unlock()
		for i, document := range documents {
			stored := w.text(`SELECT CAST(payload AS CHAR CHARACTER SET utf8mb4) FROM eventlog.events WHERE id = $1`, ids[0][i])
			if a, b := got[ids[0][i]], got[ids[1][i]]; a != b || a != stored {
				t.Errorf("%s\n by the log %s\n by the poller %s\n stored %s", document, a, b, stored)
			}
			if w.mysql().Kind.IsMariaDB() && stored != document {
				t.Errorf("MariaDB stores %s as %s: the test thinks that it keeps the text", document, stored)
			}
		}
		w.verdict()
	})
}

// 25: rows that the log shows before a query does (MySQL bug 120471). Waiting for a replica that is not
// there holds commits just there: what is logged is sent, and not visible. Such events are looked
// for again, then left to the poller, and counted.
func TestMySQL25_SeenButNotVisible(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		prefix := "rpl_semi_sync_master"
		if !w.mysql().Kind.IsMariaDB() {
			prefix = "rpl_semi_sync_source"
			w.exec("INSTALL PLUGIN " + prefix + " SONAME 'semisync_source.so'")
			t.Cleanup(func() {
				if err := w.db.Exec(context.WithoutCancel(t.Context()), "UNINSTALL PLUGIN "+prefix); err != nil {
					t.Error(err)
				}
			})
		}
		w.setGlobal(prefix+"_timeout", "3600000") // ms: the test ends it
		w.exec("SET GLOBAL " + prefix + "_wait_point = 'AFTER_SYNC'")
		m := w.mysql()
		cfg, err := driver.ParseDSN(m.DSN())
		if err != nil {
			t.Fatal(err)
		}
		cfg.Params = map[string]string{"sql_log_bin": "0"} // or our own commits would be held as well
		w.db = reachedBy{m, cfg.FormatDSN()}
		d := w.dispatch(options{LogDSN: m.DSN(), Lease: time.Minute}, steadyAndMoody(), hooks{})
		w.db = m
		w.streaming()
		end := w.write(workload.Config{Writers: 8, Rate: 200})
		deferred := func() int { return d.counts.totals().Other[pipeline.CountDeferred] }
		for range 2 {
			w.letPass(50)
			before := deferred()
			w.exec("SET GLOBAL " + prefix + "_enabled = ON")
			testdb.WaitFor(t, "an event that is logged and not visible", func() bool { return deferred() > before })
			w.exec("SET GLOBAL " + prefix + "_enabled = OFF")
			w.wrecked = append(w.wrecked, "commits held behind the log")
		}
		w.letPass(100)
		end()
		w.settle()
		d.stop()
		t.Logf("%s", d.counts.totals())
		w.verdict()
	})
}

// 45, and what a server does in its life: it restarts while idle, under load, and while
// fan-out is blocked; at last it is frozen while the dispatcher stops, which ends all the same.
func TestMySQL45_ServerRestartsAndFreezes(t *testing.T) {
	settings := map[string]string{"innodb-flush-log-at-trx-commit": "0", "sync-binlog": "0"}
	eachMySQLServer(t, settings, func(t *testing.T, w *world) {
		o := options{Binlog: binlogOptions{Heartbeat: time.Second}} // so that a frozen server is noticed soon
		d := w.dispatch(o, steadyAndMoody(), hooks{})
		w.restart("while idle", func() {})
		end := w.write(workload.Config{Writers: 4, Rate: 100, Faults: true})
		w.restart("while streaming", func() { w.letPass(50) })
		w.letPass(20)
		end()
		w.settle()
		w.restart("while fan-out is blocked", func() {
			w.session("LOCK TABLES eventlog.event_notifications WRITE") // the shutdown ends it
			w.emit(1, "order.placed", `{}`)
		})
		w.settle()
		w.streaming()

		if err := w.mysql().Server.Freeze(); err != nil {
			t.Fatal(err)
		}
		w.fault(d.process)
		w.wrecked = append(w.wrecked, "stop beside a frozen server")
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			d.stop()
		}()
		testdb.WaitFor(t, "the dispatcher to end beside a frozen server", func() bool {
			select {
			case <-stopped:
				return true
			default:
				return false
			}
		})
		if err := w.mysql().Server.Thaw(); err != nil {
			t.Fatal(err)
		}
		w.emit(10, "order.placed", `{}`)
		d = w.dispatch(o, steadyAndMoody(), hooks{})
		w.settle()
		w.streaming()
		w.logBrings(d)
		w.settle()
		d.stop()
		w.verdict()
	})
}
