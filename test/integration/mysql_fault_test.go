package integration

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// 1, 2: the process is killed between the row events of one large transaction, while the
// timer for the position ticks on. The position stays before the transaction, though parts of
// it are delivered.
func TestMySQL1_KilledInsideALargeTransaction(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		// Or it would be taken for ours, and the position read before there is one.
		testdb.WaitFor(t, "the sender of the test before to be gone", func() bool { return w.dump() == 0 })
		proxy, dsn := w.through()
		gate := t.TempDir() + "/gate" // keeps the end of the transaction from being fanned out
		o := neverPoll
		o.LogDSN, o.FanOutGate, o.Binlog = dsn, gate, binlogOptions{MaxRecords: 50, SaveInterval: 10 * time.Millisecond}
		c := w.spawn(childLife{options: o})
		w.streaming()
		at := w.position()
		proxy.Delay(10 * time.Millisecond) // for each 32 kB: the transaction takes more than a second
		const rows, length = 500, 4000
		w.emit(rows, "order.large", `{"filler": "`+filler(length)+`"}`)
		for range testbed.Size(4, 100) {
			target := int64(length * (50 + w.rng.IntN(350)))
			before := proxy.BytesForwarded()
			testdb.WaitFor(t, "a part of the transaction on the wire", func() bool { return proxy.BytesForwarded()-before >= target })
			c.kill()
			if now := w.position(); now != at {
				t.Errorf("the position moved from %s to %s inside a transaction", at, now)
			}
			c = w.spawn(childLife{options: o})
		}
		// Not only by the log, which ends before the last part: the sweep of a start takes all that it finds.
		testdb.WaitFor(t, "a part to be delivered", func() bool {
			return w.number(`SELECT count(*) FROM eventlog.event_notifications`) > 0
		})
		if now := w.position(); now != at {
			t.Errorf("the position moved from %s to %s before the end of the transaction", at, now)
		}
		proxy.Delay(0)
		w.touch(gate)
		w.settle()
		c.stop()
		w.verdict()
	})
}

// 3: the connection is cut at random bytes, until large transactions have begun again 100
// times because of it.
func TestMySQL3_CutInsideALargeTransaction(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		cutInside(t, w, int64(testbed.Size(34, 100))) // on each of three servers
	})
}

// T12: the same where the position is a file and an offset, and nothing but the end of a transaction is a place to
// start from.
func TestT12_CutInsideALargeTransactionWithoutGTIDs(t *testing.T) {
	t.Run(testdb.MySQL97.String(), func(t *testing.T) {
		w := newWorld(t, testbed.OwnMySQL(t, testdb.MySQL97, map[string]string{
			"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "innodb-flush-log-at-trx-commit": "0", "sync-binlog": "0",
		}))
		cutInside(t, w, int64(testbed.Size(10, 100)))
		if at := w.position(); !strings.HasPrefix(at, "mysql-file:") {
			t.Errorf("the position is %q: this was not file mode", at)
		}
	})
}

// cutInside cuts the connection until large transactions have begun again so often.
func cutInside(t *testing.T, w *world, cuts int64) {
	w.subscribers = func(string) []string { return []string{"steady"} }
	proxy, dsn := w.through()
	o := seldomPoll
	o.LogDSN, o.Binlog = dsn, binlogOptions{MaxRecords: 6, BackoffMin: time.Millisecond}
	const rows, length = 60, 8000
	var again atomic.Int64
	d := w.dispatch(o, steadyAndMoody()[:1], hooks{source: func(s cdc.Source) cdc.Source {
		return &counter{s, &again}
	}})
	w.streaming()
	payload := `{"filler": "` + filler(length) + `"}`
	next := func() int64 {
		if again.Load() >= cuts {
			return 0
		}
		return int64(20_000 + w.rng.IntN(rows*length*3/4)) // a connection's beginning takes about so much
	}
	// First it may be read to its end once, without which no part of it is handed over.
	proxy.CutAfter(rows*length+100_000+next(), next)
	for again.Load() < cuts {
		w.emit(rows, "order.large", payload)
		w.settle()
	}
	d.stop()
	t.Logf("%d transactions began again, %d connections", again.Load(), proxy.Accepted())
	w.leftToLog(d)
	w.wrecked = append(w.wrecked, fmt.Sprintf("%d cuts", again.Load()))
	if n := w.number(`SELECT count(*) FROM eventlog.gaps`); n != 0 {
		t.Errorf("%d gaps, want none", n)
	}
	w.verdict()
}

