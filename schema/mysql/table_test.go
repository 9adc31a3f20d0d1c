package mysql

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// TestHandlerNamesAreToldApart: by case and by accents. A trailing blank, which the database does not count, is an
// error and not a lost delivery; the pipeline refuses such names before.
func TestHandlerNamesAreToldApart(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		events := someEvents(2)
		w.InsertEvents(t, events...)
		if result := w.fanOut(t, someFan(events[0], "mail", "Mail", "máil", "MAIL")); len(result.Created) != 4 {
			t.Errorf("got %+v", result)
		}
		blank := someFan(events[1], "mail", "mail ")
		_, err := w.store.FanOut(t.Context(), delivery.FanOut{Lease: someLease(), Fans: []delivery.Fan{blank}})
		if !errors.Is(err, errCollision) || !w.store.Rejected(err) {
			t.Errorf("got %v", err)
		}
		if err := w.store.Quarantine(t.Context(), blank, err); !errors.Is(err, errCollision) {
			t.Errorf("got %v", err)
		}
		if found := w.undelivered(t, allTypes()); len(found) != 1 || found[0].ID != events[1].ID {
			t.Errorf("found %v", found)
		}
		// On tables of somebody else names may be one to the unique key. They work all the same.
		if err := w.store.CheckSchema(t.Context()); err != nil {
			t.Errorf("the schema is reported to lack something: %v", err)
		}
		w.exec(t, "DELETE FROM event_notifications")
		w.db.Exec("ALTER TABLE event_notifications MODIFY handler_name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL, " +
			"DROP INDEX event_notifications_claim, DROP COLUMN lost_claims")
		var lacks *SchemaError
		if err := w.store.CheckSchema(t.Context()); !errors.As(err, &lacks) || len(lacks.Missing) != 2 {
			t.Fatalf("got %v", err)
		}
		w.db.Exec(lacks.Statement)
		if err := w.store.CheckSchema(t.Context()); err != nil {
			t.Errorf("after %s: %v", lacks.Statement, err)
		}
		events = someEvents(4)[2:]
		w.InsertEvents(t, events...)
		if result := w.fanOut(t, someFan(events[0], "mail", "post")); len(result.Created) != 2 {
			t.Errorf("got %+v", result)
		}
		alike := someFan(events[1], "mail", "máil")
		if _, err := w.store.FanOut(t.Context(), delivery.FanOut{Lease: someLease(), Fans: []delivery.Fan{alike}}); !errors.Is(err, errCollision) {
			t.Errorf("got %v", err)
		}
		advice, err := w.store.CheckNames(t.Context())
		if err != nil || advice == nil || len(advice.Missing) != 1 {
			t.Fatalf("got %+v, %v", advice, err)
		}
		w.db.Exec(advice.Statement)
		if advice, err := w.store.CheckNames(t.Context()); advice != nil || err != nil {
			t.Errorf("after the statement: %+v, %v", advice, err)
		}
		if result := w.fanOut(t, alike); len(result.Created) != 2 {
			t.Errorf("got %+v", result)
		}
	})
}

// TestAMissingParentIsAnError: INSERT IGNORE would lose the row in silence.
func TestAMissingParentIsAnError(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		w.db.Exec(`CREATE TABLE tenants (namespace VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY) ENGINE = InnoDB;
ALTER TABLE event_notifications ADD CONSTRAINT tenant FOREIGN KEY (namespace) REFERENCES tenants (namespace)`)
		events := someEvents(2)
		w.InsertEvents(t, events[0])
		for _, e := range events { // from the row, and from the log's image
			_, err := w.store.FanOut(t.Context(), delivery.FanOut{Lease: someLease(), Fans: []delivery.Fan{someFan(e, "billing")}})
			if !w.store.Rejected(err) {
				t.Errorf("got %v", err)
			}
		}
		if n := len(w.Deliveries(t)); n != 0 || len(w.undelivered(t, allTypes())) != 1 {
			t.Errorf("%d deliveries", n)
		}
		w.exec(t, "INSERT INTO tenants VALUES ('shop')")
		if result := w.fanOut(t, someFan(events[0], "billing"), someFan(events[1], "billing")); len(result.Created) != 2 {
			t.Errorf("got %+v", result)
		}
	})
}

