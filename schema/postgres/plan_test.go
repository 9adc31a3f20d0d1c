package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// plan is a node of EXPLAIN (FORMAT JSON).
type plan struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Removed  float64 `json:"Rows Removed by Filter"`
	// JoinRemoved is how many pairs of rows a join's condition refused, for one loop.
	JoinRemoved float64 `json:"Rows Removed by Join Filter"`
	Hit         int     `json:"Shared Hit Blocks"`
	Read        int     `json:"Shared Read Blocks"`
	Plans       []plan  `json:"Plans"`
}

// read is the most rows that one scan of the relation looked at.
func (p plan) read(relation string) float64 {
	most := 0.0
	if p.Relation == relation && strings.Contains(p.Type, "Scan") {
		most = (p.Rows + p.Removed) * p.Loops
	}
	for _, child := range p.Plans {
		most = max(most, child.read(relation))
	}
	return most
}

// explain runs a statement with settings, takes it back, and returns what it did.
func explain(t *testing.T, db *testdb.DB, with settings, sql string, args ...any) plan {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if with != "" {
		if _, err := tx.Exec(t.Context(), string(with)); err != nil {
			t.Fatal(err)
		}
	}
	return explained(t, tx, sql, append([]any{pgx.QueryExecModeCacheDescribe}, args...)...)
}

// explained runs a statement and returns what it did.
func explained(t *testing.T, tx pgx.Tx, sql string, args ...any) plan {
	t.Helper()
	var out []byte
	if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&out); err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal(out, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}

// fill inserts n deliveries in a state, due one second apart, without statistics being taken.
func fill(db *testdb.DB, handler, state string, n int) {
	db.Exec(fmt.Sprintf(`
INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date,
    completion_date, event_type, event_date, state, next_retry_at, created_date, updated_date)
SELECT id, id, '%s', '', id, '', '{}', d, d, 't', d, '%s', d, d, d
FROM generate_series(1, %d) n
CROSS JOIN LATERAL (SELECT md5('%[1]s%[2]s' || n)::uuid AS id, timestamp '2031-05-17 11:00' - n * interval '1 second' AS d) x`, handler, state, n))
}

// TestQ10_Q28_AClaimReadsWhatItReturns: waiting rows by the hundred thousand, and more that are finished, cost
// a claim nothing; nor do statistics that know of none of them. More rows would only make
// reading them all less tempting.
func TestQ10_Q28_AClaimReadsWhatItReturns(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := newTestDB(t, major, layouts()[0])
		s := newStore(t, db.Pool(), schema.Table{})
		s.sql = render(s.schema, frozenClock)
		// Filling is quick without a log and without indexes; those that no claim uses stay away.
		db.Exec(`ALTER TABLE eventlog.event_notifications SET (autovacuum_enabled = false);
ALTER TABLE eventlog.event_notifications SET UNLOGGED;
ALTER TABLE eventlog.event_notifications DROP CONSTRAINT event_notifications_event_id_handler_name_key, DROP CONSTRAINT event_notifications_pkey;
DROP INDEX eventlog.event_notifications_due, eventlog.event_notifications_claim; ANALYZE eventlog.event_notifications`)
		fill(db, "billing", "SUCCEEDED", 50_000)
		fill(db, "billing", "PENDING", 250_000)
		fill(db, "mail", "PENDING", 1_000)
		db.Exec(`ALTER TABLE eventlog.event_notifications ADD PRIMARY KEY (id);
CREATE INDEX event_notifications_claim ON eventlog.event_notifications (handler_name, next_retry_at) WHERE state IN ('PENDING', 'FAILED')`)
		const limit = 100
		check := func(when string) {
			t.Helper()
			claim := explain(t, db, durable, s.sql.claim, []int64{1, 2}, []string{"billing", "mail"}, []int64{limit, limit}, []int64{limit, limit},
				[]int64{micros(1e18), 0}, []int64{0, 5}, uuid.NewString(), "o", int64(60e6), (*string)(nil), []string{}, int64(limit),
				[]int64{1e6, 1e6}, []int64{300e6, 300e6}, int64(delivery.LostForFree), int64(delivery.LostAtMost))
			if read := claim.read("event_notifications"); read > 2*limit {
				t.Errorf("%s: a claim of 2 x %d read %.0f rows", when, limit, read)
			}
			// Two look-ups per row in indexes that are a few pages deep, and one new version with its entries.
			if blocks := claim.Hit + claim.Read; blocks > 2*limit*40 {
				t.Errorf("%s: a claim of 2 x %d touched %d blocks", when, limit, blocks)
			}
			due := explain(t, db, "", s.sql.nextDue, []string{"billing", "mail", "none"}, []string{})
			if read := due.read("event_notifications"); read > 3 {
				t.Errorf("%s: the next due date took %.0f rows", when, read)
			}
			ids := make([]string, limit)
			for i := range ids {
				ids[i] = uuid.NewString()
			}
			renew := explain(t, db, durable, s.sql.renew, ids, ids, int64(1))
			if blocks := renew.Hit + renew.Read; blocks > limit*10 {
				t.Errorf("%s: renewing %d leases touched %d blocks", when, limit, blocks)
			}
			zeros := make([]int64, limit)
			settle := explain(t, db, fast, s.sql.settle, ids, ids, make([]int32, limit), zeros, zeros, zeros,
				make([]string, limit), make([]string, limit), make([]string, limit), make([]int32, limit), zeros)
			if blocks := settle.Hit + settle.Read; blocks > limit*10 {
				t.Errorf("%s: settling %d deliveries touched %d blocks", when, limit, blocks)
			}
			for _, n := range []int{few, limit} {
				succeed := explain(t, db, fastFor(n), s.sql.succeed, ids[:n], ids[:n])
				if blocks := succeed.Hit + succeed.Read; blocks > n*10 {
					t.Errorf("%s: %d successes touched %d blocks", when, n, blocks)
				}
			}
		}
		check("without statistics")
		db.Exec(`ANALYZE eventlog.event_notifications`)
		check("with statistics")
		orphans := explain(t, db, "", s.sql.orphans, int64(1), []string{}, int64(limit))
		if read := orphans.read("event_notifications"); read > 3*limit {
			t.Errorf("the look for orphans read %.0f rows", read)
		}
	})
}

