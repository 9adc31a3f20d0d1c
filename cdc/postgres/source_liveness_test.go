package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// senderTimeout sets wal_sender_timeout for new sessions of a database.
func senderTimeout(db *testdb.DB, timeout string) {
	db.Exec(fmt.Sprintf("ALTER DATABASE %s SET wal_sender_timeout = '%s'", pgx.Identifier{db.Name()}.Sanitize(), timeout))
}

// passed waits until d has passed by the server's clock.
func passed(t *testing.T, dsn string, d time.Duration) {
	t.Helper()
	since := query[time.Time](t, dsn, "SELECT clock_timestamp()")
	testdb.WaitFor(t, d.String()+" to pass", func() bool {
		return query[bool](t, dsn, "SELECT clock_timestamp() > $1::timestamptz + $2::interval", since, d)
	})
}

func TestB15_SlowConsumerKeepsItsConnection(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		small, large, timeout := 2000, 20000, 15*time.Second
		if soak() {
			small, large = 50000, 500000
		}
		senderTimeout(db, timeout.String())
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		pid := sender(t, db.DSN(), cfg.Slot).pid
		r.Hold()
		conn := connect(t, db.DSN())
		for i := range small {
			if _, err := conn.Exec(t.Context(), insertEvents, i, i+1); err != nil {
				t.Fatal(err)
			}
		}
		db.Exec(insertEvents, small, small+large)
		r.WaitMode(cdc.ModeCatchingUp)
		passed(t, db.DSN(), timeout+timeout/2)
		if got := sender(t, db.DSN(), cfg.Slot).pid; got != pid {
			t.Errorf("walsender %d became %d while the consumer waited", pid, got)
		}
		r.Release()
		r.WaitFor(small + large)
		// A large transaction that has nothing for us is decoded in silence.
		db.Exec("CREATE TABLE other (x text); INSERT INTO other SELECT repeat(md5(i::text), 10) FROM generate_series(1, 100000) i")
		db.Exec(insertEvents, -1, 0)
		r.WaitFor(small + large + 1)
		if got := sender(t, db.DSN(), cfg.Slot).pid; got != pid {
			t.Errorf("walsender %d became %d", pid, got)
		}
		if n := r.src.Status().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	})
}

func TestB16_AcknowledgementsFromEverywhere(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		acks := 3000
		if soak() {
			acks = 32000
		}
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		var group sync.WaitGroup
		for range 32 {
			group.Go(func() {
				for range acks {
					r.src.Ack(r.Last())
				}
			})
		}
		conn := connect(t, db.DSN())
		for i := range 500 {
			if _, err := conn.Exec(t.Context(), insertEvents, i, i+1); err != nil {
				t.Fatal(err)
			}
		}
		group.Wait()
		r.WaitFor(500)
		testdb.WaitFor(t, "the confirmation", func() bool {
			return confirmedLSN(t, db.DSN(), cfg.Slot) >= point(t, r.Last())
		})
		if n := r.src.Status().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	})
}

// stopLimit tells a shutdown that is held up, which does not end, from a slow one.
const stopLimit = time.Minute

