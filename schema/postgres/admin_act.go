package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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
	done, err := a.change(ctx, r.Order, change{
		action: "deliveries.retry", outcome: admin.ManualRetry, filter: r.Filter, states: r.States(), before: r.Before,
		set: `state = 'PENDING', attempts = ` + attempts + `, claim_count = 0, lost_claims = NULL, next_retry_at = c.now, retried_date = c.now,
			reason = NULL, last_error = NULL, finished_date = NULL`,
		detail: map[string]any{"succeeded": r.Succeeded, "reset_attempts": r.ResetAttempts},
	})
	if err != nil {
		return admin.Done{}, fmt.Errorf("retry deliveries: %w", err)
	}
	return done, nil
}

// DiscardDeliveries ends deliveries that have not succeeded as DISCARDED. Those that a process is
// working on are left alone.
func (a *Admin) DiscardDeliveries(ctx context.Context, d admin.Discard) (admin.Done, error) {
	done, err := a.change(ctx, d.Order, change{
		action: "deliveries.discard", outcome: admin.ManualDiscard, filter: d.Filter,
		states: d.States(),
		set: `state = 'DISCARDED', reason = COALESCE(NULLIF(c.why, ''), '` + admin.ReasonByHand + `'),
			finished_date = c.now`,
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
	// set is the SET list; c is the clock, c.why the reason.
	set    string
	detail map[string]any
}

// concerns says whether the filter leaves any deliveries in this state.
func (c change) concerns(s delivery.State) bool {
	return len(c.filter.States) == 0 || slices.Contains(c.filter.States, s)
}

func (c change) list(separator string) string {
	names := make([]string, len(c.states))
	for i, s := range c.states {
		names[i] = string(s)
	}
	return strings.Join(names, separator)
}

// changeSQL changes the chosen deliveries and writes their history. The rows are locked in
// the order of their ids, like those of every other statement; one that a process has
// leased by the time it is locked is not taken. A lease that ends later than any real one could is the work of
// a clock that has come back since, and protects nobody.
const changeSQL = `
WITH clock AS MATERIALIZED (
    SELECT {now} AS now, {why} AS why
), chosen AS MATERIALIZED (
    SELECT d.id, d.state AS was, COALESCE(d.claim_count, d.attempts) AS claims, d.reason, d.last_error
    FROM {deliveries} AS d
    WHERE {where} AND d.state IN ({states}) AND (d.lease_until IS NULL OR d.lease_until <= {now} OR d.lease_until > {now} + {longest} * interval '1 microsecond')
    ORDER BY d.id LIMIT {limit}
    FOR UPDATE
), changed AS (
    UPDATE {deliveries} AS d SET {set},
        lease_token = NULL, lease_until = NULL, lease_owner = NULL, updated_date = c.now
    FROM chosen AS x CROSS JOIN clock AS c
    WHERE d.id = ANY (ARRAY[x.id])
    RETURNING d.id, x.was, x.claims, x.reason, x.last_error, c.now
), history AS (
    INSERT INTO {attempts} (delivery_id, attempt, outcome, reason, error, message, started_date, duration_us)
    SELECT id, claims, {outcome}, concat_ws(': ', was, reason), last_error, {message}, now, 0 FROM changed
)
SELECT count(*) FROM changed`

func (a *Admin) change(ctx context.Context, o admin.Order, c change) (done admin.Done, err error) {
	switch {
	case o.Actor == "":
		return admin.Done{}, admin.ErrNoActor
	case !slices.ContainsFunc(c.states, c.concerns):
		return admin.Done{}, fmt.Errorf("%w: it is for deliveries in state %s", admin.ErrStates, c.list(", "))
	}
	err = a.write(ctx, func(tx pgx.Tx) error {
		done = admin.Done{}
		if done.Repeated, done.Count, err = a.ordered(ctx, tx, o, c.action); err != nil || done.Repeated {
			return err
		}
		if done.At, err = a.now(ctx, tx); err != nil {
			return err
		}
		var args arguments
		where, err := a.where(ctx, tx, c.filter, &args)
		if err != nil {
			return err
		}
		if !c.before.IsZero() {
			where += " AND (d.retried_date IS NULL OR d.retried_date < " + args.add(timestampText(c.before), "text") + "::timestamp)"
		}
		message := "by " + clean(o.Actor)
		if o.Reason != "" {
			message += ": " + clean(o.Reason)
		}
		statement := strings.NewReplacer(
			"{now}", a.sql.now, "{deliveries}", a.sql.deliveries, "{attempts}", a.in("event_notification_attempts"),
			"{where}", where, "{states}", "'"+c.list("', '")+"'", "{set}", c.set,
			"{why}", args.add(clean(o.Reason), "text"), "{limit}", args.add(o.Max(), "bigint"),
			"{longest}", args.add(micros(delivery.LongestLease), "bigint"),
			"{outcome}", args.add(c.outcome, "text"), "{message}", args.add(message, "text"),
		).Replace(changeSQL)
		if err := tx.QueryRow(ctx, statement, args...).Scan(&done.Count); err != nil {
			return err
		}
		done.More = done.Count == int64(o.Max())
		detail := map[string]any{"filter": c.filter}
		maps.Copy(detail, c.detail)
		if o.RequestID != "" {
			detail["request_id"] = clean(o.RequestID)
		}
		return a.audit(ctx, tx, o.Actor, c.action, c.filter.String(), done.Count, o.Reason, detail)
	})
	return done, err
}

// requestsKept is how long a request id is remembered.
const requestsKept = 24 * time.Hour

// ordered says whether the order was carried out before. Two orders with one request id wait
// for each other.
func (a *Admin) ordered(ctx context.Context, tx pgx.Tx, o admin.Order, action string) (before bool, count int64, err error) {
	if o.RequestID == "" {
		return false, 0, nil
	}
	id := clean(o.RequestID)
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1::text, 7788))", a.schema+" "+id); err != nil {
		return false, 0, err
	}
	err = tx.QueryRow(ctx, `SELECT l.affected FROM `+a.in("audit_log")+` AS l
		WHERE l.action = $1::text AND l.detail ->> 'request_id' = $2::text
		  AND l.happened_date > `+a.sql.now+` - $3::bigint * interval '1 microsecond'
		ORDER BY l.id LIMIT 1`, action, id, micros(requestsKept)).Scan(&count)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, 0, nil
	}
	return err == nil, count, err
}

