package testdb

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

func TestFreshDatabasePerTest(t *testing.T) {
	EachPostgres(t, func(t *testing.T, major int) {
		a, b := Postgres(t, major), Postgres(t, major)
		if a.Name() == b.Name() {
			t.Fatalf("both databases are named %s", a.Name())
		}
		a.Exec("CREATE TABLE x (id int); INSERT INTO x VALUES (1)")
		var there bool
		if err := b.Pool().QueryRow(t.Context(), "SELECT to_regclass('x') IS NOT NULL").Scan(&there); err != nil {
			t.Fatal(err)
		}
		if there {
			t.Error("a table of one database is seen in the other")
		}
	})
}

// A test may leave an active slot, a prepared transaction and open sessions:
// the next one must not notice.
func TestCleanupDropsWhatHoldsTheDatabase(t *testing.T) {
	EachPostgres(t, func(t *testing.T, major int) {
		var name string
		t.Run("leave", func(t *testing.T) {
			db := Postgres(t, major)
			name = db.Name()
			db.Exec("CREATE TABLE x (id int)")
			db.Exec("SELECT pg_create_logical_replication_slot('idle_" + name[:4] + "', 'pgoutput')")
			conn, err := pgx.Connect(t.Context(), db.DSN())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			if _, err := conn.Exec(t.Context(),
				"BEGIN; INSERT INTO x VALUES (1); PREPARE TRANSACTION 'left'"); err != nil {
				t.Fatal(err)
			}
		})
		other := Postgres(t, major)
		var left int
		if err := other.Pool().QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM pg_database WHERE datname = $1)
			     + (SELECT count(*) FROM pg_replication_slots WHERE database = $1)
			     + (SELECT count(*) FROM pg_prepared_xacts WHERE database = $1)`, name).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if left != 0 {
			t.Errorf("%d things are left of database %s", left, name)
		}
	})
}
