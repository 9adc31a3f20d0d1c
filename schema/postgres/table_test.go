package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// outbox is a small event table with a key of the given type.
func outbox(key string) layout {
	return layout{
		table: schema.Custom("public", "outbox",
			schema.Columns{ID: "id", Type: "type", Payload: "payload", Date: "at"}, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"}),
		ddl: `CREATE TABLE public.outbox (id ` + key + `, type text, payload jsonb, at timestamp DEFAULT '2031-05-17', sent boolean)`,
	}
}

func undelivered(t *testing.T, s *Store) []event.Event {
	t.Helper()
	found, err := s.Undelivered(t.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return found.Events
}

func fanOut(t *testing.T, s *Store, events []event.Event, fromLog bool) delivery.FanOutResult {
	t.Helper()
	batch := delivery.FanOut{Lease: delivery.Lease{Token: uuid.New(), For: time.Minute}}
	for _, e := range events {
		batch.Fans = append(batch.Fans, delivery.Fan{
			Event: e, FromLog: fromLog, Targets: []delivery.Target{{ID: uuid.New(), Handler: "h"}},
		})
	}
	result, err := s.FanOut(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestDerivedKeys: a table whose key is no UUID is read, marked and delivered by its own key.
func TestDerivedKeys(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`INSERT INTO public.outbox (type, payload) SELECT 'order.placed', to_jsonb(n) FROM generate_series(1, 5) n`)
		events := undelivered(t, s)
		if len(events) != 5 {
			t.Fatalf("got %d events", len(events))
		}
		for _, e := range events {
			if want, _ := schema.EventID("public.outbox", e.Key); e.ID != want || e.Key == "" {
				t.Errorf("event %q has id %s, want %s", e.Key, e.ID, want)
			}
		}
		if result := fanOut(t, s, events[:3], false); result.Fresh != 3 || len(result.Created) != 3 {
			t.Errorf("got %+v", result)
		}
		left := undelivered(t, s)
		if diff := cmp.Diff(events[3:], left); diff != "" {
			t.Error(diff)
		}
		// Skipping works by event id.
		skipped, err := s.Undelivered(t.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 9, Skip: []string{left[0].ID}})
		if err != nil || len(skipped.Events) != 1 || skipped.Events[0].ID != left[1].ID {
			t.Errorf("got %v, %v", skipped, err)
		}
		db.Exec(`DELETE FROM public.outbox WHERE id = 5`)
		if result := fanOut(t, s, left, true); result.Fresh != 1 || result.Absent != 1 || len(result.Created) != 2 {
			t.Errorf("got %+v", result)
		}
		if err := s.Quarantine(t.Context(), delivery.Fan{
			Event: events[0], Targets: []delivery.Target{{ID: uuid.New(), Handler: "other"}},
		}, errors.New("x")); err != nil {
			t.Error(err)
		}
	})
}

// TestT51_KeysThatAreNotUnique: rows that share a key share their deliveries, and are reported.
func TestT51_KeysThatAreNotUnique(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		id := uuid.NewString()
		db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES ('` + id + `', 'a', '1'), ('` + id + `', 'a', '2'), (gen_random_uuid(), 'a', '3')`)
		events := undelivered(t, s)
		if len(events) != 3 {
			t.Fatalf("got %d events", len(events))
		}
		result := fanOut(t, s, events, true)
		if len(result.Created) != 2 || result.Fresh != 2 || result.Repeated != 1 || !slices.Equal(result.DuplicateIDs, []string{id}) {
			t.Errorf("got %+v", result)
		}
		if left := undelivered(t, s); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		// A third row comes later.
		db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES ('` + id + `', 'a', '4')`)
		result = fanOut(t, s, undelivered(t, s), true)
		if len(result.Created) != 0 || !slices.Equal(result.DuplicateIDs, []string{id}) {
			t.Errorf("got %+v", result)
		}
	})
}

