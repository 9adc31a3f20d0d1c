package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline/storetest"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// hooks implement storetest.Hooks.
type hooks struct {
	db     *testdb.MyDB
	pool   *sql.DB
	layout layout
	table  schema.Table
	t      *eventTable
	o      *ourTables
}

var _ storetest.Hooks = (*hooks)(nil)

func newHooks(t *testing.T, db *testdb.MyDB, l layout) *hooks {
	t.Helper()
	h := &hooks{db: db, layout: l, table: l.table(db.Name())}
	h.pool = poolOf(t, db, func(cfg *driver.Config) {
		cfg.Params = map[string]string{"time_zone": "'+00:00'"}
	})
	s := newStore(t, db, h.pool, Config{Table: h.table})
	var err error
	if h.t, err = s.eventTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.o, err = s.ourTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(`CREATE TABLE clock (now DATETIME(6) NOT NULL) ENGINE = InnoDB;
INSERT INTO clock VALUES ('2031-05-17 12:00');
CREATE TABLE refused (id VARCHAR(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, what VARCHAR(10), KEY (id));
CREATE TRIGGER refuse_update BEFORE UPDATE ON event_notifications FOR EACH ROW
    IF EXISTS (SELECT 1 FROM refused WHERE id = ` + h.o.id.text("NEW.id") + ` COLLATE utf8mb4_bin AND what = 'update') THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one';
    END IF;
CREATE TRIGGER refuse_insert BEFORE INSERT ON event_notifications FOR EACH ROW
    IF EXISTS (SELECT 1 FROM refused WHERE id = ` + h.o.eventID.text("NEW.event_id") + ` COLLATE utf8mb4_bin AND what <> 'update' AND (what = 'all'
        OR NEW.payload IS NOT NULL OR NEW.payload_raw IS NOT NULL OR (what = 'content' AND (NEW.namespace <> '' OR NEW.action_name <> '')))) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not order-3';
    END IF`)
	return h
}

// clock reads the clock that the hooks set.
func (h *hooks) clock() string { return "(SELECT now FROM " + h.db.Name() + ".clock)" }

func (h *hooks) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := h.pool.ExecContext(context.WithoutCancel(t.Context()), sql, args...); err != nil {
		t.Fatalf("%v in %s", err, sql)
	}
}

func (h *hooks) row(t testing.TB, into []any, sql string, args ...any) {
	t.Helper()
	if err := h.pool.QueryRowContext(t.Context(), sql, args...).Scan(into...); err != nil {
		t.Fatalf("%v in %s", err, sql)
	}
}

func (h *hooks) reset(t testing.TB) {
	t.Helper()
	for _, table := range []string{
		"event_notifications", "event_notification_attempts", "handlers", "gaps", "sources", "refused", h.t.from,
	} {
		h.exec(t, "DELETE FROM "+table)
	}
}

func (h *hooks) SetNow(t testing.TB, now time.Time) {
	t.Helper()
	h.exec(t, "UPDATE clock SET now = ?", timeText(now))
}

