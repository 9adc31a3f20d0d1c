package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// loseSlot makes the server invalidate an unused slot: more log is written than
// max_slot_wal_keep_size allows.
func loseSlot(t *testing.T, dsn, slot string) {
	t.Helper()
	testdb.WaitFor(t, "the slot to be lost", func() bool {
		exec(t, dsn, "SELECT pg_logical_emit_message(false, 'noise', 'x'); SELECT pg_switch_wal(); CHECKPOINT")
		return query[bool](t, dsn, "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = $1", slot)
	})
}

func TestB26_LostSlotIsReplacedAndTheGapAnnounced(t *testing.T) {
	settings := map[string]string{"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "48MB"}
	eachServer(t, settings, func(t *testing.T, server *localserver.Postgres) {
		dsn := server.DSN("postgres")
		cfg := configFor(dsn, "lost")
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		exec(t, dsn, insertEvents, 0, 10)
		r.WaitFor(10)
		testdb.WaitFor(t, "the retained bytes and their limit", func() bool {
			s := r.src.Status()
			return s.RetainedBytes >= 0 && s.RetainLimitBytes == 16<<20
		})
		r.Stop()
		exec(t, dsn, insertEvents, 10, 20)
		loseSlot(t, dsn, cfg.Slot)

		r.run()
		r.WaitGap(gapSlotLost)
		r.WaitMode(cdc.ModeStreaming)
		exec(t, dsn, insertEvents, 20, 30)
		testdb.WaitFor(t, "events after the gap", func() bool { return r.Count("29") == 1 })
		if r.Count("15") != 0 {
			t.Error("an event of the lost stretch arrived")
		}
		gap := r.Gap(0)
		if !strings.Contains(gap.Detail, "max_slot_wal_keep_size") || gap.To == "" {
			t.Errorf("gap %+v does not name the setting and the end", gap)
		}
		if n := r.src.Status().Gaps; n != 1 {
			t.Errorf("Status counts %d gaps, want 1", n)
		}
		testdb.WaitFor(t, "the confirmation", func() bool {
			return confirmedLSN(t, dsn, cfg.Slot) >= point(t, r.Last())
		})

		// Not ours to replace: the statement is named, and nothing is dropped.
		r.Stop()
		loseSlot(t, dsn, cfg.Slot)
		cfg.Create = false
		err := start(t, cfg).Failed()
		if !cdc.IsPermanent(err) || !strings.Contains(err.Error(), "pg_drop_replication_slot") {
			t.Errorf("with Create off: %v", err)
		}
	})
}

func TestB26_IdleTimeoutOf18(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		if major < 18 {
			return // older servers have no such timeout
		}
		server := testdb.Dedicated(t, major, map[string]string{"idle_replication_slot_timeout": "1s"})
		dsn := server.DSN("postgres")
		exec(t, dsn, eventsTable)
		cfg := configFor(dsn, "idle")
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		r.Stop()
		testdb.WaitFor(t, "the slot to be invalidated", func() bool {
			exec(t, dsn, "SELECT pg_logical_emit_message(false, 'noise', 'x'); CHECKPOINT")
			return query[bool](t, dsn, "SELECT invalidation_reason IS NOT NULL FROM pg_replication_slots")
		})
		r.run()
		r.WaitGap(gapSlotLost)
		if gap := r.Gap(0); !strings.Contains(gap.Detail, "idle_replication_slot_timeout") {
			t.Errorf("gap %+v does not name the setting", gap)
		}
		exec(t, dsn, insertEvents, 0, 10)
		r.WaitFor(10)
	})
}

func TestB26_SlotDroppedWhileRunning(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
		dropUnderneath(t, db, cfg.Slot)
		r.WaitGap(gapSlotMissing)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 10, 20)
		testdb.WaitFor(t, "events after the gap", func() bool { return r.Count("19") == 1 })
		if gap := r.Gap(0); gap.From == "" || gap.To == "" || point(t, gap.From) > point(t, gap.To) {
			t.Errorf("gap from %q to %q", gap.From, gap.To)
		}
	})
}