func TestB17_CleanShutdownIsNotHeldUp(t *testing.T) {
	pending := func(t *testing.T, dsn string, r *reader) {
		exec(t, dsn, insertEvents, 0, 10)
		r.WaitFor(10)
	}
	// noWatcher leaves only what the stream itself notices.
	noWatcher := func(_ context.Context, cfg *pgconn.Config) error {
		if cfg.RuntimeParams["replication"] == "" {
			return errors.New("no side connection in this test")
		}
		return nil
	}
	cases := []struct {
		name    string
		options []func(*reader)
		before  func(context.Context, *pgconn.Config) error
		prepare func(t *testing.T, dsn string, r *reader)
	}{
		{"idle", nil, nil, func(*testing.T, string, *reader) {}},
		{"pending", []func(*reader){noAck}, nil, pending},
		{"pending, without watcher", []func(*reader){noAck}, noWatcher, pending},
		{"blocked with a backlog", []func(*reader){held}, nil, func(t *testing.T, dsn string, r *reader) {
			for i := range 20 {
				exec(t, dsn, "INSERT INTO events (id, payload) SELECT i, repeat(md5(i::text), 30) FROM generate_series($1::int, $2::int - 1) i",
					i*1000, (i+1)*1000)
			}
			r.WaitMode(cdc.ModeCatchingUp)
		}},
	}
	eachServer(t, nil, func(t *testing.T, server *localserver.Postgres) {
		for i, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				dsn := server.DSN("postgres")
				exec(t, dsn, "TRUNCATE events")
				cfg := configFor(dsn, fmt.Sprintf("stop%d", i))
				cfg.BeforeConnect = tc.before
				r := start(t, cfg, tc.options...)
				r.WaitMode(cdc.ModeStreaming)
				tc.prepare(t, dsn, r)
				ctx, cancel := context.WithTimeout(t.Context(), stopLimit)
				defer cancel()
				begin := time.Now()
				if err := server.Stop(ctx, localserver.StopFast); err != nil {
					t.Fatalf("the shutdown was held up: %v", err)
				}
				t.Logf("the shutdown took %s", time.Since(begin).Round(time.Millisecond))
				testdb.WaitFor(t, "the reader to notice", func() bool { return r.src.Status().Mode == cdc.ModeConnecting })
				attempts := r.src.Status().Reconnects
				testdb.WaitFor(t, "some attempts to connect", func() bool { return r.src.Status().Reconnects > attempts+3 })
				if n := r.Log.Count("level=WARN"); n != 1 {
					t.Errorf("the outage made %d lines, want one", n)
				}
				if err := server.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.Ack(true)
				r.Release()
				exec(t, dsn, insertEvents, 100000, 100010)
				testdb.WaitFor(t, "every event", func() bool {
					return r.Distinct() == query[int](t, dsn, "SELECT count(*) FROM events")
				})
				if gaps := r.Gaps(); len(gaps) != 0 {
					t.Errorf("gaps %v", gaps)
				}
				r.Stop()
			})
		}
	})
}

func TestB17_ShutdownUnderLoad(t *testing.T) {
	eachServer(t, nil, func(t *testing.T, server *localserver.Postgres) {
		dsn := server.DSN("postgres")
		r := start(t, configFor(dsn, "load"))
		r.WaitMode(cdc.ModeStreaming)
		var group sync.WaitGroup
		for w := range 4 {
			conn := connect(t, dsn)
			group.Go(func() {
				for i := 0; ; i++ { // until the server is gone
					if _, err := conn.Exec(context.Background(), insertEvents, w*1000000+i, w*1000000+i+1); err != nil {
						return
					}
				}
			})
		}
		r.WaitFor(200)
		ctx, cancel := context.WithTimeout(t.Context(), stopLimit)
		defer cancel()
		if err := server.Stop(ctx, localserver.StopFast); err != nil {
			t.Fatalf("the shutdown was held up: %v", err)
		}
		group.Wait()
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "every event", func() bool {
			return r.Distinct() == query[int](t, dsn, "SELECT count(*) FROM events")
		})
	})
}

func TestServerCrashLosesNothing(t *testing.T) {
	eachServer(t, nil, func(t *testing.T, server *localserver.Postgres) {
		dsn := server.DSN("postgres")
		r := start(t, configFor(dsn, "crash"))
		r.WaitMode(cdc.ModeStreaming)
		var group sync.WaitGroup
		for w := range 4 {
			conn := connect(t, dsn)
			group.Go(func() {
				for i := 0; ; i++ {
					if _, err := conn.Exec(context.Background(), insertEvents, w*1000000+i, w*1000000+i+1); err != nil {
						return
					}
				}
			})
		}
		r.WaitFor(200)
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		group.Wait()
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		exec(t, dsn, insertEvents, -10, 0)
		testdb.WaitFor(t, "every event that survived", func() bool {
			return r.Distinct() >= query[int](t, dsn, "SELECT count(*) FROM events") && r.Count("-1") > 0
		})
		// What was confirmed ends with a segment: after the crash the log must not seem to
		// be a shorter one.
		exec(t, dsn, "SELECT pg_switch_wal()")
		end := currentLSN(t, dsn)
		testdb.WaitFor(t, "the confirmation of the switch", func() bool { return confirmedLSN(t, dsn, r.src.cfg.Slot) >= end })
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		exec(t, dsn, insertEvents, -20, -10)
		testdb.WaitFor(t, "events after the second crash", func() bool { return r.Count("-11") > 0 })
		if gaps := r.Gaps(); len(gaps) != 0 {
			t.Errorf("gaps %v", gaps)
		}
	})
}

