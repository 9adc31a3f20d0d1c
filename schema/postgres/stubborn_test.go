package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// count returns the number that the query selects.
func count(t *testing.T, db *testdb.DB, sql string) (n int) {
	t.Helper()
	if err := db.Pool().QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// claimAll leases what is due of handler h.
func claimAll(t *testing.T, s *Store) []delivery.Claimed {
	t.Helper()
	result, err := s.Claim(t.Context(), delivery.Lease{Token: uuid.New(), For: time.Minute},
		[]delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 100, Window: 7 * 24 * time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	return result.Claimed
}

// A date without a beginning must not make the store do arithmetic with infinity, neither in rows
// of ours nor in those of another program.
func TestNextDue_AnInfinitelyOldDeliveryStopsNoLook(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`INSERT INTO public.outbox VALUES (gen_random_uuid(), 'a', '1', '-infinity', false)`)
		fanOut(t, s, undelivered(t, s), false)
		if n := count(t, db, `SELECT count(*) FROM eventlog.event_notifications WHERE next_retry_at = '-infinity'`); n != 0 {
			t.Error("the delivery is due at -infinity")
		}
		db.Exec(`UPDATE eventlog.event_notifications SET next_retry_at = '-infinity'`)
		in, ok, err := s.NextDue(t.Context(), []string{"h", "other"})
		if err != nil || !ok || in != 0 {
			t.Errorf("next due: %v, %v, %v; want it due now", in, ok, err)
		}
	})
}

// Time without a handler does not count against the retry window (DESIGN 6).
func TestM8_UnblockedDeliveriesGetAWholeWindow(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`INSERT INTO public.outbox VALUES (gen_random_uuid(), 'a', '1', now() AT TIME ZONE 'UTC' - interval '30 days', false)`)
		fanOut(t, s, undelivered(t, s), false)
		if n, err := s.BlockOrphans(t.Context(), time.Minute); n != 1 || err != nil {
			t.Fatalf("blocked %d, %v", n, err)
		}
		if n, err := s.Unblock(t.Context(), []string{"h"}); n != 1 || err != nil {
			t.Fatalf("unblocked %d, %v", n, err)
		}
		if n := len(claimAll(t, s)); n != 1 {
			t.Errorf("claimed %d, want the delivery that waited for its handler", n)
		}
	})
}

// A table without a mark is read back to a bound; a row that has no date has not passed it.
func TestPoll_LookBackDoesNotHideRowsWithoutADate(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, typ := range []string{"timestamp", "timestamptz", "date"} {
			l := layout{
				table: schema.Custom("public", "outbox",
					schema.Columns{ID: "id", Type: "type", Payload: "payload", Date: "at"}, schema.Mark{Kind: schema.MarkNone}),
				ddl: `CREATE TABLE public.outbox (id bigint PRIMARY KEY, type text, payload text, at ` + typ + `)`,
			}
			l.table.LookBack = time.Hour
			db := newTestDB(t, major, l)
			s := newStore(t, db.Pool(), l.table)
			db.Exec(`INSERT INTO public.outbox VALUES (1, 'a', 'x', now() - interval '50 hours'), (2, 'a', 'x', NULL)`)
			if found := undelivered(t, s); len(found) != 1 || found[0].Key != "2" {
				t.Errorf("%s: found %v, want the row without a date", typ, found)
			}
		}
	})
}

