package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestReadsCommittedRowsInCommitOrder(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		one, two := connect(t, db.DSN()), connect(t, db.DSN())
		run(t, one, "BEGIN; INSERT INTO events VALUES (1); SAVEPOINT s; INSERT INTO events VALUES (2); ROLLBACK TO s; INSERT INTO events VALUES (3)")
		run(t, two, "BEGIN; INSERT INTO events VALUES (4)")
		run(t, one, "INSERT INTO events VALUES (5)")
		db.Exec("BEGIN; INSERT INTO events VALUES (99); ROLLBACK")
		run(t, two, "COMMIT")
		run(t, one, "COMMIT")
		r.WaitFor(4)
		if got := strings.Join(r.Arrived(), " "); got != "4 1 3 5" {
			t.Errorf("arrived %q, want the later begun but earlier committed one first, and nothing rolled back", got)
		}
		testdb.WaitFor(t, "the confirmation", func() bool {
			return confirmedLSN(t, db.DSN(), cfg.Slot) >= point(t, r.Last())
		})
		r.Stop()
		if err := r.Failed(); err != nil {
			t.Errorf("Run ended with %v, want nil", err)
		}
	})
}

func run(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v\nin: %s", err, sql)
	}
}

func TestB1_KeepaliveConfirmsNothingWhileAnEventIsPending(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg, noAck)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 1, 2)
		r.WaitFor(1)
		commit := point(t, r.Last())
		db.Exec("CREATE TABLE noise (x text)")
		testdb.WaitFor(t, "keepalives beyond the event", func() bool {
			db.Exec("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 100)")
			return sender(t, db.DSN(), cfg.Slot).write > commit
		})
		if w := sender(t, db.DSN(), cfg.Slot); w.flush >= commit {
			t.Errorf("confirmed %s, but the event that ends at %s is pending", w.flush, commit)
		}
		r.Stop() // without an acknowledgement, as if killed
		if got := confirmedLSN(t, db.DSN(), cfg.Slot); got >= commit {
			t.Errorf("slot at %s, the pending event ends at %s", got, commit)
		}
		again := start(t, cfg)
		again.WaitFor(1)
		testdb.WaitFor(t, "the confirmation", func() bool { return confirmedLSN(t, db.DSN(), cfg.Slot) >= commit })
	})
}

func TestB2_ConfirmedNeverGoesBack(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		r.Stop()
		db.Exec("CREATE TABLE noise (x text)")
		const batches = 20
		for i := range batches {
			db.Exec("INSERT INTO noise SELECT repeat(md5(i::text), 30) FROM generate_series(1, 1000) i")
			db.Exec(insertEvents, i*100, (i+1)*100)
		}
		slot := confirmedLSN(t, db.DSN(), cfg.Slot)
		again := start(t, cfg, held)
		testdb.WaitFor(t, "the first status", func() bool { return sender(t, db.DSN(), cfg.Slot).flush != 0 })
		early := sender(t, db.DSN(), cfg.Slot).flush // a slow server may have sent keepalives already
		again.Release()
		last := slot
		testdb.WaitFor(t, "all events and their confirmation", func() bool {
			now := confirmedLSN(t, db.DSN(), cfg.Slot)
			if now < last {
				t.Fatalf("the slot went from %s back to %s", last, now)
			}
			last = now
			return again.Distinct() == batches*100 && now >= point(t, again.Last())
		})
		if first := point(t, again.Positions()[0]); early < slot || early >= first {
			t.Errorf("the first status confirmed %s, want the slot's own %s or more, but not the first event at %s", early, slot, first)
		}
	})
}

func TestB3_OnlyWhatWasAcknowledgedIsConfirmed(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg, noAck)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 1, 2)
		r.WaitFor(1)
		first := r.Last()
		db.Exec(insertEvents, 2, 3) // arrives between the flush of the first and its acknowledgement
		r.WaitFor(2)
		r.src.Ack(first)
		testdb.WaitFor(t, "the confirmation of the first", func() bool {
			return confirmedLSN(t, db.DSN(), cfg.Slot) >= point(t, first)
		})
		if got := confirmedLSN(t, db.DSN(), cfg.Slot); got != point(t, first) {
			t.Errorf("confirmed %s, want exactly the end of the first commit, %s", got, first)
		}
		r.Stop()
		again := start(t, cfg)
		again.WaitFor(1)
		if got := again.Arrived(); got[0] != "2" || len(got) != 1 {
			t.Errorf("after the restart %v arrived, want the second event only", got)
		}
	})
}

