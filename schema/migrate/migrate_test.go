package migrate_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestUpOnAnEmptyDatabase(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		m := migrator(t, db.Pool(), migrate.Options{})

		before, err := m.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := tables(t, db.Pool(), "eventlog"); len(got) != 0 {
			t.Errorf("status created %v", got)
		}
		applied := up(t, m)
		if len(applied) != len(before) || len(applied) == 0 {
			t.Errorf("applied %v of %v", applied, before)
		}
		if diff := cmp.Diff(allTables, tables(t, db.Pool(), "eventlog")); diff != "" {
			t.Error(diff)
		}
		after, err := m.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range after {
			if before[i].Applied || !s.Applied || s.AppliedAt.IsZero() || s.Name != applied[i].Name {
				t.Errorf("step %d: before %+v, after %+v", i, before[i], s)
			}
		}
		if again := up(t, m); len(again) != 0 {
			t.Errorf("a second up applied %v", again)
		}
	})
}

// TestUpBesideAnExistingEkbatanDatabase: tables with exactly the published columns, with data, work
// unchanged: nothing is rewritten, and the event table is not altered at all.
func TestUpBesideAnExistingEkbatanDatabase(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		db.Exec(seedDDL)
		db.Exec(seedRows)
		const content = `SELECT md5(string_agg(x, E'\n' ORDER BY x)) FROM (
SELECT id::text || payload || event_date AS x FROM eventlog.events UNION ALL
SELECT id::text || event_id || handler_name || state || next_retry_at FROM eventlog.event_notifications) rows`
		const files = `SELECT pg_relation_filenode('eventlog.events') || ' ' || pg_relation_filenode('eventlog.event_notifications')`
		rows, nodes := column(t, db.Pool(), content), column(t, db.Pool(), files)
		before := catalog(t, db.Pool(), "eventlog")

		up(t, migrator(t, db.Pool(), migrate.Options{}))

		if got := column(t, db.Pool(), content); got[0] != rows[0] {
			t.Error("the rows changed")
		}
		if got := column(t, db.Pool(), files); got[0] != nodes[0] {
			t.Error("a table was rewritten")
		}
		after := strings.Join(catalog(t, db.Pool(), "eventlog"), "\n")
		for _, line := range before {
			if !strings.Contains(after, line) {
				t.Errorf("lost or changed: %s", line)
			}
		}
		if strings.Contains(after, "events.traceparent") {
			t.Error("the event table was altered")
		}
		// An Ekbatan process goes on writing as before.
		db.Exec(strings.ReplaceAll(seedRows, "FROM eventlog.events;", "FROM eventlog.events WHERE id NOT IN (SELECT event_id FROM eventlog.event_notifications);"))
	})
}

func TestBringYourOwnTableIsLeftAlone(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		db.Exec(`CREATE TABLE public.outboxevent (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)`)
		before := catalog(t, db.Pool(), "public")
		m := migrator(t, db.Pool(), migrate.Options{Schema: "dispatch", Table: schema.Debezium("", "")})
		up(t, m)
		if diff := cmp.Diff(before, catalog(t, db.Pool(), "public")); diff != "" {
			t.Errorf("the event table changed:\n%s", diff)
		}
		for _, name := range tables(t, db.Pool(), "dispatch") {
			if name == "events" {
				t.Error("an event table was created that nobody uses")
			}
		}
		for down(t, m) != nil {
		}
		if diff := cmp.Diff(before, catalog(t, db.Pool(), "public")); diff != "" {
			t.Errorf("the event table changed:\n%s", diff)
		}
	})
}

// TestDownKeepsTheUsersTablesAndRows: events and deliveries are the user's, whoever created the tables.
func TestDownKeepsTheUsersTablesAndRows(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		db.Exec(seedDDL)
		db.Exec(seedRows)
		before := catalog(t, db.Pool(), "eventlog")
		m := migrator(t, db.Pool(), migrate.Options{})
		first := up(t, m)

		for range first {
			if down(t, m) == nil {
				t.Fatal("nothing left to undo")
			}
		}
		if got := down(t, m); got != nil {
			t.Errorf("undone once more: %v", got)
		}
		var left []string
		for _, line := range catalog(t, db.Pool(), "eventlog") {
			if !strings.HasPrefix(line, "cdc_dispatcher_migrations") {
				left = append(left, line)
			}
		}
		if diff := cmp.Diff(before, left); diff != "" {
			t.Errorf("not as before:\n%s", diff)
		}
		for _, table := range []string{"events", "event_notifications"} {
			if got := column(t, db.Pool(), `SELECT count(*)::text FROM eventlog.`+table); got[0] != "50" {
				t.Errorf("%s has %s rows", table, got[0])
			}
		}
		if again := up(t, m); len(again) != len(first) {
			t.Errorf("up again applied %v", again)
		}
	})
}

func TestDownRefusesToDropPayloads(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		m := migrator(t, db.Pool(), migrate.Options{})
		up(t, m)
		events, deliveries, _ := strings.Cut(seedRows, "INSERT INTO eventlog.event_notifications")
		// A fresh table has two columns more.
		db.Exec(strings.Replace(events, "now(), false", "now(), false, NULL, NULL", 1))
		db.Exec("INSERT INTO eventlog.event_notifications" + deliveries)
		db.Exec(`UPDATE eventlog.event_notifications SET payload_raw = 'x'`)
		down(t, m) // the columns of 0004
		down(t, m) // the indexes
		_, err := m.Down(t.Context())
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "55006" || pgErr.Hint == "" {
			t.Fatalf("got %v", err)
		}
		db.Exec(`UPDATE eventlog.event_notifications SET payload_raw = NULL`)
		down(t, m)
	})
}

