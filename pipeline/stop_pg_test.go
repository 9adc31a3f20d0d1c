package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestQ20_StopWhileHandlersFinishOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		const runs, handlers = 10, 500
		store := w.store(w.DSN())
		for range runs {
			gate := make(chan struct{})
			var running atomic.Int64
			h := does(func(context.Context, event.Envelope) error {
				running.Add(1)
				<-gate
				return nil
			})
			h.Concurrency = handlers
			p := newProcess(store, time.Minute, h)
			// That nothing is lost is the point here, not how fast this machine writes.
			p.flushFor = time.Minute
			w.add("h", handlers)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- p.run(ctx) }()
			testdb.WaitFor(t, "the handlers to run", func() bool { return running.Load() == handlers })
			go cancel()
			close(gate)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if got := w.states()[delivery.Succeeded]; got != runs*handlers {
			t.Errorf("%d of %d outcomes were written", got, runs*handlers)
		}
	})
}

func TestQ21_AcksThatTimeOutOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		const deliveries = 3000
		var ran sync.Map
		var runs atomic.Int64
		p := newProcess(w.store(w.DSN()), 30*time.Second, does(func(_ context.Context, e event.Envelope) error {
			ran.Store(e.DeliveryID, true)
			runs.Add(1)
			return nil
		}))
		p.launch(t)
		testdb.WaitFor(t, "handling to run", func() bool { return p.reserve("h", 1) == 1 })
		p.release("h", 1)
		w.add("h", deliveries)

		// Nothing can be written for longer than a statement may take.
		tx, err := w.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "some to have run", func() bool { return runs.Load() > 0 })
		if _, err := tx.Exec(t.Context(), "LOCK TABLE eventlog.event_notifications IN EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "a statement to time out", func() bool {
			return p.obs.count(CountSettleError)+p.obs.count(CountClaimError) > 0
		})
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.waitFor(deliveries, delivery.Succeeded)
		distinct := 0
		ran.Range(func(any, any) bool { distinct++; return true })
		if distinct != deliveries {
			t.Errorf("%d of %d deliveries ran", distinct, deliveries)
		}
		if stale := p.obs.count(CountStale); stale != 0 {
			t.Errorf("%d stale outcomes, although nobody else was there", stale)
		}
	})
}

func TestQ23_SoftStopDuringTheLastAttemptOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		h := does(func(ctx context.Context, _ event.Envelope) error {
			<-ctx.Done()
			return fmt.Errorf("call the shop: %w", ctx.Err())
		})
		h.Timeout, h.Retry = time.Hour, RetryVernac()
		p := newProcess(w.store(w.DSN()), time.Minute, h)
		p.shutdownTimeout = time.Millisecond
		id := w.add("h", 1)[0]
		w.Exec("UPDATE eventlog.event_notifications SET attempts = 4, claim_count = 4, state = 'FAILED', last_error = 'http_503'")
		p.launch(t)
		testdb.WaitFor(t, "the last attempt to run", func() bool { return p.health().handlers[0].Running == 1 })
		if err := p.halt(); err != nil {
			t.Fatal(err)
		}
		got := w.row(id)
		if got.State != delivery.Failed || got.Attempts != 4 || got.Claims != 4 || !got.Due || got.Leased || got.Token != "" || got.Error != "http_503" {
			t.Errorf("after the stop: %+v", got)
		}
		var history int
		if err := w.Pool().QueryRow(t.Context(), "SELECT count(*) FROM eventlog.event_notification_attempts").Scan(&history); err != nil || history != 0 {
			t.Errorf("%d attempts in the history, %v", history, err)
		}
		// The next process still has that last attempt.
		next := newProcess(w.store(w.DSN()), time.Minute, Handler{Name: "h", Handler: event.HandlerFunc(succeed), Retry: RetryVernac()})
		next.launch(t)
		w.waitFor(1, delivery.Succeeded)
	})
}

func TestStop_GivesBackAtOnceOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		gate := make(chan struct{})
		h := does(func(context.Context, event.Envelope) error { <-gate; return nil })
		h.Concurrency = 2
		p := newProcess(w.store(w.DSN()), time.Minute, h)
		w.add("h", 50)
		p.launch(t)
		testdb.WaitFor(t, "two attempts to run", func() bool { return p.health().handlers[0].Running == 2 })
		p.stop()
		var free, claims int
		testdb.WaitFor(t, "what had not started to be free for others", func() bool {
			err := w.Pool().QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE next_retry_at <= `+utcNow+` AND lease_token IS NULL),
				COALESCE(sum(claim_count), 0) FROM eventlog.event_notifications`).Scan(&free, &claims)
			return err == nil && free == 48
		})
		if claims != 2 {
			t.Errorf("%d claims are counted, want the two that run", claims)
		}
		close(gate)
		w.waitFor(2, delivery.Succeeded)
	})
}

// TestQ34_ClockOfTheProcessDoesNotMatter moves the database's clock instead of
// the process's: only the difference counts. It shadows clock_timestamp in the
// sessions of the process under test.
func TestQ34_ClockOfTheProcessDoesNotMatter(t *testing.T) {
	for name, skew := range map[string]string{"five minutes ahead": "-5 min", "five minutes behind": "5 min"} {
		t.Run(name, func(t *testing.T) {
			onPostgres(t, func(t *testing.T, w *world) {
				w.Exec("CREATE SCHEMA skew")
				w.Exec("CREATE FUNCTION skew.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.clock_timestamp() + interval '" + skew + "' $$")
				dsn := w.DSN() + "&search_path=skew,pg_catalog,public"
				var shifted bool
				if err := w.withConn(dsn, func(c *pgx.Conn) error {
					return c.QueryRow(t.Context(), "SELECT abs(extract(epoch FROM clock_timestamp() - pg_catalog.clock_timestamp())) > 290").Scan(&shifted)
				}); err != nil || !shifted {
					t.Fatalf("the clock is not shifted: %v", err)
				}
				var attempts atomic.Int64
				inside := make(chan struct{})
				h := does(func(ctx context.Context, e event.Envelope) error {
					switch attempts.Add(1) {
					case 1:
						return errors.New("plain")
					case 2:
						<-inside
						return event.RetryAfter(errors.New("busy"), 2*time.Minute)
					default:
						return nil
					}
				})
				h.Retry = RetryPolicy{Base: 1500 * time.Millisecond, Window: time.Hour}
				p := newProcess(w.store(dsn), time.Minute, h)
				// The row was made by the database's shifted clock, as a fan-out does.
				id := w.add("h", 1)[0]
				w.Exec("UPDATE eventlog.event_notifications SET next_retry_at = next_retry_at + interval '" + skew + "', event_date = event_date + interval '" + skew + "'")
				p.launch(t)

				testdb.WaitFor(t, "the first failure", func() bool { return w.row(id).Attempts == 1 })
				testdb.WaitFor(t, "the second attempt to run", func() bool { return p.health().handlers[0].Running == 1 })
				if got := w.row(id); got.LeaseFor != p.lease || got.Delay != p.lease {
					t.Errorf("leased for %v and due in %v, want %v", got.LeaseFor, got.Delay, p.lease)
				}
				close(inside)
				testdb.WaitFor(t, "the second failure", func() bool { return w.row(id).Attempts == 2 })
				if got := w.row(id); got.State != delivery.Failed || got.Delay != 2*time.Minute {
					t.Errorf("due in %v, want the 2 min of Retry-After: %+v", got.Delay, got)
				}
				if got := attempts.Load(); got != 2 {
					t.Errorf("%d attempts", got)
				}
			})
		})
	}
}