// TestT51_RowsWithoutAKey: they can have no delivery; they are counted and stop nothing.
func TestT51_RowsWithoutAKey(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for key, nameless := range map[string]string{"uuid": "NULL", "text": "''", "bigint": "NULL"} {
			l := outbox(key)
			db := newTestDB(t, major, l)
			s := newStore(t, db.Pool(), l.table)
			db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES
				(` + nameless + `, 'a', '1'), (NULL, 'a', '2'), (NULL, NULL, NULL), (NULL, '', NULL)`)
			if events := undelivered(t, s); len(events) != 0 {
				t.Errorf("%s: got %v", key, events)
			}
			for limit, want := range map[int]int{10: 2, 1: 1} {
				if n, err := s.CountUnidentifiable(t.Context(), limit); n != want || err != nil {
					t.Errorf("%s: counted %d, %v; want %d", key, n, err, want)
				}
			}
		}
		db := newTestDB(t, major, layouts()[0])
		if n, err := newStore(t, db.Pool(), schema.Table{}).CountUnidentifiable(t.Context(), 10); n != 0 || err != nil {
			t.Errorf("counted %d, %v", n, err)
		}
	})
}

// TestMarksThatCanBeNull: a null mark is not "fanned out".
func TestMarksThatCanBeNull(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`INSERT INTO public.outbox (id, type, payload, sent) SELECT gen_random_uuid(), 'a', '1', s FROM unnest(ARRAY[NULL, false, true]) s`)
		events := undelivered(t, s)
		if len(events) != 2 {
			t.Fatalf("got %d events", len(events))
		}
		if result := fanOut(t, s, events, false); result.Fresh != 2 || len(undelivered(t, s)) != 0 {
			t.Errorf("got %+v", result)
		}
	})
}

// TestLookBackBoundsTheLook: a table without a mark is read back to a point only.
func TestLookBackBoundsTheLook(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, typ := range []string{"timestamp", "timestamptz", "date"} {
			table := schema.Debezium("", "")
			table.Columns.Date, table.LookBack = "at", 48*time.Hour
			db := newTestDB(t, major, layout{table: table, ddl: `CREATE TABLE public.outboxevent
				(id uuid, aggregatetype text, aggregateid text, type text, payload jsonb, at ` + typ + `)`})
			s := newStore(t, db.Pool(), table)
			s.sql = render(s.schema, frozenClock)
			db.Exec(`INSERT INTO public.outboxevent SELECT gen_random_uuid(), 'a', 'a', at, '1', at::` + typ + `
				FROM unnest(ARRAY['2031-05-14', '2031-05-16', '2031-05-17']) at`)
			var got []string
			for _, e := range undelivered(t, s) {
				got = append(got, e.Type)
			}
			if diff := cmp.Diff([]string{"2031-05-16", "2031-05-17"}, got); diff != "" {
				t.Errorf("%s:\n%s", typ, diff)
			}
		}
	})
}

// An id that is none is the event's fault, as if the database had said so: the fan-out halves its batch until it stands alone.
func TestAnIdThatIsNoUUIDIsRejected(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		s := newStore(t, newTestDB(t, major, layouts()[0]).Pool(), schema.Table{})
		_, err := s.FanOut(t.Context(), delivery.FanOut{Fans: []delivery.Fan{{Event: event.Event{ID: "secret", Type: "a"}}}})
		if err == nil || !s.Rejected(err) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
	})
}

func TestPositionOutlivesAProcessThatHasNone(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		s := newStore(t, newTestDB(t, major, layouts()[0]).Pool(), schema.Table{})
		for _, step := range []struct {
			mode            cdc.Mode
			confirmed, want cdc.Position
		}{
			{cdc.ModeConnecting, "", ""},
			{cdc.ModeStreaming, "0/3", "0/3"},
			{cdc.ModeConnecting, "", "0/3"},
			{cdc.ModeStopped, "", "0/3"},
			{cdc.ModeStreaming, "0/4", "0/4"},
			{cdc.ModePolling, "", ""}, // which needs no slot
		} {
			if err := s.RecordSource(t.Context(), "main", "one", cdc.Status{Mode: step.mode, Confirmed: step.confirmed}); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Position(t.Context(), "main"); err != nil || got != step.want {
				t.Errorf("after %q in mode %s: %q, %v, want %q", step.confirmed, step.mode, got, err, step.want)
			}
		}
		if got, err := s.Position(t.Context(), "other"); err != nil || got != "" {
			t.Errorf("of an unknown source: %q, %v", got, err)
		}
	})
}

// TestQuarantineWhenTheMarkIsRefused: the event is shown as BLOCKED all the same.
func TestQuarantineWhenTheMarkIsRefused(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
CREATE TRIGGER no BEFORE UPDATE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.no()`)
		db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES (gen_random_uuid(), 'a', '1')`)
		fan := delivery.Fan{Event: undelivered(t, s)[0], Targets: []delivery.Target{{ID: uuid.New(), Handler: "h"}}}
		_, err := s.FanOut(t.Context(), delivery.FanOut{Fans: []delivery.Fan{fan}})
		if !s.Rejected(err) {
			t.Fatalf("got %v", err)
		}
		if err := s.Quarantine(t.Context(), fan, err); !s.Rejected(err) {
			t.Errorf("got %v", err)
		}
		var state, lastError string
		if err := db.Pool().QueryRow(t.Context(), `SELECT state, last_error FROM eventlog.event_notifications`).Scan(&state, &lastError); err != nil {
			t.Fatal(err)
		}
		if state != "BLOCKED" || lastError != "sqlstate_P0001" {
			t.Errorf("got %s, %s", state, lastError)
		}
	})
}

// TestARefusedImageFreesWhatWasLeased: a batch with a row that is in the table, and an image that the
// database refuses, fails; what was leased for it before is not left waiting.
func TestARefusedImageFreesWhatWasLeased(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES (gen_random_uuid(), 'a', '1')`)
		events := append(undelivered(t, s), event.Event{ID: uuid.NewString(), Type: "a", Payload: []byte("no json")})
		batch := delivery.FanOut{Lease: delivery.Lease{Token: uuid.New(), For: time.Hour}}
		for _, e := range events {
			batch.Fans = append(batch.Fans, delivery.Fan{
				Event: e, FromLog: true, Targets: []delivery.Target{{ID: uuid.New(), Handler: "h", Lease: true}},
			})
		}
		if _, err := s.FanOut(t.Context(), batch); !s.Rejected(err) {
			t.Fatalf("got %v", err)
		}
		result, err := s.Claim(t.Context(), delivery.Lease{Token: uuid.New(), For: time.Hour},
			[]delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 5}})
		if err != nil || len(result.Claimed) != 1 || result.Claimed[0].Claims != 1 {
			t.Errorf("got %+v, %v", result, err)
		}
	})
}