// TestOneFormOfThePayload: the log's image, the poller, the worker that got the lease at fan-out, and the one that claims later
// see the same bytes, which are the table's.
func TestOneFormOfThePayload(t *testing.T) {
	payloads := []string{
		`{"b": 1.0, "a": [1, 2.50, 1e3], "ü": "é\u0000\/", "a": 2}`, `"text"`, `[]`, `null`, `12345678901234567890.123`, `{"emoji": "😀 \"quoted\" \\ ' "}`,
	}
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		for _, l := range layouts() {
			t.Run(l.name, func(t *testing.T) {
				w := newWorld(t, kind, l, Config{})
				for i, text := range payloads {
					for j, inTable := range []bool{true, false} {
						e := someEvents(20)[2*i+j]
						e.Payload = json.RawMessage(text)
						if inTable {
							w.InsertEvents(t, e)
						}
						f := someFan(e, "now", "later")
						f.Targets[0].Lease = true
						if inTable {
							found := w.undelivered(t, allTypes())
							if len(found) != 1 {
								t.Fatalf("found %d events", len(found))
							}
							f.Event.Payload = found[0].Payload
						}
						result := w.fanOut(t, f)
						stored, ok := result.Stored[0]
						if len(result.Created) != 2 || !ok {
							t.Fatalf("got %+v", result)
						}
						claimed, err := w.store.Claim(t.Context(), someLease(), claimOf("later", 1))
						if err != nil || len(claimed.Claimed) != 1 {
							t.Fatalf("claimed %+v, %v", claimed, err)
						}
						if !bytes.Equal(stored.Payload, claimed.Claimed[0].Event.Payload) || inTable && !bytes.Equal(stored.Payload, f.Event.Payload) ||
							stored.ID != e.ID {
							t.Errorf("in the table %t: found %s, stored %s, claimed %s", inTable, f.Event.Payload, stored.Payload, claimed.Claimed[0].Event.Payload)
						}
						if (kind.IsMariaDB() || l.name != "eventlog") && string(stored.Payload) != text {
							t.Errorf("%s became %s", text, stored.Payload)
						}
					}
				}
			})
		}
	})
}

// TestKeysThatAreNoUUIDs: their events' ids are derived from them, byte by byte, whatever the collation takes for
// equal, with a mark and without.
func TestKeysThatAreNoUUIDs(t *testing.T) {
	columns := schema.Columns{ID: "id", Type: "type", Payload: "payload", Date: "at"}
	cases := []struct {
		name, ddl string
		keys      []string
	}{
		{"bigint", "id BIGINT PRIMARY KEY", []string{"-7", "0", "42", "9223372036854775807"}},
		{"unsigned", "id BIGINT UNSIGNED PRIMARY KEY", []string{"0", "18446744073709551615"}},
		{"filled", "id INT(6) ZEROFILL PRIMARY KEY", []string{"42", "7654321"}},
		{"text", "id VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, KEY (id)",
			[]string{"abc", "Abc", "abc ", "äbc", "0b0e6f9c-3a5b-4b2e-9d0b-0f7e2d6c1a55", "0B0E6F9C-3A5B-4B2E-9D0B-0F7E2D6C1A55"}},
		{"latin1", "id VARCHAR(40) CHARACTER SET latin1 PRIMARY KEY", []string{"grün", "gruen"}},
		{"bytes", "id VARBINARY(20) PRIMARY KEY", []string{"a", "A", "a ", "\x01\x02"}},
		{"binary", "id BINARY(16) PRIMARY KEY", []string{"0b0e6f9c-3a5b-4b2e-9d0b-0f7e2d6c0000", "00000000-0000-0000-0000-000000000000"}},
	}
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		base := newWorld(t, kind, layouts()[0], Config{})
		for _, tc := range cases {
			for _, mark := range []schema.Mark{{Kind: schema.MarkNone}, {Kind: schema.MarkBoolean, Column: "done"}} {
				t.Run(tc.name+"/"+string(mark.Kind), func(t *testing.T) {
					base.db.Exec("DROP TABLE IF EXISTS keyed; DELETE FROM event_notifications; CREATE TABLE keyed (type VARCHAR(20), payload JSON, " +
						"at DATETIME(6), done BOOLEAN DEFAULT 0, " + tc.ddl + ") CHARACTER SET utf8mb4")
					h := *base.hooks
					h.table = schema.Custom(base.db.Name(), "keyed", columns, mark)
					w := world{hooks: &h, store: newStore(t, base.db, base.pool, Config{Table: h.table})}
					var err error
					if h.t, err = w.store.eventTable(t.Context()); err != nil {
						t.Fatal(err)
					}
					for _, key := range tc.keys {
						arg, ok := w.t.key().arg(key)
						if !ok {
							t.Fatalf("%q is no key", key)
						}
						w.exec(t, "INSERT INTO keyed (id, type, payload, at) VALUES (?, 'a', '[1]', '2026-01-01')", arg)
					}
					keysHaveEvents(t, w, tc.keys)
				})
			}
		}
	})
}

