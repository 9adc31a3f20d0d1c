package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

func TestListDeliveries_Filters(t *testing.T) {
	each(t, func(o *office) {
		o.Exec(`INSERT INTO eventlog.handlers (name, aliases, types, generation, last_owner, last_seen, created_date)
			VALUES ('mailer', '{mail,post}', '{*}', 1, 'x', now(), now())`)
		event := uuid.New()
		a := o.insert(row{handler: "billing", state: delivery.Dead, reason: "permanent", typ: "order.placed", age: time.Hour, claims: 1})
		b := o.insert(row{handler: "mail", state: delivery.Pending, typ: "order.cancelled", age: 3 * time.Hour, event: event})
		c := o.insert(row{handler: "mailer", state: delivery.Succeeded, typ: "invoice.sent", age: 5 * time.Hour, event: event, claims: 1})
		now := value[time.Time](o, "SELECT clock_timestamp()")
		for _, f := range []struct {
			filter postgres.Filter
			want   []uuid.UUID
		}{
			{postgres.Filter{}, []uuid.UUID{c, b, a}},
			{postgres.Filter{IDs: []uuid.UUID{a, c}}, []uuid.UUID{c, a}},
			{postgres.Filter{IDs: []uuid.UUID{}}, nil},
			{postgres.Filter{Event: event.String()}, []uuid.UUID{c, b}},
			{postgres.Filter{Event: strings.ToUpper(event.String())}, []uuid.UUID{c, b}},
			{postgres.Filter{Event: "42"}, nil},
			{postgres.Filter{Handler: "billing"}, []uuid.UUID{a}},
			{postgres.Filter{Handler: "mailer"}, []uuid.UUID{c, b}},
			{postgres.Filter{Handler: "mail"}, []uuid.UUID{b}},
			{postgres.Filter{Handler: "nobody'; --"}, nil},
			{postgres.Filter{States: []delivery.State{delivery.Dead, delivery.Pending}}, []uuid.UUID{b, a}},
			{postgres.Filter{Type: "order.placed"}, []uuid.UUID{a}},
			{postgres.Filter{Type: "order.*"}, []uuid.UUID{b, a}},
			{postgres.Filter{Type: "*"}, []uuid.UUID{c, b, a}},
			{postgres.Filter{Type: "order_*"}, nil},
			{postgres.Filter{Reason: "permanent"}, []uuid.UUID{a}},
			{postgres.Filter{Since: now.Add(-4 * time.Hour)}, []uuid.UUID{b, a}},
			{postgres.Filter{Until: now.Add(-2 * time.Hour).In(time.FixedZone("x", 5*3600))}, []uuid.UUID{c, b}},
			{postgres.Filter{Handler: "mailer", States: []delivery.State{delivery.Pending}, Type: "order.*", Since: now.Add(-4 * time.Hour)}, []uuid.UUID{b}},
		} {
			list, err := o.admin.ListDeliveries(o.Context(), f.filter, postgres.Page{})
			if err != nil {
				o.Errorf("%s: %v", f.filter, err)
				continue
			}
			var got []uuid.UUID
			for _, d := range list.Deliveries {
				got = append(got, d.ID)
			}
			if diff := cmp.Diff(f.want, got); diff != "" || list.Next != "" {
				o.Errorf("%s: next %q (-want +got):\n%s", f.filter, list.Next, diff)
			}
			if n, err := o.admin.CountDeliveries(o.Context(), f.filter); err != nil || n != (postgres.Count{N: int64(len(f.want))}) {
				o.Errorf("%s: count = %v, %v", f.filter, n, err)
			}
		}
	})
}

func TestListDeliveries_PagesDoNotShift(t *testing.T) {
	each(t, func(o *office) {
		want := map[uuid.UUID]bool{}
		for range 25 {
			want[o.insert(row{})] = true
		}
		page := postgres.Page{Limit: 10}
		for n := 1; ; n++ {
			list, err := o.admin.ListDeliveries(o.Context(), postgres.Filter{}, page)
			if err != nil {
				o.Fatal(err)
			}
			for _, d := range list.Deliveries {
				if !want[d.ID] {
					o.Errorf("page %d shows %s twice, or a newer one", n, d.ID)
				}
				delete(want, d.ID)
			}
			o.insert(row{}) // appears in front, and must not push anything over the edge
			if page.After = list.Next; page.After == "" {
				break
			}
		}
		if len(want) > 0 {
			o.Errorf("%d deliveries were on no page", len(want))
		}
		if _, err := o.admin.ListDeliveries(o.Context(), postgres.Filter{}, postgres.Page{After: "x"}); err == nil {
			o.Error("a page key of nobody's was accepted")
		}
	})
}

