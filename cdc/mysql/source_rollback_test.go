package mysql

import (
	"context"
	"fmt"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// A server logs a transaction that was rolled back when something in it cannot be undone, such as a temporary
// table. None of its rows may be handed over, however large it is; those of one that is committed are.
func TestLargeTransactionThatIsRolledBack(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		rollBack(t, configOf(db), func() *session { return newSession(t, db.Pool()) })
	})
}

// Without GTIDs MySQL allows more of these.
func TestLargeTransactionThatIsRolledBackWithoutGTIDs(t *testing.T) {
	t.Parallel()
	s := newServer(t, testdb.MySQL97, map[string]string{"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
	s.setUp()
	rollBack(t, s.config(), func() *session {
		conn := newSession(t, s.pool)
		conn.exec("USE app")
		return conn
	})
}

func rollBack(t *testing.T, cfg Config, open func() *session) {
	t.Helper()
	cfg.MaxRecords = 10
	open().exec(
		"CREATE TABLE audit (id int) ENGINE=MyISAM", "CREATE TABLE audited (id int PRIMARY KEY)",
		"CREATE TRIGGER t BEFORE INSERT ON audited FOR EACH ROW INSERT INTO audit VALUES (NEW.id)",
	)
	r := streaming(t, cfg)
	const rows = 150
	next := 0
	for name, statement := range map[string]string{
		"temporary table":   "CREATE TEMPORARY TABLE tt (a int)",
		"trigger on MyISAM": "INSERT INTO audited VALUES (1)",
		"MyISAM":            "INSERT INTO audit VALUES (1)",
		"two engines":       "UPDATE audit, events SET audit.id = 7, events.payload = 'x' WHERE events.id % 50 = 0",
	} {
		for _, end := range []string{"ROLLBACK", "ROLLBACK TO a", "COMMIT"} {
			s := open()
			from, until := next, next+2*rows
			next = until + 1
			for _, q := range []string{"BEGIN", "SAVEPOINT a", insert(from, from+rows), statement, insert(from+rows, until), end, "COMMIT"} {
				if q == "SAVEPOINT a" && end != "ROLLBACK TO a" {
					continue
				}
				if _, err := s.conn.ExecContext(context.Background(), q); err != nil {
					t.Logf("%s: %.60s: %v", name, q, err) // which of them a server takes is its own affair
				}
			}
			s.exec(insert(until, until+1))
			r.Wait("the row after it", func() bool { return r.Count(fmt.Sprint(until)) > 0 })
			want, got := 0, 0
			if end == "COMMIT" {
				want = 2 * rows
			}
			for i := from; i < until; i++ {
				got += min(1, r.Count(fmt.Sprint(i)))
			}
			if got != want {
				t.Errorf("%s, %s: %d rows were handed over, want %d", name, end, got, want)
			}
			s.exec("DROP TEMPORARY TABLE IF EXISTS tt")
			_ = s.conn.Close()
		}
	}
	if n := r.src.Status().Reconnects; n != 0 {
		t.Errorf("%d connections were lost", n)
	}
}

// A statement that fails is undone alone. What it wrote into another engine stays, and may stay in the log.
func TestStatementThatFailsInsideATransaction(t *testing.T) {
	eachMySQL(t, func(t *testing.T, db *testdb.MyDB) {
		db.Exec("CREATE TABLE audit (id int) ENGINE=MyISAM")
		db.Exec("CREATE TRIGGER t BEFORE INSERT ON events FOR EACH ROW INSERT INTO audit VALUES (NEW.id)")
		r := streaming(t, configOf(db))
		s := newSession(t, db.Pool())
		for _, q := range []string{"BEGIN", insert(0, 5), insert(10, 20) + ", (1, 'again')", insert(30, 35), "COMMIT", insert(40, 50) + ", (1, 'again')"} {
			if _, err := s.conn.ExecContext(context.Background(), q); err != nil {
				t.Logf("%.40s: %v", q, err)
			}
		}
		db.Exec("DROP TRIGGER t")
		s.exec(insert(100, 101))
		r.Wait("the row after it", func() bool { return r.Count("100") == 1 })
		for i := range 60 {
			stays := query[int](t, db.Pool(), "SELECT count(*) FROM "+db.Name()+".events WHERE id = ?", i)
			if got := r.Count(fmt.Sprint(i)); got > stays {
				t.Errorf("row %d was handed over and is not in the table", i)
			}
		}
	})
}