// eventRow lists the mapped columns and the values of an event.
func (h *hooks) eventRow(e event.Event) (columns []string, values []any) {
	c := h.table.Columns
	add := func(name string, value any) {
		if name != "" {
			columns, values = append(columns, quoteName(name)), append(values, value)
		}
	}
	key := func(name, id string) {
		if name == "" {
			return
		}
		if arg, ok := h.t.columns[name].arg(id); ok && id != "" {
			add(name, arg)
		} else {
			add(name, nil)
		}
	}
	key(c.ID, e.ID)
	key(c.ActionID, e.ActionID)
	add(c.Namespace, e.Namespace)
	add(c.ActionName, e.ActionName)
	add(c.ActionParams, rawOrNil(e.ActionParams))
	add(c.StartedDate, timeText(e.StartedDate))
	add(c.CompletionDate, timeText(e.CompletionDate))
	add(c.ModelID, orNull(e.ModelID))
	add(c.ModelType, orNull(e.ModelType))
	add(c.Type, orNull(e.Type))
	add(c.Payload, rawOrNil(e.Payload))
	add(c.Date, timeText(e.Date))
	add(c.Traceparent, orNull(e.Traceparent))
	add(c.Headers, rawOrNil(e.Headers))
	if h.layout.mark == storetest.MarkBoolean {
		add(h.table.Mark.Column, 0)
	}
	return columns, values
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// insertRows inserts rows in statements of a moderate size.
func insertRows(t testing.TB, db execer, into string, columns []string, rows [][]any) {
	t.Helper()
	for part := range slices.Chunk(rows, 500) {
		b := (&statement{}).add("INSERT INTO " + into + " (" + strings.Join(columns, ", ") + ") VALUES ")
		for i, row := range part {
			if i > 0 {
				b.add(", ")
			}
			b.list(row)
		}
		if _, err := db.ExecContext(t.Context(), b.sql.String(), b.args...); err != nil {
			t.Fatalf("insert into %s: %v", into, err)
		}
	}
}

func (h *hooks) insertEvents(t testing.TB, db execer, events ...event.Event) {
	t.Helper()
	var columns []string
	var rows [][]any
	for _, e := range events {
		var values []any
		columns, values = h.eventRow(e)
		rows = append(rows, values)
	}
	insertRows(t, db, h.t.from, columns, rows)
}

func (h *hooks) InsertEvents(t testing.TB, events ...event.Event) {
	t.Helper()
	h.insertEvents(t, h.pool, events...)
}

// begin opens a transaction that is rolled back after the test at the latest.
func (h *hooks) begin(t testing.TB) *sql.Tx {
	t.Helper()
	tx, err := h.pool.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func (h *hooks) BeginEvent(t testing.TB, e event.Event) func() {
	t.Helper()
	tx := h.begin(t)
	h.insertEvents(t, tx, e)
	return func() {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *hooks) havingID(id string) (condition string, arg any) {
	arg, _ = h.t.key().arg(id)
	return " WHERE " + quoteName(h.table.Columns.ID) + " = ?", arg
}

func (h *hooks) LockEvent(t testing.TB, id string) func() {
	t.Helper()
	tx := h.begin(t)
	where, arg := h.havingID(id)
	if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM "+h.t.from+where+" FOR UPDATE", arg); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() { _ = tx.Rollback() })
}

func (h *hooks) DeleteEvent(t testing.TB, id string) {
	t.Helper()
	where, arg := h.havingID(id)
	h.exec(t, "DELETE FROM "+h.t.from+where, arg)
}

func (h *hooks) EventMark(t testing.TB, id string) (string, time.Time) {
	t.Helper()
	where, arg := h.havingID(id)
	switch h.layout.mark {
	case storetest.MarkBoolean:
		var done bool
		h.row(t, []any{&done}, "SELECT delivered FROM "+h.t.from+where, arg)
		if done {
			return "done", time.Time{}
		}
		return "pending", time.Time{}
	case storetest.MarkStatus:
		var mark string
		var at time.Time
		h.row(t, []any{&mark, dateTarget{&at}}, "SELECT status, dispatched_at FROM "+h.t.from+where, arg)
		return map[string]string{"PENDING": "pending", "DISPATCHED": "done", "NO_DELIVERY": "none"}[mark], at
	default:
		return "", time.Time{}
	}
}

func (h *hooks) PutDeliveries(t testing.TB, list ...storetest.Row) {
	t.Helper()
	columns := strings.Fields(`id event_id handler_name namespace action_id action_name action_params started_date completion_date
model_id model_type event_type payload event_date state attempts next_retry_at created_date updated_date
traceparent headers claim_count lost_claims lease_token lease_until lease_owner reason last_error finished_date`)
	var rows [][]any
	for _, r := range list {
		e := r.Event
		row := []any{
			h.o.id.uuid(r.ID), h.o.eventID.ids([]string{e.ID})[0], r.Handler, e.Namespace, h.o.actionID.ids([]string{e.ActionID})[0], e.ActionName,
			string(e.ActionParams), timeText(e.StartedDate), timeText(e.CompletionDate), e.ModelID, e.ModelType, e.Type, string(e.Payload),
			timeText(e.Date), string(r.State), r.Attempts, timeText(r.NextRetryAt), timeText(r.CreatedDate), timeText(r.UpdatedDate),
		}
		if r.Foreign {
			row = append(row, make([]any, 10)...)
		} else {
			var lost, token any
			if r.LostClaims > 0 {
				lost = r.LostClaims
			}
			if r.LeaseToken != nil {
				token = h.o.token.uuid(*r.LeaseToken)
			}
			row = append(row, orNull(e.Traceparent), orNull(string(e.Headers)), r.ClaimCount, lost, token, timeText(r.LeaseUntil), orNull(r.LeaseOwner),
				orNull(r.Reason), orNull(r.LastError), timeText(r.Finished))
		}
		rows = append(rows, row)
	}
	insertRows(t, h.pool, "event_notifications", columns, rows)
}

func (h *hooks) Deliveries(t testing.TB) []storetest.Row {
	t.Helper()
	list, err := collect(t.Context(), h.pool, func(rows *sql.Rows) (r storetest.Row, err error) {
		var eventID, action, token uuid.UUID
		var params, raw, payload, headers []byte
		e := &r.Event
		err = rows.Scan(uuidTarget{&r.ID}, uuidTarget{&eventID}, &r.Handler, &e.Namespace, uuidTarget{&action}, &e.ActionName, &params,
			dateTarget{&e.StartedDate}, dateTarget{&e.CompletionDate}, textTarget{&e.ModelID}, textTarget{&e.ModelType}, &e.Type, &raw, &payload,
			dateTarget{&e.Date}, &r.State, &r.Attempts, dateTarget{&r.NextRetryAt}, dateTarget{&r.CreatedDate}, dateTarget{&r.UpdatedDate},
			textTarget{&e.Traceparent}, &headers, &r.ClaimCount, &r.LostClaims, &r.Foreign, uuidTarget{&token}, dateTarget{&r.LeaseUntil},
			textTarget{&r.LeaseOwner}, textTarget{&r.Reason}, textTarget{&r.LastError}, dateTarget{&r.Finished})
		if raw != nil {
			payload = raw
		}
		e.ID, e.ActionID, e.ActionParams, e.Payload, e.Headers = eventID.String(), action.String(), params, payload, headers
		if token != uuid.Nil {
			r.LeaseToken = &token
		}
		return r, err
	}, "SELECT "+h.o.id.text("id")+", "+h.o.eventID.text("event_id")+` AS e, handler_name, namespace, `+h.o.actionID.text("action_id")+`, action_name,
    action_params, started_date, completion_date, model_id, model_type, event_type, payload_raw, payload, event_date,
    state, attempts, next_retry_at, created_date, updated_date, traceparent, headers, COALESCE(claim_count, 0), COALESCE(lost_claims, 0),
    claim_count IS NULL, `+h.o.token.text("lease_token")+`, lease_until, lease_owner, reason, last_error, finished_date
FROM event_notifications`)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, func(a, b storetest.Row) int {
		return strings.Compare(a.Event.ID+a.Handler, b.Event.ID+b.Handler)
	})
	return list
}

func (h *hooks) Attempts(t testing.TB, id uuid.UUID) []storetest.Attempt {
	t.Helper()
	list, err := collect(t.Context(), h.pool, func(rows *sql.Rows) (a storetest.Attempt, err error) {
		var us int64
		err = rows.Scan(&a.Attempt, &a.Outcome, textTarget{&a.Reason}, textTarget{&a.Error}, textTarget{&a.Message}, dateTarget{&a.Started}, &us)
		a.Took = time.Duration(us) * time.Microsecond
		return a, err
	}, `SELECT attempt, outcome, reason, error, message, started_date, duration_us FROM event_notification_attempts
WHERE delivery_id = ? ORDER BY id`, h.o.deliveryID.uuid(id))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (h *hooks) LockDelivery(t testing.TB, id uuid.UUID) func() {
	t.Helper()
	tx := h.begin(t)
	if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM event_notifications WHERE id = ? FOR UPDATE", h.o.id.uuid(id)); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() { _ = tx.Rollback() })
}

func (h *hooks) RefuseUpdates(t testing.TB, id uuid.UUID) {
	t.Helper()
	h.exec(t, "INSERT INTO refused VALUES (?, 'update')", id.String())
}

func (h *hooks) RefuseInserts(t testing.TB, eventID string, what storetest.Refused) {
	t.Helper()
	h.exec(t, "INSERT INTO refused VALUES (?, ?)", eventID, string(what))
}

func (h *hooks) Pause(t testing.TB, handler string, p delivery.Pause) {
	t.Helper()
	h.exec(t, "UPDATE handlers SET paused_by = ?, pause_reason = ?, paused_date = ? WHERE name = ?", p.By, p.Reason, timeText(p.At), handler)
}

func (h *hooks) Handlers(t testing.TB) []storetest.Registered {
	t.Helper()
	list, err := collect(t.Context(), h.pool, func(rows *sql.Rows) (r storetest.Registered, err error) {
		var aliases, types []byte
		if err = rows.Scan(&r.Name, &aliases, &types, &r.Generation, &r.LastOwner, dateTarget{&r.LastSeen}); err != nil {
			return r, err
		}
		if err = json.Unmarshal(aliases, &r.Aliases); err != nil {
			return r, fmt.Errorf("aliases: %w", err)
		}
		return r, json.Unmarshal(types, &r.Types)
	}, "SELECT name, aliases, types, generation, last_owner, last_seen FROM handlers ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (h *hooks) Gaps(t testing.TB) []storetest.Gap {
	t.Helper()
	list, err := collect(t.Context(), h.pool, func(rows *sql.Rows) (g storetest.Gap, err error) {
		err = rows.Scan(&g.Source, &g.Reason, &g.Detail, &g.From, &g.To, dateTarget{&g.Detected}, dateTarget{&g.Closed})
		return g, err
	}, "SELECT source, reason, detail, from_position, to_position, detected_date, closed_date FROM gaps ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	return list
}
