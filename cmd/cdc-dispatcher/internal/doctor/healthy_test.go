package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// hospital is a server of its own with the role app.
func hospital(t *testing.T, major int) *localserver.Postgres {
	server := testdb.Dedicated(t, major, settings)
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE ROLE app LOGIN REPLICATION"); err != nil {
		t.Fatal(err)
	}
	return server
}

// want checks that the doctor finds these codes, as "CD2001 fail", and nothing else.
func (p *patient) want(codes ...string) Report {
	p.Helper()
	r := Run(p.Context(), p.cfg)
	var got []string
	for _, res := range findings(r) {
		got = append(got, res.Code+" "+string(res.Status))
	}
	if diff := cmp.Diff(codes, got); diff != "" {
		p.Errorf("findings (-want +got):\n%s\n%s", diff, text(r))
	}
	return r
}

func TestDoctor_Healthy(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		server := hospital(t, major)
		n := 0
		run := func(name string, fn func(p *patient)) {
			n++
			t.Run(name, func(t *testing.T) { fn(admit(t, server, n)) })
		}
		run("what run creates is no finding", func(p *patient) {
			p.exec(dropSlots, "DROP PUBLICATION cdc_dispatcher", "ALTER TABLE eventlog.events OWNER TO app",
				"GRANT CREATE ON DATABASE "+p.name+" TO app", "GRANT USAGE ON SCHEMA eventlog TO app")
			p.cfg.Create = true
			if out := text(p.want()); !strings.Contains(out, "run creates it") {
				p.Errorf("it does not say that run creates both:\n%s", out)
			}
			p.exec("SET ROLE app", "CREATE PUBLICATION cdc_dispatcher")
			if out := text(p.want()); !strings.Contains(out, "run adds it") {
				p.Errorf("it does not say that run adds the table:\n%s", out)
			}
		})
		run("polling needs no log", func(p *patient) {
			p.exec(dropSlots, "DROP PUBLICATION cdc_dispatcher", "ALTER ROLE app NOREPLICATION")
			p.cfg.Poll = true
			for _, res := range p.want().Results {
				if strings.HasPrefix(res.Code, "CD22") {
					p.Errorf("%s %s was checked", res.Code, res.Name)
				}
			}
			p.exec("ALTER ROLE app REPLICATION")
		})
		run("Debezium's table", func(p *patient) {
			p.cfg.Table = schema.Debezium("", "")
			p.exec(`CREATE TABLE public.outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
				type varchar(255) NOT NULL, payload jsonb)`, "GRANT SELECT ON public.outboxevent TO app", "ALTER PUBLICATION cdc_dispatcher ADD TABLE public.outboxevent")
			p.want()
		})
		run("a status and odd names", func(p *patient) {
			p.cfg.Table = schema.Custom("My Shop", `out"box`, schema.Columns{ID: "Id", Type: "Kind", Payload: "body", Date: "at"},
				schema.Mark{Kind: schema.MarkStatus, Column: "The Status", At: "status at"})
			p.exec(`CREATE SCHEMA "My Shop"`, `CREATE TABLE "My Shop"."out""box" ("Id" bigint PRIMARY KEY, "Kind" text, body bytea, at timestamptz,
				"The Status" text, "status at" timestamptz)`, `ALTER PUBLICATION cdc_dispatcher ADD TABLE "My Shop"."out""box"`)
			r := p.want("CD2102 fail")
			p.exec(findings(r)[0].Fix...)
			r = p.want("CD2105 warn")
			p.exec(findings(r)[0].Fix...)
			p.want()
		})
		run("a schema of another name", func(p *patient) {
			p.cfg.Schema = `Ereig"nisse`
			r := p.want("CD2103 fail")
			p.mendAll(r)
			r = p.want("CD2102 fail")
			p.mendAll(r)
			p.want()
		})
		run("a streaming instance", func(p *patient) {
			p.replicate()
			p.want()
		})
		run("hidden sessions are no finding", func(p *patient) {
			if _, err := p.conn().Exec(p.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class"); err != nil {
				p.Fatal(err)
			}
			p.cfg.LongTransaction = time.Nanosecond
			if out := text(p.want()); !strings.Contains(out, "hidden") {
				p.Errorf("it does not say that it cannot see everything:\n%s", out)
			}
		})
		run("events that nobody wants wait on purpose", func(p *patient) {
			p.exec(insertEvent, `INSERT INTO eventlog.handlers (name, aliases, types, generation, last_owner, last_seen, created_date)
				VALUES ('h', '{}', '{invoice.*,order}', 1, 'x', now(), now())`)
			p.want()
		})
		run("a column list of all that the table has", func(p *patient) {
			p.exec("ALTER TABLE eventlog.events DROP COLUMN headers", `ALTER PUBLICATION cdc_dispatcher SET TABLE eventlog.events (id, namespace,
				action_id, action_name, action_params, started_date, completion_date, model_id, model_type, event_type, payload, event_date, traceparent)`)
			p.want()
		})
		run("an event's age is that of the time zone it is stored in", func(p *patient) {
			p.cfg.Table = schema.Custom("public", "box", schema.Columns{ID: "id", Type: "type", Payload: "body", Date: "at"},
				schema.Mark{Kind: schema.MarkBoolean, Column: "done"})
			p.exec("ALTER DATABASE "+p.name+" SET timezone = 'America/New_York'",
				"CREATE TABLE public.box (id uuid PRIMARY KEY, type text, body jsonb, at timestamptz, done boolean)",
				"CREATE INDEX ON public.box (id) WHERE done IS NOT TRUE",
				"GRANT SELECT, UPDATE ON public.box TO app", "ALTER PUBLICATION cdc_dispatcher ADD TABLE public.box",
				"INSERT INTO public.box VALUES (gen_random_uuid(), 'order.placed', '{}', now(), NULL), (gen_random_uuid(), '', '{}', now() - interval '1 day', NULL)",
				`INSERT INTO eventlog.handlers (name, aliases, types, generation, last_owner, last_seen, created_date)
				VALUES ('h', '{}', '{*}', 1, 'x', now(), now())`)
			if out := text(p.want()); !strings.Contains(out, "no event has waited for long") {
				p.Errorf("it does not see the event whose mark is null:\n%s", out)
			}
			p.exec("UPDATE public.box SET at = now() - interval '1 hour' WHERE type <> ''")
			r := p.want(codeUndelivered + " warn")
			if found := findings(r); len(found) > 0 && !strings.HasPrefix(found[0].Value, "1h0m") {
				p.Errorf("it has waited for %s, want an hour", found[0].Value)
			}
		})
		run("a managed service", func(p *patient) {
			p.exec("CREATE ROLE rds_superuser", "CREATE ROLE rds_replication", "ALTER ROLE app NOREPLICATION", "ALTER SYSTEM SET max_slot_wal_keep_size = -1", "SELECT pg_reload_conf()")
			defer p.exec("DROP ROLE rds_superuser", "DROP ROLE rds_replication", "ALTER ROLE app REPLICATION", "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
			out := text(p.want(codeReplication+" fail", codeKeepSize+" warn"))
			for _, want := range []string{`GRANT rds_replication TO "app"`, "among the server parameters of Amazon RDS", "on Amazon RDS"} {
				if !strings.Contains(out, want) {
					p.Errorf("it does not say %q:\n%s", want, out)
				}
			}
			p.exec(`GRANT rds_replication TO "app"`)
			p.want(codeReplicate+" fail", codeKeepSize+" warn") // the real server knows no such membership
		})
	})
}