func TestB4_CompressedPayloadDoesNotStretchThePosition(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg, noAck)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec("INSERT INTO events (id, payload) VALUES (0, repeat('compressible ', 800000))")
		for i := range 200 {
			db.Exec(insertEvents, i+1, i+2)
		}
		r.WaitFor(201)
		first := r.Positions()[0]
		r.src.Ack(first)
		testdb.WaitFor(t, "the confirmation", func() bool {
			return confirmedLSN(t, db.DSN(), cfg.Slot) == point(t, first)
		})
		r.Stop()
		again := start(t, cfg)
		again.WaitFor(200)
		if again.Count("0") != 0 {
			t.Error("the acknowledged event came again")
		}
	})
}

// TestB5_NothingIsLostUnderRandomKills kills the reader (its connections are cut
// first, so that it cannot confirm anything on its way out) while writers commit.
func TestB5_NothingIsLostUnderRandomKills(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		kills, writers, perWriter := 10, 8, 200
		if soak() {
			kills, writers, perWriter = 100, 64, 2000
		}
		cfg := testConfig(db)
		prepared := start(t, cfg)
		prepared.WaitMode(cdc.ModeStreaming)
		prepared.Stop()
		var group sync.WaitGroup
		var written atomic.Int64
		for w := range writers {
			group.Go(func() {
				conn := connect(t, db.DSN())
				for i := range perWriter {
					if _, err := conn.Exec(context.Background(), insertEvents, w*perWriter+i, w*perWriter+i+1); err != nil {
						t.Error(err)
						return
					}
					written.Add(1)
				}
			})
		}
		// What a killed process had received and not acknowledged counts for nothing.
		seen := map[string]int{}
		collect := func(r *reader) {
			for _, id := range r.Durable() {
				seen[id]++
			}
		}
		for range kills {
			proxy := faultproxy.New(t, fmt.Sprintf("%s:%d", db.Server().Host(), db.Server().Port()))
			through := cfg
			through.DSN = onHost(t, cfg.DSN, proxy.Addr())
			r := start(t, through, func(r *reader) { r.Lag(20) })
			want := rand.IntN(60) + 30
			testdb.WaitFor(t, "some events or the end", func() bool {
				return r.Distinct() >= want || written.Load() == int64(writers*perWriter)
			})
			if rand.IntN(2) == 0 { // or else the process may have confirmed as it pleases
				proxy.Refuse(true)
				proxy.Cut()
			}
			r.Stop()
			collect(r)
		}
		group.Wait()
		last := start(t, cfg)
		testdb.WaitFor(t, "every event", func() bool {
			collect(last)
			return len(seen) == writers*perWriter
		})
	})
}

func TestB7_KilledInsideACopy(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		const rows = 5000
		cfg := testConfig(db)
		cfg.MaxRecords = 1 // so that the consumer can stop after any row, the last but one included
		prepared := start(t, cfg)
		prepared.WaitMode(cdc.ModeStreaming)
		prepared.Stop()
		conn := connect(t, db.DSN())
		source := pgx.CopyFromSlice(rows, func(i int) ([]any, error) { return []any{int64(i), "payload", "new"}, nil })
		if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"events"}, []string{"id", "payload", "status"}, source); err != nil {
			t.Fatal(err)
		}
		for _, after := range []int{1, 10, 100, rows - 1} {
			proxy := faultproxy.New(t, fmt.Sprintf("%s:%d", db.Server().Host(), db.Server().Port()))
			through := cfg
			through.DSN = onHost(t, cfg.DSN, proxy.Addr())
			waitIdle(t, db.DSN(), cfg.Slot) // the server may still have to read what the last reader confirmed
			before := confirmedLSN(t, db.DSN(), cfg.Slot)
			r := start(t, through, func(r *reader) { r.Limit(after) })
			r.WaitFor(after)
			proxy.Refuse(true)
			proxy.Cut()
			r.Stop()
			waitIdle(t, db.DSN(), cfg.Slot)
			if got := confirmedLSN(t, db.DSN(), cfg.Slot); got != before {
				t.Errorf("killed after %d rows: the slot moved from %s to %s", after, before, got)
			}
		}
		last := start(t, cfg)
		last.WaitFor(rows)
		if tx := last.Transactions(); !tx[0].Partial || tx[len(tx)-1].Partial || tx[len(tx)-1].Position == "" {
			t.Error("a large commit did not come as parts of which the last has the position")
		}
	})
}

func TestB9_WhatHappensWhileStoppedComesThroughTheLog(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		r.Stop()
		for i := range 10 {
			db.Exec(insertEvents, i*100, (i+1)*100)
		}
		r.run()
		r.WaitFor(1000)
		if gaps := r.Gaps(); len(gaps) != 0 {
			t.Errorf("gaps %v", gaps)
		}
	})
}

