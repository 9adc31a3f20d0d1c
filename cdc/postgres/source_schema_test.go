package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// byID indexes what arrived.
func (r *reader) byID() map[string]cdc.Record {
	all := map[string]cdc.Record{}
	for _, record := range r.Records() {
		all[cdctest.Text(record, "id")] = record
	}
	return all
}

func TestB33_PartitionedTable(t *testing.T) {
	for _, viaRoot := range []bool{true, false} {
		t.Run(fmt.Sprintf("via root %v", viaRoot), func(t *testing.T) {
			t.Parallel()
			testdb.EachPostgres(t, func(t *testing.T, major int) {
				t.Parallel()
				db := testdb.Postgres(t, major)
				db.Exec(`CREATE TABLE events (id bigint, day date, payload text) PARTITION BY RANGE (day);
					CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')`)
				cfg := testConfig(db)
				r := startUnwatched(t, cfg)
				if !viaRoot { // as somebody may do it, and nobody looks for a while
					db.Exec("ALTER PUBLICATION " + cfg.Publication + " SET (publish_via_partition_root = false)")
				}
				db.Exec(`INSERT INTO events VALUES (1, '2026-01-01', 'one')`)
				// Another column order, and a column that is gone, in a partition made mid-stream.
				db.Exec(`CREATE TABLE events_2 (payload text, gone int, day date, id bigint);
					ALTER TABLE events_2 DROP COLUMN gone;
					ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM ('2026-01-02') TO ('2026-01-03');
					INSERT INTO events VALUES (2, '2026-01-02', 'two'), (3, '2026-01-01', 'three')`)
				db.Exec(`CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM ('2026-01-03') TO ('2026-01-09') PARTITION BY RANGE (day);
					CREATE TABLE events_3a PARTITION OF events_3 FOR VALUES FROM ('2026-01-03') TO ('2026-01-05');
					INSERT INTO events VALUES (4, '2026-01-03', 'four')`)
				db.Exec(`CREATE TABLE loose (id bigint, payload text); ALTER PUBLICATION ` + cfg.Publication + ` ADD TABLE loose;
					INSERT INTO loose VALUES (5, 'five')`)
				db.Exec(`INSERT INTO events_2 (id, day, payload) VALUES (6, '2026-01-02', 'six')`)
				r.WaitFor(5)
				for id, want := range map[string]string{"1": "one", "2": "two", "3": "three", "4": "four", "6": "six"} {
					record := r.byID()[id]
					if record.Relation == nil {
						t.Errorf("event %s did not arrive", id)
						continue
					}
					if got := cdctest.Text(record, "payload"); got != want || record.Relation.Name() != "public.events" {
						t.Errorf("event %s of %s has payload %q, want %q", id, record.Relation.Name(), got, want)
					}
				}
				if r.Count("5") != 0 {
					t.Error("a row of an unregistered table arrived")
				}
				for _, reason := range r.Gaps() {
					if viaRoot || reason != gapPublicationTable { // that is allowed if the watcher did look
						t.Errorf("gap %s", reason)
					}
				}
			})
		})
	}
}

