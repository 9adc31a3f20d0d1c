package postgres

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// compared is how many pairs of rows the joins of a plan have looked at in vain.
func (p plan) compared() float64 {
	n := p.JoinRemoved * p.Loops
	for _, child := range p.Plans {
		n += child.compared()
	}
	return n
}

// TestFanOutOfABacklogAfterQuietTimes: statistics of quiet times say that no row is unmarked. A fan-out of the backlog
// of an outage is not planned for none: its lists would be compared row by row, four million pairs for two
// thousand events.
func TestFanOutOfABacklogAfterQuietTimes(t *testing.T) {
	const n = 1000
	for i, insert := range []string{
		`INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date, event_type, payload, event_date, delivered)
			SELECT md5('%[1]s' || n)::uuid, '', gen_random_uuid(), '', '{}', d, d, 'a', '{}', d, %[2]v
			FROM generate_series(1, %[3]d) n, (SELECT timestamp '2031-05-17' AS d) d`,
		`INSERT INTO "Shop's"."Event ""Log""" ("Id", type, at, status)
			SELECT md5('%[1]s' || n)::uuid, 'a', '2031-05-17', (CASE WHEN %[2]v THEN 'DISPATCHED' ELSE 'PENDING' END)::"Shop's".status FROM generate_series(1, %[3]d) n`,
		`INSERT INTO public.outboxevent (id, type, payload, occurred_at)
			SELECT md5('%[1]s' || n)::uuid, 'a', '{}', '2031-05-17' FROM generate_series(1, %[3]d) n;
		INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date,
			completion_date, event_type, event_date, state, next_retry_at, created_date, updated_date)
			SELECT id, id, 'h', '', id, '', '{}', d, d, 'a', d, 'SUCCEEDED', d, d, d
			FROM (SELECT id, occurred_at AS d FROM public.outboxevent) e WHERE %[2]v`,
	} {
		l := layouts()[i]
		t.Run(l.name, func(t *testing.T) {
			testdb.EachPostgres(t, func(t *testing.T, major int) {
				db := newTestDB(t, major, l)
				table := newStore(t, db.Pool(), l.table)
				events, err := table.eventTable(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				db.Exec("ALTER TABLE " + events.from + " SET (autovacuum_enabled = false)")
				add := func(what string, marked bool, rows int) {
					db.Exec(fmt.Sprintf(insert, what, marked, rows))
				}
				add("quiet", true, 2*n)
				db.Exec("ANALYZE " + events.from + "; ANALYZE eventlog.event_notifications")
				add("outage", false, 10*n)
				ids, targets, numbers := make([]string, n), make([]string, n), make([]int64, n)
				if err := db.Pool().QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM (SELECT md5('outage' || n)::uuid::text AS id FROM generate_series(1, $1) n) x`, n).Scan(&ids); err != nil {
					t.Fatal(err)
				}
				for i := range n {
					targets[i], numbers[i] = uuid.NewString(), int64(i)+1
				}
				fill := func(s string) []string { return slices.Repeat([]string{s}, n) }
				fanOut := explain(t, db, durable, events.fanOut, ids, ids, numbers, targets, numbers, fill("h"),
					make([]bool, n), make([]int64, n), fill(""), fill(""), uuid.NewString(), "o", int64(1), int64(0))
				if pairs := fanOut.compared(); pairs > 10*n {
					t.Errorf("a fan-out of %d events compared %.0f pairs of rows in vain", n, pairs)
				}
				if blocks := fanOut.Hit + fanOut.Read; blocks > n*40 {
					t.Errorf("a fan-out of %d events touched %d blocks", n, blocks)
				}
			})
		})
	}
}
