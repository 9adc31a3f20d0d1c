package postgres_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// layout is an event table of some form.
type layout struct {
	name    string
	table   schema.Table
	ddl     []string
	payload string
}

func layouts() []layout {
	columns := schema.Columns{ID: "id", Type: "kind", Payload: "body", Date: "at", ModelID: "ref"}
	return []layout{
		{"eventlog", schema.Eventlog(""), nil, `{"total": 1}`},
		{"debezium", schema.Debezium("", ""), []string{`CREATE TABLE public.outboxevent (id uuid PRIMARY KEY,
			aggregatetype varchar(255) NOT NULL DEFAULT '', aggregateid varchar(255) NOT NULL DEFAULT '', type varchar(255) NOT NULL, payload jsonb)`}, `{"total": 1}`},
		{"identity, status and zone", schema.Custom("public", "Out Box", columns, schema.Mark{Kind: schema.MarkStatus, Column: "status", At: "status_at"}),
			[]string{`CREATE TABLE public."Out Box" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind varchar(40) NOT NULL, body json,
				at timestamptz NOT NULL, ref text, status varchar(20) NOT NULL, status_at timestamptz)`}, `{"b":1,  "a":2}`},
		{"text key and bytes", schema.Custom("public", "outbox", columns, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"}),
			[]string{`CREATE TABLE public.outbox (id text PRIMARY KEY, kind text NOT NULL, body bytea, at timestamp NOT NULL, ref text, sent boolean NOT NULL)`}, `<a>é</a>`},
		{"enum type, no date, no mark", schema.Custom("public", "outbox", schema.Columns{ID: "id", Type: "kind", Payload: "body"}, schema.Mark{}),
			[]string{`CREATE TYPE public.kind AS ENUM ('order.placed', 'order.cancelled')`,
				`CREATE TABLE public.outbox (id int PRIMARY KEY DEFAULT floor(random() * 1e9), kind public.kind NOT NULL, body text)`}, `{"total":1}`},
	}
}

// An event that is emitted by hand is like one of an application's: it is found, and listed, and shown.
func TestEmitEvent_EveryLayout(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, l := range layouts() {
			t.Run(l.name, func(t *testing.T) {
				o := open(t, major, l.table, postgres.AdminConfig{}, l.ddl...)
				out, err := o.admin.EmitEvent(o.Context(), postgres.Emit{
					Actor: "maria", Type: "order.placed", Payload: json.RawMessage(l.payload), ModelType: "Order", ModelID: "o-7",
					Headers: json.RawMessage(`{"h": 1}`), Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
				})
				if err != nil {
					t.Fatal(err)
				}
				found, err := o.store.Undelivered(o.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 10})
				if err != nil || len(found.Events) != 1 || found.Events[0].ID != out.ID || found.Events[0].Type != "order.placed" || string(found.Events[0].Payload) != l.payload {
					t.Fatalf("the poller finds %+v, %v; want %+v", found, err, out)
				}
				list, err := o.admin.ListEvents(o.Context(), postgres.EventFilter{Type: "order.*", Pending: true}, postgres.Page{})
				if err != nil || len(list.Events) != 1 || list.Events[0].ID != out.ID || !list.Events[0].Pending || len(list.Events[0].Deliveries) != 0 {
					t.Errorf("list = %+v, %v", list, err)
				}

				handler := uuid.Must(uuid.NewV7())
				if _, err := o.store.FanOut(o.Context(), delivery.FanOut{Fans: []delivery.Fan{{Event: found.Events[0], Targets: []delivery.Target{{ID: handler, Handler: "billing"}}}}}); err != nil {
					t.Fatal(err)
				}
				for _, key := range []string{out.ID, out.Key} {
					story, err := o.admin.ShowEvent(o.Context(), key)
					if err != nil || len(story.Deliveries) != 1 || story.Deliveries[0].ID != handler || string(story.Event.Payload) != l.payload || story.Event.ID != out.ID || story.Pending {
						t.Errorf("show %s = %+v, %v", key, story, err)
					}
					if key == out.Key && (!story.InTable || story.Rows != 1) {
						t.Errorf("show %s: in table %v, rows %d", key, story.InTable, story.Rows)
					}
				}
				list, err = o.admin.ListEvents(o.Context(), postgres.EventFilter{}, postgres.Page{})
				if err != nil || len(list.Events) != 1 || list.Events[0].Pending || list.Events[0].Deliveries[delivery.Pending] != 1 {
					t.Errorf("list = %+v, %v", list, err)
				}
				o.Exec("DELETE FROM " + fmt.Sprintf("%q.%q", l.table.Schema, l.table.Name))
				story, err := o.admin.ShowEvent(o.Context(), out.ID)
				if err != nil || story.InTable || story.Event.ID != out.ID || string(story.Event.Payload) != l.payload {
					t.Errorf("after the row is gone: %+v, %v", story, err)
				}
				if n := value[int](o, "SELECT count(*) FROM eventlog.audit_log WHERE actor = 'maria' AND action = 'events.emit' AND target = $1", out.ID); n != 1 {
					t.Errorf("%d audit lines", n)
				}
			})
		}
	})
}