// TestOnlyAcknowledgementsDoNotWaitForTheDisk: whatever the database is set to. A fan-out that a crash
// forgets would be lost when the log has been told that it is done, so would the record of a gap, and a lease would be given twice.
func TestOnlyAcknowledgementsDoNotWaitForTheDisk(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, setting := range []string{"on", "off", "local"} {
			db := newTestDB(t, major, layouts()[0])
			db.Exec(`CREATE TABLE storetest.seen (what text);
CREATE FUNCTION storetest.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO storetest.seen VALUES (TG_OP || ' ' || COALESCE(to_jsonb(NEW)->>'state', TG_TABLE_NAME) || ' ' || current_setting('synchronous_commit')); RETURN NEW; END $$;
CREATE TRIGGER see BEFORE INSERT OR UPDATE ON eventlog.event_notifications FOR EACH ROW EXECUTE FUNCTION storetest.see();
CREATE TRIGGER see BEFORE INSERT ON eventlog.gaps FOR EACH ROW EXECUTE FUNCTION storetest.see();
INSERT INTO eventlog.events VALUES (gen_random_uuid(), 'n', gen_random_uuid(), 'a', '{}', now(), now(), '1', 'M', 'E', '{}', now(), false)`)
			db.Exec(`ALTER DATABASE "` + db.Name() + `" SET synchronous_commit = '` + setting + `'`)
			pool := newPool(t, db, pgx.QueryExecModeCacheStatement)
			s := newStore(t, pool, schema.Table{})
			waits := setting
			if setting == "off" {
				waits = "on"
			}
			want := []string{
				"INSERT PENDING " + waits, "INSERT PENDING " + waits, "INSERT BLOCKED " + waits,
				"UPDATE PENDING " + waits, "UPDATE PENDING " + waits, "UPDATE SUCCEEDED off", "INSERT gaps " + waits,
			}
			absent := undelivered(t, s)[0]
			absent.ID = uuid.NewString()
			fanOut(t, s, append(undelivered(t, s), absent), true)
			if err := s.Quarantine(t.Context(), delivery.Fan{
				Event: absent, Targets: []delivery.Target{{ID: uuid.New(), Handler: "q"}},
			}, errors.New("x")); err != nil {
				t.Fatal(err)
			}
			claimed, err := s.Claim(t.Context(), delivery.Lease{Token: uuid.New(), For: time.Hour},
				[]delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 1}})
			if err != nil || len(claimed.Claimed) != 1 {
				t.Fatalf("got %+v, %v", claimed, err)
			}
			c := claimed.Claimed[0]
			if _, err := s.Renew(t.Context(), []delivery.LeaseRef{{ID: c.ID, Token: c.Token}}, time.Hour); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Settle(t.Context(), []delivery.Outcome{{ID: c.ID, Token: c.Token, Verdict: delivery.Success}}); err != nil {
				t.Fatal(err)
			}
			if err := s.RecordGap(t.Context(), "a", cdc.Gap{Reason: "slot_missing", From: "0/1", To: "0/2"}); err != nil {
				t.Fatal(err)
			}
			rows, err := db.Pool().Query(t.Context(), `SELECT what FROM storetest.seen`)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("synchronous_commit %s:\n%s", setting, diff)
			}
			for _, conn := range pool.AcquireAllIdle(t.Context()) {
				var left string
				if err := conn.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&left); err != nil || left != setting {
					t.Errorf("a connection is left with synchronous_commit %s, %v", left, err)
				}
				conn.Release()
			}
		}
	})
}