// mendAll does what the findings say.
func (p *patient) mendAll(r Report) {
	p.Helper()
	for _, res := range findings(r) {
		p.exec(res.Fix...)
		if res.Hint == hintMigrate {
			p.migrate()
		}
	}
}

// What doctor says is enough is enough: the store does all of its work with just the printed grants.
func TestDoctor_PrintedGrantsSuffice(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		p := admit(t, hospital(t, major), 1)
		p.exec("REVOKE ALL ON ALL TABLES IN SCHEMA eventlog FROM app", "REVOKE ALL ON SCHEMA eventlog FROM app")
		p.mendAll(p.want("CD2102 fail"))
		p.want()
		p.exec(insertEvent)

		pool, err := pgxpool.New(t.Context(), p.cfg.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		store, err := postgres.New(pool, postgres.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		must := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		must("check", store.CheckSchema(ctx))
		_, err = store.SyncHandlers(ctx, "x", []delivery.Handler{{Name: "h", Types: []string{"*"}}})
		must("sync handlers", err)
		found, err := store.Undelivered(ctx, delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 10})
		if err != nil || len(found.Events) != 1 {
			t.Fatalf("undelivered = %d, %v", len(found.Events), err)
		}
		events := found.Events
		must("looked", store.Looked(ctx, "main", found.At))
		lease := delivery.Lease{Token: uuid.New(), Owner: "x", For: time.Minute}
		target := func(lease bool) []delivery.Target {
			return []delivery.Target{{ID: uuid.Must(uuid.NewV7()), Handler: "h", Lease: lease}}
		}
		image := event.Event{ID: uuid.NewString(), Type: "t", Payload: []byte("{}"), Date: time.Now()}
		_, err = store.FanOut(ctx, delivery.FanOut{Lease: lease, Fans: []delivery.Fan{
			{Event: events[0], Targets: target(false)}, {Event: image, Targets: target(true), FromLog: true},
		}})
		must("fan out", err)
		must("quarantine", store.Quarantine(ctx, delivery.Fan{Event: event.Event{ID: uuid.NewString(), Type: "t"}, Targets: target(false), FromLog: true}, fmt.Errorf("x")))
		claimed, err := store.Claim(ctx, lease, []delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 10}})
		if err != nil || len(claimed.Claimed) != 1 {
			t.Fatalf("claimed = %d, %v", len(claimed.Claimed), err)
		}
		_, _, err = store.NextDue(ctx, []string{"h"})
		must("next due", err)
		id := claimed.Claimed[0].ID
		_, err = store.Renew(ctx, []delivery.LeaseRef{{ID: id, Token: lease.Token}}, time.Minute)
		must("renew", err)
		settled, err := store.Settle(ctx, []delivery.Outcome{{ID: id, Token: lease.Token, Verdict: delivery.Fail}})
		if err != nil || len(settled) != 1 {
			t.Errorf("settled = %v, %v", settled, err)
		}
		_, err = store.BlockOrphans(ctx, time.Hour)
		must("block orphans", err)
		_, err = store.Unblock(ctx, []string{"h"})
		must("unblock", err)
		must("gap", store.RecordGap(ctx, "main", cdc.Gap{Reason: "slot_lost"}))
		must("gaps", store.CloseGaps(ctx, "main", time.Now()))
		_, err = store.ShortenLeases(ctx, time.Hour)
		must("shorten leases", err)
		must("source", store.RecordSource(ctx, "main", "x", cdc.Status{Mode: cdc.ModeStreaming}))

		orders := postgres.NewAdmin(store, admin.Config{})
		_, err = orders.Overview(ctx)
		must("overview", err)
		_, err = orders.RetryDeliveries(ctx, admin.Retry{Order: admin.Order{Actor: "x", RequestID: "r"}})
		must("retry", err)
		_, err = orders.DiscardDeliveries(ctx, admin.Discard{Order: admin.Order{Actor: "x"}})
		must("discard", err)
		_, err = orders.PauseHandler(ctx, "h", "x", "")
		must("pause", err)
		_, err = orders.ShowDelivery(ctx, id)
		must("show delivery", err)
		_, err = orders.ShowEvent(ctx, events[0].ID)
		must("show event", err)
		_, err = orders.ListEvents(ctx, admin.EventFilter{}, admin.Page{})
		must("list events", err)
	})
}

