package mysql

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// One server of its own per kind goes through what may happen to a log, from its first
// transaction on.
func TestLogOfOneServer(t *testing.T) {
	t.Parallel()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		s := newServer(t, kind, nil)
		s.setUp()
		cfg := s.config()
		next := 0
		insertSome := func(n int) (from, until int) {
			from, next = next, next+n
			s.insert(from, next)
			return from, next
		}
		t.Run("M17 a fresh server has no position yet", func(t *testing.T) {
			r := streaming(t, cfg)
			from, until := insertSome(1)
			r.WaitFor(until - from)
			r.ends()
			again := streaming(t, cfg)
			from, until = insertSome(1)
			again.WaitFor(until - from)
			again.onceEach(from, until)
			again.ends()
		})
		t.Run("M13 a second start with purged log behind it", func(t *testing.T) {
			s.purge()
			for range 2 {
				r := streaming(t, cfg)
				from, until := insertSome(3)
				r.WaitFor(until - from)
				r.onceEach(from, until)
				r.ends()
				if gaps := r.Gaps(); len(gaps) != 0 {
					t.Errorf("gaps %v", gaps)
				}
			}
		})
		t.Run("M11 purged past the position", func(t *testing.T) {
			kept := cfg.Keeper.(*bank).kept()
			insertSome(5)
			s.purge()
			insertSome(5) // after the purge, before the start: the sweep's as well
			r := streaming(t, cfg)
			r.WaitGap(gapPurged)
			gap := r.Transactions()[0].Gap
			if gap == nil || gap.From != kept || gap.To == "" || gap.To == kept {
				t.Fatalf("gap %+v, want one from %s", gap, kept)
			}
			r.Wait("the place after it to be saved although nothing follows", func() bool { return r.bank.kept() == gap.To })
			from, until := insertSome(3)
			r.WaitFor(3)
			r.onceEach(from, until)
			r.ends()
			if gaps := r.Gaps(); len(gaps) != 1 {
				t.Errorf("gaps %v, want one", gaps)
			}
			again := streaming(t, cfg)
			from, until = insertSome(1)
			again.WaitFor(1)
			again.onceEach(from, until)
			again.ends()
		})
		t.Run("a gap that nobody recorded is announced again", func(t *testing.T) {
			insertSome(1)
			s.purge()
			r := streaming(t, cfg, noAck)
			r.WaitGap(gapPurged)
			r.ends()
			again := streaming(t, cfg)
			again.WaitGap(gapPurged)
			again.ends()
		})
		t.Run("our own writes move no saved position", func(t *testing.T) {
			quiet := newSession(t, s.pool)
			quiet.exec("SET sql_log_bin = 0", "CREATE TABLE app.deliveries (id int PRIMARY KEY)", "SET sql_log_bin = 1")
			r := streaming(t, cfg)
			insertSome(1)
			r.WaitFor(1)
			r.Wait("what was acknowledged to be saved", func() bool { return r.bank.kept() == r.Transactions()[0].Position })
			saves := r.bank.countSaves()
			for i := range 20 {
				s.exec(fmt.Sprintf("INSERT INTO app.deliveries VALUES (%d)", i), "UPDATE app.events SET payload = concat(payload, 'x')")
			}
			testdb.WaitFor(t, "all of it to be read", func() bool { return r.src.Status().Received == r.src.Status().ServerEnd })
			if now := r.bank.countSaves(); now != saves {
				t.Errorf("our own writes made %d saves", now-saves)
			}
			r.ends()
		})
		t.Run("a file that is damaged further on", func(t *testing.T) {
			from, _ := insertSome(1)
			insertSome(1)
			s.damageLast()
			s.exec("FLUSH BINARY LOGS")
			r := streaming(t, cfg)
			r.WaitGap(gapRefused)
			r.WaitFor(1) // again and again, what comes before
			r.Wait("the row before the damage", func() bool { return r.Count(fmt.Sprint(from)) > 0 })
			after, _ := insertSome(1)
			r.Wait("the row behind the gap", func() bool { return r.Count(fmt.Sprint(after)) == 1 })
			r.ends()
			if gaps := r.Gaps(); len(gaps) != 1 {
				t.Errorf("gaps %v, want one", gaps)
			}
			s.purge()
		})
		t.Run("the server crashes and comes back", func(t *testing.T) {
			r := streaming(t, cfg)
			from, _ := insertSome(3)
			r.WaitFor(3)
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := s.Start(context.Background()); err != nil {
				t.Fatal(err)
			}
			_, until := insertSome(3)
			r.WaitFor(6)
			r.onceEach(from, until)
			r.ends()
		})
		if kind.IsMariaDB() {
			t.Run("M19 another server id in the same domain", func(t *testing.T) {
				r := streaming(t, cfg)
				from, _ := insertSome(1)
				r.WaitFor(1)
				s.exec("SET GLOBAL server_id = 4711")
				insertSome(1)
				r.WaitFor(2)
				r.ends()
				if got := string(cfg.Keeper.(*bank).kept()); strings.Count(got, "0-") != 1 || !strings.Contains(got, "-4711-") {
					t.Errorf("position %s, want one entry of the new server", got)
				}
				again := streaming(t, cfg)
				_, until := insertSome(1)
				again.WaitFor(1)
				again.onceEach(until-1, until)
				again.ends()
				_ = from
			})
			t.Run("another domain begins while nobody reads", func(t *testing.T) {
				conn := newSession(t, s.pool)
				conn.exec("USE app", "SET gtid_domain_id = 7", insert(next, next+1))
				r := streaming(t, cfg)
				r.WaitFor(1)
				r.onceEach(next, next+1)
				next++
				r.ends()
			})
		} else {
			t.Run("M15 purged transactions of another server", func(t *testing.T) {
				r := streaming(t, cfg)
				s.exec("RESET BINARY LOGS AND GTIDS", "SET GLOBAL gtid_purged = '11111111-2222-3333-4444-555555555555:1-100'")
				r.WaitGap(gapAhead)
				from, until := insertSome(2)
				r.WaitFor(2)
				r.onceEach(from, until)
				r.ends()
				if got := string(cfg.Keeper.(*bank).kept()); !strings.Contains(got, "11111111-2222-3333-4444-555555555555:1-100") {
					t.Errorf("position %s lacks the purged set", got)
				}
			})
		}
		t.Run("M16 the server does not have what was read", func(t *testing.T) {
			position := "mysql-gtid:" + query[string](t, s.pool, "SELECT UUID()") + ":1-7"
			if kind.IsMariaDB() {
				position = fmt.Sprintf("mariadb-gtid:0-999-%d", 1000000)
			}
			b := &bank{position: position}
			cfg := cfg
			cfg.Keeper = b
			r := streaming(t, cfg)
			r.WaitGap(gapAhead)
			from, until := insertSome(2)
			r.WaitFor(2)
			r.onceEach(from, until)
			r.ends()
		})
		if kind.IsMariaDB() {
			t.Run("M16 a GTID that never was, among those that are", func(t *testing.T) {
				at, err := parseDomains(query[string](t, s.pool, "SELECT @@GLOBAL.gtid_binlog_pos"))
				if err != nil {
					t.Fatal(err)
				}
				for domain, g := range at.domains {
					g.ServerID, g.SequenceNumber = 31337, g.SequenceNumber-1
					at.domains[domain] = g
				}
				insertSome(1)
				cfg := cfg
				cfg.Keeper = &bank{position: string(at.position())}
				r := start(t, cfg)
				r.Wait("a gap", func() bool { return len(r.Gaps()) > 0 })
				t.Logf("gap %+v", r.Transactions()[0].Gap)
				from, until := insertSome(1)
				r.WaitFor(1)
				r.Wait("the row", func() bool { return r.Count(fmt.Sprint(from)) == 1 })
				_ = until
				r.ends()
			})
		}
	})
}