// TestQ32_LargeSequences: identity values beyond 32 bits, and beyond what a float can hold.
func TestQ32_LargeSequences(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("bigint PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		for i, start := range []int64{1 << 31, 1<<53 + 1} {
			db.Exec(fmt.Sprintf(`ALTER TABLE eventlog.event_notification_attempts ALTER id RESTART WITH %d`, start))
			db.Exec(fmt.Sprintf(`INSERT INTO public.outbox (id, type, payload) VALUES (%d, 'a', '1')`, start))
			events := undelivered(t, s)
			if len(events) != 1 || events[0].Key != fmt.Sprint(start) {
				t.Fatalf("got %+v", events)
			}
			fanOut(t, s, events, false)
			claimed, err := s.Claim(t.Context(), delivery.Lease{Token: uuid.New(), For: time.Hour},
				[]delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 5}})
			if err != nil || len(claimed.Claimed) != 1 {
				t.Fatalf("got %+v, %v", claimed, err)
			}
			c := claimed.Claimed[0]
			settled, err := s.Settle(t.Context(), []delivery.Outcome{{ID: c.ID, Token: c.Token, Verdict: delivery.Fail, Error: "x"}})
			if err != nil || len(settled) != 1 {
				t.Fatalf("got %+v, %v", settled, err)
			}
			var n, most int64
			if err := db.Pool().QueryRow(t.Context(), `SELECT count(*), max(id) FROM eventlog.event_notification_attempts`).Scan(&n, &most); err != nil {
				t.Fatal(err)
			}
			if n != int64(i)+1 || most != start {
				t.Errorf("%d attempts, the last is %d, want %d", n, most, start)
			}
		}
	})
}