// startUnwatched starts a reader whose watcher answers questions, but has looked at
// the publication for the last time before the stream began.
func startUnwatched(t *testing.T, cfg Config) *reader {
	t.Helper()
	open := make(chan struct{})
	cfg.WatchInterval = time.Hour
	cfg.BeforeConnect = func(ctx context.Context, c *pgconn.Config) error {
		if c.RuntimeParams["replication"] != "" {
			select {
			case <-open:
			case <-ctx.Done():
			}
		}
		return nil
	}
	r := start(t, cfg)
	testdb.WaitFor(t, "the watcher's look", func() bool {
		return query[int](t, cfg.DSN, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name LIKE '%watch' AND state = 'idle' AND query LIKE '%max_slot_wal_keep_size%'`) == 1
	})
	close(open)
	r.WaitMode(cdc.ModeStreaming)
	return r
}

// partitioned has three partitions, for the ids 1 to 3.
const partitioned = `CREATE TABLE events (id bigint, payload text) PARTITION BY LIST (id);
	CREATE TABLE events_1 PARTITION OF events FOR VALUES IN (1);
	CREATE TABLE events_2 PARTITION OF events FOR VALUES IN (2);
	CREATE TABLE events_3 PARTITION OF events FOR VALUES IN (3)`

func eachPartitioned(t *testing.T, fn func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		db := testdb.Postgres(t, major)
		db.Exec(partitioned)
		fn(t, db)
	})
}

func TestB33_PublicationThatIsNotViaRootIsMended(t *testing.T) {
	eachPartitioned(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		db.Exec("CREATE PUBLICATION " + cfg.Publication + " FOR TABLE events WITH (publish = 'insert')")
		db.Exec("SELECT pg_create_logical_replication_slot('" + cfg.Slot + "', 'pgoutput')")
		db.Exec("INSERT INTO events VALUES (1, 'one')")
		r := start(t, cfg)
		r.WaitGap(gapPublicationTable)
		if gap := r.Gap(0); !strings.Contains(gap.Detail, "names of partitions") || gap.From == "" || gap.To == "" {
			t.Errorf("gap %+v", gap)
		}
		viaRoot := func() bool {
			return query[bool](t, db.DSN(), "SELECT pubviaroot FROM pg_publication WHERE pubname = $1", cfg.Publication)
		}
		if !viaRoot() {
			t.Error("the publication was not mended")
		}
		r.WaitFor(1) // from before, and still below its root
		db.Exec("ALTER PUBLICATION " + cfg.Publication + " SET (publish_via_partition_root = false)")
		testdb.WaitFor(t, "the publication to be mended under the stream", viaRoot)
		db.Exec("INSERT INTO events VALUES (2, 'two')")
		r.WaitFor(2)
		testdb.WaitFor(t, "the second gap", func() bool { return len(r.Gaps()) == 2 })
		if n := r.src.Status().ForeignRows; n != 0 {
			t.Errorf("%d rows count as foreign", n)
		}
	})
}

// TestB33_PartitionGoneBeforeItsRowsWereRead: the log has rows under the names of
// partitions that are not below the root any more when they are read.
func TestB33_PartitionGoneBeforeItsRowsWereRead(t *testing.T) {
	eachPartitioned(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		prepared := start(t, cfg)
		prepared.WaitMode(cdc.ModeStreaming)
		prepared.Stop()
		db.Exec("CREATE TABLE other (id bigint); ALTER PUBLICATION " + cfg.Publication + " ADD TABLE other")
		db.Exec("ALTER PUBLICATION " + cfg.Publication + " SET (publish_via_partition_root = false)")
		db.Exec("INSERT INTO events VALUES (1, 'dropped'), (1, 'dropped too'), (3, 'stays')")
		db.Exec("INSERT INTO events VALUES (2, 'detached')")
		db.Exec("INSERT INTO other VALUES (7)")
		db.Exec("DROP TABLE events_1; ALTER TABLE events DETACH PARTITION events_2")
		r := start(t, cfg, noAck)
		r.WaitFor(1)
		testdb.WaitFor(t, "the gaps", func() bool { return len(r.Gaps()) == 3 })
		if got := strings.Join(r.Gaps(), " "); got != "publication_table table_gone table_gone" {
			t.Errorf("gaps %s", got)
		}
		for i, want := range []string{"public.events_1, which no longer exists, were left out, and 1 more row", "public.events_2, which is not below"} {
			gap := r.Gap(i + 1)
			if !strings.Contains(gap.Detail, want) || gap.To == "" {
				t.Errorf("gap %+v, want %q", gap, want)
			}
			// What was left out is not confirmed before it is on record.
			if at := confirmedLSN(t, db.DSN(), cfg.Slot); at >= point(t, gap.To) {
				t.Errorf("confirmed %s before the gap at %s was acknowledged", at, gap.To)
			}
		}
		r.src.Ack(r.Last())
		testdb.WaitFor(t, "the confirmation", func() bool { return confirmedLSN(t, db.DSN(), cfg.Slot) >= point(t, r.Last()) })
		testdb.WaitFor(t, "the foreign row to be counted", func() bool { return r.src.Status().ForeignRows == 1 })
		if n := r.Distinct(); n != 1 || r.Count("3") != 1 {
			t.Errorf("%d ids arrived, want the one of the partition that stays", n)
		}
	})
}

// TestForeignTablesWithoutASideConnection: where no registered table has others
// below it, the stream does not depend on the side connection.
func TestForeignTablesWithoutASideConnection(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		cfg.BeforeConnect = func(_ context.Context, c *pgconn.Config) error {
			if c.RuntimeParams["replication"] == "" {
				return errors.New("no side connection in this test")
			}
			return nil
		}
		db.Exec("CREATE PUBLICATION " + cfg.Publication + " FOR ALL TABLES")
		db.Exec("CREATE TABLE one (id bigint); CREATE TABLE two (id bigint)")
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec("INSERT INTO one VALUES (1001)")
		db.Exec("INSERT INTO two VALUES (1002)")
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
		if s := r.src.Status(); s.Reconnects != 0 || s.ForeignRows != 2 {
			t.Errorf("%d reconnects, %d foreign rows", s.Reconnects, s.ForeignRows)
		}
		sweeps := 0
		for _, tx := range r.Transactions() {
			if tx.Sweep != "" {
				sweeps++
			}
		}
		if sweeps != 2 || r.Distinct() != 10 {
			t.Errorf("%d looks of the poller were asked for, %d ids arrived", sweeps, r.Distinct())
		}
	})
}

func TestB33_AdminPublications(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		db.Exec(`CREATE TABLE parts (id bigint PRIMARY KEY, payload text) PARTITION BY LIST (id);
			CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1); CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2)`)
		parts := Table{"public", "parts"}
		for name, tc := range map[string]struct {
			make  string
			table Table
			want  string // part of the error; "" when it works
		}{
			"all tables":              {"FOR ALL TABLES", events, ""},
			"the schema":              {"FOR TABLES IN SCHEMA public", events, ""},
			"all tables, partitioned": {"FOR ALL TABLES", parts, `ALTER PUBLICATION "pub" SET (publish_via_partition_root = true)`},
			"all tables via root":     {"FOR ALL TABLES WITH (publish_via_partition_root)", parts, ""},
			"another table":           {"FOR TABLE parts", events, `ALTER PUBLICATION "pub" ADD TABLE "public"."events"`},
			"no inserts":              {"FOR TABLE events WITH (publish = 'update')", events, `ALTER PUBLICATION "pub" SET (publish = 'insert')`},
			"a partition under its root": {"FOR TABLE parts WITH (publish_via_partition_root)", Table{"public", "parts_1"},
				"register public.parts instead"},
		} {
			t.Run(name, func(t *testing.T) {
				db.Exec("DROP PUBLICATION IF EXISTS pub; CREATE PUBLICATION pub " + tc.make)
				db.Exec("TRUNCATE events, parts")
				cfg := testConfig(db)
				cfg.Publication, cfg.Create, cfg.Tables = "pub", false, []Table{tc.table}
				cfg.Slot = "adm_" + db.Name()
				db.Exec("SELECT pg_create_logical_replication_slot('" + cfg.Slot + "', 'pgoutput')")
				r := start(t, cfg)
				if tc.want != "" {
					if err := r.Failed(); !cdc.IsPermanent(err) || !strings.Contains(err.Error(), tc.want) {
						t.Errorf("Run: %v\nwant %q", err, tc.want)
					}
				} else {
					r.WaitMode(cdc.ModeStreaming)
					db.Exec("INSERT INTO " + tc.table.quoted() + " VALUES (1, 'one'), (2, 'two')")
					db.Exec("UPDATE " + tc.table.quoted() + " SET payload = 'x'")
					r.WaitFor(2)
				}
				r.Stop()
				waitIdle(t, db.DSN(), cfg.Slot)
				db.Exec("SELECT pg_drop_replication_slot('" + cfg.Slot + "')")
			})
		}
	})
}

func TestB34_SchemaChangesInOneTransaction(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		r := start(t, testConfig(db))
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(`BEGIN;
			INSERT INTO events VALUES (1, 'one');
			ALTER TABLE events ADD COLUMN kind text DEFAULT 'k';
			INSERT INTO events VALUES (2, 'two', 'new', 'loud');
			ALTER TABLE events DROP COLUMN status;
			INSERT INTO events VALUES (3, 'three', 'quiet');
			ALTER TABLE events RENAME COLUMN payload TO body;
			INSERT INTO events VALUES (4, 'four');
			COMMIT`)
		db.Exec(`ALTER TABLE events ALTER COLUMN body TYPE varchar(100); INSERT INTO events VALUES (5, 'five')`)
		r.WaitFor(5)
		type row struct{ payload, status, kind, body string }
		for id, want := range map[string]row{
			"1": {"one", "new", "absent", "absent"},
			"2": {"two", "new", "loud", "absent"},
			"3": {"three", "absent", "quiet", "absent"},
			"4": {"absent", "absent", "k", "four"},
			"5": {"absent", "absent", "k", "five"},
		} {
			record := r.byID()[id]
			got := row{cdctest.Text(record, "payload"), cdctest.Text(record, "status"), cdctest.Text(record, "kind"), cdctest.Text(record, "body")}
			if got != want {
				t.Errorf("event %s = %+v, want %+v", id, got, want)
			}
		}
	})
}

// TestB34_ColumnRenamedBackBeforeItsRowsWereRead: the rows carry a name that the
// table had for a while only.
func TestB34_ColumnRenamedBackBeforeItsRowsWereRead(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		r := start(t, testConfig(db))
		r.WaitMode(cdc.ModeStreaming)
		r.Stop()
		db.Exec(`ALTER TABLE events RENAME payload TO body; INSERT INTO events VALUES (1, 'one'); ALTER TABLE events RENAME body TO payload`)
		db.Exec(`INSERT INTO events VALUES (2, 'two')`)
		again := start(t, testConfig(db))
		again.WaitFor(2)
		for id, want := range map[string]struct {
			now     int
			payload string
		}{"1": {1, "one"}, "2": {-1, "two"}} {
			record := again.byID()[id]
			if got := record.Relation.IndexNow("payload"); got != want.now {
				t.Errorf("row %s: column %d is called payload now, want %d", id, got, want.now)
			}
			if got := string(record.Values[1].Data); got != want.payload {
				t.Errorf("row %s has %q", id, got)
			}
		}
		again.Stop()
		// With a lost column, the number of columns tells nothing.
		db.Exec(`ALTER TABLE events RENAME payload TO body; INSERT INTO events VALUES (3, 'three');
			ALTER TABLE events RENAME status TO payload; ALTER TABLE events DROP body; ALTER TABLE events ADD status text`)
		last := start(t, testConfig(db))
		last.WaitFor(1)
		if got := last.byID()["3"].Relation.IndexNow("payload"); got != -1 {
			t.Errorf("column %d is taken for payload", got)
		}
	})
}

func TestB34_TableIsRebuiltWithOtherColumnsInFront(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec("INSERT INTO events VALUES (1, 'one')")
		r.WaitFor(1)
		// In one transaction a new table takes the old one's name. The publication does
		// not have it, which must not be silent.
		db.Exec(`BEGIN;
			ALTER TABLE events RENAME TO events_old;
			CREATE TABLE events (extra int DEFAULT 7, status text DEFAULT 'new', payload text, id bigint PRIMARY KEY);
			COMMIT`)
		r.WaitGap(gapPublicationTable)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec("INSERT INTO events (id, payload) VALUES (2, 'two')")
		r.WaitFor(2)
		if record := r.byID()["2"]; cdctest.Text(record, "payload") != "two" || cdctest.Text(record, "extra") != "7" {
			t.Errorf("event 2 = %s, %s", cdctest.Text(record, "payload"), cdctest.Text(record, "extra"))
		}
	})
}

func TestB34_RenamedTableIsNamedInTheError(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		r := start(t, testConfig(db))
		r.WaitMode(cdc.ModeStreaming)
		db.Exec("BEGIN; INSERT INTO events VALUES (1, 'one'); ALTER TABLE events RENAME TO happenings; INSERT INTO happenings VALUES (2, 'two'); COMMIT")
		r.WaitFor(2) // it is still the table that was registered
		if err := r.Failed(); !cdc.IsPermanent(err) || !strings.Contains(err.Error(), "public.events does not exist") {
			t.Errorf("Run: %v", err)
		}
		db.Exec("ALTER TABLE happenings RENAME TO events")
		r.run()
		db.Exec("INSERT INTO events VALUES (3, 'three')")
		r.WaitFor(3)
	})
}

func TestB36_LargePayloadAndLaterUpdates(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		random := make([]byte, 5<<20)
		const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
		for i := range random {
			random[i] = letters[rand.IntN(len(letters))]
		}
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"INSERT INTO events VALUES (1, $1)", "UPDATE events SET status = 'done' WHERE payload <> $1 OR id = 1"} {
			if _, err := tx.Exec(t.Context(), sql, string(random)); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Exec("UPDATE events SET status = 'again'")
		db.Exec("DELETE FROM events WHERE id = 99; INSERT INTO events VALUES (2, NULL)")
		r.WaitFor(2)
		one, two := r.byID()["1"], r.byID()["2"]
		if got := cdctest.Text(one, "payload"); got != string(random) || cdctest.Text(one, "status") != "new" {
			t.Errorf("payload of %d bytes, status %s", len(got), cdctest.Text(one, "status"))
		}
		if cdctest.Text(two, "payload") != "null" {
			t.Errorf("a null payload is %q", cdctest.Text(two, "payload"))
		}
		if n := len(r.Arrived()); n != 2 {
			t.Errorf("%d rows arrived: updates are not events", n)
		}
	})
}

func TestValuesPrintTheSameWhateverTheDefaultsAre(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		for setting, value := range map[string]string{
			"DateStyle": "German", "TimeZone": "Asia/Kolkata", "IntervalStyle": "sql_standard",
			"bytea_output": "escape", "extra_float_digits": "-5", "client_encoding": "LATIN1",
			"standard_conforming_strings": "off", "client_min_messages": "error", "search_path": "nowhere",
		} {
			db.Exec(fmt.Sprintf("ALTER DATABASE %q SET %s = '%s'", db.Name(), setting, value))
		}
		db.Exec(`ALTER TABLE events ADD at timestamptz, ADD day date, ADD span interval, ADD raw bytea, ADD ratio float8`)
		r := start(t, testConfig(db))
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(`INSERT INTO events (id, payload, at, day, span, raw, ratio)
			VALUES (1, 'naïve ☃', '2026-11-30 12:00:00.123456+00', '2026-11-30', '1 day 2 hours', '\x00ff', 0.1)`)
		r.WaitFor(1)
		record := r.byID()["1"]
		for column, want := range map[string]string{
			"payload": "naïve ☃", "at": "2026-11-30 12:00:00.123456+00", "day": "2026-11-30",
			"span": "1 day 02:00:00", "raw": `\x00ff`, "ratio": "0.1",
		} {
			if got := cdctest.Text(record, column); got != want {
				t.Errorf("%s prints as %q, want %q", column, got, want)
			}
		}
	})
}

// TestB33_PartitionThatIsNotVisibleYet: the log has a commit before other sessions
// see it. A synchronous standby that does not answer makes that moment last.
func TestB33_PartitionThatIsNotVisibleYet(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		server := testdb.Dedicated(t, major, nil)
		dsn := server.DSN("postgres")
		// Children by inheritance come under their own names, whatever the publication says.
		exec(t, dsn, `CREATE TABLE events (id bigint, payload text); CREATE TABLE events_0 () INHERITS (events);
			ALTER ROLE postgres SET synchronous_commit = local`)
		cfg := configFor(dsn, "unseen")
		exec(t, dsn, "CREATE PUBLICATION "+cfg.Publication+" FOR ALL TABLES")
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		exec(t, dsn, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
		exec(t, dsn, "SELECT pg_reload_conf()")
		testdb.WaitFor(t, "the setting", func() bool { return query[string](t, dsn, "SHOW synchronous_standby_names") == "nobody" })
		writer := connect(t, dsn)
		pid := int(writer.PgConn().PID())
		run(t, writer, "SET synchronous_commit = on")
		done := make(chan error, 1)
		go func() {
			_, err := writer.Exec(context.Background(), `BEGIN; CREATE TABLE events_1 () INHERITS (events);
				INSERT INTO events_1 VALUES (1, 'one'); COMMIT`, pgx.QueryExecModeSimpleProtocol)
			done <- err
		}()
		const waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = $1"
		testdb.WaitFor(t, "the commit to wait for the standby", func() bool { return query[int](t, dsn, waits, pid) == 1 })
		testdb.WaitFor(t, "the reader to ask for the transaction's lock", func() bool {
			return query[int](t, dsn, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%watch' AND query LIKE '%transactionid%'") == 1
		})
		if n := r.Distinct(); n != 0 {
			t.Errorf("%d rows arrived although it cannot be known yet whose partition they are of", n)
		}
		exec(t, dsn, fmt.Sprintf("SELECT pg_cancel_backend(%d)", pid)) // ends the wait, not the commit
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		r.WaitFor(1)
		if n := r.src.Status().ForeignRows; n != 0 {
			t.Errorf("%d rows were thrown away", n)
		}
	})
}
