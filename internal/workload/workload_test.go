package workload_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// events is the published table with the columns that writers fill (A2–A15).
const events = `
	CREATE SCHEMA eventlog;
	CREATE TABLE eventlog.events (
		id uuid PRIMARY KEY, namespace varchar(255) NOT NULL, action_id uuid NOT NULL, action_name varchar(255) NOT NULL,
		action_params jsonb NOT NULL, started_date timestamp NOT NULL, completion_date timestamp NOT NULL,
		model_id varchar(255), model_type varchar(255), event_type varchar(255), payload jsonb,
		event_date timestamp NOT NULL, delivered boolean NOT NULL)`

func database(t *testing.T, major int) *testdb.DB {
	db := testdb.Postgres(t, major)
	db.Exec(events)
	conn, err := pgx.Connect(t.Context(), db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	if err := workload.Setup(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

// start runs a workload; the returned function ends it and returns its error.
func start(t *testing.T, c workload.Config) (end func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- workload.Run(ctx, c) }()
	return func() error {
		cancel()
		return <-done
	}
}

func compare(t *testing.T, db *testdb.DB, w ledger.Snapshot) {
	t.Helper()
	stored, err := ledger.ReadStored(t.Context(), db.Pool(), "eventlog.events")
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(stored))
	want := slices.Sorted(maps.Keys(w.Resolve(stored).Committed))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("event ids (-ledger +table):\n%s", diff)
	}
}

func TestRun_AccountAgreesWithTheTable(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := database(t, major)
		var w ledger.Writers
		end := start(t, workload.Config{DSN: db.DSN(), Ledger: &w, Writers: 6, Seed: 1})
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
		compare(t, db, s)
	})
}

// Sessions are ended under the writers: each goes on with a new one, and a commit
// that was never answered is settled by the table.
func TestRun_GoesOnAfterLostConnections(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := database(t, major)
		var w ledger.Writers
		end := start(t, workload.Config{DSN: db.DSN(), Ledger: &w, Writers: 6, Seed: 2, Faults: true})
		for round := range 10 {
			before, _, _ := w.Counts()
			db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND query LIKE '%shop.orders%' AND pid <> pg_backend_pid()`)
			testdb.WaitFor(t, "commits after the sessions were ended", func() bool {
				now, _, _ := w.Counts()
				return now > before+20*round
			})
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		compare(t, db, w.Snapshot())
	})
}

func TestRun_ReturnsTheErrorOfARefusedWrite(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major) // without the tables
		var w ledger.Writers
		if err := workload.Run(t.Context(), workload.Config{DSN: db.DSN(), Ledger: &w}); err == nil {
			t.Error("writers without a table to write to ended without an error")
		}
	})
}

func TestRun_RoughWritersInsertManyRowsAtOnce(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := database(t, major)
		var w ledger.Writers
		end := start(t, workload.Config{DSN: db.DSN(), Ledger: &w, Writers: 6, Seed: 3, Rough: true})
		testdb.WaitFor(t, "a COPY", func() bool {
			var found bool
			err := db.Pool().QueryRow(t.Context(),
				`SELECT EXISTS (SELECT FROM eventlog.events GROUP BY action_id HAVING count(*) >= 10)`).Scan(&found)
			return err == nil && found
		})
		if err := end(); err != nil {
			t.Fatal(err)
		}
		compare(t, db, w.Snapshot())
	})
}