func TestB10_ConfirmsWithoutBeingAsked(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		for _, timeout := range []string{"0", "60s"} {
			db.Exec(fmt.Sprintf("ALTER DATABASE %s SET wal_sender_timeout = '%s'", pgx.Identifier{db.Name()}.Sanitize(), timeout))
			db.Exec("TRUNCATE events")
			cfg := testConfig(db)
			r := start(t, cfg)
			r.WaitMode(cdc.ModeStreaming)
			for i := range 5 {
				db.Exec(insertEvents, i*100, (i+1)*100)
				r.WaitFor((i + 1) * 100)
				testdb.WaitFor(t, "the confirmation with wal_sender_timeout = "+timeout, func() bool {
					return confirmedLSN(t, db.DSN(), cfg.Slot) >= point(t, r.Last())
				})
			}
			r.Stop()
		}
	})
}

func TestB11_IdleTableBesideABusyNeighbour(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		other := testdb.Postgres(t, db.Server().Major())
		for name, writer := range map[string]*testdb.DB{"an unpublished table": db, "another database": other} {
			writer.Exec("CREATE TABLE busy (x text)")
			for range 8 {
				writer.Exec("INSERT INTO busy SELECT repeat(md5(i::text), 30) FROM generate_series(1, 4000) i")
			}
			end := currentLSN(t, db.DSN())
			testdb.WaitFor(t, "confirmation past what was written to "+name, func() bool {
				return confirmedLSN(t, db.DSN(), cfg.Slot) >= end
			})
			testdb.WaitFor(t, "the log behind it to be released", func() bool {
				db.Exec("CHECKPOINT")
				return query[bool](t, db.DSN(), "SELECT restart_lsn >= $2::pg_lsn - 1048576 FROM pg_replication_slots WHERE slot_name = $1",
					cfg.Slot, end.String())
			})
		}
		if n := r.Distinct(); n != 0 {
			t.Errorf("%d events arrived", n)
		}
	})
}

// TestB11_IdleReaderWritesNothing needs a server without neighbours.
func TestB11_IdleReaderWritesNothing(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		server := testdb.Dedicated(t, major, map[string]string{
			"autovacuum": "off", "wal_sender_timeout": "400ms", "checkpoint_timeout": "1d", "track_io_timing": "off",
		})
		dsn := server.DSN("postgres")
		exec(t, dsn, eventsTable)
		cfg := configFor(dsn, "idle")
		cfg.WatchInterval = 20 * time.Millisecond
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		testdb.WaitFor(t, "everything to be confirmed", func() bool {
			return confirmedLSN(t, dsn, cfg.Slot) == currentLSN(t, dsn)
		})
		const replies = "SELECT count(DISTINCT reply_time) FROM pg_stat_replication WHERE reply_time > $1"
		const end = "SELECT pg_current_wal_insert_lsn()::text"
		// The server itself writes a few records some seconds after the last change, so
		// that it is given more than one chance.
		testdb.WaitFor(t, "five status updates during which the log does not grow", func() bool {
			before := query[string](t, dsn, end)
			since := query[time.Time](t, dsn, "SELECT clock_timestamp()")
			for range 5 {
				testdb.WaitFor(t, "a status update", func() bool { return query[int](t, dsn, replies, since) > 0 })
				// There is no reply when a stall of this process has just ended the stream.
				since = query[time.Time](t, dsn, "SELECT coalesce(max(reply_time), clock_timestamp()) FROM pg_stat_replication")
			}
			return query[string](t, dsn, end) == before
		})
	})
}

func TestB14_SlotMovedPastUs(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
		r.Stop()
		waitIdle(t, db.DSN(), cfg.Slot)
		db.Exec(insertEvents, 10, 20)
		db.Exec("SELECT pg_replication_slot_advance('" + cfg.Slot + "', pg_current_wal_lsn())")
		db.Exec(insertEvents, 20, 30)
		r.run()
		r.WaitFor(20)
		r.WaitGap(gapSlotMoved)
		if gap := r.Gap(0); gap.From == "" || point(t, gap.From) > point(t, gap.To) {
			t.Errorf("gap from %q to %q", gap.From, gap.To)
		}
		if n := r.Count("15"); n != 0 {
			t.Errorf("event 15 arrived %d times although the slot was moved past it", n)
		}
		if gaps := r.src.Status().Gaps; gaps != 1 {
			t.Errorf("Status counts %d gaps", gaps)
		}
	})
}

// onHost is the DSN with another "host:port".
func onHost(t testing.TB, dsn, addr string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = addr
	return u.String()
}
