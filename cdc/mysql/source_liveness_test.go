package mysql

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// A network that swallows everything is noticed by its silence.
func TestM41_Blackhole(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		proxy := faultproxy.New(t, addr(db))
		cfg := configOf(db)
		cfg.DSN = through(t, db.DSN(), proxy)
		cfg.ReadTimeout, cfg.ConnectTimeout = 3*cfg.Heartbeat, 5*time.Second
		r := streaming(t, cfg)
		db.Exec(insert(1, 2))
		r.WaitFor(1)
		before := r.src.Status().Reconnects
		proxy.Blackhole()
		db.Exec(insert(2, 3))
		r.Wait("the silence to be noticed", func() bool { return r.src.Status().Reconnects > before })
		proxy.Heal()
		r.WaitFor(2)
		if gaps := r.Gaps(); len(gaps) != 0 {
			t.Errorf("gaps %v", gaps)
		}
	})
}

// An idle stream lives on the server's heartbeats.
func TestM42_Idle(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		proxy := faultproxy.New(t, addr(db))
		cfg := configOf(db)
		cfg.DSN, cfg.ReadTimeout, cfg.ProbeInterval = through(t, db.DSN(), proxy), 60*time.Second, time.Minute
		r := streaming(t, cfg)
		var beats int
		last := time.Time{}
		r.Wait("five signs of life from an idle server", func() bool {
			if at := r.src.Status().LastByte; at.After(last) {
				last = at
				beats++
			}
			return beats >= 5
		})
		if n := r.src.Status().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	})
}

// The server ends the dump alone: the SQL connection says nothing about it.
func TestM43_KillTheDump(t *testing.T) {
	t.Parallel()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		s := newServer(t, kind, nil)
		s.setUp()
		r := streaming(t, s.config())
		s.insert(1, 2)
		r.WaitFor(1)
		ids := dumps(t, s.pool)
		if len(ids) != 1 {
			t.Fatalf("dumps %v, want one", ids)
		}
		s.exec(fmt.Sprintf("KILL %d", ids[0]))
		r.Wait("a new dump", func() bool {
			now := dumps(t, s.pool)
			return len(now) == 1 && now[0] != ids[0] && r.src.Status().Mode == cdc.ModeStreaming
		})
		s.insert(2, 3)
		r.WaitFor(2)
		r.onceEach(1, 3)

		// 45: stop while the server answers nothing.
		if err := s.Freeze(); err != nil {
			t.Fatal(err)
		}
		r.ends()
		if err := s.Thaw(); err != nil {
			t.Fatal(err)
		}
		again := streaming(t, s.config2(r.bank))
		s.insert(3, 4)
		again.Wait("the row after it", func() bool { return again.Count("3") == 1 })

		// 46: another reader with the same server id. MariaDB lets one evict the other; MySQL
		// tells readers apart by a UUID.
		again.ends()
		cfg := s.config()
		cfg.ServerID = 4242
		one := streaming(t, cfg)
		cfg.Keeper = &bank{}
		two := streaming(t, cfg)
		for i := range 20 {
			s.insert(100+i, 101+i)
		}
		one.WaitFor(20)
		two.WaitFor(20)
		if kind.IsMariaDB() {
			testdb.WaitFor(t, "a clear message", func() bool {
				return strings.Contains(one.Log.String()+two.Log.String(), "another replica or reader uses the same server id")
			})
			// The pause grows although each life made progress.
			one.Wait("no tight loop", func() bool { return one.src.Status().Reconnects+two.src.Status().Reconnects >= 6 })
			one.ends()
			two.ends()
			if one.src.attempts+two.src.attempts < 6 {
				t.Errorf("%d and %d failures in a row were counted", one.src.attempts, two.src.attempts)
			}
		}
	})
}

func (s *ownServer) config2(b *bank) Config {
	cfg := s.config()
	cfg.Keeper = b
	return cfg
}

