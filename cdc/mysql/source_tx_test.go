package mysql

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func addr(db *testdb.MyDB) string {
	return net.JoinHostPort(db.Server().Host(), strconv.Itoa(db.Server().Port()))
}

// A process that dies between two row events of one transaction starts at its beginning
// again.
func TestM1_DiesInsideATransaction(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		cfg := configOf(db)
		cfg.MaxRecords = 100
		r := streaming(t, cfg, upTo(150))
		tx := newSession(t, db.Pool())
		tx.exec("BEGIN", insert(0, 400), insert(400, 600), "COMMIT")
		r.Wait("half of it", func() bool { return len(r.Arrived()) >= 150 })
		r.Stop()
		again := start(t, cfg)
		again.WaitFor(600)
		again.onceEach(0, 600)
		if txs := again.Transactions(); !txs[0].Partial || txs[len(txs)-1].Partial {
			t.Error("the parts of the transaction are not those of a whole one")
		}
	})
}

// A save on the timer while a long transaction is half read saves nothing of it.
func TestM2_SaveWhileATransactionIsHalfRead(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		cfg := configOf(db)
		cfg.MaxRecords = 10
		r := streaming(t, cfg, upTo(20))
		before := r.bank.kept()
		saves := r.bank.countSaves()
		db.Exec("CREATE TABLE other (id int)")
		r.Wait("the position to be saved for somebody else's traffic", func() bool { return r.bank.countSaves() > saves })
		if r.bank.kept() == before {
			t.Error("the saved position did not move")
		}
		moved := r.bank.kept()
		db.Exec("INSERT INTO other VALUES (1)")
		db.Exec(insert(0, 100))
		r.Wait("a part of it", func() bool { return len(r.Arrived()) >= 20 })
		at, err := parsePlace(r.bank.kept())
		if err != nil {
			t.Fatal(err)
		}
		if last, err := parsePlace(moved); err != nil || !at.contains(last) {
			t.Errorf("saved %s after %s (%v)", r.bank.kept(), moved, err)
		}
		r.Stop()
		again := start(t, cfg)
		again.WaitFor(100)
		again.onceEach(0, 100)
	})
}

// The connection is cut at many offsets of a stream of transactions, large ones among
// them.
func TestM3_CutAtRandomOffsets(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		proxy := faultproxy.New(t, addr(db))
		cfg := configOf(db)
		cfg.DSN, cfg.MaxRecords, cfg.BackoffMax = through(t, db.DSN(), proxy), 50, cfg.BackoffMin
		r := streaming(t, cfg)
		const cuts, rows = 30, 120
		for i := range cuts {
			before := proxy.BytesForwarded()
			db.Exec(insert(i*rows, (i+1)*rows))
			r.Wait("some of it on the wire", func() bool { return proxy.BytesForwarded() > before+int64(i*37%900) })
			proxy.Cut()
		}
		r.WaitFor(cuts * rows)
		if gaps := r.Gaps(); len(gaps) != 0 {
			t.Errorf("gaps %v", gaps)
		}
		if r.Distinct() != cuts*rows {
			t.Errorf("%d rows, want %d", r.Distinct(), cuts*rows)
		}
	})
}

// Rows of XA transactions are in the log before the verdict: they are never handed
// over, and a commit asks for a sweep. It asks so of every reader of the server, because it does
// not say whose rows it commits, so that the servers are not shared with other tests.
func TestM7_XA(t *testing.T) {
	t.Parallel()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		testXA(t, newServer(t, kind, nil))
	})
}

func testXA(t *testing.T, server *ownServer) {
	server.setUp()
	r := streaming(t, server.config())
	for i, verdict := range []string{"COMMIT", "ROLLBACK"} {
		xid := "'" + verdict + "'"
		s := newSession(t, server.pool)
		s.exec("USE app", "XA START "+xid, insert(10*i, 10*i+5), "XA END "+xid, "XA PREPARE "+xid)
		marker := 100 + i
		server.insert(marker, marker+1)
		r.Wait("what came after the prepare", func() bool { return r.Count(fmt.Sprint(marker)) == 1 })
		if r.Count(fmt.Sprint(10*i)) != 0 {
			t.Fatalf("rows %v after XA PREPARE", r.Arrived())
		}
		sweeps := len(r.Sweeps())
		s.exec("XA " + verdict + " " + xid)
		server.insert(marker+10, marker+11)
		r.Wait("what came after the verdict", func() bool { return r.Count(fmt.Sprint(marker+10)) == 1 })
		if got := len(r.Sweeps()) > sweeps; got != (verdict == "COMMIT") {
			t.Errorf("XA %s: sweeps %v", verdict, r.Sweeps())
		}
	}
	s := newSession(t, server.pool)
	s.exec("USE app", "XA START 'one'", insert(50, 51), "XA END 'one'")
	sweeps := len(r.Sweeps())
	s.exec("XA COMMIT 'one' ONE PHASE")
	r.Wait("one-phase commit", func() bool { return r.Count("50") == 1 || len(r.Sweeps()) > sweeps })
	for _, id := range []string{"0", "10"} {
		if r.Count(id) != 0 {
			t.Errorf("row %s of an XA transaction was handed over", id)
		}
	}
}