func TestShowDelivery(t *testing.T) {
	each(t, func(o *office) {
		id := o.insert(row{state: delivery.Failed, attempts: 2, lastError: "http_503", leased: time.Hour})
		o.Exec(`INSERT INTO eventlog.event_notification_attempts (delivery_id, attempt, outcome, reason, error, message, started_date, duration_us)
			SELECT $1::text::uuid, n, 'FAILED', NULL, 'http_503', 'm', '2026-01-01', n * 1000 FROM generate_series(1, 2) n`, id.String())
		got := o.show(id)
		if got.Handler != "billing" || got.EventType != "order.placed" || got.ModelID != "o-7" || !got.Leased || got.LeaseOwner != "worker" ||
			got.Claims != 2 || got.Event.ID != got.EventID || string(got.Event.Payload) != `{"total": 1}` || string(got.Event.ActionParams) != `{"x": 1}` {
			o.Errorf("delivery = %+v", got)
		}
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		want := []postgres.Attempt{
			{Attempt: 1, Outcome: "FAILED", Error: "http_503", Message: "m", Started: at, Took: time.Millisecond},
			{Attempt: 2, Outcome: "FAILED", Error: "http_503", Message: "m", Started: at, Took: 2 * time.Millisecond},
		}
		if diff := cmp.Diff(want, got.History); diff != "" {
			o.Errorf("history (-want +got):\n%s", diff)
		}
		o.Exec("UPDATE eventlog.event_notifications SET payload = NULL, payload_raw = '\\x00ff', event_date = 'infinity', next_retry_at = '-infinity'")
		got = o.show(id)
		if string(got.Event.Payload) != "\x00\xff" || got.EventDate.Year() != 9999 || got.Due.Year() != 1 {
			o.Errorf("delivery = %+v", got)
		}
		shown, err := json.Marshal(got)
		if err != nil || !strings.Contains(string(shown), `"payload_base64":"AP8="`) {
			o.Errorf("as JSON: %s, %v", shown, err)
		}
		for payload, want := range map[string]string{`{"a":1}`: `"payload":{"a":1}`, `<a/>`: `"payload_text":"\u003ca/\u003e"`} {
			got.Event.Payload = json.RawMessage(payload)
			if shown, err := json.Marshal(got); err != nil || !strings.Contains(string(shown), want) {
				o.Errorf("as JSON: %s, %v; want %s", shown, err, want)
			}
		}
		if _, err := o.admin.ShowDelivery(o.Context(), uuid.New()); !errors.Is(err, postgres.ErrNotFound) {
			o.Errorf("unknown delivery = %v", err)
		}
	})
}

func TestHandlers_PauseAndResume(t *testing.T) {
	each(t, func(o *office) {
		serve := func() map[string]delivery.Pause {
			paused, err := o.store.SyncHandlers(o.Context(), "host/1", []delivery.Handler{
				{Name: "mailer", Aliases: []string{"mail"}, Types: []string{"order.*"}}, {Name: "audit", Types: []string{"*"}},
			})
			if err != nil {
				o.Fatal(err)
			}
			return paused.Paused
		}
		serve()
		order := func(name string, changed bool, fn func(context.Context, string, string, string) (bool, error)) {
			o.Helper()
			if got, err := fn(o.Context(), name, "maria", "smtp is down"); err != nil || got != changed {
				o.Errorf("%s: changed = %v, %v; want %v", name, got, err, changed)
			}
		}
		order("mail", true, o.admin.PauseHandler)
		paused := serve()
		if p := paused["mailer"]; len(paused) != 1 || p.By != "maria" || p.Reason != "smtp is down" || p.At.IsZero() {
			o.Errorf("paused = %+v", paused)
		}
		if _, err := o.admin.PauseHandler(o.Context(), "mailer", "karl", "me too"); err != nil {
			o.Error(err)
		}
		list, err := o.admin.ListHandlers(o.Context())
		if err != nil {
			o.Fatal(err)
		}
		if len(list) != 2 || list[0].Name != "audit" || list[0].Paused != nil || list[1].Paused == nil || list[1].Paused.By != "maria" ||
			list[1].LastOwner != "host/1" || list[1].Silent < 0 || list[1].Aliases[0] != "mail" || list[1].Types[0] != "order.*" {
			o.Errorf("handlers = %+v", list)
		}
		order("mailer", true, o.admin.ResumeHandler)
		order("mailer", false, o.admin.ResumeHandler)
		if paused := serve(); len(paused) != 0 {
			o.Errorf("still paused: %+v", paused)
		}
		if _, err := o.admin.PauseHandler(o.Context(), "ghost", "maria", ""); !errors.Is(err, postgres.ErrNotFound) {
			o.Errorf("unknown handler = %v", err)
		}
		if _, err := o.admin.PauseHandler(o.Context(), "mailer", "", ""); err == nil {
			o.Error("a pause by nobody was accepted")
		}
		got := value[[]string](o, "SELECT array_agg(concat_ws(' ', actor, action, target, affected, reason) ORDER BY id) FROM eventlog.audit_log")
		want := []string{
			"maria handlers.pause mailer 1 smtp is down", "karl handlers.pause mailer 0 me too",
			"maria handlers.resume mailer 1 smtp is down", "maria handlers.resume mailer 0 smtp is down",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			o.Errorf("audit log (-want +got):\n%s", diff)
		}
	})
}