// A slot that is missing when a process begins is a loss if somebody has read from it before, and a first start otherwise.
// While nobody can say which, nothing is created.
func TestB26_SlotDroppedWhileNobodyRan(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		cfg.ConnectTimeout = 3 * time.Second // of which one is waited for
		silent := true
		asked := make(chan struct{})
		var once sync.Once
		answer := make(chan error)
		cfg.Recall = func(ctx context.Context) (cdc.Position, error) {
			if silent {
				silent = false
				<-ctx.Done()
				return "", ctx.Err()
			}
			once.Do(func() { close(asked) })
			select {
			case err := <-answer:
				return "0/1D0", err
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		r := start(t, cfg)
		<-asked
		answer <- errors.New("the table is locked")
		answer <- nil // it is asked again
		r.WaitGap(gapSlotMissing)
		if gap := r.Gap(0); gap.From != "0/1D0" || gap.To == "" {
			t.Errorf("gap from %q to %q", gap.From, gap.To)
		}
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
		r.Stop()

		fresh := testConfig(db)
		fresh.Slot += "_first"
		fresh.Recall = func(context.Context) (cdc.Position, error) { return "", nil }
		first := start(t, fresh)
		first.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 10, 20)
		first.WaitFor(10)
		if gaps := first.Gaps(); len(gaps) != 0 {
			t.Errorf("gaps %v at a first start", gaps)
		}
	})
}

// TestB26_SlotDroppedWhileStandingBy: another replica held the slot for a while, so
// that this one may not trust what it remembers of it, and then it is dropped.
func TestB26_SlotDroppedWhileStandingBy(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		one := cfg
		open := make(chan struct{}) // the first replica may connect again
		first := true
		one.BeforeConnect = func(ctx context.Context, c *pgconn.Config) error {
			if c.RuntimeParams["replication"] == "" {
				return nil
			}
			if first {
				first = false
				return nil
			}
			select {
			case <-open:
			case <-ctx.Done():
			}
			return nil
		}
		stopAt := &haltingHandler{at: "standing by", reached: make(chan struct{}), resume: make(chan struct{})}
		one.Logger = slog.New(stopAt)
		r := start(t, one)
		defer stopAt.release()
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
		known := r.Last()
		testdb.WaitFor(t, "the confirmation", func() bool { return confirmedLSN(t, db.DSN(), cfg.Slot) >= point(t, known) })
		db.Exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '" + cfg.Slot + "' AND active")
		other := start(t, cfg)
		other.WaitMode(cdc.ModeStreaming)
		close(open)
		// The first replica forgets what it knew, and looks again when it is let go.
		testdb.WaitFor(t, "the first replica to stand by", func() bool {
			select {
			case <-stopAt.reached:
				return true
			default:
				return false
			}
		})
		other.Stop()
		dropUnderneath(t, db, cfg.Slot)
		db.Exec(insertEvents, 10, 20)
		stopAt.release()

		r.WaitGap(gapSlotMissing)
		gap := r.Gap(0)
		if gap.From == "" || point(t, gap.From) < point(t, known) || point(t, gap.From) > point(t, gap.To) {
			t.Errorf("gap from %q to %q, want one that begins at %s or later", gap.From, gap.To, known)
		}
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 20, 30)
		testdb.WaitFor(t, "events after the gap", func() bool { return r.Count("29") == 1 })
	})
}

// haltingHandler is a log that blocks whoever writes a certain line, once.
type haltingHandler struct {
	slog.Handler // nil: only what is overridden is called

	at              string
	reached, resume chan struct{}
	once, freed     sync.Once
}

func (h *haltingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *haltingHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *haltingHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.at) {
		h.once.Do(func() {
			close(h.reached)
			<-h.resume
		})
	}
	return nil
}

func (h *haltingHandler) release() { h.freed.Do(func() { close(h.resume) }) }