// One process reads; another stands by and takes over where the first one stopped.
func TestStandbyTakesOver(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		keeper := &bank{}
		cfg := configOf(db)
		cfg.Keeper = keeper
		one := streaming(t, cfg)
		two := start(t, cfg)
		two.WaitMode(cdc.ModeStandby)
		if detail := two.src.Status().Detail; !strings.Contains(detail, "somebody else") {
			t.Errorf("detail %q", detail)
		}
		db.Exec(insert(1, 3))
		one.WaitFor(2)
		one.ends()
		db.Exec(insert(3, 5))
		two.WaitFor(2)
		two.onceEach(3, 5)
		for _, tx := range two.Transactions() {
			if tx.Epoch != 2 {
				t.Errorf("epoch %d, want 2", tx.Epoch)
			}
		}
	})
}

// A reader whose tenure is taken stops, and what it read and nobody stored comes again
// from the next one.
func TestTenureLost(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		keeper := &bank{}
		cfg := configOf(db)
		cfg.Keeper = keeper
		r := streaming(t, cfg, noAck)
		db.Exec(insert(1, 2))
		r.WaitFor(1)
		keeper.depose()
		r.Wait("the row under the next epoch", func() bool {
			txs := r.Transactions()
			return txs[len(txs)-1].Epoch == 2 && r.Count("1") == 2
		})
		keeper.break_(errors.New("the database of the keeper is away"))
		r.Wait("a stop", func() bool { return r.src.Status().Mode != cdc.ModeStreaming })
		keeper.break_(nil)
		r.waitStreaming()
		r.ends()
	})
}

// Large transactions and large rows pass, compressed or not, in parts of bounded size.
func TestM44_Large(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		cfg := configOf(db)
		r := streaming(t, cfg)
		s := newSession(t, db.Pool())
		if !db.Kind().IsMariaDB() {
			s.exec("SET SESSION binlog_transaction_compression = ON")
		}
		s.exec("CREATE TABLE digits AS SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4"+
			" UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9",
			"INSERT INTO events SELECT a.d + 10*b.d + 100*c.d + 1000*e.d, repeat('x', 100) FROM digits a, digits b, digits c, digits e",
			"INSERT INTO events SELECT 20000 + d, repeat('y', 4000000) FROM digits")
		r.WaitFor(10010)
		for _, tx := range r.Transactions() {
			if tx.Gap != nil || tx.Sweep != "" {
				t.Errorf("gap %v, sweep %q", tx.Gap, tx.Sweep)
			}
		}
		if got := cdctest.Text(r.Record("0"), "payload"); got != strings.Repeat("x", 100) {
			t.Errorf("payload %q", got)
		}
	})
}

// A read fails after its time and at most a tenth more, however many came before it, and at once when the connection is
// cut.
func TestReadsHaveTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		const patience = 10 * time.Second
		d := &cutDialer{lastByte: new(atomic.Int64), patience: patience, conn: here}
		w := &wire{Conn: here, d: d}
		read := func() (time.Duration, error) {
			began := time.Now()
			_, err := w.Read(make([]byte, 10))
			return time.Since(began), err
		}
		go func() {
			for i := range 100 {
				<-time.After(time.Duration(i) * patience / 100)
				if _, err := there.Write([]byte("x")); err != nil {
					t.Error(err)
				}
			}
		}()
		for i := range 100 {
			if after, err := read(); err != nil {
				t.Fatalf("read %d: %v after %s", i, err, after)
			}
		}
		if after, err := read(); err == nil || after < patience || after > patience*11/10 || !d.timedOut.Load() {
			t.Errorf("a read of nothing ended after %s with %v", after, err)
		}
		w.until = time.Time{}
		go func() {
			<-time.After(time.Second)
			d.cut()
		}()
		if after, err := read(); err == nil || after != time.Second {
			t.Errorf("a read that was cut ended after %s with %v", after, err)
		}
		for range 2 {
			if after, err := read(); err == nil || after != 0 {
				t.Errorf("a read after that took %s and ended with %v", after, err)
			}
			w.until = time.Time{}
		}
	})
}
