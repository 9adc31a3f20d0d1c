package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// office is a migrated database with an Admin.
type office struct {
	*testing.T
	*testdb.DB
	store *postgres.Store
	admin *postgres.Admin
}

func open(t *testing.T, major int, table schema.Table, cfg postgres.AdminConfig, ddl ...string) *office {
	t.Helper()
	db := testdb.Postgres(t, major)
	for _, sql := range ddl {
		db.Exec(sql)
	}
	m, err := migrate.Postgres(db.Pool(), migrate.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(db.Pool(), postgres.Config{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return &office{t, db, store, postgres.NewAdmin(store, cfg)}
}

// each runs fn on the default tables of every version.
func each(t *testing.T, fn func(o *office)) {
	testdb.EachPostgres(t, func(t *testing.T, major int) { fn(open(t, major, schema.Table{}, postgres.AdminConfig{})) })
}

// row describes a delivery to insert; zero fields have harmless values.
type row struct {
	handler, typ, reason, lastError string
	state                           delivery.State
	attempts                        int
	claims                          any           // nil is NULL, as Ekbatan writes it
	leased                          time.Duration // from now; 0 is no lease
	age                             time.Duration // of the event
	due                             time.Duration // from now
	event                           uuid.UUID
}

func (o *office) insert(r row) uuid.UUID {
	o.Helper()
	id := uuid.Must(uuid.NewV7())
	if r.event == uuid.Nil {
		r.event = uuid.New()
	}
	if r.handler == "" {
		r.handler = "billing"
	}
	if r.typ == "" {
		r.typ = "order.placed"
	}
	if r.state == "" {
		r.state = delivery.Pending
	}
	o.Exec(`INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
			started_date, completion_date, model_id, model_type, event_type, payload, event_date, state, attempts, next_retry_at,
			created_date, updated_date, claim_count, reason, last_error, lease_token, lease_until, lease_owner, finished_date)
		SELECT $1::text::uuid, $2::text::uuid, $3, 'n', $2::text::uuid, 'a', '{"x":1}', t.now, t.now, 'o-7', 'Order', $4, '{"total": 1}',
			t.now - $5::interval, $6::text, $7, t.now + $8::interval, t.now - $5::interval, t.now, $9::int, NULLIF($10, ''), NULLIF($11, ''),
			CASE WHEN $12::interval <> '0' THEN gen_random_uuid() END, CASE WHEN $12::interval <> '0' THEN t.now + $12::interval END,
			CASE WHEN $12::interval <> '0' THEN 'worker' END,
			CASE WHEN $6::text IN ('SUCCEEDED', 'DEAD', 'EXPIRED', 'DISCARDED') THEN t.now END
		FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) t`,
		id.String(), r.event.String(), r.handler, r.typ, r.age, string(r.state), r.attempts, r.due, r.claims, r.reason, r.lastError, r.leased)
	return id
}

func (o *office) show(id uuid.UUID) postgres.DeliveryStory {
	o.Helper()
	s, err := o.admin.ShowDelivery(o.Context(), id)
	if err != nil {
		o.Fatal(err)
	}
	return s
}

func (o *office) retry(r postgres.Retry) postgres.Done {
	o.Helper()
	if r.Actor == "" {
		r.Actor = "maria"
	}
	done, err := o.admin.RetryDeliveries(o.Context(), r)
	if err != nil {
		o.Fatal(err)
	}
	return done
}

// value reads one value.
func value[T any](o *office, sql string, args ...any) (v T) {
	o.Helper()
	if err := o.Pool().QueryRow(o.Context(), sql, args...).Scan(&v); err != nil {
		o.Fatalf("%v\nin: %s", err, sql)
	}
	return v
}

func (o *office) claim(handler string, window time.Duration, maxAttempts int) delivery.ClaimResult {
	o.Helper()
	got, err := o.store.Claim(o.Context(), delivery.Lease{Token: uuid.New(), Owner: "w", For: time.Minute},
		[]delivery.Claim{{Handler: handler, Names: []string{handler}, Limit: 100, Window: window, MaxAttempts: maxAttempts}})
	if err != nil {
		o.Fatal(err)
	}
	return got
}

func one(id uuid.UUID) postgres.Filter { return postgres.Filter{IDs: []uuid.UUID{id}} }

func TestN7_RetrySendsBackWhatHasEnded(t *testing.T) {
	each(t, func(o *office) {
		for _, c := range []struct {
			row       row
			succeeded bool
			want      int64
		}{
			{row{state: delivery.Dead, reason: "permanent", lastError: "http_410", attempts: 3, claims: 3}, false, 1},
			{row{state: delivery.Expired, reason: "age", attempts: 9, claims: 9, age: 30 * 24 * time.Hour}, false, 1},
			{row{state: delivery.Blocked, reason: "no_handler", claims: 0}, false, 1},
			{row{state: delivery.Discarded, reason: "by_hand"}, false, 1},
			{row{state: delivery.Failed, attempts: 2, claims: 2, due: time.Hour}, false, 1},
			{row{state: delivery.Failed, attempts: 2, due: time.Hour}, false, 1},
			{row{state: delivery.Failed, attempts: 2, claims: 3, leased: -time.Second, due: -time.Second}, false, 1},
			{row{state: delivery.Succeeded, claims: 1}, true, 1},
			{row{state: delivery.Pending, due: time.Hour}, false, 0},
			{row{state: delivery.Failed, attempts: 1, claims: 2, leased: time.Hour, due: time.Hour}, false, 0},
			{row{state: delivery.Pending, claims: 1, leased: time.Hour, due: time.Hour}, true, 0},
			{row{state: delivery.Succeeded, claims: 1}, false, 0},
		} {
			name := fmt.Sprintf("%s %s", c.row.state, c.row.reason)
			id := o.insert(c.row)
			before := o.show(id)
			if done := o.retry(postgres.Retry{Filter: one(id), Succeeded: c.succeeded}); done.Count != c.want {
				o.Errorf("%s: %d changed, want %d", name, done.Count, c.want)
			}
			after := o.show(id)
			if c.want == 0 {
				if diff := cmp.Diff(before, after); diff != "" {
					o.Errorf("%s: must not be touched:\n%s", name, diff)
				}
				continue
			}
			if after.State != delivery.Pending || after.Claims != 0 || after.Attempts != c.row.attempts || after.Reason != "" ||
				after.LastError != "" || !after.Finished.IsZero() || after.Leased || after.Due.After(after.Updated) || after.Retried.IsZero() {
				o.Errorf("%s: became %+v", name, after.Delivery)
			}
			was := string(c.row.state)
			if c.row.reason != "" {
				was += ": " + c.row.reason
			}
			want := []postgres.Attempt{{Attempt: before.Claims, Outcome: postgres.ManualRetry, Reason: was, Error: c.row.lastError, Message: "by maria", Started: after.Updated}}
			if diff := cmp.Diff(want, after.History); diff != "" {
				o.Errorf("%s: history (-want +got):\n%s", name, diff)
			}
		}
	})
}

// Without a new window the claim would expire it again, without an attempt.
func TestN7_RetriedDeliveryGetsItsAttempt(t *testing.T) {
	each(t, func(o *office) {
		for handler, r := range map[string]row{
			"expired":   {state: delivery.Expired, age: 30 * 24 * time.Hour, attempts: 40, claims: 40},
			"exhausted": {state: delivery.Dead, reason: "attempts", attempts: 5, claims: 5},
			"foreign":   {state: delivery.Expired, age: 30 * 24 * time.Hour, attempts: 5},
		} {
			r.handler = handler
			id := o.insert(r)
			o.retry(postgres.Retry{Filter: one(id)})
			got := o.claim(handler, 7*24*time.Hour, 5)
			if len(got.Claimed) != 1 || got.Claimed[0].Claims != 1 || got.Claimed[0].Attempts != r.attempts {
				o.Errorf("%s: claim = %+v", handler, got)
				continue
			}
			settled, err := o.store.Settle(o.Context(), []delivery.Outcome{{
				ID: id, Token: got.Claimed[0].Token, Verdict: delivery.Retry, Delay: time.Hour, Window: 7 * 24 * time.Hour, MaxAttempts: 5,
			}})
			if err != nil || len(settled) != 1 || settled[0].State != delivery.Failed {
				o.Errorf("%s: settled = %+v, %v; want another attempt to be planned", handler, settled, err)
			}
		}
	})
}

func TestN7_ResetAttemptsIsAChoice(t *testing.T) {
	each(t, func(o *office) {
		keep, reset := o.insert(row{state: delivery.Dead, attempts: 4, claims: 4}), o.insert(row{state: delivery.Dead, attempts: 4, claims: 4})
		o.retry(postgres.Retry{Filter: one(keep)})
		o.retry(postgres.Retry{Filter: one(reset), ResetAttempts: true})
		if k, r := o.show(keep), o.show(reset); k.Attempts != 4 || r.Attempts != 0 {
			o.Errorf("attempts = %d kept, %d reset", k.Attempts, r.Attempts)
		}
	})
}

func TestQ38_ThreeRetriesAreThree_OneRequestIsOne(t *testing.T) {
	each(t, func(o *office) {
		id := o.insert(row{state: delivery.Dead, claims: 1})
		for n := 1; n <= 3; n++ {
			if done := o.retry(postgres.Retry{Filter: one(id), Order: postgres.Order{RequestID: fmt.Sprint("r", n)}}); done != (postgres.Done{Count: 1}) {
				o.Errorf("retry %d: %+v", n, done)
			}
			o.Exec("UPDATE eventlog.event_notifications SET state = 'DEAD', claim_count = 1")
		}
		if n := len(o.show(id).History); n != 3 {
			o.Errorf("history has %d lines, want 3", n)
		}

		var mu sync.Mutex
		var carried, repeated int
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				done, err := o.admin.RetryDeliveries(o.Context(), postgres.Retry{Filter: one(id), Order: postgres.Order{Actor: "maria", RequestID: "double click"}})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil || done.Count != 1:
					o.Errorf("retry = %+v, %v", done, err)
				case done.Repeated:
					repeated++
				default:
					carried++
				}
			})
		}
		wg.Wait()
		if carried != 1 || repeated != 7 {
			o.Errorf("one request was carried out %d times, and recognised %d times", carried, repeated)
		}
		if n := value[int](o, "SELECT count(*) FROM eventlog.audit_log"); n != 4 {
			o.Errorf("%d audit lines, want 4", n)
		}
		// The same id for another action is another request.
		done, err := o.admin.DiscardDeliveries(o.Context(), postgres.Discard{Filter: one(id), Order: postgres.Order{Actor: "maria", RequestID: "double click"}})
		if err != nil || done.Repeated || done.Count != 1 {
			o.Errorf("discard = %+v, %v", done, err)
		}
	})
}