// dropUnderneath drops a slot that a reader streams from, which fights for it: the reader is back within 20 ms, so that the
// server, which looks for the end of a session every 100 ms, must not be asked to wait for it.
func dropUnderneath(t *testing.T, db *testdb.DB, slot string) {
	t.Helper()
	conn := connect(t, db.DSN())
	testdb.WaitFor(t, "the slot to be dropped", func() bool {
		_, err := conn.Exec(t.Context(), `DO $$ BEGIN
			PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '`+slot+`' AND active;
			FOR try IN 1 .. 100 LOOP
				BEGIN
					PERFORM pg_drop_replication_slot('`+slot+`');
					RETURN;
				EXCEPTION WHEN object_in_use THEN
					PERFORM pg_sleep(0.0005);
				END;
			END LOOP;
			RAISE object_in_use;
		END $$`)
		return err == nil
	})
}

func TestB26_SlotsAreNotReplacedInATightLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, err := New(Config{DSN: "host=localhost", Tables: []Table{events}, BackoffMax: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for i, want := range []time.Duration{0, 10 * time.Second, 20 * time.Second} {
			if err := src.paceReanchor(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(begin); got != want {
				t.Errorf("replacement %d came after %s, want %s", i+1, got, want)
			}
		}
		if err := sleep(t.Context(), 2*time.Hour); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		if err := src.paceReanchor(t.Context()); err != nil || time.Since(begin) != 0 {
			t.Errorf("the first replacement in hours waited %s (%v)", time.Since(begin), err)
		}
	})
}

func TestB27_PublicationBeforeSlot(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		r := start(t, testConfig(db))
		r.WaitMode(cdc.ModeStreaming)
		log := r.Log.String()
		if p, s := strings.Index(log, "changed the publication"), strings.Index(log, "created the slot"); p < 0 || s < 0 || p > s {
			t.Error("the slot was not created after the publication")
		}
	})
}

func TestB27_PublicationYoungerThanTheSlot(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		db.Exec("SELECT pg_create_logical_replication_slot('" + cfg.Slot + "', 'pgoutput')")
		db.Exec(insertEvents, 0, 10)
		// By hand, so that only the log tells that it was missing.
		db.Exec("CREATE PUBLICATION " + cfg.Publication + " FOR TABLE events WITH (publish = 'insert', publish_via_partition_root)")
		db.Exec(insertEvents, 10, 20)
		r := start(t, cfg)
		r.WaitGap(gapPublication)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 20, 30)
		testdb.WaitFor(t, "events after the gap", func() bool { return r.Count("29") == 1 })
		if n := r.src.Status().Gaps; n != 1 {
			t.Errorf("Status counts %d gaps, want 1", n)
		}
	})
}

func TestB27_PublicationYoungerThanTheSlotOfAnAdmin(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		cfg.Create = false
		db.Exec("SELECT pg_create_logical_replication_slot('" + cfg.Slot + "', 'pgoutput')")
		db.Exec(insertEvents, 0, 10)
		db.Exec("CREATE PUBLICATION " + cfg.Publication + " FOR TABLE events WITH (publish = 'insert', publish_via_partition_root)")
		db.Exec(insertEvents, 10, 20)
		r := start(t, cfg)
		if db.Server().Major() < 18 { // such a slot can never be used
			err := r.Failed()
			if !cdc.IsPermanent(err) || !strings.Contains(err.Error(), "pg_drop_replication_slot") {
				t.Errorf("Run: %v", err)
			}
			return
		}
		r.WaitGap(gapPublication) // newer servers skip the rows, with a warning
		testdb.WaitFor(t, "events after the gap", func() bool { return r.Count("19") == 1 })
	})
}

func TestB27_PublicationReplacedWhileRunning(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
		db.Exec("DROP PUBLICATION " + cfg.Publication)
		db.Exec(insertEvents, 10, 20)
		r.WaitGap(gapPublication)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 20, 30)
		testdb.WaitFor(t, "events after the gap", func() bool { return r.Count("29") == 1 })
	})
}

