package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// RetryDeliveries makes deliveries PENDING and due now, with a fresh count of claims and a
// retry window that begins now. Those that a process is working on are left alone.
func (a *Admin) RetryDeliveries(ctx context.Context, r admin.Retry) (admin.Done, error) {
	attempts := "d.attempts"
	if r.ResetAttempts {
		attempts = "0"
	}
	done, err := a.changeDeliveries(ctx, r.Order, change{
		action: "deliveries.retry", outcome: admin.ManualRetry, filter: r.Filter, states: r.States(), before: r.Before,
		set: func(b *statement, now string) {
			b.add("d.state = 'PENDING', d.attempts = "+attempts+`, d.claim_count = 0, d.lost_claims = NULL, d.next_retry_at = ?, d.retried_date = ?,
	d.reason = NULL, d.last_error = NULL, d.finished_date = NULL`, now, now)
		},
		detail: map[string]any{"succeeded": r.Succeeded, "reset_attempts": r.ResetAttempts},
	})
	if err != nil {
		return admin.Done{}, fmt.Errorf("retry deliveries: %w", err)
	}
	return done, nil
}

// DiscardDeliveries ends deliveries that have not succeeded as DISCARDED. Those that a process is
// working on are left alone.
func (a *Admin) DiscardDeliveries(ctx context.Context, o admin.Discard) (admin.Done, error) {
	why := clean(o.Reason)
	if why == "" {
		why = admin.ReasonByHand
	}
	done, err := a.changeDeliveries(ctx, o.Order, change{
		action: "deliveries.discard", outcome: admin.ManualDiscard, filter: o.Filter, states: o.States(),
		set: func(b *statement, now string) {
			b.add("d.state = 'DISCARDED', d.reason = ?, d.finished_date = ?", why, now)
		},
		detail: map[string]any{},
	})
	if err != nil {
		return admin.Done{}, fmt.Errorf("discard deliveries: %w", err)
	}
	return done, nil
}

// change is an order about deliveries.
type change struct {
	action, outcome string
	filter          admin.Filter
	// states that the order concerns; the filter may narrow them.
	states []delivery.State
	// before, when set, leaves out what was retried since then.
	before time.Time
	// set adds the SET list, with the database's time.
	set    func(b *statement, now string)
	detail map[string]any
}

// concerns says whether the filter leaves any deliveries in this state.
func (c change) concerns(s delivery.State) bool {
	return len(c.filter.States) == 0 || slices.Contains(c.filter.States, s)
}

func (c change) list() []string {
	names := make([]string, len(c.states))
	for i, s := range c.states {
		names[i] = string(s)
	}
	return names
}

func (a *Admin) changeDeliveries(ctx context.Context, order admin.Order, c change) (done admin.Done, err error) {
	switch {
	case order.Actor == "":
		return admin.Done{}, admin.ErrNoActor
	case !slices.ContainsFunc(c.states, c.concerns):
		return admin.Done{}, fmt.Errorf("%w: it is for deliveries in state %s", admin.ErrStates, strings.Join(c.list(), ", "))
	}
	detail := map[string]any{"filter": c.filter}
	maps.Copy(detail, c.detail)
	if order.RequestID != "" {
		detail["request_id"] = clean(order.RequestID)
	}
	err = a.withOurs(ctx, func(o *ourTables) error {
		return a.carryOut(ctx, clean(order.RequestID), func(ctx context.Context, q querier) (err error) {
			done = admin.Done{}
			if done.Repeated, done.Count, err = a.ordered(ctx, q, clean(order.RequestID), c.action); err != nil || done.Repeated {
				return err
			}
			if done.At, err = a.clock(ctx, q); err != nil {
				return err
			}
			ids, err := a.chosen(ctx, q, o, c, order.Max())
			if err != nil {
				return err
			}
			done.More = len(ids) == order.Max()
			for part := range slices.Chunk(ids, orderStep) {
				n, err := a.changePart(ctx, q, o, order, c, part)
				if err != nil {
					return err
				}
				done.Count += n
			}
			return a.audit(ctx, q, order.Actor, c.action, c.filter.String(), done.Count, order.Reason, detail)
		})
	})
	return done, err
}

// orderStep is how many deliveries one statement of an order changes.
const orderStep = 1000

