package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

const insertEvents = `INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
	event_type, payload, event_date, delivered)
	SELECT gen_random_uuid(), 'n', gen_random_uuid(), 'a', '{}', now(), now(), $1, '{}', (now() AT TIME ZONE 'UTC') - $2::interval, $3
	FROM generate_series(1, $4::int)`

func (o *office) overview() postgres.Overview {
	o.Helper()
	v, err := o.admin.Overview(o.Context())
	if err != nil {
		o.Fatal(err)
	}
	return v
}

func TestOverview(t *testing.T) {
	each(t, func(o *office) {
		if _, err := o.store.SyncHandlers(o.Context(), "host/1", []delivery.Handler{
			{Name: "billing", Types: []string{"order.*"}}, {Name: "mailer", Aliases: []string{"mail"}, Types: []string{"invoice.sent"}},
		}); err != nil {
			o.Fatal(err)
		}
		if _, err := o.admin.PauseHandler(o.Context(), "mailer", "maria", "smtp"); err != nil {
			o.Fatal(err)
		}
		for _, r := range []row{
			{age: 2 * time.Hour}, {}, {claims: 1, leased: time.Hour, due: time.Hour}, {state: delivery.Failed, attempts: 1},
			{state: delivery.Dead}, {state: delivery.Dead}, {state: delivery.Blocked}, {state: delivery.Succeeded}, {state: delivery.Discarded},
			{handler: "mail"}, {handler: "gone", state: delivery.Expired}, {handler: "orphan"},
		} {
			o.insert(r)
		}
		o.Exec(insertEvents, "order.placed", "1 hour", false, 2)
		o.Exec(insertEvents, "order.placed", "9 hours", true, 5)
		o.Exec(insertEvents, "invoice.sent", "1 minute", false, 1)
		o.Exec(insertEvents, "unknown.type", "9 hours", false, 3)
		o.Exec(insertEvents, nil, "9 hours", false, 4) // sentinels
		gap := cdc.Gap{Reason: "slot_lost", Detail: "d", From: "0/1", To: "0/2"}
		if err := o.store.RecordGap(o.Context(), "main", gap); err != nil {
			o.Fatal(err)
		}
		if err := o.store.RecordSource(o.Context(), "main", "host/1", cdc.Status{Mode: cdc.ModeStreaming, Confirmed: "0/3"}); err != nil {
			o.Fatal(err)
		}

		got := o.overview()
		n := func(n int64) postgres.Count { return postgres.Count{N: n} }
		want := []postgres.HandlerOverview{
			{Handler: "billing", Registered: true, Leased: 1, States: map[delivery.State]postgres.Count{
				delivery.Pending: n(3), delivery.Failed: n(1), delivery.Dead: n(2), delivery.Blocked: n(1), delivery.Succeeded: n(1), delivery.Discarded: n(1)}},
			{Handler: "gone", States: map[delivery.State]postgres.Count{delivery.Expired: n(1)}},
			{Handler: "mail", Registered: true, States: map[delivery.State]postgres.Count{delivery.Pending: n(1), delivery.Failed: n(0)}},
			{Handler: "mailer", Registered: true, Paused: &delivery.Pause{By: "maria", Reason: "smtp"}, States: map[delivery.State]postgres.Count{}},
			{Handler: "orphan", States: map[delivery.State]postgres.Count{delivery.Pending: n(1), delivery.Failed: n(0)}},
		}
		if diff := cmp.Diff(want, got.Handlers, cmpopts.IgnoreFields(postgres.HandlerOverview{}, "Oldest"), cmpopts.IgnoreFields(delivery.Pause{}, "At")); diff != "" {
			o.Errorf("handlers (-want +got):\n%s", diff)
		}
		if age := got.Handlers[0].Oldest; age < 2*time.Hour || age > 3*time.Hour {
			o.Errorf("oldest open delivery is %v old, want 2 h", age)
		}
		if got.Total(delivery.Pending) != n(5) || got.Undelivered != n(6) || got.Wanted != n(3) || got.Unidentifiable != n(0) {
			o.Errorf("pending %v, undelivered %v, wanted %v, unidentifiable %v", got.Total(delivery.Pending), got.Undelivered, got.Wanted, got.Unidentifiable)
		}
		if got.OldestWanted < time.Hour || got.OldestWanted > 2*time.Hour {
			o.Errorf("oldest wanted event has waited for %v, want 1 h: the others are delivered, or nobody's", got.OldestWanted)
		}
		if len(got.Gaps) != 1 || got.Gaps[0].Reason != "slot_lost" || got.Gaps[0].From != "0/1" || got.Gaps[0].Detected.IsZero() {
			o.Errorf("gaps = %+v", got.Gaps)
		}
		if len(got.Sources) != 1 || got.Sources[0].Mode != "streaming" || got.Sources[0].Position != "0/3" || got.Sources[0].Silent < 0 {
			o.Errorf("sources = %+v", got.Sources)
		}
		if got.Now.IsZero() || got.Incomplete != nil {
			o.Errorf("now %v, incomplete %v", got.Now, got.Incomplete)
		}
		if err := o.store.CloseGaps(o.Context(), "main", time.Now()); err != nil {
			o.Fatal(err)
		}
		if v := o.overview(); len(v.Gaps) != 0 {
			o.Errorf("closed gaps are shown: %+v", v.Gaps)
		}
	})
}

