package postgres

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// Q31, Q10: what the overview reads depends on its limit, not on the backlog.
func TestQ31_OverviewReadsNoMoreThanItCounts(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		m, err := migrate.Postgres(db.Pool(), migrate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Exec(`INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
				started_date, completion_date, event_type, event_date, state, next_retry_at, created_date, updated_date)
			SELECT gen_random_uuid(), gen_random_uuid(), 'h' || n % 3, 'n', gen_random_uuid(), 'a', '{}', now(), now(), 't', now(),
				CASE n % 4 WHEN 0 THEN 'DEAD' ELSE 'PENDING' END, now(), now(), now()
			FROM generate_series(1, 30000) n`)
		db.Exec("VACUUM ANALYZE eventlog.event_notifications")
		store, err := New(db.Pool(), Config{})
		if err != nil {
			t.Fatal(err)
		}
		const limit = 50
		a := NewAdmin(store, admin.Config{CountLimit: limit})
		for name, sql := range map[string]string{"open": openSQL, "stuck": stuckNamesSQL} {
			var plan []byte
			if err := a.read(t.Context(), func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), withoutBitmaps); err != nil {
					return err
				}
				return tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+strings.ReplaceAll(a.rendered(sql), "$1::bigint", "50")).Scan(&plan)
			}); err != nil {
				t.Fatal(err)
			}
			var got []struct {
				Plan struct {
					Hit  int `json:"Shared Hit Blocks"`
					Read int `json:"Shared Read Blocks"`
				}
			}
			if err := json.Unmarshal(plan, &got); err != nil {
				t.Fatal(err)
			}
			// Three handlers, each row on a page of its own at worst, and the way down the index.
			if blocks := got[0].Plan.Hit + got[0].Plan.Read; blocks > 3*limit+100 {
				t.Errorf("%s reads %d blocks:\n%s", name, blocks, plan)
			}
		}
	})
}
