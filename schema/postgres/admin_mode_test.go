package postgres_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin/admintest"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// Q17: a pooler in transaction mode allows no prepared statements; some allow only the simple protocol.
func TestQ17_AdminInEveryQueryMode(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		o := open(t, major, schema.Table{})
		for _, mode := range []pgx.QueryExecMode{
			pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
		} {
			t.Run(mode.String(), func(t *testing.T) {
				cfg, err := pgxpool.ParseConfig(o.DSN())
				if err != nil {
					t.Fatal(err)
				}
				cfg.ConnConfig.DefaultQueryExecMode = mode
				cfg.ConnConfig.RuntimeParams["timezone"] = "Asia/Kolkata" // and no time may shift
				pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				store, err := postgres.New(pool, postgres.Config{})
				if err != nil {
					t.Fatal(err)
				}
				desk, ctx := postgres.NewAdmin(store, admin.Config{}), t.Context()

				out, err := desk.EmitEvent(ctx, admin.Emit{Actor: "m", Type: "order.placed", Payload: json.RawMessage(`{"a": "\u00e9 \\"}`), ModelID: `o\'7`, Headers: json.RawMessage(`{}`)})
				if err != nil {
					t.Fatal(err)
				}
				story, err := desk.ShowEvent(ctx, out.ID)
				if err != nil || story.Event.ModelID != `o\'7` || !story.Pending || time.Since(story.Event.Date).Abs() > time.Hour {
					t.Errorf("event = %+v, %v", story, err)
				}
				if list, err := desk.ListEvents(ctx, admin.EventFilter{Type: "order.*", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, admin.Page{Limit: 1}); err != nil || len(list.Events) != 1 {
					t.Errorf("events = %+v, %v", list, err)
				} else if _, err := desk.ListEvents(ctx, admin.EventFilter{}, admin.Page{After: list.Next}); list.Next != "" && err != nil {
					t.Error(err)
				}

				id := uuid.Must(uuid.NewV7())
				o.PutDelivery(t, id, admintest.Row{Handler: "billing", Type: "order.placed", State: delivery.Dead, Reason: "permanent", Age: 2 * time.Hour, Claims: 1, Event: uuid.New()})
				f := admin.Filter{IDs: []uuid.UUID{id}}
				f.Handler, f.States, f.Type, f.Reason = "billing", []delivery.State{delivery.Dead}, "order.*", "permanent"
				f.Since, f.Until = time.Now().Add(-3*time.Hour), time.Now().Add(-time.Hour)
				if n, err := desk.CountDeliveries(ctx, f); err != nil || n.N != 1 {
					t.Errorf("count = %v, %v", n, err)
				}
				order := admin.Order{Actor: "m", Reason: `why\'`, RequestID: mode.String()}
				for n := range 2 {
					if done, err := desk.RetryDeliveries(ctx, admin.Retry{Order: order, Filter: f}); err != nil || done.Count != 1 || done.Repeated != (n == 1) {
						t.Errorf("retry = %+v, %v", done, err)
					}
				}
				if done, err := desk.DiscardDeliveries(ctx, admin.Discard{Order: order, Filter: admin.Filter{IDs: f.IDs}}); err != nil || done.Count != 1 {
					t.Errorf("discard = %+v, %v", done, err)
				}
				d, err := desk.ShowDelivery(ctx, id)
				if err != nil || d.Reason != `why\'` || len(d.History) != 2 {
					t.Errorf("delivery = %+v, %v", d, err)
				}
				if _, err := desk.ListDeliveries(ctx, admin.Filter{}, admin.Page{After: id.String()}); err != nil {
					t.Error(err)
				}
				if _, err := store.SyncHandlers(ctx, "x", []delivery.Handler{{Name: "h", Types: []string{"*"}}}); err != nil {
					t.Error(err)
				}
				if changed, err := desk.PauseHandler(ctx, "h", "m", ""); err != nil || !changed {
					t.Errorf("pause = %v, %v", changed, err)
				}
				if list, err := desk.ListHandlers(ctx); err != nil || len(list) != 1 || list[0].Paused == nil {
					t.Errorf("handlers = %+v, %v", list, err)
				}
				if changed, err := desk.ResumeHandler(ctx, "h", "m", ""); err != nil || !changed {
					t.Errorf("resume = %v, %v", changed, err)
				}
				if v, err := desk.Overview(ctx); err != nil || v.Incomplete != nil || time.Since(v.Now).Abs() > time.Hour {
					t.Errorf("overview = %+v, %v", v, err)
				}
			})
		}
	})
}

// A time that JSON does not have is shown as the nearest that it has.
func TestAdmin_InfiniteTimes(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		o := open(t, major, schema.Table{})
		id := uuid.Must(uuid.NewV7())
		o.PutDelivery(t, id, admintest.Row{Handler: "billing", Type: "order.placed", State: delivery.Pending})
		o.Exec("UPDATE eventlog.event_notifications SET event_date = 'infinity', next_retry_at = '-infinity'")
		got, err := postgres.NewAdmin(o.store, admin.Config{}).ShowDelivery(t.Context(), id)
		if err != nil || got.EventDate.Year() != 9999 || got.Due.Year() != 1 {
			t.Errorf("delivery = %+v, %v", got, err)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Error(err)
		}
	})
}
