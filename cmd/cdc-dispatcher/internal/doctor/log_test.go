package doctor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

func logIllnesses(major int) []illness {
	list := []illness{
		{name: "wal_level replica", code: codeWALLevel, status: Fail, says: "wal_level",
			ail: func(p *patient) {
				p.exec(dropSlots, "ALTER SYSTEM SET wal_level = 'replica'")
				p.restart()
			},
			after: func(p *patient) {
				p.mend(findings(Run(p.Context(), p.cfg))[0])
				p.exec(makeSlot)
			}},
		{name: "no right to replicate", code: codeReplication, status: Fail, says: `ALTER ROLE "app" REPLICATION`, ail: sql("ALTER ROLE app NOREPLICATION")},
		{name: "no slot is free", code: codeSlotsFree, status: Fail, says: "inactive are a, b, c",
			ail: sql(dropSlots, "SELECT pg_create_physical_replication_slot(n) FROM unnest('{a,b,c}'::text[]) n"),
			after: func(p *patient) {
				p.mend(findings(Run(p.Context(), p.cfg))[0])
				p.exec(makeSlot)
			}},
		{name: "no sender is free", code: codeSendersFree, status: Fail, says: "max_wal_senders",
			ail: func(p *patient) {
				for range 3 {
					p.replicate()
				}
			}},
		{name: "a pooler", code: codePooler, status: Fail, says: "pooler",
			ail:   func(p *patient) { p.cfg.DSN = throughPooler(p.T, p.cfg.DSN) },
			after: func(p *patient) { p.cfg.DSN = strings.Replace(p.server.DSN(p.name), "postgres@", "app@", 1) }},
		{name: "the log of another database", code: codeReplicate, status: Fail, says: "another database",
			ail:   func(p *patient) { p.cfg.ReplicationDSN = strings.Replace(p.cfg.DSN, p.name, "postgres", 1) },
			after: func(p *patient) { p.cfg.ReplicationDSN = "" }},
		{name: "unlimited WAL", code: codeKeepSize, status: Warn, says: "disk fills up", ail: sql("ALTER SYSTEM SET max_slot_wal_keep_size = -1", "SELECT pg_reload_conf()")},
		{name: "little WAL", code: codeKeepSize, status: Warn, says: "after little WAL", ail: sql("ALTER SYSTEM SET max_slot_wal_keep_size = '512MB'", "SELECT pg_reload_conf()")},
		{name: "a hasty sender", code: codeSenderTime, status: Warn, says: "gives up", ail: sql("ALTER SYSTEM SET wal_sender_timeout = '2s'", "SELECT pg_reload_conf()")},
		{name: "a sender that waits for ever", code: codeSenderTime, status: Warn, says: "never notices", ail: sql("ALTER ROLE app SET wal_sender_timeout = 0")},

		{name: "no publication", code: codePublication, status: Fail, says: "CREATE PUBLICATION", ail: sql("DROP PUBLICATION cdc_dispatcher")},
		{name: "no publication, and no right to make one", code: codePublication, status: Fail, says: "may not create it",
			ail: func(p *patient) { p.exec("DROP PUBLICATION cdc_dispatcher"); p.cfg.Create = true }},
		{name: "inserts are left out", code: codePublished, status: Fail, says: "inserts", ail: sql("ALTER PUBLICATION cdc_dispatcher SET (publish = 'update, delete')")},
		{name: "the table is not published", code: codePublished, status: Fail, says: "ADD TABLE", ail: sql("ALTER PUBLICATION cdc_dispatcher DROP TABLE eventlog.events")},
		{name: "a column list", code: codePublished, status: Fail, says: "payload", ail: sql("ALTER PUBLICATION cdc_dispatcher SET TABLE eventlog.events (id, event_type)")},
		{name: "a column list without headers", code: codePublished, status: Fail, says: "(traceparent, headers)",
			ail: sql("ALTER PUBLICATION cdc_dispatcher SET TABLE eventlog.events (id, namespace, action_id, action_name, action_params, started_date, " +
				"completion_date, model_id, model_type, event_type, payload, event_date)")},
		{name: "a row filter", code: codePublished, status: Warn, says: "row filter", ail: sql("ALTER PUBLICATION cdc_dispatcher SET TABLE eventlog.events WHERE (namespace <> 'x')")},
		{name: "partitions under their own names", code: codePublished, status: Fail, says: "publish_via_partition_root = true",
			ail: func(p *patient) {
				p.exec("CREATE TABLE public.box (id uuid, type text, payload jsonb, aggregateid text, aggregatetype text) PARTITION BY HASH (id)",
					"GRANT SELECT ON public.box TO app", "CREATE PUBLICATION box FOR TABLE public.box", "ALTER TABLE public.box ALTER id SET NOT NULL")
				p.cfg.Table, p.cfg.Publication = schema.Debezium("public", "box"), "box"
			}},

		{name: "no slot", code: codeSlot, status: Fail, says: "pg_create_logical_replication_slot", ail: sql(dropSlots)},
		{name: "a slot of another plugin", code: codeSlot, status: Fail, says: "test_decoding",
			ail: sql(dropSlots, "SELECT pg_create_logical_replication_slot('cdc_dispatcher', 'test_decoding')")},
		{name: "a physical slot", code: codeSlot, status: Fail, says: "physical",
			ail: sql(dropSlots, "SELECT pg_create_physical_replication_slot('cdc_dispatcher')")},
		{name: "a slot of another database", code: codeSlot, status: Fail, says: "configure another slot name",
			ail: func(p *patient) {
				p.exec(dropSlots)
				if _, err := p.connTo("postgres").Exec(p.Context(), makeSlot); err != nil {
					p.Fatal(err)
				}
			},
			after: sql(dropSlots, makeSlot)},
		{name: "a lost slot", code: codeSlotHealth, status: Fail, says: "invalidated", ail: loseSlot, after: func(p *patient) {
			p.exec(findings(Run(p.Context(), p.cfg))[0].Fix...)
		}},
		{name: "a lost slot that run replaces", code: codeSlotHealth, status: Warn, says: "run replaces it",
			ail: func(p *patient) { p.cfg.Create = true; loseSlot(p) }},
		{name: "a long transaction", code: codeTransactions, status: Warn, says: "pg_terminate_backend",
			ail: func(p *patient) {
				p.exec("GRANT pg_read_all_stats TO app")
				if _, err := p.conn().Exec(p.Context(), "BEGIN; SELECT pg_current_xact_id(); SELECT pg_sleep(0.1)"); err != nil {
					p.Fatal(err)
				}
				p.cfg.LongTransaction = 50 * time.Millisecond
			}},
		{name: "a forgotten prepared transaction", code: codeTransactions, status: Warn, says: `ROLLBACK PREPARED E'it''s \\ mine'`,
			ail: func(p *patient) {
				p.exec(`BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'it''s \ mine'`, "SELECT pg_sleep(0.1)")
				p.cfg.LongTransaction = 50 * time.Millisecond
			}},
	}
	if major >= 18 {
		list = append(list, illness{name: "idle slots are dropped", code: codeIdleSlot, status: Warn, says: "idle_replication_slot_timeout",
			ail: sql("ALTER SYSTEM SET idle_replication_slot_timeout = '10min'", "SELECT pg_reload_conf()")})
	}
	return list
}

