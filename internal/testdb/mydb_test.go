package testdb

import (
	"context"
	"database/sql"
	"io"
	"testing"
)

func TestFreshMySQLDatabasePerTest(t *testing.T) {
	EachMySQL(t, func(t *testing.T, kind Kind) {
		a, b := MySQL(t, kind), MySQL(t, kind)
		if a.Name() == b.Name() {
			t.Fatalf("both databases are named %s", a.Name())
		}
		a.Exec("CREATE TABLE x (id int); INSERT INTO x VALUES (1)")
		var tables int
		if err := b.Pool().QueryRowContext(t.Context(),
			"SELECT count(*) FROM information_schema.tables WHERE table_schema = database()").Scan(&tables); err != nil {
			t.Fatal(err)
		}
		if tables != 0 {
			t.Error("a table of one database is seen in the other")
		}
	})
}

// A test may leave a prepared transaction, locks and open sessions: the next one
// must not notice.
func TestCleanupDropsWhatHoldsTheMySQLDatabase(t *testing.T) {
	EachMySQL(t, func(t *testing.T, kind Kind) {
		var name string
		var left []io.Closer // closed only when the database has gone
		t.Run("leave", func(t *testing.T) {
			db := MySQL(t, kind)
			name = db.Name()
			db.Exec("CREATE TABLE x (id int PRIMARY KEY); INSERT INTO x VALUES (1)")
			conn := leftOpen(t, db, &left)
			for _, query := range []string{
				"XA START " + db.XID("left"), "INSERT INTO x VALUES (2)", "XA END " + db.XID("left"), "XA PREPARE " + db.XID("left"),
			} {
				if _, err := conn.ExecContext(t.Context(), query); err != nil {
					t.Fatalf("%s: %v", query, err)
				}
			}
			open := leftOpen(t, db, &left)
			for _, query := range []string{"START TRANSACTION", "UPDATE x SET id = 3 WHERE id = 1"} {
				if _, err := open.ExecContext(t.Context(), query); err != nil {
					t.Fatalf("%s: %v", query, err)
				}
			}
		})
		for _, c := range left {
			_ = c.Close() // the server has ended it
		}
		other := MySQL(t, kind)
		var things int
		if err := other.Pool().QueryRowContext(t.Context(), `
			SELECT (SELECT count(*) FROM information_schema.schemata WHERE schema_name = ?)
			     + (SELECT count(*) FROM information_schema.processlist WHERE db = ?)`, name, name).Scan(&things); err != nil {
			t.Fatal(err)
		}
		if things != 0 {
			t.Errorf("%d things are left of database %s", things, name)
		}
		rows, err := other.Pool().QueryContext(t.Context(), "XA RECOVER")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		if rows.Next() {
			t.Error("a prepared transaction is left")
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	})
}

// leftOpen is a session that the test does not end before its database goes.
func leftOpen(t *testing.T, db *MyDB, left *[]io.Closer) *sql.Conn {
	t.Helper()
	pool, err := sql.Open("mysql", db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	*left = append(*left, conn, pool)
	return conn
}