// A producer that leaves the status null has not said that the event is done.
func TestPending_ANullStatusIsPending(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, typ := range []string{"text", "status"} {
			l := layout{
				table: schema.Custom("public", "outbox",
					schema.Columns{ID: "id", Type: "type", Payload: "payload"}, schema.Mark{Kind: schema.MarkStatus, Column: "status"}),
				ddl: `CREATE TYPE public.status AS ENUM ('PENDING', 'DISPATCHED', 'NO_DELIVERY');
CREATE TABLE public.outbox (id bigint PRIMARY KEY, type text, payload text, status ` + typ + `)`,
			}
			db := newTestDB(t, major, l)
			s := newStore(t, db.Pool(), l.table)
			db.Exec(`INSERT INTO public.outbox VALUES (1, 'a', 'x', NULL), (2, 'a', 'x', 'PENDING'), (3, 'a', 'x', NULL), (4, 'a', 'x', 'DISPATCHED')`)
			found := undelivered(t, s)
			if len(found) != 3 {
				t.Fatalf("%s: found %d, want 3", typ, len(found))
			}
			for i, fromLog := range []bool{true, false} {
				if result := fanOut(t, s, found[i:i+1], fromLog); result.Fresh != 1 || len(result.Created) != 1 {
					t.Errorf("%s: from log %v: %+v", typ, fromLog, result)
				}
			}
			if left := undelivered(t, s); len(left) != 1 {
				t.Errorf("%s: %d are left, want 1", typ, len(left))
			}
		}
	})
}