// Without GTIDs positions are files and offsets of one server.
func TestFileMode(t *testing.T) {
	t.Parallel()
	s := newServer(t, testdb.MySQL97, map[string]string{"gtid_mode": "OFF", "enforce_gtid_consistency": "ON"})
	s.setUp()
	cfg := s.config()
	t.Run("restart after each transaction", func(t *testing.T) {
		for i := range 3 {
			r := streaming(t, cfg)
			s.insert(i, i+1)
			r.WaitFor(1)
			r.onceEach(i, i+1)
			r.ends()
		}
		if got := string(cfg.Keeper.(*bank).kept()); !strings.HasPrefix(got, "mysql-file:") {
			t.Errorf("position %s", got)
		}
	})
	t.Run("M9 restart after a compressed transaction", func(t *testing.T) {
		conn := newSession(t, s.pool)
		r := streaming(t, cfg)
		conn.exec("USE app", "SET SESSION binlog_transaction_compression = ON", insert(10, 40))
		r.WaitFor(30)
		r.ends()
		again := streaming(t, cfg)
		conn.exec(insert(40, 50))
		again.WaitFor(10)
		again.onceEach(40, 50)
		again.ends()
	})
	t.Run("M23 a hundred rotations without a row", func(t *testing.T) {
		r := streaming(t, cfg)
		for range 100 {
			s.exec("FLUSH BINARY LOGS")
		}
		file := func() string {
			file, _, err := binlogStatus(t.Context(), s.pool)
			if err != nil {
				t.Fatal(err)
			}
			return file
		}()
		r.Wait("the saved position to follow the files", func() bool { return strings.Contains(string(r.bank.kept()), "/"+file+":") })
		r.Wait("no lag", func() bool { return r.src.Status().LagBytes == 0 && r.src.Status().Mode == cdc.ModeStreaming })
		r.ends()
	})
	t.Run("purged", func(t *testing.T) {
		s.insert(60, 61)
		s.purge()
		r := streaming(t, cfg)
		r.WaitGap(gapPurged)
		s.insert(61, 62)
		r.WaitFor(1)
		r.onceEach(61, 62)
		r.ends()
	})
	t.Run("M12 another server behind the address", func(t *testing.T) {
		at, err := parsePlace(cfg.Keeper.(*bank).kept())
		if err != nil {
			t.Fatal(err)
		}
		at.server = "11111111-2222-3333-4444-555555555555" // whose file of that name exists here, too
		cfg := cfg
		cfg.Keeper = &bank{position: string(at.position())}
		r := streaming(t, cfg)
		r.WaitGap(gapServerChanged)
		s.insert(70, 71)
		r.WaitFor(1)
		r.onceEach(70, 71)
		r.ends()
	})
	t.Run("M14 through all values of gtid_mode", func(t *testing.T) {
		r := streaming(t, cfg)
		n := 100
		modes := []string{"OFF_PERMISSIVE", "ON_PERMISSIVE", "ON", "ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"}
		for _, mode := range modes {
			s.exec("SET GLOBAL gtid_mode = " + mode)
			want := modeFile
			if mode == "ON" {
				want = modeGTID
			}
			r.Wait("positions of "+string(want)+" under "+mode, func() bool {
				return strings.HasPrefix(string(r.src.Status().ServerEnd), string(want)+":") && r.src.Status().Mode == cdc.ModeStreaming
			})
			s.insert(n, n+1)
			r.Wait("the row under "+mode, func() bool { return r.Count(fmt.Sprint(n)) == 1 })
			n++
		}
		if gaps := r.Gaps(); len(gaps) != 2 || gaps[0] != gapModeChanged || gaps[1] != gapModeChanged {
			t.Errorf("gaps %v, want one for each switch between files and GTIDs", gaps)
		}
		r.ends()
	})
}
