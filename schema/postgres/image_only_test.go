package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// What holds the lock of an event's row may be about to delete it. The event gets its deliveries from the
// log's image while the lock lasts, one each, whatever becomes of the row.
func TestFanOut_ImageOnlyWaitsForNoLockOnTheRow(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for name, hold := range map[string]string{
			"locked":  `SELECT FROM public.outbox WHERE id = 2 FOR UPDATE`,
			"deleted": `DELETE FROM public.outbox WHERE id = 2`,
		} {
			t.Run(name, func(t *testing.T) {
				l := outbox("bigint PRIMARY KEY")
				db := newTestDB(t, major, l)
				s := newStore(t, db.Pool(), l.table)
				db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES (1, 'a', '{"n": 1}'), (2, 'a', '{"n": 2}')`)
				events := undelivered(t, s)
				holder, err := db.Pool().Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }()
				if _, err := holder.Exec(t.Context(), hold); err != nil {
					t.Fatal(err)
				}

				batch := delivery.FanOut{Lease: delivery.Lease{Token: uuid.New(), For: time.Minute}}
				for _, e := range events {
					batch.Fans = append(batch.Fans, delivery.Fan{
						Event: e, FromLog: true, ImageOnly: e.Key == "2", Targets: []delivery.Target{{ID: uuid.New(), Handler: "h"}},
					})
				}
				for i, want := range []delivery.FanOutResult{{Fresh: 1, Absent: 1}, {Repeated: 2}} {
					result, err := s.FanOut(t.Context(), batch)
					if err != nil {
						t.Fatal(err)
					}
					if result.Fresh != want.Fresh || result.Absent != want.Absent || result.Repeated != want.Repeated || len(result.Created) != 2-2*i {
						t.Errorf("call %d: %+v", i+1, result)
					}
				}
				// The ordinary statements of others, too, find nothing to wait for.
				db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES (3, 'a', '{"n": 3}')`)
				for _, e := range undelivered(t, s) {
					if e.Key == "3" {
						fanOut(t, s, append(events[:0:0], e), true)
					}
				}
				if n := count(t, db, `SELECT count(*) FROM public.outbox WHERE sent IS NOT TRUE AND id = 2`); n != 1 {
					t.Error("the row was touched")
				}
				if err := holder.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, e := range undelivered(t, s) {
					if result := fanOut(t, s, append(events[:0:0], e), false); result.Fresh != 1 || len(result.Created) != 0 {
						t.Errorf("the poller's turn: %+v", result)
					}
				}
				if n := len(undelivered(t, s)); n != 0 {
					t.Errorf("%d rows are left without a mark", n)
				}
				if n := count(t, db, `SELECT count(*) FROM eventlog.event_notifications WHERE payload ? 'n' AND state = 'PENDING'`); n != 3 {
					t.Errorf("%d deliveries, want 3", n)
				}
			})
		}
	})
}