// TestThePollerReadsWhatItReturns: events that nobody subscribes to stay undelivered for ever (A54), and cost
// the poller nothing; nor do those that are delivered.
func TestThePollerReadsWhatItReturns(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := newTestDB(t, major, layouts()[0])
		s := newStore(t, db.Pool(), schema.Table{})
		for what, n := range map[string]int{
			"'order.placed', true": 20_000, "'nobody.listens', false": 40_000, "'order.placed', false": 2_000, "'order.paid', false": 2_000,
		} {
			typ, delivered, _ := strings.Cut(what, ", ")
			db.Exec(fmt.Sprintf(`INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
    event_type, payload, event_date, delivered)
SELECT gen_random_uuid(), '', gen_random_uuid(), '', '{}', d, d, %s, '{}', d, %s
FROM generate_series(1, %d) n CROSS JOIN LATERAL (SELECT timestamp '2031-05-17 11:00' - n * interval '1 second' AS d) x`, typ, delivered, n))
		}
		events, err := s.eventTable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !events.typeIndex || !events.uniqueID {
			t.Fatal("the indexes of the table were not recognised")
		}
		const limit = 100
		db.Exec(`ANALYZE eventlog.events`)
		for name, args := range map[string][]any{
			"exact":  {false, []string{"order.placed", "order.paid"}, []string{}, []string{}, limit},
			"prefix": {false, []string{}, []string{"order."}, []string{}, limit},
			"all":    {true, []string{}, []string{}, []string{}, limit},
		} {
			if read := explain(t, db, "", events.undelivered, append(args, "main", nil, nil, int64(1<<20))...).read("events"); read > 4*limit {
				t.Errorf("%s: a look for %d events read %.0f rows", name, limit, read)
			}
		}
	})
}

// TestFanOutReadsWhatItMarks: however many rows the event table has, and whatever the statistics say.
func TestFanOutReadsWhatItMarks(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := layouts()[1] // a status, with an index that looks tempting
		db := newTestDB(t, major, l)
		db.Exec(`CREATE INDEX ON "Shop's"."Event ""Log""" (at) WHERE status = 'PENDING'; ANALYZE "Shop's"."Event ""Log"""`)
		db.Exec(`INSERT INTO "Shop's"."Event ""Log""" ("Id", type, at) SELECT md5(n::text)::uuid, 'a', '2031-05-17' FROM generate_series(1, 60000) n`)
		s := newStore(t, db.Pool(), l.table)
		events, err := s.eventTable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const n = 100
		ids, targets, numbers := make([]string, n), make([]string, n), make([]int64, n)
		for i := range n {
			targets[i], numbers[i] = uuid.NewString(), int64(i)+1
			ids[i], _ = schema.EventID("x", fmt.Sprint(i))
		}
		fill := func(s string) []string { return slices.Repeat([]string{s}, n) }
		for _, analysed := range []bool{false, true} {
			if analysed {
				db.Exec(`ANALYZE "Shop's"."Event ""Log"""`)
			}
			for _, n := range []int{few, n} {
				fanOut := explain(t, db, durableFor(n), events.fanOut, ids[:n], ids[:n], numbers[:n], targets[:n], numbers[:n], fill("h")[:n],
					make([]bool, n), make([]int64, n), fill("")[:n], fill("")[:n], uuid.NewString(), "o", int64(1), int64(0))
				if blocks := fanOut.Hit + fanOut.Read; blocks > n*30 {
					t.Errorf("statistics %v: a fan-out of %d events touched %d blocks", analysed, n, blocks)
				}
				late := explain(t, db, durableFor(n), events.markLate, ids[:n], ids[:n], numbers[:n])
				if blocks := late.Hit + late.Read; blocks > n*30 {
					t.Errorf("statistics %v: marking %d events touched %d blocks", analysed, n, blocks)
				}
				b := newFanBatch(delivery.FanOut{})
				for i := range n {
					b.order = append(b.order, i)
					b.Fans = append(b.Fans, delivery.Fan{FromLog: true, Event: event.Event{ID: ids[i], Type: "a", Payload: []byte(`{}`)},
						Targets: []delivery.Target{{ID: uuid.MustParse(targets[i]), Handler: "h"}}})
				}
				image := explain(t, db, durableFor(n), events.image, b.imageArgs(numbers[:n], events.inColumn())...)
				if blocks := image.Hit + image.Read; blocks > n*40 {
					t.Errorf("statistics %v: a fan-out of %d events from their images touched %d blocks", analysed, n, blocks)
				}
			}
		}
	})
}
