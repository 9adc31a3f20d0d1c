package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// 7: rows of an XA transaction are in the log before the verdict. While it is prepared
// nothing is delivered, also not by a dispatcher that starts then; a commit is delivered
// because the log asks the poller to look, a rollback never.
func TestMySQL7_XA(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		xid := func(name string) string { return "'" + w.mysql().Name + "-" + name + "'" }
		prepare := func(name string) (*session, []string) {
			s := w.session("XA START " + xid(name))
			events := s.insert(5, "order."+name, `{}`)
			s.exec("XA END " + xid(name))
			s.exec("XA PREPARE " + xid(name))
			if name == "rollback" {
				w.writers.RolledBack(events...)
			} else {
				w.writers.Committed(events...)
			}
			return s, []string{events[0].ID}
		}
		d := w.dispatch(neverPoll, steadyAndMoody(), hooks{})
		w.streaming()
		kept, keptIDs := prepare("commit")
		undone, _ := prepare("rollback")
		w.logBrings(d) // it came after the rows of both
		d.stop()
		d = w.dispatch(neverPoll, steadyAndMoody(), hooks{})
		w.streaming()
		w.logBrings(d)
		const early = `SELECT count(*) FROM eventlog.event_notifications WHERE event_type IN ('order.commit', 'order.rollback')`
		if n := w.number(early); n != 0 {
			t.Errorf("%d deliveries of XA transactions that are prepared", n)
		}
		undone.exec("XA ROLLBACK " + xid("rollback"))
		kept.exec("XA COMMIT " + xid("commit"))
		w.succeed(keptIDs[0])

		one := w.session("XA START " + xid("one"))
		events := one.insert(5, "order.one", `{}`)
		one.exec("XA END " + xid("one"))
		one.exec("XA COMMIT " + xid("one") + " ONE PHASE")
		w.writers.Committed(events...)
		w.settle()
		d.stop()
		w.wrecked = append(w.wrecked, "XA commit, one phase, rollback")
		if got := d.counts.totals(); got.Other[pipeline.CountSweepAsked] < 1 || got.Via["poll"] < 5 {
			t.Errorf("want to be asked at least once and to find at least 5 events: %s", got)
		}
		w.verdict()
	})
}

// 8: a session compresses its transactions, which is one event of the log with all rows in it.
// They come through the log, and the position after them is one to start from.
func TestMySQL8_CompressedTransactions(t *testing.T) {
	onMySQL(t, testdb.MySQL97, func(t *testing.T, w *world) {
		compressedTransactions(t, w)
	})
}

// 9: the same where the position is a file and an offset: what is inside a compressed
// transaction has no offset.
func TestMySQL9_CompressedTransactionsInFileMode(t *testing.T) {
	t.Run(testdb.MySQL97.String(), func(t *testing.T) {
		w := newWorld(t, testbed.OwnMySQL(t, testdb.MySQL97, map[string]string{
			"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "innodb-flush-log-at-trx-commit": "0", "sync-binlog": "0",
		}))
		compressedTransactions(t, w)
		if at := w.position(); !strings.HasPrefix(at, "mysql-file:") {
			t.Errorf("the position is %q: this was not file mode", at)
		}
	})
}

