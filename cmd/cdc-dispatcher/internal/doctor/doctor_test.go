package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// patient is set up as its administrator would: the role app owns nothing.
type patient struct {
	*testing.T
	server *localserver.Postgres
	name   string
	cfg    Config
	// holds ends what a test has left open.
	holds []func()
}

// settings leave nothing to find, and little room.
var settings = map[string]string{
	"fsync":                     "off",
	"max_connections":           "40",
	"max_prepared_transactions": "5",
	"max_replication_slots":     "3",
	"max_wal_senders":           "3",
	"max_slot_wal_keep_size":    "10GB",
	"min_wal_size":              "32MB",
	"max_wal_size":              "64MB",
}

// conn returns a superuser's connection to the patient's database, closed by cleanup.
func (p *patient) conn() *pgx.Conn { return p.connTo(p.name) }

func (p *patient) connTo(database string) *pgx.Conn {
	p.Helper()
	conn, err := pgx.Connect(p.Context(), p.server.DSN(database))
	if err != nil {
		p.Fatal(err)
	}
	p.holds = append(p.holds, func() { _ = conn.Close(context.Background()) })
	return conn
}

// exec runs statements one by one, each in a transaction of its own.
func (p *patient) exec(statements ...string) {
	p.Helper()
	conn, err := pgx.Connect(p.Context(), p.server.DSN(p.name))
	if err != nil {
		p.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range statements {
		if _, err := conn.Exec(p.Context(), sql); err != nil {
			p.Fatalf("%v\nin: %s", err, sql)
		}
	}
}

func (p *patient) restart() {
	p.Helper()
	if err := p.server.Stop(p.Context(), localserver.StopFast); err != nil {
		p.Fatal(err)
	}
	if err := p.server.Start(p.Context()); err != nil {
		p.Fatal(err)
	}
}

func (p *patient) migrate() {
	p.Helper()
	pool, err := pgxpool.New(p.Context(), p.server.DSN(p.name))
	if err != nil {
		p.Fatal(err)
	}
	defer pool.Close()
	m, err := migrate.Postgres(pool, migrate.Options{Schema: p.cfg.Schema, Table: p.cfg.Table})
	if err != nil {
		p.Fatal(err)
	}
	if _, err := m.Up(p.Context()); err != nil {
		p.Fatal(err)
	}
}

// grant gives app what docs tell an administrator to give.
func (p *patient) grant() {
	p.exec(
		"GRANT USAGE ON SCHEMA eventlog TO app",
		"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA eventlog TO app",
	)
}

const (
	makePublication = `CREATE PUBLICATION cdc_dispatcher FOR TABLE eventlog.events WITH (publish = 'insert', publish_via_partition_root = true)`
	makeSlot        = `SELECT pg_create_logical_replication_slot('cdc_dispatcher', 'pgoutput')`
	dropSlots       = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active`
	insertEvent     = `INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
		event_type, payload, event_date, delivered)
		VALUES (gen_random_uuid(), 'n', gen_random_uuid(), 'a', '{}', now(), now(), 'order.placed', '{}', now() - interval '1 hour', false)`
)

// admit makes a healthy patient.
func admit(t *testing.T, server *localserver.Postgres, n int) *patient {
	p := &patient{T: t, server: server, name: fmt.Sprintf("patient%d", n)}
	p.cfg = Config{DSN: strings.Replace(server.DSN(p.name), "postgres://postgres@", "postgres://app@", 1), Table: schema.Eventlog("")}
	admin := p.connTo("postgres")
	if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+p.name+" TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range p.holds {
			end()
		}
		conn, err := pgx.Connect(context.Background(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		for _, sql := range []string{dropSlots, "DROP DATABASE " + p.name + " WITH (FORCE)", "ALTER ROLE app RESET ALL"} {
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				t.Errorf("%v\nin: %s", err, sql)
			}
		}
	})
	p.migrate()
	p.grant()
	p.exec(makePublication, makeSlot)
	return p
}

// findings returns what is neither good nor skipped.
func findings(r Report) (list []Result) {
	for _, res := range r.Results {
		if res.Status == Fail || res.Status == Warn {
			list = append(list, res)
		}
	}
	return list
}

func text(r Report) string {
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		return err.Error()
	}
	return b.String()
}

// mend does what the finding says.
func (p *patient) mend(res Result) {
	p.Helper()
	p.exec(res.Fix...)
	if strings.Contains(res.Hint, "restart the server") {
		p.restart()
	}
	if res.Hint == hintMigrate {
		p.migrate()
		p.grant()
	}
}

// illness is one broken thing.
type illness struct {
	name   string
	ail    func(p *patient)
	code   string
	status Status
	says   string
	// after mends what no statement can mend alone; nil does what the finding says.
	after func(p *patient)
}

func sql(statements ...string) func(*patient) {
	return func(p *patient) { p.exec(statements...) }
}

// One broken thing at a time: exactly one finding names it, and what it says mends it.
func TestDoctor_OneCauseIsOneFindingAndItsFixMendsIt(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		server := hospital(t, major)
		n := 0
		for _, ill := range slices.Concat(illnesses(), logIllnesses(major)) {
			n++
			t.Run(ill.name, func(t *testing.T) {
				p := admit(t, server, n)
				if r := Run(t.Context(), p.cfg); r.Worst() != OK {
					t.Fatalf("not healthy to begin with:\n%s", text(r))
				}
				ill.ail(p)
				r := Run(t.Context(), p.cfg)
				found := findings(r)
				if len(found) != 1 || found[0].Code != ill.code || found[0].Status != ill.status {
					t.Fatalf("want one finding, %s %s:\n%s", ill.code, ill.status, text(r))
				}
				if !strings.Contains(text(r), ill.says) {
					t.Errorf("want it to say %q:\n%s", ill.says, text(r))
				}
				for _, res := range r.Results {
					if res.Status == Skipped && res.Because != ill.code {
						t.Errorf("%s is skipped because of %s", res.Code, res.Because)
					}
				}
				if ill.after != nil {
					ill.after(p)
				} else {
					p.mend(found[0])
				}
				if r := Run(t.Context(), p.cfg); r.Worst() != OK {
					t.Errorf("not mended:\n%s", text(r))
				}
			})
		}
	})
}

func illnesses() []illness {
	return []illness{
		{name: "wrong host", code: codeConnect, status: Fail, says: "no connection",
			ail:   func(p *patient) { p.cfg.DSN = "postgres://app:hunter2@127.0.0.1:1/x?sslmode=disable" },
			after: func(p *patient) { p.cfg.DSN = strings.Replace(p.server.DSN(p.name), "postgres@", "app@", 1) }},
		{name: "unreadable DSN", code: codeConnect, status: Fail, says: "percent-encode",
			ail:   func(p *patient) { p.cfg.DSN = "postgres://app:hun%ter2@h/x" },
			after: func(p *patient) { p.cfg.DSN = strings.Replace(p.server.DSN(p.name), "postgres@", "app@", 1) }},
		{name: "unknown role", code: codeConnect, status: Fail, says: `check user "ghost"`,
			ail:   func(p *patient) { p.cfg.DSN = strings.Replace(p.cfg.DSN, "app@", "ghost@", 1) },
			after: func(p *patient) { p.cfg.DSN = strings.Replace(p.cfg.DSN, "ghost@", "app@", 1) }},
		{name: "a clock five minutes fast", code: codeClock, status: Warn, says: "time service",
			ail:   func(p *patient) { p.cfg.now = func() time.Time { return time.Now().Add(5 * time.Minute) } },
			after: func(p *patient) { p.cfg.now = nil }},
		{name: "a clock five minutes slow", code: codeClock, status: Warn, says: "time service",
			ail:   func(p *patient) { p.cfg.now = func() time.Time { return time.Now().Add(-5 * time.Minute) } },
			after: func(p *patient) { p.cfg.now = nil }},
		{name: "a standby", code: codePrimary, status: Fail, says: "is a standby",
			ail: func(p *patient) {
				p.exec(dropSlots, `DO $$ BEGIN EXECUTE format('COPY (SELECT) TO %L', current_setting('data_directory') || '/standby.signal'); END $$`)
				p.restart()
			},
			after: func(p *patient) { p.exec("SELECT pg_promote()", makeSlot) }},
		{name: "a read-only role", code: codePrimary, status: Fail, says: "read-only",
			ail: sql("ALTER ROLE app SET default_transaction_read_only = on")},
		{name: "a read-only database", code: codePrimary, status: Fail, says: "read-only",
			ail: func(p *patient) { p.exec("ALTER DATABASE " + p.name + " SET default_transaction_read_only = on") }},
		{name: "few connections", code: codeConnections, status: Warn, says: "max_connections",
			ail: func(p *patient) {
				for range 20 {
					p.conn()
				}
			}},

		{name: "no event table", code: codeTable, status: Fail, says: "does not exist",
			ail: func(p *patient) { p.cfg.Table.Name = "happenings" }, after: func(p *patient) { p.cfg.Table.Name = "events" }},
		{name: "a view", code: codeTable, status: Fail, says: "view",
			ail:   func(p *patient) { p.exec("CREATE VIEW eventlog.v AS SELECT 1 x"); p.cfg.Table.Name = "v" },
			after: func(p *patient) { p.cfg.Table.Name = "events" }},
		{name: "an unlogged event table", code: codeTable, status: Fail, says: "unlogged",
			ail: sql("DROP PUBLICATION cdc_dispatcher", "ALTER TABLE eventlog.events SET UNLOGGED"),
			after: func(p *patient) {
				p.exec(findings(Run(p.Context(), p.cfg))[0].Fix...)
				p.exec(makePublication)
			}},
		{name: "no schema", code: codeTable, status: Fail, says: "migrate up",
			ail: sql("DROP SCHEMA eventlog CASCADE"), after: func(p *patient) {
				p.migrate()
				p.grant()
				p.exec("ALTER PUBLICATION cdc_dispatcher ADD TABLE eventlog.events")
			}},
		{name: "a migration is pending", code: codeMigrations, status: Fail, says: "pending",
			ail: sql("DELETE FROM eventlog.cdc_dispatcher_migrations WHERE version = (SELECT max(version) FROM eventlog.cdc_dispatcher_migrations)")},
		{name: "a schema that was never migrated", code: codeMigrations, status: Fail, says: "pending",
			ail: func(p *patient) { p.cfg.Schema = "elsewhere" }, after: func(p *patient) {
				p.migrate()
				p.exec("GRANT USAGE ON SCHEMA elsewhere TO app", "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA elsewhere TO app")
			}},

		{name: "schema not granted", code: codePrivileges, status: Fail, says: "GRANT USAGE ON SCHEMA", ail: sql("REVOKE USAGE ON SCHEMA eventlog FROM app")},
		{name: "events not granted", code: codePrivileges, status: Fail, says: "GRANT SELECT ON", ail: sql("REVOKE SELECT ON eventlog.events FROM app")},
		{name: "mark not granted", code: codePrivileges, status: Fail, says: `GRANT UPDATE ("delivered") ON`, ail: sql("REVOKE UPDATE ON eventlog.events FROM app")},
		{name: "deliveries not granted", code: codePrivileges, status: Fail, says: "GRANT INSERT, UPDATE ON", ail: sql("REVOKE INSERT, UPDATE ON eventlog.event_notifications FROM app")},
		{name: "attempts not granted", code: codePrivileges, status: Fail, says: "GRANT", ail: sql("REVOKE ALL ON eventlog.event_notification_attempts FROM app")},
		{name: "handlers not granted", code: codePrivileges, status: Fail, says: "GRANT", ail: sql("REVOKE ALL ON eventlog.handlers FROM app")},
		{name: "sources not granted", code: codePrivileges, status: Fail, says: "GRANT", ail: sql("REVOKE ALL ON eventlog.sources FROM app")},
		{name: "gaps not granted", code: codePrivileges, status: Fail, says: "GRANT", ail: sql("REVOKE ALL ON eventlog.gaps FROM app")},
		{name: "audit log not granted", code: codePrivileges, status: Fail, says: "GRANT", ail: sql("REVOKE ALL ON eventlog.audit_log FROM app")},
		{name: "versions not granted", code: codePrivileges, status: Fail, says: "GRANT", ail: sql("REVOKE ALL ON eventlog.cdc_dispatcher_migrations FROM app")},
		{name: "nothing granted", code: codePrivileges, status: Fail, says: "GRANT",
			ail: sql("REVOKE ALL ON ALL TABLES IN SCHEMA eventlog FROM app", "REVOKE ALL ON SCHEMA eventlog FROM app")},
		{name: "row security", code: codePrivileges, status: Fail, says: "row-level security", ail: sql("ALTER TABLE eventlog.events ENABLE ROW LEVEL SECURITY"),
			after: func(p *patient) {
				p.exec(findings(Run(p.Context(), p.cfg))[0].Fix...)
				p.Cleanup(func() {
					conn, err := pgx.Connect(context.Background(), p.server.DSN("postgres"))
					if err == nil {
						_, err = conn.Exec(context.Background(), "ALTER ROLE app NOBYPASSRLS")
						_ = conn.Close(context.Background())
					}
					if err != nil {
						p.Error(err)
					}
				})
			}},

		{name: "a column was renamed", code: codeColumns, status: Fail, says: `columns.date: eventlog.events has no column "event_date"`,
			ail: sql("ALTER TABLE eventlog.events RENAME event_date TO happened"), after: sql("ALTER TABLE eventlog.events RENAME happened TO event_date")},
		{name: "the mark is no boolean", code: codeColumns, status: Fail, says: `mark.column: column "delivered" is text`,
			ail: sql("DROP INDEX eventlog.events_undelivered", "ALTER TABLE eventlog.events ALTER delivered TYPE text"),
			after: sql("ALTER TABLE eventlog.events ALTER delivered TYPE boolean USING delivered::boolean",
				"CREATE INDEX events_undelivered ON eventlog.events (event_type, event_date) WHERE delivered = FALSE")},
		{name: "dates are numbers", code: codeColumns, status: Fail, says: `column "started_date" is bigint`,
			ail:   sql("ALTER TABLE eventlog.events ALTER started_date TYPE bigint USING 0"),
			after: sql("ALTER TABLE eventlog.events ALTER started_date TYPE timestamp USING now()")},
		{name: "one of our columns is gone", code: codeColumns, status: Fail, says: "column event_notifications.lease_token",
			ail: sql("ALTER TABLE eventlog.event_notifications DROP COLUMN lease_token, DROP COLUMN claim_count")},
		{name: "no delivery key", code: codeColumns, status: Fail, says: "CREATE UNIQUE INDEX",
			ail: sql("ALTER TABLE eventlog.event_notifications DROP CONSTRAINT event_notifications_event_id_handler_name_key")},
		{name: "no index for the poller", code: codePollIndex, status: Warn, says: "CREATE INDEX", ail: sql("DROP INDEX eventlog.events_undelivered")},
		{name: "an index that the poller cannot use", code: codePollIndex, status: Warn, says: `WHERE "delivered" IS NOT TRUE`,
			ail: sql("ALTER TABLE eventlog.events ALTER delivered DROP NOT NULL")},

		{name: "a large table that is read as a whole", code: codePollIndex, status: Warn, says: "set look_back",
			ail: func(p *patient) {
				p.exec(`CREATE TABLE public.box (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb, at timestamptz)`,
					"INSERT INTO public.box SELECT gen_random_uuid(), 'a', 'b', 'c', '{}', now() FROM generate_series(1, 2000)",
					"ANALYZE public.box", "CREATE INDEX ON public.box (at)",
					"GRANT SELECT ON public.box TO app", "ALTER PUBLICATION cdc_dispatcher SET TABLE public.box")
				p.cfg.Table, p.cfg.LargeTable = schema.Debezium("public", "box"), 1000
				p.cfg.Table.Columns.Date = "at"
			},
			after: func(p *patient) { p.cfg.Table.LookBack = time.Hour }},

		{name: "rows without id", code: codeNullIDs, status: Warn, says: "cannot have a delivery",
			ail: sql("ALTER TABLE eventlog.events DROP CONSTRAINT events_pkey, ALTER id DROP NOT NULL",
				insertEvent, "UPDATE eventlog.events SET id = NULL")},
		{name: "an event waits", code: codeUndelivered, status: Warn, says: "waited",
			ail: sql(insertEvent, `INSERT INTO eventlog.handlers (name, aliases, types, generation, last_owner, last_seen, created_date)
				VALUES ('h', '{}', '{order.*}', 1, 'x', now(), now())`),
			after: sql("UPDATE eventlog.events SET delivered = true")},
		{name: "a gap is open", code: codeGaps, status: Warn, says: "slot_lost",
			ail:   sql(`INSERT INTO eventlog.gaps (source, reason, detail, from_position, to_position, detected_date) VALUES ('main', 'slot_lost', 'd', '', '', now())`),
			after: sql("UPDATE eventlog.gaps SET closed_date = now()")},
	}
}
