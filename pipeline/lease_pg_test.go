package pipeline

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

func TestQ2_StaleBatchedAckOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		gate := newGate()
		var running atomic.Int64
		var down atomic.Bool
		p := newProcess(noClaims{w.store(w.DSN()), &down}, time.Minute, does(func(context.Context, event.Envelope) error {
			running.Add(1)
			<-gate.c
			return nil
		}))
		ids := w.add("h", 11)
		p.launch(t)
		t.Cleanup(gate.open)
		testdb.WaitFor(t, "eleven attempts to run", func() bool { return running.Load() == 11 })

		// The lease of one runs out, and worker 2 is the first to claim it.
		down.Store(true)
		stolen := ids[4]
		w.Exec("UPDATE eventlog.event_notifications SET lease_until = "+utcNow+", next_retry_at = "+utcNow+" WHERE id = $1::text::uuid", stolen.String())
		worker2 := w.store(w.DSN())
		token := uuid.New()
		claimed, err := worker2.Claim(t.Context(), delivery.Lease{Token: token, Owner: "worker 2", For: time.Minute},
			[]delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 5}})
		if err != nil || len(claimed.Claimed) != 1 || claimed.Claimed[0].ID != stolen {
			t.Fatalf("worker 2 claimed %+v, %v", claimed.Claimed, err)
		}
		before := w.row(stolen)
		gate.open()
		w.waitFor(10, delivery.Succeeded)
		testdb.WaitFor(t, "the stale outcome to be counted", func() bool { return p.obs.count(CountStale) == 1 })
		if diff := cmp.Diff(before, w.row(stolen)); diff != "" {
			t.Errorf("the stolen row changed (-before +after):\n%s", diff)
		}
		settled, err := worker2.Settle(t.Context(), []delivery.Outcome{{ID: stolen, Token: token}})
		if err != nil || len(settled) != 1 || settled[0].State != delivery.Succeeded {
			t.Errorf("worker 2 acknowledged %v, %v", settled, err)
		}
		if got := w.states(); got[delivery.Succeeded] != 11 {
			t.Errorf("states %v", got)
		}
	})
}

// noRenewal is a store whose renewals do not get through.
type noRenewal struct{ outcomeStore }

func (noRenewal) Renew(context.Context, []delivery.LeaseRef, time.Duration) (delivery.Renewal, error) {
	return delivery.Renewal{}, errors.New("no route to host")
}

func TestQ3_RenewalAloneFailsOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		// Long enough for the margin of a tenth to be more than a busy machine's pause.
		const lease = 10 * time.Second
		var causes sync.Map
		first := does(func(ctx context.Context, e event.Envelope) error {
			<-ctx.Done()
			causes.Store(e.DeliveryID, context.Cause(ctx))
			return nil // in spite of all
		})
		first.Timeout = time.Hour // so that only the lease can end it
		live := newLiveAttempts()
		watched := func(h Handler) Handler {
			inner := h.Handler
			h.Handler = event.HandlerFunc(func(ctx context.Context, e event.Envelope) error {
				live.enter(ctx, e.DeliveryID)
				defer live.leave(ctx, e.DeliveryID)
				return inner.Handle(ctx, e)
			})
			return h
		}
		p1 := newProcess(noRenewal{w.store(w.DSN())}, lease, watched(first))
		p1.launch(t)
		ids := w.add("h", 20)
		testdb.WaitFor(t, "the first process to run what it can", func() bool { return p1.health().handlers[0].Running == 16 })
		p2 := newProcess(w.store(w.DSN()), lease, watched(does(succeed)))
		p2.launch(t)
		w.waitFor(20, delivery.Succeeded)
		for _, id := range ids {
			if got := w.row(id); got.Attempts != 0 || got.Leased || got.Error != "" {
				t.Errorf("ended as %+v", got)
			}
		}
		if len(live.bad) != 0 {
			t.Errorf("%d deliveries had two live attempts", len(live.bad))
		}
		causes.Range(func(_, cause any) bool {
			if !errors.Is(cause.(error), ErrLeaseLost) {
				t.Errorf("a handler was ended by %v", cause)
			}
			return true
		})
	})
}

func TestQ5_HandlerOfThreeLeasesRunsOnceOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		// Long enough for a busy machine's pause between two renewals; ten leases are in the test without a server.
		const lease = 10 * time.Second
		var runs atomic.Int64
		h := does(func(context.Context, event.Envelope) error {
			runs.Add(1)
			<-time.After(3 * lease) // whatever its context says
			return nil
		})
		h.Timeout = 2 * time.Second
		id := w.add("h", 1)[0]
		newProcess(w.store(w.DSN()), lease, h).launch(t)
		newProcess(w.store(w.DSN()), lease, h).launch(t)
		w.waitFor(1, delivery.Succeeded)
		if got := w.row(id); runs.Load() != 1 || got.Claims != 1 || got.Attempts != 0 {
			t.Errorf("ran %d times: %+v", runs.Load(), got)
		}
	})
}

