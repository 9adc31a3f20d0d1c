package postgres

import (
	"context"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// TestB29_RestoredFromACopyOfItself puts a copy of the data folder from before in the
// place of a server, as a restored storage snapshot does, while the reader runs. System
// and timeline stay the same, and the positions of the commits that follow were all
// used already.
func TestB29_RestoredFromACopyOfItself(t *testing.T) {
	eachServer(t, nil, func(t *testing.T, server *localserver.Postgres) {
		data := filepath.Join(filepath.Dir(server.LogFile()), "data")
		if _, err := os.Stat(data); err != nil {
			testdb.Note(t, "the data folder is inside a container, so that it cannot be replaced")
			return
		}
		dsn := server.DSN("postgres")
		r := start(t, configFor(dsn, "restored"))
		r.WaitMode(cdc.ModeStreaming)
		insert := func(from, to int) { exec(t, dsn, insertEvents, from, to) }
		insert(0, 10)
		r.WaitFor(10)
		restart := func(between func()) {
			t.Helper()
			if err := server.Stop(t.Context(), localserver.StopFast); err != nil {
				t.Fatal(err)
			}
			between()
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		restart(func() { shell(t, "cp", "-a", data, data+".copy") })
		insert(10, 20)
		r.WaitFor(20)
		for range 3 { // so that the copy needs a while to come as far
			exec(t, dsn, "SELECT pg_logical_emit_message(false, 'noise', 'x'); SELECT pg_switch_wal()")
		}
		insert(20, 30)
		r.WaitFor(30)
		lost := r.Last()
		testdb.WaitFor(t, "the confirmation", func() bool { return confirmedLSN(t, dsn, r.src.cfg.Slot) >= point(t, lost) })
		if gaps := r.Gaps(); len(gaps) != 0 {
			t.Fatalf("an ordinary restart left the gaps %v", gaps)
		}

		restart(func() { shell(t, "mv", data, data+".lost"); shell(t, "mv", data+".copy", data) })
		insert(30, 40) // at positions below those that this reader confirmed
		if end := currentLSN(t, dsn); end >= point(t, lost) {
			t.Fatalf("the copy ends at %s, which is not before %s", end, lost)
		}
		r.WaitGap(gapServerChanged)
		testdb.WaitFor(t, "every event of the copy", func() bool {
			return query[int](t, dsn, "SELECT count(*) FROM events WHERE id::text <> ALL ($1)", r.Arrived()) == 0
		})
		if gap := r.Gap(0); !strings.Contains(gap.Detail, "restored from a copy") || gap.To == "" || strings.Contains(string(gap.To), "#") {
			t.Errorf("gap %+v", gap)
		}
		r.src.Ack(lost) // late, from the history that is gone
		testdb.WaitFor(t, "the confirmation in the new epoch", func() bool {
			return strings.HasSuffix(string(r.Last()), "#1") && confirmedLSN(t, dsn, r.src.cfg.Slot) >= point(t, r.Last())
		})
		if n := len(r.Gaps()); n != 1 {
			t.Errorf("%d gaps, want one", n)
		}
	})
}

func shell(t *testing.T, program string, arguments ...string) {
	t.Helper()
	if out, err := osexec.Command(program, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", program, arguments, err, out)
	}
}

func TestMeetComparesHistories(t *testing.T) {
	one := identity{system: "1", timeline: 1}
	for name, tc := range map[string]struct {
		now     identity
		end     resumePoint
		changed string
	}{
		"the same":                 {one, 200, ""},
		"the same, and written to": {one, 300, ""},
		"the same, but shorter":    {one, 199, "copy of itself"},
		"another timeline":         {identity{"1", 2}, 150, "promoted"},
		"another server":           {identity{"2", 1}, 900, "another server"},
	} {
		t.Run(name, func(t *testing.T) {
			src, err := New(Config{DSN: "host=localhost", Tables: []Table{events}})
			if err != nil {
				t.Fatal(err)
			}
			src.meet(one, 100)
			st, err := newStream(src, nil, nil, anchor{start: 100}, nil)
			if err != nil {
				t.Fatal(err)
			}
			st.confirm.keepalive(200)
			src.learn(st, errServerDone)
			src.memory.durable = 180
			if src.meet(tc.now, tc.end); (src.memory.serverChanged == "") != (tc.changed == "") || !strings.Contains(src.memory.serverChanged, tc.changed) {
				t.Errorf("changed: %q, want %q", src.memory.serverChanged, tc.changed)
			}
			epoch, durable := uint64(0), resumePoint(180)
			if tc.changed != "" {
				epoch, durable = 1, 0
			}
			if m := src.memory; m.epoch != epoch || m.durable != durable || m.reached != tc.end || m.identity != tc.now {
				t.Errorf("memory %+v", m)
			}
		})
	}
}

// TestB29_AnotherServer leads the DSN to a second server, as a name that moves does.
func TestB29_AnotherServer(t *testing.T) {
	t.Parallel()
	one := testdb.Postgres(t, 15)
	far := testdb.Dedicated(t, 15, nil)
	one.Exec(eventsTable)
	exec(t, far.DSN("postgres"), eventsTable)
	cfg := testConfig(one)
	moved := make(chan struct{})
	cfg.BeforeConnect = func(_ context.Context, c *pgconn.Config) error {
		select {
		case <-moved:
			c.Port, c.Database = uint16(far.Port()), "postgres"
		default:
		}
		return nil
	}
	r := start(t, cfg)
	r.WaitMode(cdc.ModeStreaming)
	for range 5 { // far ahead of a new server
		one.Exec("SELECT pg_switch_wal()")
	}
	one.Exec(insertEvents, 0, 10)
	r.WaitFor(10)
	old := r.Last()
	close(moved)
	one.Exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '" + cfg.Slot + "'")
	r.WaitGap(gapServerChanged)
	r.WaitMode(cdc.ModeStreaming)
	r.Ack(false)
	exec(t, far.DSN("postgres"), insertEvents, 10, 20)
	r.WaitFor(20)
	if !strings.HasSuffix(string(r.Last()), "#1") {
		t.Errorf("position %s is not of a new epoch", r.Last())
	}
	r.src.Ack(old) // a late acknowledgement, of a larger position on the old server
	at := confirmedLSN(t, far.DSN("postgres"), cfg.Slot)
	if at >= point(t, r.Last()) {
		t.Errorf("confirmed %s by an acknowledgement of %s from the other server", at, old)
	}
	r.src.Ack(r.Last())
	testdb.WaitFor(t, "the confirmation", func() bool {
		return confirmedLSN(t, far.DSN("postgres"), cfg.Slot) >= point(t, r.Last())
	})
}