// TestRecordSource: a process that stands by does not hide the one that reads.
func TestRecordSource(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := newTestDB(t, major, layouts()[0])
		s := newStore(t, db.Pool(), schema.Table{})
		record := func(owner string, mode cdc.Mode, position cdc.Position, want string) {
			t.Helper()
			if err := s.RecordSource(t.Context(), "main", owner, cdc.Status{Mode: mode, Detail: "d", Confirmed: position}); err != nil {
				t.Fatal(err)
			}
			var got string
			if err := db.Pool().QueryRow(t.Context(), `SELECT owner || ' ' || mode || ' ' || position FROM eventlog.sources`).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		record("a", cdc.ModeConnecting, "", "a connecting ")
		record("a", cdc.ModeStreaming, "0/1", "a streaming 0/1")
		record("b", cdc.ModeStandby, "", "a streaming 0/1")
		record("b", cdc.ModeStreaming, "0/2", "b streaming 0/2")
		record("a", cdc.ModeConnecting, "0/1", "b streaming 0/2")
	})
}

// TestTheRealClock: the statement that the suite replaces is the database's own clock in UTC.
func TestTheRealClock(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		db.Exec(`INSERT INTO public.outbox (id, type, payload, at) VALUES (gen_random_uuid(), 'a', '1', now() AT TIME ZONE 'UTC')`)
		fanOut(t, s, undelivered(t, s), false)
		claimed, err := s.Claim(t.Context(), delivery.Lease{Token: uuid.New(), For: time.Hour},
			[]delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 5, Window: 24 * time.Hour}})
		if err != nil || len(claimed.Claimed) != 1 {
			t.Fatalf("got %+v, %v", claimed, err)
		}
		in, ok, err := s.NextDue(t.Context(), []string{"h"})
		if err != nil || !ok || in <= 0 || in > time.Hour {
			t.Errorf("next due in %s, %v, %v", in, ok, err)
		}
		var good bool
		if err := db.Pool().QueryRow(t.Context(), `SELECT created_date <= now() AT TIME ZONE 'UTC' AND created_date > now() AT TIME ZONE 'UTC' - interval '30 min'
			FROM eventlog.event_notifications`).Scan(&good); err != nil || !good {
			t.Errorf("created_date is not now in UTC: %v", err)
		}
	})
}

// TestStrictIsolation: a role whose transactions are repeatable read by default.
func TestStrictIsolation(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		db := newTestDB(t, major, l)
		db.Exec(`ALTER DATABASE "` + db.Name() + `" SET default_transaction_isolation = 'repeatable read'`)
		s := newStore(t, newPool(t, db, pgx.QueryExecModeCacheStatement), l.table)
		db.Exec(`INSERT INTO public.outbox (id, type, payload) SELECT gen_random_uuid(), 'a', '1' FROM generate_series(1, 50)`)
		events := undelivered(t, s)
		done := make(chan error, 2)
		for range 2 {
			go func() {
				batch := delivery.FanOut{Lease: delivery.Lease{Token: uuid.New(), For: time.Minute}}
				for _, e := range events {
					batch.Fans = append(batch.Fans, delivery.Fan{Event: e, Targets: []delivery.Target{{ID: uuid.New(), Handler: "h"}}})
				}
				_, err := s.FanOut(t.Context(), batch)
				done <- err
			}()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := len(undelivered(t, s)); n != 0 {
			t.Errorf("%d events are left", n)
		}
	})
}