// counter counts the transactions that begin again.
type counter struct {
	cdc.Source
	again *atomic.Int64
}

// Run implements cdc.Source.
func (c *counter) Run(ctx context.Context, out chan<- cdc.Transaction) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := make(chan cdc.Transaction)
	done := make(chan error, 1)
	go func() { done <- c.Source.Run(ctx, in) }()
	first := "" // of the open transaction
	for {
		select {
		case err := <-done:
			return err
		case tx := <-in:
			id := ""
			if len(tx.Records) > 0 {
				id = string(tx.Records[0].Values[0].Data) // the primary key
			}
			switch {
			case !tx.Partial:
				first = ""
			case id == first:
				c.again.Add(1)
			case first == "":
				first = id
			}
			select {
			case out <- tx:
			case <-ctx.Done():
				return <-done
			}
		}
	}
}

// 11: log that was not read is purged while nobody reads. One gap is recorded, the poller
// finds everything, and the log is read on from its end.
func TestMySQL11_PurgedWhileNobodyReads(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		o := options{Grace: time.Hour}
		soon := hooks{config: func(c *pipeline.Config) { c.Poller.SweepAgain = 300 * time.Millisecond }}
		d := w.dispatch(o, steadyAndMoody(), soon)
		w.streaming()
		w.emit(5, "order.before", `{}`)
		w.settle()
		d.stop()
		w.emit(50, "order.purged", `{}`)
		w.purge()
		w.emit(20, "order.kept", `{}`)

		for life := range 2 {
			d = w.dispatch(o, steadyAndMoody(), soon)
			w.settle()
			w.streaming()
			w.logBrings(d)
			w.progress("the gap to be closed", `SELECT count(*) FROM eventlog.gaps WHERE closed_date IS NULL`, 0)
			d.stop()
			if gaps := w.pairs(`SELECT id, reason FROM eventlog.gaps`); len(gaps) != 1 {
				t.Errorf("gaps after life %d: %v, want one", life, gaps)
			} else {
				for _, reason := range gaps {
					if reason != "purged" {
						t.Errorf("the reason is %q, want purged", reason)
					}
				}
			}
		}
		w.wrecked = append(w.wrecked, "log purged")
		w.verdict()
	})
}

// purge removes all log before now.
func (w *world) purge() {
	w.t.Helper()
	first := func() string { return w.text("SHOW BINARY LOGS") }
	before := first()
	testdb.WaitFor(w.t, "the log to be purged", func() bool {
		// A server keeps a file that somebody reads, or that it would need after a crash.
		w.exec("FLUSH BINARY LOGS")
		rows, err := w.db.Table(w.t.Context(), "SHOW BINARY LOGS")
		if err != nil {
			w.t.Fatal(err)
		}
		last := rows[len(rows)-1][0]
		w.exec("PURGE BINARY LOGS TO '" + last + "'")
		return first() == last && last != before
	})
}