func TestB27_TableTakenOutOfThePublication(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec("CREATE TABLE other (id int); ALTER PUBLICATION " + cfg.Publication + " SET TABLE other")
		r.WaitGap(gapPublicationTable)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		db.Exec("INSERT INTO other VALUES (1), (2)")
		r.WaitFor(10)
		testdb.WaitFor(t, "the foreign rows to be counted", func() bool { return r.src.Status().ForeignRows == 2 })
	})
}

// TestB28_SlotCreationBehindAnOpenTransaction has servers of its own: an open
// transaction holds up the creation of every slot of the server.
func TestB28_SlotCreationBehindAnOpenTransaction(t *testing.T) {
	eachServer(t, nil, func(t *testing.T, server *localserver.Postgres) {
		dsn := server.DSN("postgres")
		cfg := configFor(dsn, "behind")
		blocker := connect(t, dsn)
		run(t, blocker, "BEGIN; INSERT INTO events VALUES (1)")
		named := fmt.Sprintf("blocking_pid=%d", blocker.PgConn().PID())
		impatient := func(r *reader) { r.src.patience = 200 * time.Millisecond }
		r := start(t, cfg, impatient)
		testdb.WaitFor(t, "the blocking session to be named", func() bool { return r.Log.Count(named) > 0 })
		r.Stop()
		testdb.WaitFor(t, "no half-made slot", func() bool {
			return query[int](t, dsn, "SELECT count(*) FROM pg_replication_slots") == 0
		})
		again := start(t, cfg, impatient)
		testdb.WaitFor(t, "the new attempt to wait", func() bool { return again.Log.Count(named) > 0 })
		run(t, blocker, "COMMIT")
		again.WaitMode(cdc.ModeStreaming)
		exec(t, dsn, insertEvents, 2, 12)
		again.WaitFor(10)
	})
}

func TestB30_WaitingForStandbyIsNotDead(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		if major < 17 {
			return // synchronized_standby_slots came with 17
		}
		server := testdb.Dedicated(t, major, map[string]string{"synchronized_standby_slots": "dead"})
		dsn := server.DSN("postgres")
		exec(t, dsn, eventsTable)
		exec(t, dsn, "SELECT pg_create_physical_replication_slot('dead', true)")
		cfg := configFor(dsn, "failover")
		cfg.Failover = true
		r := start(t, cfg)
		testdb.WaitFor(t, "the failover slot", func() bool {
			return query[int](t, dsn, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND failover", cfg.Slot) == 1
		})
		exec(t, dsn, insertEvents, 0, 10)
		r.WaitMode(cdc.ModeWaitingForStandby)
		if n := r.Distinct(); n != 0 {
			t.Errorf("%d events arrived before the standby had them", n)
		}
		exec(t, dsn, "ALTER SYSTEM SET synchronized_standby_slots = ''")
		exec(t, dsn, "SELECT pg_reload_conf()")
		r.WaitFor(10)
		r.WaitMode(cdc.ModeStreaming)
	})
}

func TestB31_StoppingDropsNothing(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		if err := Drop(t.Context(), cfg, false); !errors.Is(err, ErrSlotActive) {
			t.Errorf("Drop while a session streams: %v", err)
		}
		r.Stop()
		waitIdle(t, db.DSN(), cfg.Slot)
		const there = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1) + (SELECT count(*) FROM pg_publication WHERE pubname = $2)"
		if n := query[int](t, db.DSN(), there, cfg.Slot, cfg.Publication); n != 2 {
			t.Errorf("slot and publication after a clean stop: %d of 2", n)
		}
		if err := Drop(t.Context(), cfg, false); err != nil {
			t.Errorf("Drop: %v", err)
		}
		if n := query[int](t, db.DSN(), there, cfg.Slot, cfg.Publication); n != 0 {
			t.Errorf("slot and publication after Drop: %d", n)
		}
		if err := Drop(t.Context(), cfg, false); err != nil {
			t.Errorf("Drop of nothing: %v", err)
		}
		r.run()
		r.WaitMode(cdc.ModeStreaming)
		if err := Drop(t.Context(), cfg, true); err != nil {
			t.Errorf("forced Drop: %v", err)
		}
	})
}