// condition adds what a delivery must be to be changed: chosen, in such a state, leased by nobody, and not
// retried since the first of several orders.
func (a *Admin) condition(ctx context.Context, q querier, o *ourTables, c change, b *statement) error {
	if err := a.where(ctx, q, o, c.filter, b); err != nil {
		return err
	}
	b.add(" AND d.state IN ('" + strings.Join(c.list(), "', '") + "') AND " + a.unleased())
	if !c.before.IsZero() {
		b.add(" AND (d.retried_date IS NULL OR d.retried_date < CAST(? AS DATETIME(6)))", timeText(c.before))
	}
	return nil
}

// unleased is the condition for a delivery that no process works on. A lease that ends later than any real
// one could is the work of a clock that has come back since, and protects nobody.
func (a *Admin) unleased() string {
	return fmt.Sprintf("(d.lease_until IS NULL OR d.lease_until <= %[1]s OR d.lease_until > %[1]s + INTERVAL %[2]d MICROSECOND)",
		a.now, micros(delivery.LongestLease))
}

// chosen finds the deliveries without a lock: a search that locks would keep every row that it
// looks at from the workers, and there may be many more than the limit.
func (a *Admin) chosen(ctx context.Context, q querier, o *ourTables, c change, limit int) ([]uuid.UUID, error) {
	b := (&statement{}).add("SELECT " + o.id.text("d.id") + " FROM " + a.names.deliveries + " AS d WHERE ")
	if err := a.condition(ctx, q, o, c, b); err != nil {
		return nil, err
	}
	return query(ctx, q, b.add(" ORDER BY d.id LIMIT ?", limit), scanID)
}

// changePart locks some of the chosen deliveries in the order of their ids, like those of every other
// statement, looks at them again, changes those that still fit, and writes their history.
func (a *Admin) changePart(ctx context.Context, q querier, o *ourTables, order admin.Order, c change, ids []uuid.UUID) (int64, error) {
	b := (&statement{}).add("SELECT " + o.id.text("d.id") + " FROM " + a.names.deliveries + " AS d FORCE INDEX (PRIMARY) WHERE d.id IN ").
		list(o.id.uuids(ids)).add(" AND ")
	if err := a.condition(ctx, q, o, c, b); err != nil {
		return 0, err
	}
	locked, err := query(ctx, q, b.add(" ORDER BY d.id FOR UPDATE"), scanID)
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	at, err := a.clock(ctx, q)
	if err != nil {
		return 0, err
	}
	now := at.Format(timeLayout)
	message := "by " + clean(order.Actor)
	if order.Reason != "" {
		message += ": " + clean(order.Reason)
	}
	if err := (&statement{}).add("INSERT INTO "+a.names.attempts+` (delivery_id, attempt, outcome, reason, error, message, started_date, duration_us)
SELECT `+o.deliveryID.from(o.id.text("d.id"))+`, COALESCE(d.claim_count, d.attempts), ?, CONCAT_WS(': ', d.state, d.reason), d.last_error, ?, ?, 0
FROM `+a.names.deliveries+" AS d WHERE d.id IN ", c.outcome, message, now).list(o.id.uuids(locked)).exec(ctx, q); err != nil {
		return 0, err
	}
	update := (&statement{}).add("UPDATE " + a.names.deliveries + " AS d SET ")
	c.set(update, now)
	err = update.add(", d.lease_token = NULL, d.lease_until = NULL, d.lease_owner = NULL, d.updated_date = ? WHERE d.id IN ", now).
		list(o.id.uuids(locked)).exec(ctx, q)
	return int64(len(locked)), err
}

// requestsKept is how long a request id is remembered.
const requestsKept = 24 * time.Hour

// ordered says whether the order was carried out before.
func (a *Admin) ordered(ctx context.Context, q querier, requestID, action string) (before bool, count int64, err error) {
	if requestID == "" {
		return false, 0, nil
	}
	before, err = oneRow(q.QueryRowContext(ctx, "SELECT l.affected FROM "+a.in("audit_log")+` AS l
WHERE l.action = ? AND `+bytesOf("JSON_UNQUOTE(JSON_EXTRACT(l.detail, '$.request_id'))")+" = "+bytesOf("?")+`
  AND l.happened_date > `+a.now+` - INTERVAL ? MICROSECOND
ORDER BY l.id LIMIT 1`, action, requestID, micros(requestsKept)).Scan(&count))
	return before, count, err
}

