package migrate_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

func TestMySQLUpOnAnEmptyDatabase(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		m := w.migrator(migrate.Options{})
		before, err := m.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := w.tables(w.Name()); len(got) != 0 {
			t.Errorf("status created %v", got)
		}
		applied := up(t, m)
		if len(applied) != len(before) || len(applied) == 0 {
			t.Errorf("applied %v of %v", applied, before)
		}
		if diff := cmp.Diff(allTables, w.tables(w.Name())); diff != "" {
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
		for _, want := range []string{"event_notifications.handler_name varchar(255) not null utf8mb4_bin", "event_notifications.lease_until datetime(6)"} {
			if !strings.Contains(strings.Join(w.catalog(w.Name()), "\n"), want) {
				t.Errorf("no %s in %q", want, w.catalog(w.Name()))
			}
		}
	})
}

// TestMySQLUpBesideAnExistingEkbatanDatabase: tables with exactly the published columns, with data, work
// unchanged, and the event table is not altered at all.
func TestMySQLUpBesideAnExistingEkbatanDatabase(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		w.run(mySeed)
		w.run(mySeedEvents)
		w.run(mySeedDeliveries)
		content := fmt.Sprintf(`SELECT CONCAT(id, payload, event_date) FROM %[1]s.events UNION ALL
SELECT CONCAT(id, event_id, handler_name, state, next_retry_at) FROM %[1]s.event_notifications ORDER BY 1`, w.Name())
		rows := w.column(content)
		before := w.catalog(w.Name())

		up(t, w.migrator(migrate.Options{}))

		if diff := cmp.Diff(rows, w.column(content)); diff != "" {
			t.Errorf("the rows changed:\n%s", diff)
		}
		after := w.catalog(w.Name())
		for _, line := range before {
			if !slices.Contains(after, line) {
				t.Errorf("lost or changed: %s", line)
			}
		}
		if strings.Contains(strings.Join(after, "\n"), "events.traceparent") {
			t.Error("the event table was altered")
		}
		// An Ekbatan process goes on writing as before.
		w.run(mySeedEvents)
		w.run(mySeedDeliveries)
	})
}

func TestMySQLBringYourOwnTableIsLeftAlone(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		w.run(`CREATE TABLE {db}.outboxevent (id {uuid} PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload json)`)
		before := w.catalog(w.Name())
		own := w.database("own")
		m := w.migrator(migrate.Options{Schema: own, Table: schema.Debezium(w.Name(), "")})
		up(t, m)
		if slices.Contains(w.tables(own), "events") {
			t.Error("an event table was created that nobody uses")
		}
		for down(t, m) != nil {
		}
		if diff := cmp.Diff(before, w.catalog(w.Name())); diff != "" {
			t.Errorf("the event table changed:\n%s", diff)
		}
	})
}

// database names a further database, dropped at the end.
func (w myWorld) database(suffix string) string {
	name := w.Name() + suffix
	w.t.Cleanup(func() { w.Exec("DROP DATABASE IF EXISTS `" + strings.ReplaceAll(name, "`", "``") + "`") })
	return name
}

func TestMySQLDownKeepsTheUsersTablesAndRows(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		w.run(mySeed)
		w.run(mySeedEvents)
		w.run(mySeedDeliveries)
		before := w.catalog(w.Name())
		m := w.migrator(migrate.Options{})
		first := up(t, m)
		for range first {
			if down(t, m) == nil {
				t.Fatal("nothing left to undo")
			}
		}
		if got := down(t, m); got != nil {
			t.Errorf("undone once more: %v", got)
		}
		if diff := cmp.Diff(before, withoutVersions(w.catalog(w.Name()))); diff != "" {
			t.Errorf("not as before:\n%s", diff)
		}
		for _, table := range []string{"events", "event_notifications"} {
			if got := w.column("SELECT count(*) FROM " + table); got[0] != "50" {
				t.Errorf("%s has %s rows", table, got[0])
			}
		}
		if again := up(t, m); len(again) != len(first) {
			t.Errorf("up again applied %v", again)
		}
	})
}

func TestMySQLDownRefusesToDropPayloads(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		m := w.migrator(migrate.Options{})
		all := up(t, m)
		w.run(mySeedEvents)
		w.run(mySeedDeliveries)
		w.run(`UPDATE {db}.event_notifications SET payload_raw = 'x'`)
		for range len(all) - 2 {
			down(t, m)
		}
		before := w.catalog(w.Name())
		if _, err := m.Down(t.Context()); !errors.Is(err, migrate.ErrPayloadsKept) {
			t.Fatalf("got %v", err)
		}
		if diff := cmp.Diff(before, w.catalog(w.Name())); diff != "" {
			t.Errorf("a refused step changed something:\n%s", diff)
		}
		w.run(`UPDATE {db}.event_notifications SET payload_raw = NULL`)
		down(t, m)
	})
}