// What run mends by itself is no finding.
func TestDoctor_RunMendsAPublicationOfItsOwn(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		p := admit(t, hospital(t, major), 1)
		p.exec("CREATE TABLE public.box (id uuid NOT NULL, type text, payload jsonb, aggregateid text, aggregatetype text) PARTITION BY HASH (id)",
			"ALTER TABLE public.box OWNER TO app", "CREATE PUBLICATION box FOR TABLE public.box", "ALTER PUBLICATION box OWNER TO app")
		p.cfg.Table, p.cfg.Publication, p.cfg.Create = schema.Debezium("public", "box"), "box", true
		if r := Run(t.Context(), p.cfg); r.Worst() != OK || !strings.Contains(text(r), "run changes that") {
			t.Errorf("with the right to change it:\n%s", text(r))
		}
		p.cfg.Create = false
		if found := findings(Run(t.Context(), p.cfg)); len(found) != 1 || found[0].Code != codePublished || found[0].Status != Fail {
			t.Errorf("where somebody else does it: %+v", found)
		}
	})
}

// loseSlot lets the server invalidate the slot.
func loseSlot(p *patient) {
	p.fillWAL("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "CHECKPOINT")
	p.exec("ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'", "SELECT pg_reload_conf()")
}

// fillWAL writes several segments of log and then runs the statements.
func (p *patient) fillWAL(statements ...string) {
	p.exec("CREATE TABLE filler (x int)")
	for range 8 {
		p.exec("INSERT INTO filler VALUES (1)", "SELECT pg_switch_wal()")
	}
	p.exec(statements[0], "SELECT pg_reload_conf()")
	testdb.WaitFor(p, "the setting to be in force", func() bool {
		conn := p.conn()
		var v string
		err := conn.QueryRow(p.Context(), "SHOW max_slot_wal_keep_size").Scan(&v)
		return err == nil && strings.Contains(statements[0], v)
	})
	p.exec(statements[1:]...)
}

func TestSlotHealth(t *testing.T) {
	const mb = 1 << 20
	at := func(bytes int64) *int64 { return &bytes }
	for _, c := range []struct {
		name   string
		slot   slot
		create bool
		want   Status
		hint   string
	}{
		{"little retained", slot{WALStatus: "reserved", Retained: 10 * mb, SafeWALSize: at(990 * mb)}, false, OK, ""},
		{"no limit", slot{WALStatus: "extended", Retained: 9000 * mb}, false, OK, ""},
		{"80 per cent", slot{WALStatus: "extended", Retained: 800 * mb, SafeWALSize: at(200 * mb)}, false, OK, ""},
		{"more, and nobody reads", slot{WALStatus: "extended", Retained: 810 * mb, SafeWALSize: at(190 * mb)}, false, Warn, "nobody reads"},
		{"more, and somebody reads", slot{WALStatus: "extended", Retained: 810 * mb, SafeWALSize: at(190 * mb), ActivePID: 7}, false, Warn, "does not get on"},
		{"about to go", slot{WALStatus: "unreserved", Retained: 810 * mb, SafeWALSize: at(-5)}, false, Warn, "nobody reads"},
		{"lost", slot{WALStatus: "lost"}, false, Fail, "found by the poller"},
		{"lost, and run replaces it", slot{WALStatus: "lost"}, true, Warn, ""},
		{"invalidated by 18", slot{WALStatus: "lost", Invalidation: "idle_timeout"}, false, Fail, "poller"},
		{"conflicting on 16", slot{WALStatus: "reserved", Conflicting: true}, false, Fail, "poller"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := (&session{cfg: Config{Create: c.create}.withDefaults()}).judge(c.slot)
			if f.Status != c.want || !strings.Contains(f.Hint, c.hint) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// replicate holds one sender.
func (p *patient) replicate() {
	c, err := pgconn.ParseConfig(p.server.DSN(p.name))
	if err != nil {
		p.Fatal(err)
	}
	c.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(p.Context(), c)
	if err != nil {
		p.Fatal(err)
	}
	p.holds = append(p.holds, func() { _ = conn.Close(context.Background()) })
}