func TestN7_AuditNamesWhoWhatAndHowMany(t *testing.T) {
	each(t, func(o *office) {
		for range 3 {
			o.insert(row{state: delivery.Dead, claims: 1})
		}
		o.insert(row{state: delivery.Dead, claims: 1, handler: "other"})
		since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		o.retry(postgres.Retry{
			Filter: postgres.Filter{Handler: "billing", States: []delivery.State{delivery.Dead, delivery.Expired}, Type: "order.*", Since: since},
			Order:  postgres.Order{Actor: "maria", Reason: "billing is up again", RequestID: "r1"},
		})
		var got struct {
			Actor, Action, Target, Reason string
			Affected                      int
			Detail                        map[string]any
		}
		line := value[[]byte](o, "SELECT to_jsonb(l) FROM eventlog.audit_log l")
		if err := json.Unmarshal(line, &got); err != nil {
			o.Fatal(err)
		}
		want := got
		want.Actor, want.Action, want.Affected, want.Reason = "maria", "deliveries.retry", 3, "billing is up again"
		want.Target = "handler billing, state DEAD|EXPIRED, type order.*, since 2026-01-02T03:04:05Z"
		want.Detail = map[string]any{
			"request_id": "r1", "succeeded": false, "reset_attempts": false,
			"filter": map[string]any{"handler": "billing", "states": []any{"DEAD", "EXPIRED"}, "type": "order.*", "since": "2026-01-02T03:04:05Z"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			o.Errorf("audit line (-want +got):\n%s", diff)
		}
	})
}

func TestN7_NoAuditNoChange(t *testing.T) {
	each(t, func(o *office) {
		id := o.insert(row{state: delivery.Dead, claims: 1})
		o.Exec("ALTER TABLE eventlog.audit_log ADD CHECK (actor <> 'mallory')")
		if _, err := o.admin.RetryDeliveries(o.Context(), postgres.Retry{Filter: one(id), Order: postgres.Order{Actor: "mallory"}}); err == nil {
			o.Error("an order was carried out that could not be audited")
		}
		if _, err := o.admin.RetryDeliveries(o.Context(), postgres.Retry{Filter: one(id)}); err == nil {
			o.Error("an order without an actor was carried out")
		}
		if s := o.show(id); s.State != delivery.Dead || len(s.History) != 0 {
			o.Errorf("delivery = %+v", s)
		}
	})
}

func TestN7_OrdersAreBoundedAndRefuseWhatTheyNeverTouch(t *testing.T) {
	each(t, func(o *office) {
		for range 5 {
			o.insert(row{state: delivery.Dead, claims: 1})
		}
		limited := postgres.Retry{Filter: postgres.Filter{States: []delivery.State{delivery.Dead}}, Order: postgres.Order{Limit: 3}}
		if done := o.retry(limited); done != (postgres.Done{Count: 3, More: true}) {
			o.Errorf("first = %+v", done)
		}
		if done := o.retry(limited); done != (postgres.Done{Count: 2}) {
			o.Errorf("second = %+v", done)
		}
		_, err := o.admin.RetryDeliveries(o.Context(), postgres.Retry{Filter: postgres.Filter{States: []delivery.State{delivery.Succeeded}}, Order: postgres.Order{Actor: "m"}})
		if !errors.Is(err, postgres.ErrStates) {
			o.Errorf("retry of SUCCEEDED without asking for it = %v", err)
		}
		_, err = o.admin.RetryDeliveries(o.Context(), postgres.Retry{Filter: postgres.Filter{States: []delivery.State{"GONE"}}, Order: postgres.Order{Actor: "m"}})
		if err == nil {
			o.Error("an unknown state was accepted")
		}
	})
}

// A worker that holds a delivery keeps it, and an order that waits for its row sees the lease.
func TestN7_OrdersLeaveLeasedDeliveriesAlone(t *testing.T) {
	each(t, func(o *office) {
		id := o.insert(row{state: delivery.Failed, attempts: 1, claims: 1})
		tx, err := o.Pool().Begin(o.Context())
		if err != nil {
			o.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }() // a no-op after the commit
		if _, err := tx.Exec(o.Context(), `UPDATE eventlog.event_notifications SET lease_token = gen_random_uuid(),
			lease_until = (clock_timestamp() AT TIME ZONE 'UTC') + interval '1 hour'`); err != nil {
			o.Fatal(err)
		}
		result := make(chan postgres.Done, 1)
		go func() {
			done, err := o.admin.RetryDeliveries(o.Context(), postgres.Retry{Filter: one(id), Order: postgres.Order{Actor: "m"}})
			if err != nil {
				o.Error(err)
			}
			result <- done
		}()
		testdb.WaitFor(o, "the order to wait for the row", func() bool {
			return value[bool](o, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
		})
		if err := tx.Commit(o.Context()); err != nil {
			o.Fatal(err)
		}
		if done := <-result; done.Count != 0 {
			o.Errorf("the order took a delivery from its worker: %+v", done)
		}
		discard, err := o.admin.DiscardDeliveries(o.Context(), postgres.Discard{Filter: one(id), Order: postgres.Order{Actor: "m"}})
		if err != nil || discard.Count != 0 {
			o.Errorf("discard = %+v, %v", discard, err)
		}
		if s := o.show(id); !s.Leased || s.State != delivery.Failed {
			o.Errorf("delivery = %+v", s.Delivery)
		}
	})
}

func TestN7_Discard(t *testing.T) {
	each(t, func(o *office) {
		for state, want := range map[delivery.State]int64{
			delivery.Pending: 1, delivery.Failed: 1, delivery.Dead: 1, delivery.Expired: 1, delivery.Blocked: 1,
			delivery.Succeeded: 0, delivery.Discarded: 0,
		} {
			id := o.insert(row{state: state, attempts: 2, claims: 2, reason: "permanent", lastError: "http_500"})
			filter := one(id)
			done, err := o.admin.DiscardDeliveries(o.Context(), postgres.Discard{Filter: filter, Order: postgres.Order{Actor: "maria", Reason: "wrong import"}})
			if err != nil || done.Count != want {
				o.Errorf("%s: %+v, %v", state, done, err)
			}
			if s := o.show(id); want == 1 && (s.State != delivery.Discarded || s.Reason != "wrong import" || s.Finished.IsZero() || s.LastError != "http_500" ||
				len(s.History) != 1 || s.History[0].Outcome != postgres.ManualDiscard || s.History[0].Message != "by maria: wrong import") {
				o.Errorf("%s: became %+v", state, s)
			}
		}
		id := o.insert(row{})
		if _, err := o.admin.DiscardDeliveries(o.Context(), postgres.Discard{Filter: one(id), Order: postgres.Order{Actor: "maria"}}); err != nil {
			o.Fatal(err)
		}
		if s := o.show(id); s.Reason != postgres.ReasonByHand {
			o.Errorf("reason = %q", s.Reason)
		}
	})
}