func TestB18_SilentServerIsNoticedAndReplaced(t *testing.T) {
	eachServer(t, map[string]string{"wal_sender_timeout": "15s"}, func(t *testing.T, server *localserver.Postgres) {
		dsn := server.DSN("postgres")
		cfg := configFor(dsn, "frozen")
		cfg.ConnectTimeout = 5 * time.Second
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		before := r.src.Status().Reconnects // a first dial may have failed
		fresh := func() bool {
			s := r.src.Status()
			return time.Since(s.LastByte) <= s.StaleAfter
		}
		// Idle but healthy: it stays fresh for much longer than the limit.
		since := time.Now()
		testdb.WaitFor(t, "a long idle time", func() bool {
			if !fresh() {
				t.Fatalf("an idle server counts as silent after %s", time.Since(since))
			}
			return time.Since(since) > 30*time.Second
		})
		if n := r.src.Status().Reconnects - before; n != 0 {
			t.Fatalf("%d reconnects while idle", n)
		}
		if err := server.Freeze(); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "readiness to turn false", func() bool { return !fresh() })
		testdb.WaitFor(t, "the connection to be given up", func() bool { return r.src.Status().Reconnects > before })
		if err := server.Thaw(); err != nil {
			t.Fatal(err)
		}
		exec(t, dsn, insertEvents, 0, 10)
		r.WaitFor(10)
		testdb.WaitFor(t, "readiness to come back", fresh)
	})
}