func keysHaveEvents(t *testing.T, w world, keys []string) {
	t.Helper()
	var ids, want []string
	for _, key := range keys {
		id, _ := schema.EventID(w.table.QualifiedName(), key)
		want = append(want, id)
	}
	found := w.undelivered(t, allTypes())
	for _, e := range found {
		ids = append(ids, e.ID)
	}
	slices.Sort(ids)
	slices.Sort(want)
	if w.table.Mark.Kind == schema.MarkNone { // one by one, page by page
		var paged []string
		for q := (delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 1}); ; {
			page, err := w.store.Undelivered(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Events {
				paged = append(paged, e.ID)
			}
			if q.After = page.Next; !page.More {
				break
			}
		}
		if slices.Sort(paged); !slices.Equal(paged, want) {
			t.Errorf("page by page: %v, want %v", paged, want)
		}
	}
	if !slices.Equal(ids, want) {
		t.Fatalf("found %v, want %v", ids, want)
	}
	// One of them first: nothing else is marked with it.
	for i, e := range found {
		q := allTypes()
		q.Skip = []string{e.ID}
		q.Limit = len(keys) - i
		if left := w.undelivered(t, q); len(left) != len(keys)-i-1 || slices.ContainsFunc(left, func(o event.Event) bool { return o.ID == e.ID }) {
			t.Errorf("%d are left beside %q, want %d", len(left), e.Key, len(keys)-i-1)
		}
		f := someFan(e, "billing")
		result := w.fanOut(t, f)
		if len(result.Created) != 1 || result.Fresh != 1 || result.Stored[0].ID != e.ID || len(result.DuplicateIDs) != 0 {
			t.Errorf("%q: got %+v", e.Key, result)
		}
		if result := w.fanOut(t, f); len(result.Created) != 0 || result.Repeated != 1 {
			t.Errorf("%q again: got %+v", e.Key, result)
		}
		if left := w.undelivered(t, allTypes()); len(left) != len(keys)-i-1 {
			t.Errorf("after %q %d are left, want %d", e.Key, len(left), len(keys)-i-1)
		}
	}
	if n := len(w.Deliveries(t)); n != len(keys) {
		t.Errorf("%d deliveries of %d events", n, len(keys))
	}
}