// ListHandlers returns every handler that a process ever served, by name.
func (a *Admin) ListHandlers(ctx context.Context) (list []admin.HandlerInfo, err error) {
	err = a.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT h.name, h.aliases, h.types, h.generation, h.last_owner, h.last_seen,
			(extract(epoch FROM `+a.sql.now+` - h.last_seen) * 1000000)::bigint, h.created_date,
			COALESCE(h.paused_by, ''), COALESCE(h.pause_reason, ''), h.paused_date
			FROM `+a.in("handlers")+` AS h ORDER BY h.name`)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (h admin.HandlerInfo, err error) {
			var silent int64
			var p delivery.Pause
			err = row.Scan(&h.Name, &h.Aliases, &h.Types, &h.Generation, &h.LastOwner, clampedTime{&h.LastSeen}, &silent,
				clampedTime{&h.Created}, &p.By, &p.Reason, clampedTime{&p.At})
			h.Silent = time.Duration(silent) * time.Microsecond
			if !p.At.IsZero() {
				h.Paused = &p
			}
			return h, err
		})
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
	return a.setPause(ctx, name, by, why, "handlers.pause",
		"paused_by = $2::text, pause_reason = NULLIF($3::text, ''), paused_date = "+a.sql.now, "h.name = $1::text AND h.paused_date IS NULL")
}

// ResumeHandler lets the handler's deliveries go on, under its present name and all former ones: a pause
// comes along when a handler is renamed. changed is false when it was not paused.
func (a *Admin) ResumeHandler(ctx context.Context, name, by, why string) (changed bool, err error) {
	return a.setPause(ctx, name, by, why, "handlers.resume",
		"paused_by = NULL, pause_reason = NULL, paused_date = NULL",
		`h.paused_date IS NOT NULL AND $2::text <> '' AND $3::text IS NOT NULL AND (h.name = $1::text OR $1::text = ANY (h.aliases)
			OR h.name IN (SELECT unnest(f.aliases) FROM `+a.in("handlers")+` AS f WHERE f.name = $1::text OR $1::text = ANY (f.aliases)))`)
}

func (a *Admin) setPause(ctx context.Context, name, by, why, action, set, guard string) (changed bool, err error) {
	if by == "" {
		return false, admin.ErrNoActor
	}
	err = a.write(ctx, func(tx pgx.Tx) error {
		changed = false
		var canonical string
		err := tx.QueryRow(ctx, `SELECT h.name FROM `+a.in("handlers")+` AS h WHERE h.name = $1::text OR $1::text = ANY (h.aliases)
			ORDER BY h.name <> $1::text LIMIT 1 FOR UPDATE`, clean(name)).Scan(&canonical)
		if errors.Is(err, pgx.ErrNoRows) {
			return admin.ErrNotFound
		}
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE `+a.in("handlers")+` AS h SET `+set+` WHERE `+guard, canonical, clean(by), clean(why))
		if err != nil {
			return err
		}
		changed = tag.RowsAffected() > 0
		return a.audit(ctx, tx, by, action, canonical, tag.RowsAffected(), why, map[string]any{})
	})
	if err != nil {
		return false, fmt.Errorf("handler %s: %w", name, err)
	}
	return changed, nil
}
