package mysql_test

import (
	"database/sql"
	"encoding/json"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin/admintest"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

// Q31, Q10: what the overview reads depends on its limit, not on the backlog.
func TestQ31_OverviewReadsNoMoreThanItCounts(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		o := open(t, kind, admintest.Layout{Name: "eventlog"}, mysql.PoolConfig)
		const handlers, rows, limit = 3, 20_000, 50
		o.Exec(`CREATE TABLE digits (n INT); INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
			INSERT INTO event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
				started_date, completion_date, event_type, event_date, state, next_retry_at, created_date, updated_date)
			SELECT UUID(), UUID(), CONCAT('h', s.n % 3), 'n', UUID(), 'a', '{}', NOW(), NOW(), 't', NOW(),
				CASE s.n % 4 WHEN 0 THEN 'DEAD' WHEN 1 THEN 'SUCCEEDED' ELSE 'PENDING' END, NOW(), NOW(), NOW()
			FROM (SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n AS n
			      FROM digits a, digits b, digits c, digits d, digits e WHERE e.n < 2) s;
			ANALYZE TABLE event_notifications`)
		pool := newPool(t, o.MyDB, 1, mysql.PoolConfig) // the counters are the session's
		store, err := mysql.New(pool, mysql.Config{Schema: o.Name()})
		if err != nil {
			t.Fatal(err)
		}
		a := mysql.NewAdmin(store, admin.Config{CountLimit: limit, Timeout: time.Minute})
		if _, err := a.Overview(t.Context()); err != nil { // looks the tables up
			t.Fatal(err)
		}
		if _, err := pool.Exec("FLUSH STATUS"); err != nil {
			t.Fatal(err)
		}
		got, err := a.Overview(t.Context())
		if err != nil || len(got.Handlers) != handlers || got.Handlers[0].States[delivery.Pending] != (admin.Count{N: limit, More: true}) {
			t.Fatalf("overview = %+v, %v", got, err)
		}
		// Each of the nine pairs twice: the row, and as a row of a derived table. And the way from pair to pair, three times.
		if read := handlerReads(t, pool); read > 9*2*limit+300 || read < 9*limit {
			t.Errorf("an overview of %d deliveries with limit %d reads %d rows", rows, limit, read)
		}
	})
}

// handlerReads is how many rows the session has read since its counters were reset.
func handlerReads(t *testing.T, pool *sql.DB) (total int) {
	rows, err := pool.Query("SHOW SESSION STATUS LIKE 'Handler_read%'")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return total
}

// A pool that is not made as PoolConfig says prepares each statement, and may be in any time zone.
func TestAdmin_OnAPoolOfAnyKind(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		o := open(t, kind, admintest.Layout{Name: "eventlog"}, func(cfg *driver.Config) {
			cfg.ParseTime = true
			cfg.ClientFoundRows = true
			cfg.Params = map[string]string{"time_zone": "'+05:30'", "sql_mode": "'ANSI,NO_BACKSLASH_ESCAPES'", "collation_connection": "utf8mb4_general_ci"}
		})
		a, ctx := mysql.NewAdmin(o.store, admin.Config{}), t.Context()
		out, err := a.EmitEvent(ctx, admin.Emit{Actor: "m", Type: "order.placed", Payload: json.RawMessage(`{"a": "\u00e9 \\"}`), ModelID: `o\'7?`, Headers: json.RawMessage(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		story, err := a.ShowEvent(ctx, out.ID)
		if err != nil || story.Event.ModelID != `o\'7?` || !story.Pending || time.Since(story.Event.Date).Abs() > time.Hour {
			t.Errorf("event = %+v, %v", story, err)
		}
		if list, err := a.ListEvents(ctx, admin.EventFilter{Type: "order.*", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, admin.Page{Limit: 1}); err != nil || len(list.Events) != 1 {
			t.Errorf("events = %+v, %v", list, err)
		}
		id := uuid.Must(uuid.NewV7())
		o.PutDelivery(t, id, admintest.Row{Handler: "billing", Type: "order.placed", State: delivery.Dead, Reason: "permanent", Age: 2 * time.Hour, Claims: 1, Event: uuid.New()})
		f := admin.Filter{IDs: []uuid.UUID{id}, Handler: "billing", States: []delivery.State{delivery.Dead}, Type: "order.*", Reason: "permanent",
			Since: time.Now().Add(-3 * time.Hour), Until: time.Now().Add(-time.Hour)}
		if n, err := a.CountDeliveries(ctx, f); err != nil || n.N != 1 {
			t.Errorf("count = %v, %v", n, err)
		}
		order := admin.Order{Actor: "m", Reason: `why\'?`, RequestID: "r"}
		for n := range 2 {
			if done, err := a.RetryDeliveries(ctx, admin.Retry{Order: order, Filter: f}); err != nil || done.Count != 1 || done.Repeated != (n == 1) {
				t.Errorf("retry = %+v, %v", done, err)
			}
		}
		if done, err := a.DiscardDeliveries(ctx, admin.Discard{Order: order, Filter: admin.Filter{IDs: f.IDs}}); err != nil || done.Count != 1 {
			t.Errorf("discard = %+v, %v", done, err)
		}
		if d, err := a.ShowDelivery(ctx, id); err != nil || d.Reason != `why\'?` || len(d.History) != 2 || time.Since(d.Updated).Abs() > time.Hour {
			t.Errorf("delivery = %+v, %v", d, err)
		}
		if _, err := o.store.SyncHandlers(ctx, "x", []delivery.Handler{{Name: "h", Types: []string{"*"}}}); err != nil {
			t.Error(err)
		}
		if changed, err := a.PauseHandler(ctx, "h", "m", ""); err != nil || !changed {
			t.Errorf("pause = %v, %v", changed, err)
		}
		if changed, err := a.PauseHandler(ctx, "h", "m", ""); err != nil || changed {
			t.Errorf("second pause = %v, %v", changed, err)
		}
		if list, err := a.ListHandlers(ctx); err != nil || len(list) != 1 || list[0].Paused == nil {
			t.Errorf("handlers = %+v, %v", list, err)
		}
		if v, err := a.Overview(ctx); err != nil || v.Incomplete != nil || v.Undelivered.N != 1 || time.Since(v.Now).Abs() > time.Hour {
			t.Errorf("overview = %+v, %v", v, err)
		}
	})
}