// A row that is there and does not take the mark is no repeated event: it gets its deliveries without, once,
// whichever path brings it first.
func TestFanOut_RowsThatCannotBeMarkedAreDelivered(t *testing.T) {
	const role = `DO $$ BEGIN CREATE ROLE restricted LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
GRANT USAGE ON SCHEMA eventlog, public TO restricted; GRANT ALL ON ALL TABLES IN SCHEMA eventlog, public TO restricted;
ALTER TABLE public.outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY readable ON public.outbox FOR SELECT USING (true)`
	const trigger = `CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE UPDATE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.keep()`
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for name, ddl := range map[string]string{"trigger": trigger, "policy": role} {
			for _, fromLog := range []bool{true, false} {
				t.Run(fmt.Sprint(name, " from log ", fromLog), func(t *testing.T) {
					l := outbox("bigint PRIMARY KEY")
					db := newTestDB(t, major, l)
					db.Exec(ddl)
					pool := db.Pool()
					if name == "policy" {
						pool = newPoolAs(t, db, "restricted")
					}
					var logged strings.Builder
					s, err := New(pool, Config{Table: l.table, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
					if err != nil {
						t.Fatal(err)
					}
					db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES (1, 'a', '{"n": 1}'), (2, 'a', '{"n": 2}')`)
					events := undelivered(t, s)
					if len(events) != 2 {
						t.Fatalf("%d events are undelivered, want 2", len(events))
					}
					for _, e := range events {
						if result := fanOut(t, s, []event.Event{e}, fromLog); result.Unmarked != 1 || result.Repeated != 0 || len(result.Created) != 1 {
							t.Errorf("first time: %+v", result)
						}
					}
					for _, fromLog := range []bool{true, false} {
						if result := fanOut(t, s, events, fromLog); result.Unmarked != 0 || result.Repeated != 2 || len(result.Created) != 0 {
							t.Errorf("again: %+v", result)
						}
					}
					if n := count(t, db, `SELECT count(*) FROM eventlog.event_notifications WHERE payload IS NOT NULL AND state = 'PENDING'`); n != 2 {
						t.Errorf("there are %d deliveries, want 2", n)
					}
					if n := strings.Count(logged.String(), "does not let their rows be marked"); n != 1 {
						t.Errorf("reported %d times, want once: %s", n, &logged)
					}
				})
			}
		}
	})
}

// newPoolAs opens a pool for another role.
func newPoolAs(t *testing.T, db *testdb.DB, role string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// The id of an event is made of its key's text, and the log's reader has settings of its own: whatever those
// of the pool, both must come to the same id, or the event is delivered twice.
func TestEventID_DoesNotDependOnTheSession(t *testing.T) {
	keys := []struct{ typ, literal, text string }{
		{"bytea", "decode('00ff27', 'hex')", `\x00ff27`},
		{"timestamptz", "'2026-01-01 00:00:00.120+00'", "2026-01-01 00:00:00.12+00"},
		{"timestamptz", "'0044-03-15 12:00:00+00 BC'", "0044-03-15 12:00:00+00 BC"},
		{"timestamptz", "'infinity'", "infinity"},
		{"timestamp", "'2026-12-01 10:11:12.000001'", "2026-12-01 10:11:12.000001"},
		{"timestamp", "'-infinity'", "-infinity"},
		{"date", "'2026-12-01'", "2026-12-01"},
		{"date", "'0044-03-15 BC'", "0044-03-15 BC"},
		{"text", "'Größe'", "Größe"},
		{"numeric", "1.50", "1.50"},
	}
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, key := range keys {
			l := layout{
				table: schema.Custom("public", "outbox", schema.Columns{ID: "id", Type: "type", Payload: "payload"}, schema.Mark{Kind: schema.MarkNone}),
				ddl:   `CREATE TABLE public.outbox (id ` + key.typ + ` PRIMARY KEY, type text, payload text)`,
			}
			db := newTestDB(t, major, l)
			for name, value := range map[string]string{
				"bytea_output": "escape", "timezone": "Asia/Tokyo", "datestyle": "German", "standard_conforming_strings": "off",
			} {
				db.Exec(`ALTER DATABASE ` + pgx.Identifier{db.Name()}.Sanitize() + ` SET ` + name + ` = '` + value + `'`)
			}
			db.Exec(`INSERT INTO public.outbox VALUES (` + key.literal + `, 'a', 'x')`)
			s := newStore(t, newPool(t, db, pgx.QueryExecModeCacheStatement), l.table)
			found := undelivered(t, s)
			want, _ := schema.EventID("public.outbox", key.text)
			if len(found) != 1 || found[0].ID != want || found[0].Key != key.text {
				t.Errorf("%s %s: the poller reads %+v, the log has %s %q", key.typ, key.literal, found, want, key.text)
				continue
			}
			fanOut(t, s, []event.Event{{ID: want, Key: key.text, Type: "a", Payload: []byte("x")}}, true)
			if again := undelivered(t, s); len(again) != 0 {
				t.Errorf("%s %s: the poller finds it again after the fan-out from the log", key.typ, key.literal)
			}
		}
	})
}

// A key whose text depends on the session cannot name an event.
func TestCheckSchema_RefusesKeysWhoseTextDependsOnTheSession(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, typ := range []string{"float8", "real", "interval", "money", "text[]", "int4range"} {
			l := outbox(typ)
			db := newTestDB(t, major, l)
			var problems schema.Problems
			if err := newStore(t, db.Pool(), l.table).CheckSchema(t.Context()); !errors.As(err, &problems) || problems[0].Field != "columns.id" {
				t.Errorf("%s: got %v", typ, err)
			}
		}
	})
}

// One row that cannot be read must not keep the poller from all others (promise 5). It is reported once, and
// found when it can be read again.
func TestPoll_ARowThatCannotBeReadStopsNoOther(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("bigint PRIMARY KEY")
		l.table.Columns.ModelID = "model"
		db := newTestDB(t, major, l)
		// The output function of a user's type may fail; here, a view stands for it.
		db.Exec(`ALTER TABLE public.outbox RENAME TO store;
CREATE FUNCTION public.model(n bigint) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN IF n = 13 THEN RAISE EXCEPTION 'unreadable' USING ERRCODE = 'data_corrupted'; END IF; RETURN n::text; END $$;
CREATE VIEW public.outbox AS SELECT *, public.model(id) AS model FROM public.store;
INSERT INTO public.store SELECT n, 'a', '1', timestamp '2031-05-17' + n * interval '1 second', false FROM generate_series(1, 40) n`)
		var logged strings.Builder
		s, err := New(db.Pool(), Config{Table: l.table, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			found := undelivered(t, s)
			if len(found) != 39 {
				t.Fatalf("found %d events, want the 39 that can be read", len(found))
			}
			for i, e := range found {
				if n := i + 1; (n < 13 && e.Key != fmt.Sprint(n)) || (n >= 13 && e.Key != fmt.Sprint(n+1)) {
					t.Fatalf("event %d has key %s: not the oldest first", i, e.Key)
				}
			}
		}
		if n := strings.Count(logged.String(), "cannot be read"); n != 1 {
			t.Errorf("reported %d times, want once: %s", n, &logged)
		}
	})
}

// A date may lie beyond every timestamp.
func TestPoll_ADateBeyondEveryTimestampIsRead(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := layout{
			table: schema.Custom("public", "outbox",
				schema.Columns{ID: "id", Type: "type", Payload: "payload", Date: "at"}, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"}),
			ddl: `CREATE TABLE public.outbox (id bigint PRIMARY KEY, type text, payload text, at date, sent boolean NOT NULL DEFAULT false)`,
		}
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`INSERT INTO public.outbox VALUES (1, 'a', 'x', '5874897-12-31'), (2, 'a', 'x', CURRENT_DATE), (3, 'a', 'x', 'infinity'), (4, 'a', 'x', NULL)`)
		found := undelivered(t, s)
		if len(found) != 4 {
			t.Fatalf("found %d events, want 4", len(found))
		}
		if result := fanOut(t, s, found, true); result.Fresh != 4 || len(result.Created) != 4 {
			t.Errorf("got %+v", result)
		}
		if n := len(claimAll(t, s)); n != 4 {
			t.Errorf("claimed %d, want 4", n)
		}
	})
}

// Deliveries that are blocked for another reason may be many, and the look for those to revive, which is made
// each minute, reads none of them.
func TestUnblock_ReadsOnlyWhatItRevives(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := newTestDB(t, major, layouts()[0])
		s := newStore(t, db.Pool(), schema.Table{})
		db.Exec(`INSERT INTO eventlog.event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
    started_date, completion_date, event_type, event_date, state, attempts, next_retry_at, created_date, updated_date, reason)
SELECT gen_random_uuid(), gen_random_uuid(), 'h', '', gen_random_uuid(), '', '{}', d, d, 't', d, 'BLOCKED', 0, d, d, d,
    CASE WHEN n <= 5 THEN 'no_handler' ELSE 'undecodable' END
FROM generate_series(1, 20000) n CROSS JOIN (SELECT timestamp '2031-05-17' AS d) x`)
		for _, statistics := range []bool{false, true} {
			if statistics {
				db.Exec(`ANALYZE eventlog.event_notifications`)
			}
			if read := explain(t, db, "", s.sql.stuck, []string{"h"}, []string{}, int64(stepSize)).read("event_notifications"); read > 50 {
				t.Errorf("statistics %v: the look for 5 deliveries read %.0f rows", statistics, read)
			}
		}
		if n, err := s.Unblock(t.Context(), []string{"h"}); n != 5 || err != nil {
			t.Errorf("unblocked %d, %v", n, err)
		}
	})
}

// Marking rows that came into sight late is a favour to the poller: when a session has locked one of them,
// neither path waits for it.
func TestMarkLate_WaitsForNoLock(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("bigint PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		late := event.Event{Key: "1", Type: "a", Payload: []byte("1")}
		late.ID, _ = schema.EventID("public.outbox", late.Key)
		if result := fanOut(t, s, []event.Event{late}, true); result.Absent != 1 {
			t.Fatalf("got %+v", result)
		}
		db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES (1, 'a', '1'), (2, 'a', '2')`)
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SELECT FROM public.outbox WHERE id = 1 FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.late.tried = time.Time{}
		found, err := s.Undelivered(ctx, delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 9, Skip: []string{late.ID}})
		if err != nil || len(found.Events) != 1 || found.Events[0].Key != "2" {
			t.Fatalf("found %v, %v", found, err)
		}
		s.late.tried = time.Time{}
		if result := fanOut(t, s, found.Events, true); result.Fresh != 1 {
			t.Errorf("got %+v", result)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.late.tried = time.Time{}
		if left := undelivered(t, s); len(left) != 0 {
			t.Errorf("%d events are left after the lock", len(left))
		}
	})
}