func TestSchemaNameWithCapitalsAndQuotes(t *testing.T) {
	const name = `My "log"; v2's \ DROP`
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		plain := migrator(t, db.Pool(), migrate.Options{})
		up(t, plain)
		odd := migrator(t, db.Pool(), migrate.Options{Schema: name})
		up(t, odd)
		if diff := cmp.Diff(catalog(t, db.Pool(), "eventlog"), catalog(t, db.Pool(), name)); diff != "" {
			t.Error(diff)
		}
		for down(t, odd) != nil {
		}
		up(t, odd)
	})
}

// TestUpDoesNotWaitForLocks: a migration behind a long transaction gives up, so that the
// application's own statements do not pile up behind it, and can be run again.
func TestUpDoesNotWaitForLocks(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, c := range []struct {
			name    string
			prepare func(*testing.T, *testdb.DB)
			holds   string
		}{
			{"columns", func(_ *testing.T, db *testdb.DB) { db.Exec(seedDDL) }, `SELECT count(*) FROM eventlog.event_notifications`},
			{"an unfinished index", func(t *testing.T, db *testdb.DB) {
				db.Exec(seedDDL)
				db.Exec(seedRows)
				m := migrator(t, db.Pool(), migrate.Options{})
				up(t, m)
				down(t, m) // the columns of 0004
				down(t, m) // the indexes
				leaveUnfinishedIndex(t, db)
			}, `SELECT count(*) FROM eventlog.event_notifications`},
			{"partitioned events", func(_ *testing.T, db *testdb.DB) { db.Exec(partitionedDDL()) }, `LOCK TABLE eventlog.events IN ROW EXCLUSIVE MODE`},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel() // each waits for the same five seconds
				db := testdb.Postgres(t, major)
				c.prepare(t, db)
				tx, err := db.Pool().Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
				if _, err := tx.Exec(t.Context(), c.holds); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				m := migrator(t, db.Pool(), migrate.Options{})
				applied, err := m.Up(ctx)
				var pgErr *pgconn.PgError
				if !errors.As(err, &pgErr) || pgErr.Code != "55P03" {
					t.Fatalf("got %v after %v, want a lock timeout", err, applied)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				up(t, m)
				if got := invalid(t, db); len(got) != 0 {
					t.Errorf("invalid: %v", got)
				}
			})
		}
	})
}

// leaveUnfinishedIndex leaves what a concurrent build leaves that was cut off.
func leaveUnfinishedIndex(t *testing.T, db *testdb.DB) {
	t.Helper()
	_, err := db.Pool().Exec(t.Context(),
		`CREATE UNIQUE INDEX CONCURRENTLY event_notifications_claim ON eventlog.event_notifications (state)`)
	if err == nil || len(invalid(t, db)) != 1 {
		t.Fatalf("the index was to be left invalid: %v", err)
	}
}

// invalid lists the indexes that nothing uses.
func invalid(t *testing.T, db *testdb.DB) []string {
	t.Helper()
	return column(t, db.Pool(), `SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid`)
}

// TestUpReplacesAnUnfinishedIndex: a concurrent build that was cut off leaves an index that
// exists and is not used.
func TestUpReplacesAnUnfinishedIndex(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		db.Exec(seedDDL)
		db.Exec(seedRows)
		leaveUnfinishedIndex(t, db)
		up(t, migrator(t, db.Pool(), migrate.Options{}))
		for _, line := range catalog(t, db.Pool(), "eventlog") {
			if strings.HasPrefix(line, "event_notifications_claim") && strings.Contains(line, "(handler_name, next_retry_at)") {
				return
			}
		}
		t.Errorf("no usable index in %v", catalog(t, db.Pool(), "eventlog"))
	})
}

func TestUpBesideAPartitionedEventTable(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		db.Exec(partitionedDDL())
		m := migrator(t, db.Pool(), migrate.Options{})
		up(t, m)
		if !strings.Contains(strings.Join(catalog(t, db.Pool(), "eventlog"), "\n"), "events_undelivered on events") {
			t.Error("the index is missing")
		}
	})
}

// TestUpWithoutTheRightToCreateSchemas: an administrator has created the schema.
func TestUpWithoutTheRightToCreateSchemas(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		pool, err := pgxpool.New(t.Context(), ownerOfSchema(db))
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		up(t, migrator(t, pool, migrate.Options{}))
	})
}

func TestUpFromSeveralProcessesAtOnce(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			total int
		)
		for range 3 {
			wg.Go(func() {
				m, err := migrate.Postgres(db.Pool(), migrate.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				applied, err := m.Up(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				total += len(applied)
			})
		}
		wg.Wait()
		all, err := migrator(t, db.Pool(), migrate.Options{}).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if total != len(all) {
			t.Errorf("%d steps were applied, there are %d", total, len(all))
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []migrate.Options{
		{Schema: strings.Repeat("x", 64)},
		{Schema: "a\nb"},
		{Table: schema.Table{Name: "outbox"}},
	} {
		if _, err := migrate.Print(o); err == nil {
			t.Errorf("print accepted %+v", o)
		}
		if _, err := migrate.Postgres(nil, o); err == nil {
			t.Errorf("accepted %+v", o)
		}
	}
}
