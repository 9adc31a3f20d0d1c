package postgres_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// Q17: a pooler in transaction mode allows no prepared statements; some allow only the simple protocol.
func TestQ17_AdminInEveryQueryMode(t *testing.T) {
	each(t, func(o *office) {
		for _, mode := range []pgx.QueryExecMode{
			pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
		} {
			o.Run(mode.String(), func(t *testing.T) {
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
				admin, ctx := postgres.NewAdmin(store, postgres.AdminConfig{}), t.Context()

				out, err := admin.EmitEvent(ctx, postgres.Emit{Actor: "m", Type: "order.placed", Payload: json.RawMessage(`{"a": "\u00e9 \\"}`), ModelID: `o\'7`, Headers: json.RawMessage(`{}`)})
				if err != nil {
					t.Fatal(err)
				}
				story, err := admin.ShowEvent(ctx, out.ID)
				if err != nil || story.Event.ModelID != `o\'7` || !story.Pending || time.Since(story.Event.Date).Abs() > time.Hour {
					t.Errorf("event = %+v, %v", story, err)
				}
				if list, err := admin.ListEvents(ctx, postgres.EventFilter{Type: "order.*", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, postgres.Page{Limit: 1}); err != nil || len(list.Events) != 1 {
					t.Errorf("events = %+v, %v", list, err)
				} else if _, err := admin.ListEvents(ctx, postgres.EventFilter{}, postgres.Page{After: list.Next}); list.Next != "" && err != nil {
					t.Error(err)
				}

				id := o.insert(row{state: delivery.Dead, reason: "permanent", age: 2 * time.Hour, claims: 1})
				f := one(id)
				f.Handler, f.States, f.Type, f.Reason = "billing", []delivery.State{delivery.Dead}, "order.*", "permanent"
				f.Since, f.Until = time.Now().Add(-3*time.Hour), time.Now().Add(-time.Hour)
				if n, err := admin.CountDeliveries(ctx, f); err != nil || n.N != 1 {
					t.Errorf("count = %v, %v", n, err)
				}
				order := postgres.Order{Actor: "m", Reason: `why\'`, RequestID: mode.String()}
				for n := range 2 {
					if done, err := admin.RetryDeliveries(ctx, postgres.Retry{Order: order, Filter: f}); err != nil || done.Count != 1 || done.Repeated != (n == 1) {
						t.Errorf("retry = %+v, %v", done, err)
					}
				}
				if done, err := admin.DiscardDeliveries(ctx, postgres.Discard{Order: order, Filter: one(id)}); err != nil || done.Count != 1 {
					t.Errorf("discard = %+v, %v", done, err)
				}
				d, err := admin.ShowDelivery(ctx, id)
				if err != nil || d.Reason != `why\'` || len(d.History) != 2 {
					t.Errorf("delivery = %+v, %v", d, err)
				}
				if _, err := admin.ListDeliveries(ctx, postgres.Filter{}, postgres.Page{After: id.String()}); err != nil {
					t.Error(err)
				}
				if _, err := store.SyncHandlers(ctx, "x", []delivery.Handler{{Name: "h", Types: []string{"*"}}}); err != nil {
					t.Error(err)
				}
				if changed, err := admin.PauseHandler(ctx, "h", "m", ""); err != nil || !changed {
					t.Errorf("pause = %v, %v", changed, err)
				}
				if list, err := admin.ListHandlers(ctx); err != nil || len(list) != 1 || list[0].Paused == nil {
					t.Errorf("handlers = %+v, %v", list, err)
				}
				if changed, err := admin.ResumeHandler(ctx, "h", "m", ""); err != nil || !changed {
					t.Errorf("resume = %v, %v", changed, err)
				}
				if v, err := admin.Overview(ctx); err != nil || v.Incomplete != nil || time.Since(v.Now).Abs() > time.Hour {
					t.Errorf("overview = %+v, %v", v, err)
				}
			})
		}
	})
}