// TestTypesInAList: an ENUM compares as text and is sorted by number, so no look may go from one type to the next
// along its index. As a key it is refused.
func TestTypesInAList(t *testing.T) {
	columns := schema.Columns{ID: "id", Type: "kind", Payload: "payload", Date: "at"}
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		base := newWorld(t, kind, layouts()[0], Config{})
		base.db.Exec(`CREATE TABLE listed (id BIGINT PRIMARY KEY, kind ENUM('order.placed', 'order.cancelled', 'other') NOT NULL, payload JSON,
    at DATETIME(6) NOT NULL, done BOOLEAN NOT NULL DEFAULT 0, KEY (done, kind, at));
INSERT INTO listed (id, kind, payload, at) VALUES (1, 'order.placed', '1', '2026-01-01'), (2, 'order.cancelled', '2', '2026-01-02'), (3, 'other', '3', '2026-01-03')`)
		mark := schema.Mark{Kind: schema.MarkBoolean, Column: "done"}
		w := world{hooks: base.hooks, store: newStore(t, base.db, base.pool, Config{Table: schema.Custom(base.db.Name(), "listed", columns, mark)})}
		for _, tc := range []struct {
			match delivery.Match
			types []string
		}{
			{delivery.Match{All: true}, []string{"order.placed", "order.cancelled", "other"}},
			{delivery.Match{Prefixes: []string{"order."}}, []string{"order.placed", "order.cancelled"}},
			{delivery.Match{Exact: []string{"other", "order.cancelled"}}, []string{"order.cancelled", "other"}},
		} {
			var types []string
			for _, e := range w.undelivered(t, delivery.Undelivered{Types: tc.match}) {
				types = append(types, e.Type)
			}
			if !slices.Equal(types, tc.types) {
				t.Errorf("%+v: found %v", tc.match, types)
			}
		}
		columns := columns
		columns.ID = "kind"
		var problems schema.Problems
		_, err := newStore(t, base.db, base.pool, Config{Table: schema.Custom(base.db.Name(), "listed", columns, mark)}).eventTable(t.Context())
		if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Field != "columns.id" {
			t.Errorf("as a key: %v", err)
		}
	})
}

// TestOddDates (40): of 1969, with microseconds, zero, and zero in part. None is an error.
func TestOddDates(t *testing.T) {
	zero := time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)
	cases := []struct {
		text string
		date time.Time
	}{
		{"1969-12-31 23:59:59.123456", time.Date(1969, 12, 31, 23, 59, 59, 123456000, time.UTC)},
		{"0000-00-00 00:00:00", zero}, {"2026-00-10 00:00:00", zero}, {"2026-05-00 10:00:00", zero},
		{"9999-12-31 23:59:59.999999", time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)},
	}
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		ctx := t.Context()
		events := someEvents(len(cases))
		w.InsertEvents(t, events...)
		for i, tc := range cases {
			w.db.Exec("SET SESSION sql_mode = ''; UPDATE events SET event_date = '" + tc.text + "' WHERE id = '" + events[i].ID + "'")
		}
		found := w.undelivered(t, allTypes())
		if len(found) != len(cases) {
			t.Fatalf("found %d", len(found))
		}
		for _, e := range found {
			w.fanOut(t, someFan(e, "billing"))
		}
		// An earlier version stored them as they are.
		w.db.Exec("SET SESSION sql_mode = ''; UPDATE event_notifications SET event_date = '2026-00-10' WHERE event_id = '" + events[1].ID + "'")
		lease := someLease()
		claimed, err := w.store.Claim(ctx, lease, claimOf("billing", 10))
		if err != nil || len(claimed.Claimed) != len(cases) {
			t.Fatalf("claimed %d, %v", len(claimed.Claimed), err)
		}
		var leases []delivery.LeaseRef
		var outcomes []delivery.Outcome
		for _, c := range claimed.Claimed {
			i := slices.IndexFunc(events, func(e event.Event) bool { return e.ID == c.Event.ID })
			if !c.Event.Date.Equal(cases[i].date) || !slices.ContainsFunc(found, func(e event.Event) bool { return e.ID == c.Event.ID && e.Date.Equal(cases[i].date) }) {
				t.Errorf("%s became %s", cases[i].text, c.Event.Date)
			}
			leases = append(leases, delivery.LeaseRef{ID: c.ID, Token: lease.Token})
			outcomes = append(outcomes, delivery.Outcome{ID: c.ID, Token: lease.Token, Verdict: delivery.GiveBack})
		}
		if renewal, err := w.store.Renew(ctx, leases, lease.For); err != nil || len(renewal.Held) != len(cases) {
			t.Errorf("renewed %+v, %v", renewal, err)
		}
		if settled, err := w.store.Settle(ctx, outcomes); err != nil || len(settled) != len(cases) {
			t.Errorf("settled %+v, %v", settled, err)
		}
		var stored int
		w.row(t, []any{&stored}, "SELECT COUNT(*) FROM event_notifications WHERE event_date = '0001-01-01 00:00:00.000001'")
		if stored != 2 {
			t.Errorf("%d deliveries have the earliest time, want 2", stored)
		}
	})
}