func compressedTransactions(t *testing.T, w *world) {
	s := w.session("SET SESSION binlog_transaction_compression = ON")
	o := seldomPoll
	o.Lease = time.Minute // one that ran out would be a duplicate
	d := w.dispatch(o, steadyAndMoody(), hooks{})
	w.streaming()
	payload := `{"filler": "` + strings.Repeat("again ", 200) + `"}`
	total := 0
	for range 3 {
		s.emit(200, "order.compressed", payload)
		total += 200
		w.settle()
		testdb.WaitFor(t, "the log to bring them all", func() bool { return d.byLog() == total })
		d.stop()
		s.emit(50, "order.compressed", payload) // while nobody reads
		d = w.dispatch(o, steadyAndMoody(), hooks{})
		total = 50
	}
	w.settle()
	testdb.WaitFor(t, "the log to bring the last", func() bool { return d.byLog() == total })
	d.stop()
	if n := w.number(`SELECT coalesce(sum(transaction_counter), 0) FROM performance_schema.binary_log_transaction_compression_stats
		WHERE log_type = 'BINARY' AND compression_type = 'ZSTD'`); n < 6 {
		t.Errorf("the server compressed %d transactions, want at least 6", n)
	}
	w.wrecked = append(w.wrecked, "compressed transactions")
	if report := w.verdict(); report.Duplicates != 0 {
		t.Errorf("duplicates = %d, want none", report.Duplicates)
	}
}

// 32: MariaDB compresses row events above a threshold.
func TestMySQL32_MariaDBCompressedRows(t *testing.T) {
	for _, kind := range []testdb.Kind{testdb.MariaDB1011, testdb.MariaDB118} {
		onMySQL(t, kind, func(t *testing.T, w *world) {
			w.setGlobal("log_bin_compress", "ON")
			d := w.dispatch(seldomPoll, steadyAndMoody(), hooks{})
			w.streaming()
			file := w.text(`SHOW MASTER STATUS`)
			w.emit(20, "order.compressed", `{"filler": "`+strings.Repeat("again ", 10_000)+`"}`)
			w.emit(20, "order.plain", `{}`) // below the threshold, which is for single events
			w.settle()
			testdb.WaitFor(t, "the log to bring them all", func() bool { return d.byLog() == 40 })
			d.stop()
			rows, err := w.db.Table(t.Context(), `SHOW BINLOG EVENTS IN '`+file+`'`)
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			for _, row := range rows {
				if strings.Contains(row[2], "Write_rows_compressed") {
					seen++
				}
			}
			if seen == 0 {
				t.Error("the log has no compressed rows")
			}
			w.wrecked = append(w.wrecked, "compressed rows")
			w.verdict()
		})
	}
}

// 26: a session logs statements instead of rows. The log asks the poller to look, once for
// each such transaction on our table and never for others'.
func TestMySQL26_StatementFormat(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		w.exec("CREATE TABLE neighbour (note text)")
		d := w.dispatch(neverPoll, steadyAndMoody(), hooks{})
		w.streaming()
		s := w.session("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SET SESSION binlog_format = 'STATEMENT'")
		s.exec("INSERT INTO neighbour VALUES ('about events')")
		w.logBrings(d)
		if n := d.counts.totals().Other[pipeline.CountSweepAsked]; n != 0 {
			t.Errorf("a statement about another table asked for %d looks", n)
		}
		for range 3 {
			w.succeed(s.emit(10, "order.stated", `{}`)[0])
		}
		w.settle()
		d.stop()
		if got := d.counts.totals(); got.Other[pipeline.CountSweepAsked] != 3 || got.Via["poll"] < 30 {
			t.Errorf("want to be asked 3 times and to find 30 events: %s", got)
		}
		w.wrecked = append(w.wrecked, "logged as statements")
		w.verdict()
	})
}

// 27: a session that does not log its writes. The poller finds them within its own time.
func TestMySQL27_NotLogged(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w *world) {
		d := w.dispatch(options{Grace: 100 * time.Millisecond, PollInterval: 100 * time.Millisecond}, steadyAndMoody(), hooks{})
		w.streaming()
		w.logBrings(d)
		s := w.session("SET SESSION sql_log_bin = 0")
		s.emit(50, "order.unlogged", `{}`)
		w.settle()
		d.stop()
		if got := d.counts.totals(); got.Captured["log"] != 1 || got.Via["poll"] < 50 {
			t.Errorf("want 1 by the log and 50 by the poller: %s", got)
		}
		w.wrecked = append(w.wrecked, "not logged")
		w.verdict()
	})
}
