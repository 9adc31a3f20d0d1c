package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// postgresEstate has a business table, our tables with an event that nobody has delivered, and a slot and a
// publication of somebody else's.
func postgresEstate(t *testing.T, major int) *estate {
	db := testdb.Postgres(t, major)
	slot := fmt.Sprintf("bystander_%d", major)
	m, err := migrate.Postgres(db.Pool(), migrate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(`CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY); INSERT INTO shop.orders SELECT generate_series(1, 100);
		CREATE PUBLICATION bystander FOR TABLE shop.orders;
		INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date, event_type, payload, event_date, delivered)
		VALUES (gen_random_uuid(), 'n', gen_random_uuid(), 'a', '{}', now(), now(), 'bench.event', '{}', now(), false)`)
	db.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	e := &estate{kind: "PostgreSQL", dsn: db.DSN(), exec: func(sql string) { db.Exec(sql) }}
	e.try = func(sql string) error {
		_, err := db.Pool().Exec(context.Background(), sql)
		return err
	}
	e.count = func(sql string) (n int) {
		t.Helper()
		if err := db.Pool().QueryRow(context.Background(), sql).Scan(&n); err != nil {
			t.Errorf("%v\nin: %s", err, sql)
		}
		return n
	}
	list := func(sql string) []string {
		t.Helper()
		rows, err := db.Pool().Query(context.Background(), sql)
		if err != nil {
			t.Fatal(err)
		}
		out, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	e.inventory = func() []string {
		t.Helper()
		lines := list(`SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'
			UNION ALL SELECT 'publication ' || pubname FROM pg_publication
			UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database() OR slot_name LIKE 'cdc\_dispatcher\_bench%'
			UNION ALL SELECT 'role ' || rolname FROM pg_roles ORDER BY 1`)
		for _, table := range list(`SELECT schemaname || '.' || relname FROM pg_stat_user_tables ORDER BY 1`) {
			name, relation, _ := strings.Cut(table, ".")
			undelivered := 0
			if relation == "events" {
				undelivered = e.count("SELECT count(*) FROM " + table + " WHERE NOT delivered")
			}
			lines = append(lines, tableLine(name, relation, e.count("SELECT count(*) FROM "+table), undelivered))
		}
		return lines
	}
	e.hold = func(schema string) func() {
		tx, err := db.Pool().Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(context.Background(), "LOCK TABLE "+schema+".events IN ACCESS SHARE MODE"); err != nil {
			t.Fatal(err)
		}
		return func() { _ = tx.Rollback(context.Background()) }
	}
	e.poor = func() (string, string) {
		role := "poor_" + db.Name()[:min(len(db.Name()), 20)]
		db.Exec("CREATE ROLE " + role + " LOGIN")
		t.Cleanup(func() { db.Exec("DROP ROLE " + role) })
		return db.DSN() + "&user=" + role, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", plainOrQuoted(db.Name()), role)
	}
	return e
}

// plainOrQuoted is a name as format('%I') writes it.
func plainOrQuoted(name string) string {
	if strings.ToLower(name) == name && !strings.ContainsAny(name, "-.") {
		return name
	}
	return `"` + name + `"`
}

// mysqlEstate is the same on MySQL and MariaDB, where a schema is a database.
func mysqlEstate(t *testing.T, kind testdb.Kind) *estate {
	db := testdb.MySQL(t, kind)
	m, err := migrate.MySQL(db.Pool(), migrate.Options{Schema: db.Name(), Table: schema.Eventlog(db.Name())})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(`CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2), (3);
		INSERT INTO events (id, namespace, action_id, action_name, action_params, started_date, completion_date, event_type, payload, event_date, delivered)
		VALUES ('0190b0a0-0000-7000-8000-000000000001', 'n', '0190b0a0-0000-7000-8000-000000000001', 'a', '{}', now(), now(), 'bench.event', '{}', now(), false)`)
	e := &estate{kind: "MySQL", dsn: db.DSN(), exec: func(sql string) { db.Exec(sql) }}
	if kind.IsMariaDB() {
		e.kind = "MariaDB"
	}
	e.try = func(query string) error {
		_, err := db.Pool().ExecContext(context.Background(), query)
		return err
	}
	e.count = func(query string) (n int) {
		t.Helper()
		if err := db.Pool().QueryRowContext(context.Background(), query).Scan(&n); err != nil {
			t.Errorf("%v\nin: %s", err, query)
		}
		return n
	}
	e.inventory = func() []string {
		t.Helper()
		var lines []string
		for _, table := range column(t, db.Pool(), `SELECT CONCAT('schema ', schema_name) FROM information_schema.schemata
			UNION ALL SELECT CONCAT('table ', table_schema, '.', table_name) FROM information_schema.tables
			WHERE table_schema NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema') ORDER BY 1`) {
			name, isTable := strings.CutPrefix(table, "table ")
			if !isTable {
				lines = append(lines, table)
				continue
			}
			undelivered := 0
			schema, relation, _ := strings.Cut(name, ".")
			if relation == "events" {
				undelivered = e.count("SELECT count(*) FROM " + name + " WHERE NOT delivered")
			}
			lines = append(lines, tableLine(schema, relation, e.count("SELECT count(*) FROM "+name), undelivered))
		}
		return lines
	}
	e.hold = func(schema string) func() {
		tx, err := db.Pool().BeginTx(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(context.Background(), "DELETE FROM "+schema+".audit_log WHERE false"); err != nil {
			t.Fatal(err)
		}
		return func() { _ = tx.Rollback() }
	}
	e.poor = func() (string, string) {
		db.Exec("CREATE USER poor@'%'")
		t.Cleanup(func() { db.Exec("DROP USER poor@'%'") })
		db.Exec("GRANT SELECT ON " + db.Name() + ".* TO poor@'%'")
		return strings.Replace(db.DSN(), "root", "poor", 1), "GRANT ALL ON `cdc\\_dispatcher\\_bench\\_%`.* TO 'poor'@'%'"
	}
	return e
}

// column reads a column of text.
func column(t *testing.T, pool *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := pool.QueryContext(context.Background(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestBench_WithoutALog: a server whose log cannot be read is measured with the poller, and the result says why.
func TestBench_WithoutALog(t *testing.T) {
	for name, dsn := range map[string]func(t *testing.T) string{
		"wal_level replica": func(t *testing.T) string {
			return testdb.Dedicated(t, 18, map[string]string{"wal_level": "replica"}).DSN("postgres")
		},
		"binlog of statements and rows": func(t *testing.T) string {
			return testdb.DedicatedMySQL(t, testdb.MariaDB118, map[string]string{"binlog_format": "MIXED"}).DSN("mysql")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := runBench(t.Context(), smallBench(dsn(t)), "", func() {})
			if r.err != nil {
				t.Fatalf("%v\n%s", r.err, r.words)
			}
			got := r.result
			if got.Mode != "poll" || got.EventsViaLog != 0 || got.EventsViaPoller != 700 || got.Lost != 0 || got.Duplicates != 0 {
				t.Errorf("result %+v", got)
			}
			if !slices.ContainsFunc([]string{"CD2201 ", "CD2402 "}, func(code string) bool { return strings.HasPrefix(got.Reason, code) }) ||
				!strings.Contains(got.Reason, "mend it with: ") || !strings.Contains(r.words, got.Reason) {
				t.Errorf("reason %q", got.Reason)
			}
		})
	}
}

// TestBench_BehindAnOldTransaction: a slot cannot begin before older transactions have ended. The run does without
// after a while, and Ctrl-C does not wait; no slot is left either way.
func TestBench_BehindAnOldTransaction(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		e := postgresEstate(t, major)
		conn, err := pgx.Connect(t.Context(), e.dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		before := e.inventory()
		if _, err := conn.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
		o := smallBench(e.dsn)
		o.limits.slot = 2 * time.Second
		r := runBench(t.Context(), o, "", func() {})
		if r.err != nil || r.result.Mode != "poll" || !strings.Contains(r.result.Reason, "a slot waits for every transaction that is open") || r.result.Lost != 0 {
			t.Errorf("%v, %+v\n%s", r.err, r.result, r.words)
		}
		e.unchanged(t, before)

		o.limits.slot = time.Hour
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		ended := make(chan benchRun, 1)
		go func() { ended <- runBench(ctx, o, "", func() {}) }()
		testdb.WaitFor(t, "the slot to be in the making", func() bool {
			return e.count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'cdc\_dispatcher\_bench%'`) == 1
		})
		interrupt()
		if r := <-ended; r.exit != exitFailed || !strings.Contains(r.words, "error CD5005: ") {
			t.Errorf("exit code %d\n%s", r.exit, r.words)
		}
		e.unchanged(t, before)
	})
}

// TestBench_Refuses: a server that takes no writes, or has few connections free, is left alone.
func TestBench_Refuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		dsn  func(t *testing.T) string
		want string
	}{
		{"read-only", func(t *testing.T) string { return testdb.Postgres(t, 18).DSN() + "&default_transaction_read_only=on" },
			"error CD4007: transactions of this role are read-only\n"},
		{"few connections of PostgreSQL", func(t *testing.T) string {
			return testdb.Dedicated(t, 18, map[string]string{"max_connections": "20"}).DSN("postgres")
		}, "error CD4006: few connections are free ("},
		{"few connections of MariaDB", func(t *testing.T) string {
			return testdb.DedicatedMySQL(t, testdb.MariaDB118, map[string]string{"max_connections": "15"}).DSN("mysql")
		}, "error CD4006: few connections are free ("},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := runBench(t.Context(), smallBench(tt.dsn(t)), "", func() {})
			if r.exit != exitDatabase || !strings.Contains(r.words, tt.want) || strings.Contains(r.words, "working in") {
				t.Errorf("exit code %d, want %q and nothing made\n%s", r.exit, tt.want, r.words)
			}
		})
	}
}

// TestBench_SlotInUse: a slot whose session has not noticed that its client is gone is freed by ending the session.
func TestBench_SlotInUse(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		e := postgresEstate(t, major)
		before := e.inventory()
		config, err := pgconn.ParseConfig(e.dsn + "&replication=database")
		if err != nil {
			t.Fatal(err)
		}
		lingering, err := pgconn.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer lingering.Close(context.Background())
		r := runBench(t.Context(), smallBench(e.dsn), "removing", func() {
			name := e.scratchName()
			active := func() bool {
				return e.count("SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = '"+name+"'") == 1
			}
			testdb.WaitFor(t, "the reader's own session to end", func() bool { return !active() })
			lingering.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT " + name + " LOGICAL 0/0 (proto_version '1', publication_names '" + name + "')"})
			if err := lingering.Frontend().Flush(); err != nil {
				t.Error(err)
			}
			testdb.WaitFor(t, "the slot to be in use", active)
		})
		if r.err != nil {
			t.Errorf("%v\n%s", r.err, r.words)
		}
		e.unchanged(t, before)
	})
}