// TestALockedRowIsDelivered: a session holds the row for long. Its event is delivered all the same, counted, and marked by the
// poller afterwards.
func TestALockedRowIsDelivered(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		for _, noSkip := range []bool{false, true} {
			w := newWorld(t, kind, layouts()[0], Config{NoSkipLocked: noSkip})
			events := someEvents(4)
			w.InsertEvents(t, events...)
			unlock := w.LockEvent(t, events[1].ID)
			result := w.fanOut(t, someFan(events[0], "billing"), someFan(events[1], "billing"), someFan(events[2], "billing"))
			if len(result.Created) != 3 || result.Fresh != 2 || result.Unmarked != 1 || len(result.Deferred) != 0 {
				t.Errorf("got %+v", result)
			}
			unlock()
			found := w.undelivered(t, allTypes())
			if len(found) != 2 || found[0].ID != events[1].ID {
				t.Fatalf("found %v", found)
			}
			if result := w.fanOut(t, someFan(found[0], "billing")); len(result.Created) != 0 || result.Fresh != 1 {
				t.Errorf("got %+v", result)
			}
			if n := len(w.undelivered(t, allTypes())); n != 1 {
				t.Errorf("%d are left", n)
			}
		}
	})
}

// TestAnUndoneMark: a trigger of the user undoes the mark. The event is delivered once, and counted.
func TestAnUndoneMark(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		w.db.Exec("CREATE TRIGGER undo_mark BEFORE UPDATE ON events FOR EACH ROW SET NEW.delivered = OLD.delivered")
		events := someEvents(2)
		w.InsertEvents(t, events...)
		for n := range 2 {
			result := w.fanOut(t, someFan(events[0], "billing"), someFan(events[1], "billing"))
			if len(result.Created) != 2*(1-n) || result.Unmarked != 2 || result.Fresh != 0 {
				t.Errorf("got %+v", result)
			}
		}
	})
}

// TestRealRefusals: what servers say about values that a table does not take.
func TestRealRefusals(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		w.db.Exec("ALTER TABLE event_notifications ADD UNIQUE KEY once (model_id), ADD CONSTRAINT small CHECK (model_type <> 'large')")
		change := map[string]func(*event.Event){
			"long":        func(e *event.Event) { e.Type = strings.Repeat("x", 256) },
			"no JSON":     func(e *event.Event) { e.ActionParams = json.RawMessage(`{`) },
			"a check":     func(e *event.Event) { e.ModelType = "large" },
			"another key": func(e *event.Event) { e.ModelID = "one" },
			"no text":     func(e *event.Event) { e.Namespace = "\xff\xfe" },
		}
		first := someEvents(1)[0]
		first.ModelID = "one"
		w.fanOut(t, someFan(first, "billing"))
		for name, fn := range change {
			e := someEvents(2)[1]
			e.ID = uuid.NewString()
			fn(&e)
			f := someFan(e, "billing")
			_, err := w.store.FanOut(t.Context(), delivery.FanOut{Lease: someLease(), Fans: []delivery.Fan{f}})
			if !w.store.Rejected(err) {
				t.Errorf("%s: got %v", name, err)
			}
			if err := w.store.Quarantine(t.Context(), f, err); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := len(w.Deliveries(t)); n != 1+len(change) {
			t.Errorf("%d deliveries", n)
		}
	})
}

// TestDerivedIDsAreStorable: MariaDB's type UUID refuses some UUIDs.
func TestDerivedIDsAreStorable(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		var rows [][]any
		for n := range 3000 {
			id, _ := schema.EventID("public.outbox", itoa(n))
			rows = append(rows, []any{id, "", id, "", "{}", "2026-01-01", "2026-01-01", "2026-01-01", 0})
		}
		insertRows(t, w.pool, "events", strings.Fields("id namespace action_id action_name action_params started_date completion_date event_date delivered"), rows)
	})
}