// A session may compress its transactions; they are one event with all rows inside.
func TestM8_CompressedTransaction(t *testing.T) {
	onKind(t, testdb.MySQL97, func(t *testing.T, db *testdb.MyDB) {
		cfg := configOf(db)
		cfg.MaxRecords = 100
		r := streaming(t, cfg)
		s := newSession(t, db.Pool())
		s.exec("SET SESSION binlog_transaction_compression = ON", "BEGIN", insert(0, 500), insert(500, 1000), "COMMIT")
		s.exec(insert(1000, 1001))
		r.WaitFor(1001)
		r.onceEach(0, 1001)
		r.ends()
		again := streaming(t, cfg)
		s.exec(insert(1001, 1002))
		again.WaitFor(1)
		if got := again.Arrived(); !slices.Equal(got, []string{"1001"}) {
			t.Errorf("after a restart came %v", got)
		}
	})
}

// Statements that nobody parses do not stop the stream; their rows come.
func TestM10_UnknownQueries(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		cfg := configOf(db)
		cfg.ReadTimeout = time.Minute // a machine that is held up for seconds is not an interruption
		r := streaming(t, cfg)
		db.Exec("CREATE TABLE copies AS SELECT 1 AS a")
		db.Exec("CREATE PROCEDURE p() BEGIN INSERT INTO events (id, payload) VALUES (2, 'two'); COMMIT; END")
		db.Exec(insert(1, 2))
		db.Exec("CALL p()")
		db.Exec("ALTER TABLE events ADD COLUMN kind varchar(10), COMMENT 'INSERT INTO events'")
		db.Exec("INSERT INTO events (id, kind) SELECT 3, 'x' FROM copies")
		r.WaitFor(3)
		r.onceEach(1, 4)
		if sweeps := r.Sweeps(); len(sweeps) != 0 {
			t.Errorf("sweeps %v", sweeps)
		}
		if r.src.Status().Reconnects != 0 {
			t.Error("the stream was interrupted")
		}
	})
}

// Statement-logged rows are not in the log: the poller is asked, and the operator told
// once, if they are ours.
func TestM26_StatementFormat(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		db.Exec("CREATE TABLE other (id int, note text)")
		r := streaming(t, configOf(db))
		s := newSession(t, db.Pool())
		s.exec("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SET SESSION binlog_format = 'STATEMENT'",
			"INSERT INTO other VALUES (1, 'about events')", "UPDATE events SET payload = '' WHERE id = 0")
		db.Exec(insert(1, 2))
		r.WaitFor(1)
		if sweeps := r.Sweeps(); len(sweeps) != 0 {
			t.Errorf("sweeps %v for other tables", sweeps)
		}
		s.exec(insert(2, 3), insert(3, 4), "INSERT INTO `"+db.Name()+"`.`events` (id) VALUES (4)")
		r.Wait("three sweeps", func() bool { return len(r.Sweeps()) == 3 })
		if got := r.Sweeps(); got[0] != sweepStatement {
			t.Errorf("sweeps %v", got)
		}
		if n := r.Log.Count("rows were logged as a statement"); n != 1 {
			t.Errorf("%d warnings, want one", n)
		}
	})
}

// What is not logged cannot be read; nothing else is hurt by it.
func TestM27_NotLogged(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		r := streaming(t, configOf(db))
		s := newSession(t, db.Pool())
		s.exec("SET sql_log_bin = 0", insert(1, 2), "SET sql_log_bin = 1", insert(2, 3))
		r.WaitFor(1)
		r.onceEach(2, 3)
	})
}

// MariaDB may compress single row events.
func TestM32_MariaDBCompressedRows(t *testing.T) {
	t.Parallel()
	for _, kind := range []testdb.Kind{testdb.MariaDB1011, testdb.MariaDB118} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := newServer(t, kind, map[string]string{"log_bin_compress": "ON", "log_bin_compress_min_len": "10"})
			s.setUp()
			r := streaming(t, s.config())
			long := strings.Repeat("compressible ", 1000)
			s.exec("INSERT INTO app.events VALUES (1, '" + long + "')")
			s.exec("ALTER TABLE app.events ADD COLUMN a_name_that_is_long_enough_to_be_compressed int")
			s.insert(2, 50)
			r.WaitFor(49)
			r.onceEach(1, 50)
			if got := cdctest.Text(r.Record("1"), "payload"); got != long {
				t.Errorf("payload of %d bytes, want %d", len(got), len(long))
			}
			if unknown := r.src.Status().ForeignRows; unknown != 0 {
				t.Errorf("%d foreign rows", unknown)
			}
		})
	}
}