// TestMySQLUpAfterACrashInsideAStep: these servers commit each DDL statement, so a step can be
// half done. Every prefix of the statements is run, as a crash would leave it, and then Up.
func TestMySQLUpAfterACrashInsideAStep(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		whole := w.database("whole")
		up(t, w.migrator(migrate.Options{Schema: whole}))
		want := w.catalog(whole)

		script, err := migrate.Print(migrate.Options{Schema: w.Name(), Dialect: w.dialect()})
		if err != nil {
			t.Fatal(err)
		}
		statements := statementsOf(script)
		for i, s := range statements {
			if !strings.Contains(s, "CREATE TABLE") && !strings.HasPrefix(s, "EXECUTE") {
				continue
			}
			// As a crash leaves it: no step is recorded that was not finished.
			w.runAll(slices.DeleteFunc(slices.Clone(statements[:i+1]), func(s string) bool {
				return strings.HasPrefix(s, "INSERT INTO")
			}))
			up(t, w.migrator(migrate.Options{}))
			if diff := cmp.Diff(want, w.catalog(w.Name())); diff != "" {
				t.Fatalf("after a crash behind\n%s\n%s", s, diff)
			}
			w.run(`DROP DATABASE {db}; CREATE DATABASE {db}`)
		}
		// The same on the way down.
		m := w.migrator(migrate.Options{})
		all := up(t, m)
		for range len(all) - 2 {
			down(t, m)
		}
		w.run(`DROP TABLE {db}.audit_log; ALTER TABLE {db}.event_notifications DROP COLUMN lease_token, DROP COLUMN payload_raw`)
		for down(t, m) != nil {
		}
		up(t, m)
		if diff := cmp.Diff(sorted(want), sorted(w.catalog(w.Name()))); diff != "" {
			t.Error(diff)
		}
	})
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// statementsOf does what the mysql program does: a statement ends with a semicolon at the end of a line.
func statementsOf(script string) []string {
	var (
		list      []string
		statement strings.Builder
	)
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "--") || strings.TrimSpace(line) == "" {
			continue
		}
		statement.WriteString(line)
		if strings.HasSuffix(strings.TrimSpace(line), ";") {
			list = append(list, statement.String())
			statement.Reset()
		}
	}
	return list
}

// runAll runs statements on one connection, since variables and prepared statements belong to it.
func (w myWorld) runAll(statements []string) {
	w.t.Helper()
	w.onConn(func(conn *sql.Conn) {
		for _, s := range statements {
			if _, err := conn.ExecContext(w.t.Context(), s); err != nil {
				w.t.Fatalf("%v in:\n%s", err, s)
			}
		}
	})
}