// registered reads the handlers table, by name; lock may lock it.
func (a *Admin) registered(ctx context.Context, q querier, lock string) ([]admin.HandlerInfo, error) {
	return collect(ctx, q, func(rows *sql.Rows) (h admin.HandlerInfo, err error) {
		var silent int64
		var p delivery.Pause
		err = rows.Scan(&h.Name, texts{&h.Aliases}, texts{&h.Types}, &h.Generation, &h.LastOwner, dateTarget{&h.LastSeen}, &silent,
			dateTarget{&h.Created}, textTarget{&p.By}, textTarget{&p.Reason}, dateTarget{&p.At})
		h.Silent = time.Duration(silent) * time.Microsecond
		if !p.At.IsZero() {
			h.Paused = &p
		}
		return h, err
	}, `SELECT h.name, h.aliases, h.types, h.generation, h.last_owner, h.last_seen, `+a.since("h.last_seen")+`, h.created_date,
	h.paused_by, h.pause_reason, h.paused_date FROM `+a.names.handlers+" AS h ORDER BY h.name"+lock)
}

// ListHandlers returns every handler that a process ever served, by name.
func (a *Admin) ListHandlers(ctx context.Context) (list []admin.HandlerInfo, err error) {
	err = a.ask(ctx, func(q querier) error {
		list, err = a.registered(ctx, q, "")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list handlers: %w", err)
	}
	return list, nil
}

// PauseHandler stops the handler's deliveries in every process, within a heartbeat. They wait as
// PENDING. changed is false when it was paused before: the first pause stands. name may be an alias.
// The error is [admin.ErrNotFound] when no process ever served it.
func (a *Admin) PauseHandler(ctx context.Context, name, by, why string) (changed bool, err error) {
	return a.setPause(ctx, name, by, why, "handlers.pause", func(_ []admin.HandlerInfo, canonical string) *statement {
		return (&statement{}).add("UPDATE "+a.names.handlers+" AS h SET h.paused_by = ?, h.pause_reason = ?, h.paused_date = "+a.now+
			" WHERE h.paused_date IS NULL AND ", clean(by), orNull(clean(why))).exactly("h.name", canonical)
	})
}

// ResumeHandler lets the handler's deliveries go on, under its present name and all former ones: a pause
// comes along when a handler is renamed. changed is false when it was not paused.
func (a *Admin) ResumeHandler(ctx context.Context, name, by, why string) (changed bool, err error) {
	return a.setPause(ctx, name, by, why, "handlers.resume", func(list []admin.HandlerInfo, canonical string) *statement {
		return (&statement{}).add("UPDATE "+a.names.handlers+` AS h SET h.paused_by = NULL, h.pause_reason = NULL, h.paused_date = NULL
WHERE h.paused_date IS NOT NULL AND `).exactly("h.name", allNames(list, canonical)...)
	})
}

// allNames are the handler's name, and the names of those that it has become or was.
func allNames(list []admin.HandlerInfo, name string) []string {
	names := []string{name}
	for _, h := range list {
		if h.Name == name || slices.Contains(h.Aliases, name) {
			names = append(append(names, h.Name), h.Aliases...)
		}
	}
	return names
}

func (a *Admin) setPause(ctx context.Context, name, by, why, action string, update func(list []admin.HandlerInfo, canonical string) *statement) (changed bool, err error) {
	if by == "" {
		return false, admin.ErrNoActor
	}
	err = a.carryOut(ctx, "", func(ctx context.Context, q querier) error {
		// Locked, so that a process that renames the handler at this moment has done so, or does it afterwards:
		// it takes the pause along.
		list, err := a.registered(ctx, q, " FOR UPDATE")
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(h admin.HandlerInfo) bool { return h.Name == clean(name) })
		if i < 0 {
			i = slices.IndexFunc(list, func(h admin.HandlerInfo) bool { return slices.Contains(h.Aliases, clean(name)) })
		}
		if i < 0 {
			return admin.ErrNotFound
		}
		b := update(list, list[i].Name)
		result, err := q.ExecContext(ctx, b.sql.String(), b.args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		changed = n > 0
		return a.audit(ctx, q, by, action, list[i].Name, n, why, map[string]any{})
	})
	if err != nil {
		return false, fmt.Errorf("handler %s: %w", name, err)
	}
	return changed, nil
}
