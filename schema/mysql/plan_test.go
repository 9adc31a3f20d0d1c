package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// rowsRead runs fn in a session and returns how many rows and index entries it read.
func (w world) rowsRead(t *testing.T, fn func(q querier) error) (n int) {
	t.Helper()
	err := w.store.session(t.Context(), lockSeconds, func(conn *sql.Conn) error {
		if _, err := conn.ExecContext(t.Context(), "FLUSH STATUS"); err != nil {
			return err
		}
		tx, err := conn.BeginTx(t.Context(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := fn(tx); err != nil {
			return err
		}
		_, err = collect(t.Context(), tx, func(rows *sql.Rows) (struct{}, error) {
			var name string
			var value int
			err := rows.Scan(&name, &value)
			n += value
			return struct{}{}, err
		}, "SHOW SESSION STATUS LIKE 'Handler_read%'")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fill copies the one delivery that there is, into n rows of a handler and a state, due one second after the other
// from the given number of seconds ago.
func (w world) fill(t *testing.T, handler, state string, n, ago int) {
	t.Helper()
	id := "UUID()"
	w.exec(t, fmt.Sprintf(`INSERT INTO event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date,
    completion_date, event_type, event_date, state, next_retry_at, created_date, updated_date)
SELECT %[1]s, %[1]s, '%[2]s', '', %[1]s, '', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'a', UTC_TIMESTAMP(6), '%[3]s',
    UTC_TIMESTAMP(6) - INTERVAL %[5]d SECOND + INTERVAL n MICROSECOND, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
FROM (WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %[4]d) SELECT n FROM s) AS s`, id, handler, state, min(n, 1000), ago))
	for have := min(n, 1000); have < n; have += min(have, n-have) {
		w.exec(t, fmt.Sprintf(`INSERT INTO event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params, started_date,
    completion_date, event_type, event_date, state, next_retry_at, created_date, updated_date)
SELECT %[1]s, %[1]s, handler_name, namespace, action_id, action_name, action_params, started_date, completion_date, event_type, event_date, state,
    next_retry_at, created_date, updated_date FROM event_notifications WHERE handler_name = '%[2]s' AND state = '%[3]s' LIMIT %[4]d`,
			id, handler, state, min(have, n-have)))
	}
}

// TestAClaimReadsWhatItTakes (Q8, Q10, Q11): however many deliveries have ended, wait for a busy handler or are to come; without a
// sort, and with a snapshot open that keeps the old versions of rows alive. Two sessions that claim at once get
// different rows.
func TestAClaimReadsWhatItTakes(t *testing.T) {
	const limit = 20
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		ctx := t.Context()
		w.exec(t, "DROP TRIGGER refuse_insert")
		w.fill(t, "billing", "SUCCEEDED", 8000, 7200)
		w.fill(t, "billing", "DEAD", 1000, 7200)
		w.fill(t, "billing", "PENDING", 500, 3600)
		w.fill(t, "billing", "FAILED", 500, 3600)
		w.fill(t, "busy", "PENDING", 1000, 7200)
		w.fill(t, "later", "PENDING", 1000, -7200)
		snapshot := w.begin(t)
		if _, err := snapshot.ExecContext(ctx, "SELECT COUNT(*) FROM event_notifications"); err != nil {
			t.Fatal(err)
		}
		o, err := w.store.ourTables(ctx)
		if err != nil {
			t.Fatal(err)
		}
		srv, err := w.store.serverOf(ctx)
		if err != nil {
			t.Fatal(err)
		}
		claim := func(limit int) *claiming {
			return &claiming{
				Store: w.store, lease: someLease(), claims: append(claimOf("billing", limit), claimOf("later", limit)...),
				leased: make([]int, 2), ended: make([]bool, 2),
			}
		}
		c := claim(limit)
		if n := w.rowsRead(t, func(q querier) error {
			_, events, err := c.take(ctx, q, o, srv, c.wanted(false), nil)
			if len(events) != limit {
				t.Errorf("took %d", len(events))
			}
			return err
		}); n > 12*limit {
			t.Errorf("a claim of %d deliveries read %d rows", limit, n)
		}
		if n := w.rowsRead(t, func(querier) error {
			_, _, err := w.store.NextDue(ctx, []string{"billing", "later", "busy"})
			return err
		}); n > 50 {
			t.Errorf("a look at the next due time read %d rows", n)
		}
		// One session holds its claim; the other one gets the next rows, at once.
		first := w.begin(t)
		a := claim(5)
		_, mine, err := a.take(ctx, first, o, srv, a.wanted(false), nil)
		if err != nil || len(mine) != 5 {
			t.Fatalf("took %d, %v", len(mine), err)
		}
		theirs, err := w.store.Claim(ctx, someLease(), claimOf("billing", 5))
		if err != nil || len(theirs.Claimed) != 5 {
			t.Fatalf("claimed %d, %v", len(theirs.Claimed), err)
		}
		for _, one := range theirs.Claimed {
			if _, twice := mine[one.ID]; twice {
				t.Errorf("%s was taken twice", one.ID)
			}
		}
		claimWithoutSort(t, w, o)
	})
}

func claimWithoutSort(t *testing.T, w world, o *ourTables) {
	t.Helper()
	rows, err := w.pool.QueryContext(t.Context(), "EXPLAIN "+w.store.dueSQL(o, "", "FOR UPDATE SKIP LOCKED"), 0, "billing", "PENDING", 20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		plan := make([]string, len(columns))
		into := make([]any, len(columns))
		for i := range plan {
			into[i] = textTarget{&plan[i]}
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(plan, "|")
		if strings.Contains(text, "filesort") || !strings.Contains(text, claimIndex) {
			t.Errorf("the plan of a claim: %s", text)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestALookReadsWhatItFinds (A54): however many rows are delivered, or have a type that nobody wants; and a
// fan-out reads the rows that it marks.
func TestALookReadsWhatItFinds(t *testing.T) {
	const limit = 50
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		ctx := t.Context()
		for typ, delivered := range map[string]int{"order.placed": 0, "order.paid": 0, "unwanted": 0, "zz": 1} {
			w.exec(t, fmt.Sprintf(`INSERT INTO events (id, namespace, action_id, action_name, action_params, started_date, completion_date, event_type, payload,
    event_date, delivered)
SELECT UUID(), '', UUID(), '', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '%s', '{}', '2026-01-01' + INTERVAL n SECOND, %d
FROM (WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000) SELECT n FROM s) AS s`, typ, delivered))
		}
		events, err := w.store.eventTable(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if events.typeIndex == "" || !events.uniqueID {
			t.Fatal("the indexes of the table were not recognised")
		}
		var found []event.Event
		for name, q := range map[string]delivery.Undelivered{
			"exact":  {Types: delivery.Match{Exact: []string{"order.placed", "order.paid"}}},
			"prefix": {Types: delivery.Match{Prefixes: []string{"order."}}},
			"all":    allTypes(),
		} {
			q.Limit = limit
			if n := w.rowsRead(t, func(session querier) error {
				l, err := w.store.newLook(session, events, q)
				if err != nil {
					return err
				}
				err = l.look(ctx)
				found = l.found.Events
				return err
			}); n > 10*limit || len(found) != limit {
				t.Errorf("%s: a look read %d rows for %d events", name, n, len(found))
			}
		}
		o, err := w.store.ourTables(ctx)
		if err != nil {
			t.Fatal(err)
		}
		srv, err := w.store.serverOf(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var fans []delivery.Fan
		for _, e := range found {
			fans = append(fans, someFan(e, "billing"))
		}
		f := &fanning{Store: w.store, b: newFanBatch(delivery.FanOut{Lease: someLease(), Fans: fans})}
		if n := w.rowsRead(t, func(q querier) error {
			p, err := f.try(ctx, q, events, o, srv, numbers(0, limit), lockFree)
			if err == nil && len(p.created) != limit {
				t.Errorf("created %d", len(p.created))
			}
			return err
		}); n > 15*limit {
			t.Errorf("a fan-out of %d events read %d rows", limit, n)
		}
	})
}

// TestSessionsOfAllKinds: sessions in three time zones, under REPEATABLE READ and SERIALIZABLE, with a snapshot
// isolation that refuses changed rows, agree on times and on leases (Q14).
func TestSessionsOfAllKinds(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[1], Config{}) // whose dates are TIMESTAMPs, which move with the zone
		ctx := t.Context()
		isolation := "transaction_isolation"
		if kind.IsMariaDB() {
			isolation = "tx_isolation"
		}
		e := someEvents(1)[0]
		w.InsertEvents(t, e)
		w.fanOut(t, someFan(e, "billing"))
		w.exec(t, "UPDATE "+w.t.from+" SET status = 'PENDING'")
		for i, zone := range []string{"'+00:00'", "'-11:00'", "'+13:00'"} {
			pool := poolOf(t, w.db, func(cfg *driver.Config) {
				cfg.Params = map[string]string{"time_zone": zone, isolation: []string{"'REPEATABLE-READ'", "'SERIALIZABLE'", "'READ-UNCOMMITTED'"}[i]}
				if kind == testdb.MariaDB118 {
					cfg.Params["innodb_snapshot_isolation"] = "ON"
				}
			})
			s := newStore(t, w.db, pool, Config{Table: w.table})
			found, err := s.Undelivered(ctx, delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 5})
			if err != nil || len(found.Events) != 1 || !found.Events[0].Date.Equal(e.Date) || time.Since(found.At).Abs() > time.Hour {
				t.Errorf("%s: found %+v, %v", zone, found, err)
			}
			claimed, err := s.Claim(ctx, someLease(), claimOf("billing", 5))
			if err != nil || len(claimed.Claimed) != 1 || !claimed.Claimed[0].Event.Date.Equal(e.Date) {
				t.Fatalf("%s: claimed %+v, %v", zone, claimed, err)
			}
			// Nobody else gets it while it is leased, whatever their zone, and everybody afterwards.
			if in, ok, err := w.store.NextDue(ctx, []string{"billing"}); err != nil || !ok || in > time.Minute || in < 10*time.Second {
				t.Errorf("%s: due in %s, %t, %v", zone, in, ok, err)
			}
			if others, err := w.store.Claim(ctx, someLease(), claimOf("billing", 5)); err != nil || len(others.Claimed) != 0 {
				t.Errorf("%s: claimed %+v, %v", zone, others, err)
			}
			one := claimed.Claimed[0]
			if settled, err := s.Settle(ctx, []delivery.Outcome{{ID: one.ID, Token: one.Token, Verdict: delivery.GiveBack}}); err != nil || len(settled) != 1 {
				t.Errorf("%s: settled %+v, %v", zone, settled, err)
			}
			var level string
			if err := s.once(ctx, lockSeconds, func(q querier) error {
				return q.QueryRowContext(ctx, "SELECT @@"+isolation).Scan(&level)
			}); err != nil || level != "READ-COMMITTED" {
				t.Errorf("%s: runs at %s, %v", zone, level, err)
			}
		}
	})
}

// TestLargeBatchesAreCut: 20 MB of payloads, more than one statement may have.
func TestLargeBatchesAreCut(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		ctx := context.WithoutCancel(t.Context())
		events := someEvents(20)
		payload := []byte(`{"text": "` + strings.Repeat(`'\\`, 333_000) + `"}`)
		var fans []delivery.Fan
		for i := range events {
			events[i].Payload = payload
			if i%2 == 0 {
				w.InsertEvents(t, events[i])
			}
			fans = append(fans, someFan(events[i], "a", "b"))
		}
		fans[0].Targets[0].ID = uuid.New()
		result, err := w.store.FanOut(ctx, delivery.FanOut{Lease: someLease(), Fans: fans})
		if err != nil || len(result.Created) != 40 || result.Absent != 10 {
			t.Fatalf("created %d, %d absent, %v", len(result.Created), result.Absent, err)
		}
		var total int
		w.row(t, []any{&total}, "SELECT SUM(LENGTH(payload)) FROM event_notifications")
		if total < 38_000_000 {
			t.Errorf("%d bytes arrived", total)
		}
	})
}
