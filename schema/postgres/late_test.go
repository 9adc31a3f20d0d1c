package postgres

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
)

// The log brings an event before its row is in sight, as happens for a moment after
// every commit: its deliveries are made at once, and the row is marked as soon as it
// shows, so that the poller has nothing to find.
func TestFanOut_MarksARowThatComesIntoSightLate(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		m, err := migrate.Postgres(db.Pool(), migrate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		store, err := New(db.Pool(), Config{Table: schema.Eventlog("")})
		if err != nil {
			t.Fatal(err)
		}
		e := event.Event{
			ID: uuid.NewString(), Namespace: "n", ActionID: uuid.NewString(), ActionName: "a", ActionParams: json.RawMessage(`{}`),
			Type: "t", Payload: json.RawMessage(`{}`), Date: time.Now().UTC(),
		}
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params,
				started_date, completion_date, event_type, payload, event_date, delivered)
			VALUES ($1, 'n', $1, 'a', '{}', now(), now(), 't', '{}', now(), false)`, e.ID); err != nil {
			t.Fatal(err)
		}
		fan := delivery.FanOut{Source: "s", Lease: delivery.Lease{Token: uuid.New(), For: time.Minute}, Fans: []delivery.Fan{{
			Event: e, FromLog: true, Targets: []delivery.Target{{ID: uuid.New(), Handler: "h"}},
		}}}
		result, err := store.FanOut(t.Context(), fan)
		if err != nil {
			t.Fatal(err)
		}
		if result.Absent != 1 || len(result.Created) != 1 {
			t.Errorf("absent %d, created %d; want 1 and 1", result.Absent, len(result.Created))
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "the poller's query to mark the row and find nothing", func() bool {
			found, err := store.Undelivered(t.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			return len(found.Events) == 0
		})
		var delivered bool
		if err := db.Pool().QueryRow(t.Context(), `SELECT delivered FROM eventlog.events`).Scan(&delivered); err != nil {
			t.Fatal(err)
		}
		if !delivered {
			t.Error("the row is not marked")
		}
		store.late.mu.Lock()
		defer store.late.mu.Unlock()
		if n := len(store.late.events); n != 0 {
			t.Errorf("%d events are still waited for", n)
		}
	})
}

func TestLate_IsBoundedInTimeAndNumber(t *testing.T) {
	var l late
	now := time.Now()
	l.add(lateEvent{id: "old", since: now.Add(-2 * lateFor)})
	for range lateMost - 1 {
		l.add(lateEvent{id: "new", since: now})
	}
	if got := l.due(now); len(got) != lateMost-1 || got[0].id != "new" {
		t.Errorf("due = %d events, want the %d that are not too old", len(got), lateMost-1)
	}
	for range lateMost + 5 {
		l.add(lateEvent{id: "new", since: now})
	}
	if got := l.due(now.Add(lateEvery - 1)); got != nil {
		t.Errorf("%d events are tried again too soon", len(got))
	}
	if got := l.due(now.Add(lateEvery)); len(got) != lateMost {
		t.Errorf("due = %d events, want %d", len(got), lateMost)
	}
}