// Q31: what the overview costs does not grow with the tables.
func TestQ31_CountsAreCapped(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		o := open(t, major, schema.Table{}, postgres.AdminConfig{CountLimit: 3})
		for range 5 {
			o.insert(row{})
			o.insert(row{state: delivery.Dead})
			o.insert(row{state: delivery.Succeeded})
		}
		o.insert(row{handler: "small", state: delivery.Dead})
		o.Exec(insertEvents, "order.placed", "1 hour", false, 5)
		got := o.overview()
		states := got.Handlers[0].States
		if states[delivery.Pending].String() != "3+" || states[delivery.Dead].String() != "3+" || !states[delivery.Succeeded].More || !states[delivery.Expired].More {
			o.Errorf("states = %v", states)
		}
		if small := got.Handlers[1].States[delivery.Dead].String(); small != "1" {
			o.Errorf("a small number is shown as %s", small)
		}
		if got.Undelivered.String() != "3+" || got.Total(delivery.Dead).String() != "4+" {
			o.Errorf("undelivered %v, dead %v", got.Undelivered, got.Total(delivery.Dead))
		}
		if n, err := o.admin.CountDeliveries(o.Context(), postgres.Filter{}); err != nil || n.String() != "3+" {
			o.Errorf("count = %v, %v", n, err)
		}
	})
}

func TestQ31_ASlowPartIsLeftOutAndNamed(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		o := open(t, major, schema.Table{}, postgres.AdminConfig{Timeout: 50 * time.Millisecond})
		id := o.insert(row{})
		if err := o.store.RecordSource(o.Context(), "main", "x", cdc.Status{Mode: cdc.ModePolling}); err != nil {
			o.Fatal(err)
		}
		o.overview() // the event table is looked up while nothing is locked
		tx, err := o.Pool().Begin(o.Context())
		if err != nil {
			o.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(o.Context(), "LOCK TABLE eventlog.event_notifications"); err != nil {
			o.Fatal(err)
		}
		// On a busy machine any part may be slow; those that wait for the lock must be.
		slow := map[string]bool{}
		for _, part := range o.overview().Incomplete {
			slow[part] = true
		}
		if !slow["open"] || !slow["stuck"] || !slow["ended"] {
			o.Errorf("incomplete = %v", slow)
		}
		if _, err := o.admin.ShowDelivery(o.Context(), id); !cmp.Equal(err, postgres.ErrSlow, cmpopts.EquateErrors()) {
			o.Errorf("show = %v", err)
		}
	})
}

func TestOverview_RowsWithoutKey(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		table := schema.Custom("public", "outbox", schema.Columns{ID: "id", Type: "kind", Payload: "body"}, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"})
		o := open(t, major, table, postgres.AdminConfig{}, "CREATE TABLE public.outbox (id bigint, kind text, body jsonb, sent boolean)")
		o.Exec("INSERT INTO public.outbox VALUES (NULL, 'a', '{}', false), (1, 'a', '{}', false), (NULL, NULL, '{}', false), (NULL, 'a', '{}', true)")
		if got := o.overview(); got.Unidentifiable.N != 1 || got.OldestWanted != 0 {
			o.Errorf("unidentifiable = %v, oldest = %v", got.Unidentifiable, got.OldestWanted)
		}
	})
}