// 23: a busy neighbour, and files that change without a row of ours. The position
// follows, and what the dispatcher writes itself is no reason to write it again.
func TestMySQL23_IdleTableBesideABusyNeighbour(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		w.exec("CREATE DATABASE " + w.mysql().Name + "_else")
		w.t.Cleanup(func() { _ = w.db.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+w.mysql().Name+"_else") })
		neighbour := w.mysql().Name + "_else.neighbour"
		w.exec("CREATE TABLE " + neighbour + " (id int AUTO_INCREMENT PRIMARY KEY, note text)")
		o := options{Grace: time.Hour, PollInterval: 50 * time.Millisecond, Binlog: binlogOptions{SaveInterval: 20 * time.Millisecond}}
		d := w.dispatch(o, steadyAndMoody(), hooks{})
		w.streaming()
		w.logBrings(d)
		for range testbed.Size(20, 100) {
			w.exec("INSERT INTO " + neighbour + " (note) VALUES ('x')")
			w.exec("FLUSH BINARY LOGS")
		}
		end := w.executed() // has writes of our own, which the next one of the neighbour makes worth saving
		w.exec("INSERT INTO " + neighbour + " (note) VALUES ('x')")
		w.wrecked = append(w.wrecked, "rotations, a busy neighbour")
		testdb.WaitFor(t, "the position to follow", func() bool { return w.contains(w.position(), end) })

		// Our own writes go on, and come back through the log: the position stays.
		w.settle()
		w.exec(`CREATE TABLE eventlog.history (id int AUTO_INCREMENT PRIMARY KEY, position longtext)`)
		w.exec(`CREATE TRIGGER eventlog.remember AFTER UPDATE ON eventlog.sources FOR EACH ROW
			INSERT INTO history (position) SELECT NEW.position FROM dual WHERE NEW.position <> OLD.position`)
		const saves = `SELECT count(*) FROM eventlog.history`
		// The DDL above is somebody else's: it is saved, in one piece or two, before the count begins.
		end = w.executed()
		w.exec("INSERT INTO " + neighbour + " (note) VALUES ('x')")
		testdb.WaitFor(t, "the position to follow the DDL", func() bool { return w.contains(w.position(), end) })
		w.logHasBeenRead(d)
		base := w.number(saves)
		for range 10 {
			// Here the test writes what a dispatcher writes from time to time.
			w.exec(`UPDATE eventlog.sources SET looked_date = {now}`)
			w.logHasBeenRead(d)
		}
		// The neighbour's last row may be saved once.
		if n := w.number(saves); n > base+1 {
			t.Errorf("the position was written %d times while nobody else wrote", n-base)
		}
		d.stop()
		w.verdict()
	})
}

// executed is the end of the server's log as a position without its kind.
func (w *world) executed() string {
	if w.mysql().Kind.IsMariaDB() {
		return w.text("SELECT @@GLOBAL.gtid_binlog_pos")
	}
	return strings.ReplaceAll(w.text("SELECT @@GLOBAL.gtid_executed"), "\n", "")
}

// contains says that a position is at or after an end of the log.
func (w *world) contains(position, end string) bool {
	_, set, _ := strings.Cut(position, ":")
	if !w.mysql().Kind.IsMariaDB() {
		return w.number("SELECT GTID_SUBSET(?, ?)", end, set) == 1
	}
	return sequence(set) >= sequence(end)
}

// sequence is the last number of a GTID of MariaDB; there is one domain.
func sequence(gtid string) (n int64) {
	_, _ = fmt.Sscan(gtid[strings.LastIndexByte(gtid, '-')+1:], &n) // 0 for none
	return n
}

// logHasBeenRead waits until a dispatcher has read what the server has logged now.
func (w *world) logHasBeenRead(d *life) {
	w.t.Helper()
	end := w.executed()
	testdb.WaitFor(w.t, "the log to be read", func() bool {
		h := d.pipe.Health()
		return h.Log != nil && w.contains(string(h.Log.Received), end)
	})
}

// Fan-out waits for a lock longer than the server waits for a reader that does not
// read. The server's thread stays, and so does the stream.
func TestGuarantee_FanOutBlockedBeyondNetWriteTimeout(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		w.setGlobal("net_write_timeout", "3")
		d := w.dispatch(options{Lease: 30 * time.Second, Grace: time.Hour, PollInterval: time.Hour}, steadyAndMoody(), hooks{})
		w.streaming()
		w.logBrings(d)
		w.settle()
		dump := w.dump()
		unlock := w.lockDeliveries(true)
		locked := time.Now()
		w.emit(1, "order.placed", `{}`)
		for range 5 { // more than the sockets hold
			w.emit(8, "order.large", `{"filler": "`+filler(500_000)+`"}`)
		}
		testdb.WaitFor(t, "twice net_write_timeout", func() bool { return time.Since(locked) > 6*time.Second })
		unlock()
		w.settle()
		if now := w.dump(); now != dump {
			t.Errorf("the sender's thread was %d and is %d: the stream was cut", dump, now)
		}
		d.stop()
		w.wrecked = append(w.wrecked, "fan-out blocked for 2 × net_write_timeout")
		w.verdict()
	})
}

