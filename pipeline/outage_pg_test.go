package pipeline_test

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// Deploys under load: each process stops softly and the next one takes over.
// Nothing is lost, and nothing runs twice.
func TestSoftStopsUnderLoadLoseAndRepeatNothing(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"), on("b", "order.*"))
		stop := w.writing(false)
		for i := range 4 {
			p := w.start(fmt.Sprint("life-", i))
			testdb.WaitFor(t, "work to do", func() bool { return p.obs.viaLog.Load() > 200 })
			p.stop()
		}
		stop()
		w.start("last")
		report := w.settled()
		if report.Starts != report.Deliveries {
			t.Errorf("%d starts of %d deliveries", report.Starts, report.Deliveries)
		}
	})
}

// Connections that break at any moment, also between a commit and its answer:
// nothing is lost and nothing is doubled.
func TestConnectionsCutUnderLoadLoseNothing(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		w := newWorld(t, major, on("a", "*"), on("b", "order.*"))
		cfg := w.pool.Config().ConnConfig
		proxy := faultproxy.New(t, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
		w.via = proxy.Addr()
		p := w.start("one", func(c *pipeline.Config) { c.Lease = 10 * time.Second })
		p.streaming(w)
		stop := w.writing(false)
		for range 10 {
			before := w.count(`SELECT count(*) FROM eventlog.event_notifications`)
			testdb.WaitFor(t, "new deliveries", func() bool {
				return w.count(`SELECT count(*) FROM eventlog.event_notifications`) > before+30
			})
			proxy.Cut()
		}
		stop()
		w.settled()
		p.stop()
		w.check()
	})
}

// Promise 1 under a crash of the server: everything is on its way again by itself.
func TestServerCrashUnderLoadLosesNothing(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		server := testdb.Dedicated(t, major, nil)
		pool, err := pgxpool.New(t.Context(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		w := worldOn(t, server.DSN("postgres"), pool, on("a", "*"), on("b", "order.*"))
		p := w.start("one", func(c *pipeline.Config) { c.Lease = 10 * time.Second })
		p.streaming(w)
		stop := w.writing(true)
		for range 2 {
			before := p.obs.viaLog.Load()
			testdb.WaitFor(t, "events by the log", func() bool { return p.obs.viaLog.Load() > before+200 })
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			// Acknowledgements commit asynchronously: those of the last moments are gone. Those of attempts that
			// began while the server was away reach it late, perhaps after their lease.
			crash := ledger.Fault{At: time.Now(), Window: 10 * time.Second}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			crash.Until = time.Now()
			w.faults = append(w.faults, crash)
			testdb.WaitFor(t, "the log is read again", func() bool {
				h := p.Health()
				return h.Mode == cdc.ModeStreaming || h.Mode == cdc.ModeCatchingUp
			})
		}
		stop()
		w.settled()
		p.stop()
		w.check()
	})
}

// A clean stop of the server ends nothing in the pipeline.
func TestServerRestartIsOnlyAPause(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		server := testdb.Dedicated(t, major, nil)
		pool, err := pgxpool.New(t.Context(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		w := worldOn(t, server.DSN("postgres"), pool, on("a", "*"))
		p := w.start("one")
		p.streaming(w)
		w.insert("x", 100)
		w.settled()
		if err := server.Stop(t.Context(), localserver.StopFast); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "health notices", func() bool { return p.Health().Mode != cdc.ModeStreaming })
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		pool.Reset() // this test's own inserts are not tried again
		w.insert("x", 100)
		w.settled()
		testdb.WaitFor(t, "the log is read again", func() bool { return p.Health().Mode == cdc.ModeStreaming })
	})
}