func TestB19_FiftyTerminations(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		cfg.BackoffMax = 4 * cfg.BackoffMin // the streams end before they bring anything
		begin := time.Now()
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		var written atomic.Int64
		for w := range 2 {
			conn := connect(t, db.DSN())
			group.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					if _, err := conn.Exec(context.Background(), insertEvents, w*1000000+i, w*1000000+i+1); err != nil {
						t.Error(err)
						return
					}
					written.Add(1)
				}
			})
		}
		for range 50 {
			// The stream's session and, every other time, the watcher's as well.
			before := r.src.Status().Reconnects
			testdb.WaitFor(t, "a session to end", func() bool {
				return query[bool](t, db.DSN(), `SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
					WHERE datname = current_database() AND backend_type = 'walsender'`)
			})
			db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name LIKE '%watch'`)
			testdb.WaitFor(t, "a new stream", func() bool {
				return r.src.Status().Reconnects > before && r.src.Status().Mode == cdc.ModeStreaming
			})
		}
		cancel()
		group.Wait()
		testdb.WaitFor(t, "every event", func() bool { return int64(r.Distinct()) == written.Load() })
		if gaps := r.Gaps(); len(gaps) != 0 {
			t.Errorf("gaps %v", gaps)
		}
		if n := r.Log.Count("level=WARN"); n > 5+int(time.Since(begin)/time.Minute) {
			t.Errorf("50 terminations made %d warnings in %s", n, time.Since(begin))
		}
	})
}

func TestB20_TwoReplicasOneStreams(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		senderTimeout(db, "15s") // a replica that a busy machine holds up for less keeps its slot
		cfg := testConfig(db)
		proxy := faultproxy.New(t, fmt.Sprintf("%s:%d", db.Server().Host(), db.Server().Port()))
		first := cfg
		first.DSN = onHost(t, cfg.DSN, proxy.Addr())
		first.ConnectTimeout = 5 * time.Second
		one := start(t, first)
		one.WaitMode(cdc.ModeStreaming)
		two := start(t, cfg)
		two.WaitMode(cdc.ModeStandby)
		db.Exec(insertEvents, 0, 10)
		one.WaitFor(10)
		if n := two.Distinct(); n != 0 {
			t.Fatalf("the standby got %d events", n)
		}
		passed(t, db.DSN(), time.Second) // some twenty looks
		if n := two.Log.Count("standing by"); n != 1 {
			t.Errorf("the standby logged %d times, want once", n)
		}
		proxy.Blackhole()
		db.Exec(insertEvents, 10, 20)
		lost := time.Now()
		testdb.WaitFor(t, "the standby to take over", func() bool { return two.src.Status().Mode == cdc.ModeStreaming })
		// wal_sender_timeout and a second or so.
		t.Logf("the take-over took %s", time.Since(lost).Round(time.Millisecond))
		testdb.WaitFor(t, "the events of the dead replica", func() bool { return two.Count("19") == 1 })
		proxy.Heal()
		one.WaitMode(cdc.ModeStandby)
		if gaps := append(one.Gaps(), two.Gaps()...); len(gaps) != 0 {
			t.Errorf("gaps %v", gaps)
		}
	})
}

func TestB20_ReplicasStartedTogether(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		replicas := []*reader{start(t, cfg), start(t, cfg), start(t, cfg)}
		modes := func() (streaming, standby int) {
			for _, r := range replicas {
				switch r.src.Status().Mode {
				case cdc.ModeStreaming:
					streaming++
				case cdc.ModeStandby:
					standby++
				}
			}
			return streaming, standby
		}
		testdb.WaitFor(t, "one to stream and two to stand by", func() bool {
			streaming, standby := modes()
			return streaming == 1 && standby == 2
		})
		db.Exec(insertEvents, 0, 100)
		testdb.WaitFor(t, "every event", func() bool {
			return replicas[0].Distinct()+replicas[1].Distinct()+replicas[2].Distinct() == 100
		})
		for _, r := range replicas {
			if gaps := r.Gaps(); len(gaps) != 0 {
				t.Errorf("gaps %v", gaps)
			}
		}
	})
}

func TestB21_SessionLimitsDoNotEndTheStream(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		for _, limit := range []string{"statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout", "lock_timeout"} {
			db.Exec(fmt.Sprintf("ALTER DATABASE %s SET %s = '300ms'", pgx.Identifier{db.Name()}.Sanitize(), limit))
		}
		if db.Server().Major() >= 17 {
			db.Exec(fmt.Sprintf("ALTER DATABASE %s SET transaction_timeout = '300ms'", pgx.Identifier{db.Name()}.Sanitize()))
		}
		cfg := testConfig(db)
		cfg.WatchInterval = time.Second // longer than the limit
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		admin := db.Server().DSN("postgres")
		const sessions = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'cdc-dispatcher%'"
		testdb.WaitFor(t, "both sessions", func() bool {
			return query[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'cdc-dispatcher%'", db.Name()) == 2
		})
		testdb.WaitFor(t, "the watcher's first look", func() bool { return r.src.Status().RetainedBytes >= 0 })
		before := query[string](t, admin, sessions, db.Name())
		passed(t, admin, 3*time.Second)
		if after := query[string](t, admin, sessions, db.Name()); after != before {
			t.Errorf("sessions %s became %s", before, after)
		}
		// The writer is not to be held to the limits.
		exec(t, db.DSN()+"&statement_timeout=0&lock_timeout=0&idle_session_timeout=0&idle_in_transaction_session_timeout=0"+
			map[bool]string{true: "&transaction_timeout=0"}[db.Server().Major() >= 17], insertEvents, 0, 10)
		r.WaitFor(10)
	})
}

// TestSlowWireTearsNoMessage: the read deadline, which is the clock of the
// feedback, passes several times in the middle of one message.
func TestSlowWireTearsNoMessage(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		senderTimeout(db, "10s") // half of it is the deadline, which the delay below has to be in keeping with
		proxy := faultproxy.New(t, fmt.Sprintf("%s:%d", db.Server().Host(), db.Server().Port()))
		cfg := testConfig(db)
		cfg.DSN = onHost(t, cfg.DSN, proxy.Addr())
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		proxy.Delay(40 * time.Millisecond)
		db.Exec("INSERT INTO events (id, payload) SELECT i, repeat(md5(i::text), 200000) FROM generate_series(1, 2) i")
		db.Exec(insertEvents, 3, 13)
		r.WaitFor(12)
		for _, id := range []string{"1", "2"} {
			if got := cdctest.Text(r.byID()[id], "payload"); len(got) != 32*200000 || got[:32] != got[len(got)-32:] {
				t.Errorf("payload %s has %d bytes", id, len(got))
			}
		}
		if n := r.src.Status().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
		proxy.Delay(0)
		proxy.Stall()
		db.Exec(insertEvents, 13, 23)
		proxy.Resume()
		r.WaitFor(22)
	})
}