func TestEmitEvent_Refusals(t *testing.T) {
	each(t, func(o *office) {
		for name, e := range map[string]postgres.Emit{
			"no actor":        {Type: "t"},
			"no type":         {Actor: "m"},
			"payload no JSON": {Actor: "m", Type: "t", Payload: json.RawMessage("{")},
			"id no UUID":      {Actor: "m", Type: "t", ID: "42"},
		} {
			if _, err := o.admin.EmitEvent(o.Context(), e); err == nil {
				o.Errorf("%s: accepted", name)
			}
		}
		id := uuid.NewString()
		for n := range 2 {
			out, err := o.admin.EmitEvent(o.Context(), postgres.Emit{Actor: "m", Type: "t", ID: id})
			if n == 0 && (err != nil || out.ID != id) || n == 1 && err == nil {
				o.Errorf("emission %d with one id = %+v, %v", n+1, out, err)
			}
		}
		if n := value[int](o, "SELECT count(*) FROM eventlog.audit_log"); n != 1 {
			o.Errorf("%d audit lines for one event", n)
		}
	})
}

func TestListEvents_PagesAndBounds(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, l := range layouts() {
			t.Run(l.name, func(t *testing.T) {
				o := open(t, major, l.table, postgres.AdminConfig{}, l.ddl...)
				want := map[string]bool{}
				for range 7 {
					out, err := o.admin.EmitEvent(o.Context(), postgres.Emit{Actor: "m", Type: "order.placed", Payload: json.RawMessage(`{}`)})
					if err != nil {
						t.Fatal(err)
					}
					want[out.ID] = true
				}
				if l.table.Columns.Date != "" {
					// All at one instant: the key tells them apart.
					o.Exec(fmt.Sprintf(`UPDATE %q.%q SET %q = '2026-01-01 12:00:00'`, l.table.Schema, l.table.Name, l.table.Columns.Date))
				}
				page := postgres.Page{Limit: 3}
				for pages := 1; ; pages++ {
					list, err := o.admin.ListEvents(o.Context(), postgres.EventFilter{}, page)
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range list.Events {
						if !want[e.ID] {
							t.Errorf("page %d shows %s again", pages, e.ID)
						}
						delete(want, e.ID)
					}
					if page.After = list.Next; page.After == "" {
						break
					}
				}
				if len(want) > 0 {
					t.Errorf("%d events on no page", len(want))
				}
				if _, err := o.admin.ListEvents(o.Context(), postgres.EventFilter{}, postgres.Page{After: "x"}); err == nil {
					t.Error("a page key of nobody's was accepted")
				}
				noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
				_, err := o.admin.ListEvents(o.Context(), postgres.EventFilter{Since: noon}, postgres.Page{})
				if l.table.Columns.Date == "" && err == nil {
					t.Error("a bound on a date that the table does not have was accepted")
				}
			})
		}
	})
}

func TestListEvents_Filters(t *testing.T) {
	each(t, func(o *office) {
		o.Exec(insertEvents, "order.placed", "1 hour", false, 1)
		o.Exec(insertEvents, "order.cancelled", "3 hours", true, 1)
		o.Exec(insertEvents, "invoice.sent", "5 hours", false, 1)
		o.Exec(insertEvents, nil, "1 hour", false, 1)
		now := value[time.Time](o, "SELECT clock_timestamp()")
		for _, c := range []struct {
			filter postgres.EventFilter
			want   string
		}{
			{postgres.EventFilter{}, "order.placed order.cancelled invoice.sent"},
			{postgres.EventFilter{Type: "order.*"}, "order.placed order.cancelled"},
			{postgres.EventFilter{Type: "invoice.sent"}, "invoice.sent"},
			{postgres.EventFilter{Pending: true}, "order.placed invoice.sent"},
			{postgres.EventFilter{Since: now.Add(-4 * time.Hour)}, "order.placed order.cancelled"},
			{postgres.EventFilter{Until: now.Add(-2 * time.Hour)}, "order.cancelled invoice.sent"},
			{postgres.EventFilter{Since: now.Add(-4 * time.Hour), Until: now.Add(-2 * time.Hour)}, "order.cancelled"},
		} {
			list, err := o.admin.ListEvents(o.Context(), c.filter, postgres.Page{})
			if err != nil {
				o.Fatal(err)
			}
			var types []string
			for _, e := range list.Events {
				types = append(types, e.Type)
			}
			if got := strings.Join(types, " "); got != c.want {
				o.Errorf("%+v: %s, want %s", c.filter, got, c.want)
			}
		}
	})
}

func TestShowEvent_UnknownAndDuplicate(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		columns := schema.Columns{ID: "id", Type: "kind", Payload: "body"}
		table := schema.Custom("public", "outbox", columns, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"})
		o := open(t, major, table, postgres.AdminConfig{}, "CREATE TABLE public.outbox (id int, kind text, body jsonb, sent boolean)")
		o.Exec("INSERT INTO public.outbox VALUES (7, 'a', '{}', false), (7, 'a', '{}', false)")
		for _, id := range []string{"8", "7x", "99999999999", "999999999999999999999999", "", "'; --", uuid.NewString()} {
			if _, err := o.admin.ShowEvent(o.Context(), id); !errors.Is(err, postgres.ErrNotFound) {
				t.Errorf("%q: %v, want not found", id, err)
			}
		}
		story, err := o.admin.ShowEvent(o.Context(), "7")
		if err != nil || story.Rows != 2 || !story.Pending || story.Event.Type != "a" {
			t.Errorf("story = %+v, %v", story, err)
		}
		want, _ := schema.EventID("public.outbox", "7")
		if story.Event.ID != want {
			t.Errorf("event id = %s, want %s", story.Event.ID, want)
		}
	})
}