func TestDoctor_ChangesNothing(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		p := admit(t, hospital(t, major), 1)
		const state = `SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::text || pg_current_wal_insert_lsn() FROM pg_stat_all_tables`
		conn := p.conn()
		var before, after string
		testdb.WaitFor(t, "the server to be quiet", func() bool {
			if err := conn.QueryRow(t.Context(), state).Scan(&before); err != nil {
				t.Fatal(err)
			}
			p.want()
			if err := conn.QueryRow(t.Context(), state).Scan(&after); err != nil {
				t.Fatal(err)
			}
			return before == after
		})
	})
}

func TestDoctor_EveryNeedComesBefore(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range checks(Config{}.withDefaults()) {
		for _, need := range c.needs {
			if !seen[need] {
				t.Errorf("%s needs %s, which does not come before it", c.code, need)
			}
		}
		if seen[c.code] {
			t.Errorf("code %s is used twice", c.code)
		}
		seen[c.code] = true
	}
}

func TestVersion(t *testing.T) {
	for version, want := range map[int]Status{140012: Fail, 150000: OK, 180006: OK, 190000: OK} {
		f, err := checkVersion(t.Context(), &session{version: version})
		if err != nil || f.Status != want {
			t.Errorf("version %d: %+v, %v", version, f, err)
		}
	}
}