// childEnv makes the test binary a dispatcher that is killed, see TestQ6.
const childEnv = "PIPELINE_TEST_CHILD"

// childOwner is the owner of the process that is killed and of its successor.
const childOwner = "same-host/1/same"

func runChild(dsn string) {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		panic(err)
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		panic(err)
	}
	h := does(func(context.Context, event.Envelope) error {
		_, _ = os.Stdout.WriteString("running\n")
		select {}
	})
	handling := newHandling(handlingConfig{
		store: store, subs: []*subscriber{subscription(h)},
		// A busy machine has to start ten handlers and be killed before it ends.
		lease: 10 * time.Second, shutdownTimeout: time.Minute,
		maxPayload: 1 << 20, owner: childOwner, observer: NopObserver{}, logger: slog.New(slog.DiscardHandler),
	})
	_ = handling.run(context.Background())
}

func TestQ6_KilledProcessesDeliveriesAreClaimedWithinALease(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		ids := w.add("h", 10)
		child := exec.Command(os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), childEnv+"="+w.DSN())
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if ids = ids[1:]; len(ids) == 0 {
				break
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = child.Wait() // killed
		if len(ids) != 0 {
			t.Fatalf("the child started all but %d deliveries", len(ids))
		}
		w.Exec("CREATE TABLE leases AS SELECT id, lease_until FROM eventlog.event_notifications")
		w.Exec("DELETE FROM eventlog.handlers")

		p := newProcess(w.store(w.DSN()), time.Minute, does(succeed))
		p.owner = childOwner
		p.launch(t)
		w.waitFor(10, delivery.Succeeded)
		var early int
		if err := w.Pool().QueryRow(t.Context(), `SELECT count(*) FROM eventlog.event_notifications AS n JOIN leases AS l USING (id)
			WHERE n.updated_date < l.lease_until`).Scan(&early); err != nil || early != 0 {
			t.Errorf("%d deliveries were taken over before their lease had ended, %v", early, err)
		}
		var attempts, claims int
		if err := w.Pool().QueryRow(t.Context(), "SELECT sum(attempts), sum(claim_count) FROM eventlog.event_notifications").
			Scan(&attempts, &claims); err != nil || attempts != 0 || claims != 20 {
			t.Errorf("%d failed attempts and %d claims, want 0 and 20; %v", attempts, claims, err)
		}
	})
}

func TestQ18_DiscardedByAnOperatorIsCancelledByTheNextRenewal(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		causes := make(chan error, 1)
		h := does(func(ctx context.Context, _ event.Envelope) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		})
		h.Timeout = time.Hour // so that only the renewal can end it
		var down atomic.Bool
		p := newProcess(noClaims{w.store(w.DSN()), &down}, 6*time.Second, h)
		id := w.add("h", 1)[0]
		p.launch(t)
		testdb.WaitFor(t, "the attempt to run", func() bool { return p.health().handlers[0].Running == 1 })
		down.Store(true)
		w.Exec("UPDATE eventlog.event_notifications SET state = 'DISCARDED', lease_token = NULL, lease_until = NULL WHERE id = $1::text::uuid", id.String())
		before := w.row(id)
		if cause := <-causes; !errors.Is(cause, ErrLeaseLost) {
			t.Errorf("cause is %v", cause)
		}
		testdb.WaitFor(t, "the outcome to be found stale", func() bool { return p.obs.count(CountStale) == 1 })
		if diff := cmp.Diff(before.WholeText, w.row(id).WholeText); diff != "" {
			t.Errorf("the discarded delivery changed (-before +after):\n%s", diff)
		}
	})
}

func TestQ19_BlackHoleMidQueryOnARealServer(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		proxy := faultproxy.New(t, fmt.Sprintf("%s:%d", w.Server().Host(), w.Server().Port()))
		dsn := strings.Replace(w.DSN(), fmt.Sprintf("%s:%d", w.Server().Host(), w.Server().Port()), proxy.Addr(), 1)
		p := newProcess(w.store(dsn), 3*time.Second, does(succeed))
		w.add("h", 100)
		p.launch(t)
		w.waitFor(100, delivery.Succeeded)
		proxy.Blackhole()
		w.add("h", 2000)
		p.wake("h")
		errs := func() int {
			return p.obs.count(CountClaimError) + p.obs.count(CountSettleError) + p.obs.count(CountRenewError)
		}
		testdb.WaitFor(t, "statements to come back from the black hole", func() bool { return errs() >= 3 })
		if p.health().err == nil {
			t.Error("health does not tell")
		}
		proxy.Heal()
		w.waitFor(2100, delivery.Succeeded)
		testdb.WaitFor(t, "health to be good again", func() bool { return p.health().err == nil })
	})
}