func (w myWorld) onConn(fn func(*sql.Conn)) {
	w.t.Helper()
	conn, err := w.Pool().Conn(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	fn(conn)
}

// TestMySQLPrintEqualsUp: what a database administrator runs by hand is what up runs.
func TestMySQLPrintEqualsUp(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		for i, table := range []schema.Table{{}, schema.Debezium("shop", "")} {
			byUp, byPrint := w.database(fmt.Sprintf("up%d", i)), w.database(fmt.Sprintf("print%d", i))
			up(t, w.migrator(migrate.Options{Schema: byUp, Table: table}))
			script, err := migrate.Print(migrate.Options{Schema: byPrint, Table: table, Dialect: w.dialect()})
			if err != nil {
				t.Fatal(err)
			}
			w.runAll(statementsOf(script))
			if diff := cmp.Diff(w.catalog(byUp), w.catalog(byPrint)); diff != "" {
				t.Error(diff)
			}
			m := w.migrator(migrate.Options{Schema: byPrint, Table: table})
			if again := up(t, m); len(again) != 0 {
				t.Errorf("up after print applied %v", again)
			}
			w.runAll(statementsOf(script)) // a second time changes nothing
			if diff := cmp.Diff(w.catalog(byUp), w.catalog(byPrint)); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// TestMySQLNameWithCapitalsAndQuotes, in every sql_mode that changes how texts are read.
func TestMySQLNameWithCapitalsAndQuotes(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		plain := w.migrator(migrate.Options{})
		up(t, plain)
		name := w.database("`\"'; v2's \\ DROP")
		for _, mode := range []string{"ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "STRICT_ALL_TABLES"} {
			config := w.Server().Config(w.Name())
			config.Params = map[string]string{"sql_mode": "'" + mode + "'"}
			connector, err := driver.NewConnector(config)
			if err != nil {
				t.Fatal(err)
			}
			pool := sql.OpenDB(connector)
			defer func() { _ = pool.Close() }()
			m, err := migrate.MySQL(pool, migrate.Options{Schema: name})
			if err != nil {
				t.Fatal(err)
			}
			up(t, m)
			if diff := cmp.Diff(sorted(w.catalog(w.Name())), sorted(w.catalog(name))); diff != "" {
				t.Errorf("%s: %s", mode, diff)
			}
			for down(t, m) != nil {
			}
		}
	})
}

// TestMySQLUpDoesNotWaitForLocks: a migration behind a long transaction gives up, so that the
// application's own statements do not pile up behind it, and can be run again. The connection
// goes back to the pool with the setting that it had.
func TestMySQLUpDoesNotWaitForLocks(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		w.run(mySeed)
		tx, err := w.Pool().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM event_notifications`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		m := w.migrator(migrate.Options{})
		applied, err := m.Up(t.Context())
		if refusal, ok := errors.AsType[*driver.MySQLError](err); !ok || refusal.Number != 1205 {
			t.Fatalf("got %v after %v, want a lock timeout", err, applied)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		w.onConn(func(a *sql.Conn) {
			w.onConn(func(b *sql.Conn) { // both that the pool has
				for _, conn := range []*sql.Conn{a, b} {
					var same bool
					if err := conn.QueryRowContext(t.Context(), "SELECT @@SESSION.lock_wait_timeout = @@GLOBAL.lock_wait_timeout").Scan(&same); err != nil || !same {
						t.Errorf("a connection came back with another lock_wait_timeout (%v)", err)
					}
				}
			})
		})
		up(t, m)
	})
}

func TestMySQLUpWithoutTheRightToCreateDatabases(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		user := "u_" + w.Name()
		user = user[:min(len(user), 32)]
		w.run("CREATE USER '" + user + "'@'%' IDENTIFIED BY 'secret'; GRANT ALL ON {db}.* TO '" + user + "'@'%'")
		t.Cleanup(func() { w.Exec("DROP USER '" + user + "'@'%'") })
		config := w.Server().Config(w.Name())
		config.User, config.Passwd = user, "secret"
		connector, err := driver.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		pool := sql.OpenDB(connector)
		defer func() { _ = pool.Close() }()
		m, err := migrate.MySQL(pool, migrate.Options{Schema: w.Name()})
		if err != nil {
			t.Fatal(err)
		}
		up(t, m)
	})
}

func TestMySQLUpFromSeveralProcessesAtOnce(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			total int
		)
		for range 3 {
			m := w.migrator(migrate.Options{})
			wg.Go(func() {
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
		all, err := w.migrator(migrate.Options{}).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if total != len(all) {
			t.Errorf("%d steps were applied, there are %d", total, len(all))
		}
	})
}

// TestMySQLOneOpenGap: an open gap is recorded once, a closed one does not stand in the way.
func TestMySQLOneOpenGap(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		up(t, w.migrator(migrate.Options{}))
		insert := func(from, to string) {
			w.Exec(`INSERT INTO gaps (source, reason, detail, from_position, to_position, detected_date)
VALUES ('shop', 'purged', '', ?, ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE source = source`, from, to)
		}
		long := strings.Repeat("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,", 5000)
		insert(long, "1")
		insert(long, "1")
		insert(long+"x", "1")
		insert("1", "11")
		insert("11", "1")
		if got := w.column("SELECT count(*) FROM gaps"); got[0] != "4" {
			t.Errorf("%s gaps, want 4", got[0])
		}
		w.Exec("UPDATE gaps SET closed_date = UTC_TIMESTAMP(6)")
		insert("1", "11")
		if got := w.column("SELECT count(*) FROM gaps WHERE closed_date IS NULL"); got[0] != "1" {
			t.Errorf("%s open gaps, want 1", got[0])
		}
	})
}

// TestMySQLClaimLocksNoMoreThanItTakes: the claim's index gives the rows of one state in the order
// of the due time, so that a second claimer finds the next ones.
func TestMySQLClaimLocksNoMoreThanItTakes(t *testing.T) {
	eachMySQL(t, func(t *testing.T, w myWorld) {
		up(t, w.migrator(migrate.Options{}))
		w.run(mySeedEvents)
		w.run(mySeedDeliveries)
		const claim = `SELECT id FROM event_notifications WHERE handler_name = 'billing' AND state = 'PENDING'
AND next_retry_at <= UTC_TIMESTAMP(6) ORDER BY next_retry_at LIMIT 5 FOR UPDATE SKIP LOCKED`
		seen := map[string]bool{}
		for range 3 {
			tx, err := w.Pool().BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			rows, err := tx.QueryContext(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var id string
				if err := rows.Scan(&id); err != nil {
					t.Fatal(err)
				}
				seen[id] = true
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // a loop
				t.Fatal(err)
			}
		}
		if len(seen) != 15 {
			t.Errorf("three claims of 5 got %d rows", len(seen))
		}
	})
}