func TestPlainConnection(t *testing.T) {
	for addr, want := range map[net.Addr]Status{
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}: OK,
		&net.TCPAddr{IP: net.IPv6loopback}:       OK,
		&net.UnixAddr{Name: "/run/x"}:            OK,
		&net.TCPAddr{IP: net.IPv4(10, 0, 0, 7)}:  Warn,
	} {
		if f := plainConnection(addr); f.Status != want {
			t.Errorf("%v: %+v", addr, f)
		}
	}
}

func TestDSN_NoPasswordIsEverShown(t *testing.T) {
	for _, dsn := range []string{
		"postgres://app:hunter2@127.0.0.1:1/x?sslmode=disable&connect_timeout=1",
		"host=127.0.0.1 port=1 user=app password=hunter2 sslmode=disable",
		"host=127.0.0.1 port=1 password='hunter2",
		"postgres://app:hunter2%@h/x",
		"hunter2",
	} {
		r := Run(t.Context(), Config{DSN: dsn, Password: "hunter2", Table: schema.Eventlog(""), Timeout: time.Second})
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if s := string(out) + text(r); strings.Contains(s, "hunter2") {
			t.Errorf("the password of %q is shown:\n%s", dsn, s)
		}
		if found := findings(r); len(found) != 1 || found[0].Code != codeConnect {
			t.Errorf("%q: findings = %+v", dsn, found)
		}
	}
}

func TestReport_TextAndJSON(t *testing.T) {
	r := Report{Results: []Result{
		{Code: "CD2001", Name: "connection", Finding: Finding{Status: OK, Message: "connected", Value: "PostgreSQL 18"}},
		{Code: "CD2206", Name: "WAL guard", Finding: Finding{Status: Warn, Message: "the disk fills up", Value: "-1",
			Fix: []string{"ALTER SYSTEM SET x = '1'", "SELECT pg_reload_conf()"}}},
		{Code: "CD2201", Name: "wal_level", Finding: Finding{Status: Fail, Message: "too low", Hint: "then restart the server"}},
		{Code: "CD2202", Name: "replication right", Finding: Finding{Status: Skipped, Message: "not checked before CD2201 is mended"}, Because: "CD2201"},
	}}
	const wantText = `✓ CD2001  connection         connected (PostgreSQL 18)
! CD2206  WAL guard          the disk fills up (-1)
                               run   ALTER SYSTEM SET x = '1';
                               run   SELECT pg_reload_conf();
✗ CD2201  wal_level          too low
                               note  then restart the server
- CD2202  replication right  not checked before CD2201 is mended

1 ok, 1 to look at, 1 failed, 1 not checked
`
	if diff := cmp.Diff(wantText, text(r)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"checks": []any{
		map[string]any{"code": "CD2001", "name": "connection", "status": "ok", "message": "connected", "value": "PostgreSQL 18"},
		map[string]any{"code": "CD2206", "name": "WAL guard", "status": "warn", "message": "the disk fills up", "value": "-1",
			"fix": []any{"ALTER SYSTEM SET x = '1'", "SELECT pg_reload_conf()"}},
		map[string]any{"code": "CD2201", "name": "wal_level", "status": "fail", "message": "too low", "hint": "then restart the server"},
		map[string]any{"code": "CD2202", "name": "replication right", "status": "skipped", "message": "not checked before CD2201 is mended", "because": "CD2201"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	for want, r := range map[Status]Report{OK: {}, Warn: {Results: r.Results[:2]}, Fail: r} {
		if r.Worst() != want {
			t.Errorf("worst = %s, want %s", r.Worst(), want)
		}
	}
}