// 41: the network swallows everything. The poller keeps deliveries flowing, and the
// silence is noticed.
func TestMySQL41_BlackHole(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		proxy, dsn := w.through()
		d := w.dispatch(options{LogDSN: dsn, Grace: time.Hour, Binlog: binlogOptions{Heartbeat: 300 * time.Millisecond}}, steadyAndMoody(), hooks{})
		w.streaming()
		end := w.write(workload.Config{Writers: 4, Rate: 100})
		w.letPass(50)
		proxy.Blackhole()
		w.wrecked = append(w.wrecked, "black hole")
		w.letPass(50)
		w.succeed(w.emit(1, "order.swallowed", `{}`)[0])
		if d.counts.totals().Via["poll"] == 0 {
			t.Error("the poller brought nothing")
		}
		proxy.Heal()
		testdb.WaitFor(t, "the stream to come back", func() bool {
			h := d.pipe.Health()
			return h.Log != nil && h.Log.Mode == cdc.ModeStreaming && h.Log.Reconnects > 0
		})
		w.logBrings(d)
		end()
		w.settle()
		d.stop()
		w.verdict()
	})
}

// 43: an operator kills the thread that sends the log.
func TestMySQL43_SenderKilled(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		o := seldomPoll
		o.Binlog.BackoffMin = 10 * time.Millisecond
		d := w.dispatch(o, steadyAndMoody(), hooks{})
		w.streaming()
		end := w.write(workload.Config{Writers: 4, Rate: 200})
		for range 5 {
			w.letPass(20)
			testdb.WaitFor(t, "a sender to be killed", func() bool {
				id := w.dump()
				return id != 0 && w.db.Exec(t.Context(), fmt.Sprintf("KILL CONNECTION %d", id)) == nil
			})
			w.wrecked = append(w.wrecked, "sender killed")
		}
		w.letPass(20)
		end()
		w.settle()
		w.logBrings(d)
		w.settle()
		d.stop()
		w.leftToLog(d)
		w.verdict()
	})
}

// 46: two dispatchers, of two databases of one server, were given the same id. They end each
// other's streams on MariaDB; neither hurries, one says why, and all is delivered.
func TestMySQL46_TheSameServerIDTwice(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		db := testdb.MySQL(t, w.mysql().Kind)
		other := newWorld(t, &mysql{Kind: db.Kind(), Server: db.Server(), Name: db.Name(), Pool: db.Pool()})
		o := options{Binlog: binlogOptions{ServerID: 4242}}
		begun := time.Now()
		a, b := w.dispatch(o, steadyAndMoody(), hooks{}), other.dispatch(o, steadyAndMoody(), hooks{})
		w.streaming()
		endA, endB := w.write(workload.Config{Writers: 2, Rate: 50}), other.write(workload.Config{Writers: 2, Rate: 50})
		said := regexp.MustCompile("same server|server id")
		reconnects := func() (n int64) {
			for _, d := range []*life{a, b} {
				if h := d.pipe.Health(); h.Log != nil {
					n += h.Log.Reconnects
				}
			}
			return n
		}
		if w.mysql().Kind.IsMariaDB() {
			testdb.WaitFor(t, "one of them to be told why", func() bool {
				return slices.ContainsFunc([]*life{a, b}, func(d *life) bool {
					h := d.pipe.Health()
					return h.Log != nil && said.MatchString(h.Log.Detail)
				})
			})
			testdb.WaitFor(t, "a few rounds", func() bool { return reconnects() >= 6 })
		}
		w.letPass(50)
		other.letPass(50)
		endA()
		endB()
		// Pauses double up to a second, less a fifth.
		if n, most := reconnects(), 2*(6+int64(time.Since(begun)/(800*time.Millisecond))); n > most {
			t.Errorf("%d new connections, want at most %d", n, most)
		}
		for _, one := range []*world{w, other} {
			one.settle()
			one.wrecked = append(one.wrecked, "server id twice")
		}
		a.stop()
		b.stop()
		w.verdict()
		other.verdict()
	})
}
