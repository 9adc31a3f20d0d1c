package testdb

import (
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
