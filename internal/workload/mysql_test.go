package workload_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
)

// mysqlEvents is events in words that both families know.
const mysqlEvents = `
	CREATE TABLE events (
		id char(36) PRIMARY KEY, namespace varchar(255) NOT NULL, action_id char(36) NOT NULL, action_name varchar(255) NOT NULL,
		action_params json NOT NULL, started_date datetime(6) NOT NULL, completion_date datetime(6) NOT NULL,
		model_id varchar(255), model_type varchar(255), event_type varchar(255), payload json,
		event_date datetime(6) NOT NULL, delivered boolean NOT NULL)`

func mysqlDatabase(t *testing.T, kind testdb.Kind) *testdb.MyDB {
	db := testdb.MySQL(t, kind)
	db.Exec(mysqlEvents)
	if err := workload.SetupMySQL(t.Context(), db.Pool()); err != nil {
		t.Fatal(err)
	}
	return db
}

func mysqlConfig(db *testdb.MyDB, w *ledger.Writers) workload.Config {
	return workload.Config{DSN: db.DSN(), Dialect: workload.MySQL, Events: db.Name() + ".events", Ledger: w, Writers: 6}
}

func compareMySQL(t *testing.T, db *testdb.MyDB, w ledger.Snapshot) {
	t.Helper()
	stored, err := ledger.ReadStoredMySQL(t.Context(), db.Pool(), db.Name()+".events")
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(stored))
	want := slices.Sorted(maps.Keys(w.Resolve(stored).Committed))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("event ids (-ledger +table):\n%s", diff)
	}
}

func TestRunMySQL_AccountAgreesWithTheTable(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := mysqlDatabase(t, kind)
		var w ledger.Writers
		c := mysqlConfig(db, &w)
		c.Seed = 1
		end := start(t, c)
		testdb.WaitFor(t, "400 committed and 40 undone events", func() bool {
			committed, undone, _ := w.Counts()
			return committed >= 400 && undone >= 40
		})
		if err := end(); err != nil {
			t.Fatal(err)
		}
		s := w.Snapshot()
		if len(s.Unknown) != 0 {
			t.Errorf("%d commits were never answered on a healthy server", len(s.Unknown))
		}
		compareMySQL(t, db, s)
	})
}

func TestRunMySQL_GoesOnAfterLostConnections(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := mysqlDatabase(t, kind)
		var w ledger.Writers
		c := mysqlConfig(db, &w)
		c.Seed, c.Faults = 2, true
		end := start(t, c)
		for round := range 10 {
			before, _, _ := w.Counts()
			endSessions(t, db)
			testdb.WaitFor(t, "commits after the sessions were ended", func() bool {
				now, _, _ := w.Counts()
				return now > before+20*round
			})
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		compareMySQL(t, db, w.Snapshot())
	})
}

// endSessions ends the sessions of the writers.
func endSessions(t *testing.T, db *testdb.MyDB) {
	t.Helper()
	conn, err := db.Pool().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	rows, err := conn.QueryContext(t.Context(),
		"SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		_, _ = conn.ExecContext(context.Background(), fmt.Sprintf("KILL CONNECTION %d", id)) // it may be gone
	}
}

func TestRunMySQL_ReturnsTheErrorOfARefusedWrite(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := testdb.MySQL(t, kind) // without the tables
		var w ledger.Writers
		if err := workload.Run(t.Context(), mysqlConfig(db, &w)); err == nil {
			t.Error("writers without a table to write to ended without an error")
		}
	})
}

func TestRunMySQL_RoughWritersInsertManyRowsAtOnce(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := mysqlDatabase(t, kind)
		var w ledger.Writers
		c := mysqlConfig(db, &w)
		c.Seed, c.Rough = 3, true
		end := start(t, c)
		testdb.WaitFor(t, "a statement of many rows", func() bool {
			var found bool
			err := db.Pool().QueryRowContext(t.Context(),
				`SELECT EXISTS (SELECT 1 FROM events GROUP BY action_id HAVING count(*) >= 10)`).Scan(&found)
			return err == nil && found
		})
		if err := end(); err != nil {
			t.Fatal(err)
		}
		compareMySQL(t, db, w.Snapshot())
	})
}
