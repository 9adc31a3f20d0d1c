package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// held is a delivery whose lease is held, as it is while its row is locked.
type held struct {
	id              uuid.UUID
	token           uuid.UUID
	state           delivery.State
	attempts        int64
	claims          int64
	alive           bool
	windowRunsSince int64 // microseconds
}

// Settle implements pipeline.HandlingStore. An error means that no outcome was written, or that the
// answer was lost. No outcome waits for a row that another session has locked; see [delivery.Settled].
func (s *Store) Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	leases := make([]delivery.LeaseRef, len(outcomes))
	for i, o := range outcomes {
		leases[i] = delivery.LeaseRef{ID: o.ID, Token: o.Token}
	}
	var settled []delivery.Settled
	err := s.withOurs(ctx, func(o *ourTables) error {
		return s.holding(ctx, o, leases, func(q querier, rows map[uuid.UUID]held, taken []uuid.UUID) (err error) {
			settled, err = s.settle(ctx, q, o, outcomes, rows)
			for _, id := range taken {
				settled = append(settled, delivery.Settled{ID: id, Locked: true})
			}
			return err
		})
	})
	if err != nil {
		return nil, coded(fmt.Errorf("settle %d deliveries: %w", len(outcomes), err))
	}
	return settled, nil
}

// holding runs fn in a transaction that has locked those of the deliveries whose leases are held, and that nobody else
// has locked; taken are those that somebody else has.
func (s *Store) holding(
	ctx context.Context, o *ourTables, leases []delivery.LeaseRef,
	fn func(q querier, rows map[uuid.UUID]held, taken []uuid.UUID) error,
) error {
	srv, err := s.serverOf(ctx)
	if err != nil {
		return err
	}
	try := func(leases []delivery.LeaseRef, known []uuid.UUID, clause string) error {
		return s.once(ctx, lockSeconds, func(q querier) error {
			rows, err := s.heldRows(ctx, q, o, leases, clause)
			if err != nil {
				return err
			}
			var missed []delivery.LeaseRef
			for _, l := range leases {
				if _, ok := rows[l.ID]; !ok {
					missed = append(missed, l)
				}
			}
			seen, err := s.heldRows(ctx, q, o, missed, "")
			if err != nil {
				return err
			}
			taken := slices.Clone(known)
			for id := range seen {
				taken = append(taken, id)
			}
			return fn(q, rows, taken)
		})
	}
	if srv.skipLocked {
		return again(ctx, func() error { return try(leases, nil, "FOR UPDATE SKIP LOCKED") })
	}
	return s.holdingWithoutSkip(ctx, o, leases, try)
}

// holdingWithoutSkip tells locked rows from the others one by one when it meets one.
func (s *Store) holdingWithoutSkip(
	ctx context.Context, o *ourTables, leases []delivery.LeaseRef,
	try func(leases []delivery.LeaseRef, known []uuid.UUID, clause string) error,
) error {
	const clause = "FOR UPDATE NOWAIT"
	var known []uuid.UUID
	for n := 1; ; n++ {
		err := try(leases, known, clause)
		if err == nil || n == attemptsPerTransaction || !passing(err) && !locked(err) {
			return err
		}
		if !locked(err) {
			continue
		}
		var free []delivery.LeaseRef
		for _, l := range leases {
			var mine map[uuid.UUID]held
			err := s.once(ctx, lockSeconds, func(q querier) (err error) {
				mine, err = s.heldRows(ctx, q, o, []delivery.LeaseRef{l}, clause)
				return err
			})
			switch {
			case locked(err):
				if err := s.read(ctx, func(q querier) (err error) {
					mine, err = s.heldRows(ctx, q, o, []delivery.LeaseRef{l}, "")
					return err
				}); err != nil {
					return err
				}
				if len(mine) > 0 {
					known = append(known, l.ID)
				}
			case err != nil:
				return err
			default:
				free = append(free, l)
			}
		}
		leases = free
	}
}

// heldRows reads the deliveries whose leases are held, in the order of their keys.
func (s *Store) heldRows(ctx context.Context, q querier, o *ourTables, leases []delivery.LeaseRef, clause string) (map[uuid.UUID]held, error) {
	tokens := make(map[uuid.UUID]uuid.UUID, len(leases))
	ids := make([]uuid.UUID, len(leases))
	for i, l := range leases {
		ids[i], tokens[l.ID] = l.ID, l.Token
	}
	rows := make(map[uuid.UUID]held, len(leases))
	for part := range slices.Chunk(sortedUUIDs(ids), keysPerStatement) {
		b := (&statement{}).add("SELECT " + o.id.text("d.id") + ", " + o.token.text("d.lease_token") + ", d.state, d.attempts, " +
			"COALESCE(d.claim_count, d.attempts), COALESCE(d.lease_until > " + s.now + ", 0), " + s.windowRunsSince() + "\nFROM " +
			s.names.deliveries + " AS d FORCE INDEX (PRIMARY)\nWHERE d.lease_token IS NOT NULL AND d.state IN ('PENDING', 'FAILED') AND d.id IN ")
		list, err := query(ctx, q, b.list(o.id.uuids(part)).add(" "+clause), func(rows *sql.Rows) (h held, err error) {
			err = rows.Scan(uuidTarget{&h.id}, uuidTarget{&h.token}, &h.state, &h.attempts, &h.claims, &h.alive, &h.windowRunsSince)
			return h, err
		})
		if err != nil {
			return nil, err
		}
		for _, h := range list {
			if h.token == tokens[h.id] {
				rows[h.id] = h
			}
		}
	}
	return rows, nil
}

// ending is what an outcome makes of a delivery.
type ending struct {
	delivery.Outcome
	state            delivery.State
	reason, last     any
	attempts, claims int64
	finished         bool
	// delay is when it is due again, in microseconds; nil leaves the due time as it is.
	delay any
	// keep says that reason and last_error stay.
	keep bool
}

// end works out what the outcome makes of the row. It is false when the outcome is stale: success needs a live
// lease, because another worker may have begun (C62).
func end(o delivery.Outcome, h held) (ending, bool) {
	e := ending{
		Outcome: o, state: h.state, attempts: h.attempts, claims: h.claims, reason: orNull(clean(o.Reason)),
		last: orNull(lastError(clean(o.Error), clean(o.Message))),
	}
	delay := micros(max(o.Delay, 0))
	window := micros(o.Window)
	switch o.Verdict {
	case delivery.Success:
		e.state, e.reason, e.last, e.finished = delivery.Succeeded, nil, nil, true
		return e, h.alive
	case delivery.Retry:
		e.attempts++
		switch {
		case window > 0 && h.windowRunsSince > window-delay: // strictly later than the window allows (A111)
			e.state, e.reason, e.finished = delivery.Expired, delivery.ReasonAge, true
		case o.MaxAttempts > 0 && h.claims >= int64(o.MaxAttempts):
			e.state, e.reason, e.finished = delivery.Dead, delivery.ReasonAttempts, true
		default:
			e.state, e.delay = delivery.Failed, delay
		}
	case delivery.Fail:
		e.attempts++
		e.state, e.finished = delivery.Dead, true
		if e.reason == nil {
			e.reason = delivery.ReasonPermanent
		}
	case delivery.Block:
		e.state, e.claims = delivery.Blocked, max(h.claims-1, 0)
	case delivery.Discard:
		e.state, e.finished = delivery.Discarded, true
	default:
		e.claims, e.delay, e.keep = max(h.claims-1, 0), delay, true
	}
	return e, true
}

// lastError joins the code and the message, and cuts them.
func lastError(code, message string) string {
	text := code
	if message != "" {
		text = strings.TrimPrefix(code+": "+message, ": ")
	}
	runes := []rune(text)
	return string(runes[:min(len(runes), 1000)])
}

// settle writes the outcomes of rows that are locked.
func (s *Store) settle(ctx context.Context, q querier, o *ourTables, outcomes []delivery.Outcome, rows map[uuid.UUID]held) ([]delivery.Settled, error) {
	var settled []delivery.Settled
	var good []uuid.UUID
	var others, history []ending
	for _, outcome := range outcomes {
		h, ok := rows[outcome.ID]
		if !ok || h.token != outcome.Token {
			continue
		}
		e, ok := end(outcome, h)
		if !ok {
			continue
		}
		delete(rows, outcome.ID) // one outcome ends it
		settled = append(settled, delivery.Settled{ID: e.ID, State: e.state})
		if e.Verdict == delivery.Success {
			good = append(good, e.ID)
			continue
		}
		others = append(others, e)
		if e.Verdict != delivery.GiveBack {
			history = append(history, e)
		}
	}
	if err := s.succeed(ctx, q, o, good); err != nil {
		return nil, err
	}
	slices.SortFunc(others, func(a, b ending) int { return slices.Compare(a.ID[:], b.ID[:]) })
	if err := s.write(ctx, q, o, others); err != nil {
		return nil, err
	}
	return settled, s.remember(ctx, q, o, history)
}

const freed = "lease_token = NULL, lease_until = NULL, lease_owner = NULL, lost_claims = NULL"

func (s *Store) succeed(ctx context.Context, q querier, o *ourTables, ids []uuid.UUID) error {
	for part := range slices.Chunk(sortedUUIDs(ids), keysPerStatement) {
		b := (&statement{}).add("UPDATE " + s.names.deliveries + " AS d FORCE INDEX (PRIMARY) SET claim_count = COALESCE(d.claim_count, d.attempts), " +
			"state = 'SUCCEEDED', " + freed + ", reason = NULL, last_error = NULL, finished_date = " + s.now + ", updated_date = " + s.now + " WHERE d.id IN ")
		if err := b.list(o.id.uuids(part)).exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// write writes what is not a success. Every value is worked out before, so that the order in which a column is set does
// not matter.
func (s *Store) write(ctx context.Context, q querier, o *ourTables, endings []ending) error {
	for part := range slices.Chunk(endings, rowsPerStatement) {
		rows := make([][]any, len(part))
		for i, e := range part {
			rows[i] = []any{e.ID.String(), string(e.state), e.attempts, e.claims, e.delay, e.reason, e.last, flag(e.finished), flag(e.keep)}
		}
		b := (&statement{}).add("UPDATE (")
		union(b, "? AS id, ? AS state, ? AS attempts, ? AS claims, ? AS delay, ? AS reason, ? AS last, ? AS finished, ? AS keep", rows)
		b.add(") AS o STRAIGHT_JOIN " + s.names.deliveries + " AS d FORCE INDEX (PRIMARY) ON d.id = " + o.id.from("o.id") + `
SET d.state = o.state, d.attempts = o.attempts, d.claim_count = o.claims,
    d.next_retry_at = CASE WHEN o.delay IS NULL THEN d.next_retry_at ELSE ` + s.now + ` + INTERVAL CAST(o.delay AS SIGNED) MICROSECOND END,
    d.reason = CASE WHEN o.keep = 1 THEN d.reason ELSE o.reason END,
    d.last_error = CASE WHEN o.keep = 1 THEN d.last_error ELSE o.last END,
    d.finished_date = CASE WHEN o.finished = 1 THEN ` + s.now + ` END,
    d.updated_date = ` + s.now + ", d." + strings.ReplaceAll(freed, ", ", ", d."))
		if err := b.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// remember writes the attempt history.
func (s *Store) remember(ctx context.Context, q querier, o *ourTables, endings []ending) error {
	for part := range slices.Chunk(endings, rowsPerStatement) {
		b := (&statement{}).add("INSERT INTO " + s.names.attempts +
			" (delivery_id, attempt, outcome, reason, error, message, started_date, duration_us) VALUES ")
		for i, e := range part {
			if i > 0 {
				b.add(", ")
			}
			b.add("(?, ?, ?, ?, ?, ?, "+s.now+" - INTERVAL ? MICROSECOND, ?)", o.deliveryID.uuid(e.ID), min(e.Attempt, 1<<31-1), string(e.state),
				e.reason, orNull(clean(e.Error)), orNull(clean(e.Message)), micros(e.Took), micros(e.Took))
		}
		if err := b.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// Renew implements pipeline.HandlingStore. A lease that ran out is renewed as long as nobody else
// has claimed the delivery. Leases of rows that the database refuses to update are not held; the
// others are renewed. A renewed lease is the new due time as well, so that the row stays not due (A76).
func (s *Store) Renew(ctx context.Context, leases []delivery.LeaseRef, by time.Duration) (result delivery.Renewal, err error) {
	_, err = separately(leases, func(part []delivery.LeaseRef) error {
		var renewal delivery.Renewal
		err := s.withOurs(ctx, func(o *ourTables) error {
			return s.holding(ctx, o, part, func(q querier, rows map[uuid.UUID]held, taken []uuid.UUID) error {
				renewal = delivery.Renewal{Locked: taken}
				for id := range rows {
					renewal.Held = append(renewal.Held, id)
				}
				return s.renew(ctx, q, o, renewal.Held, by)
			})
		})
		if err == nil {
			result.Held, result.Locked = append(result.Held, renewal.Held...), append(result.Locked, renewal.Locked...)
		}
		return err
	})
	if err != nil && !rejected(err) {
		return result, fmt.Errorf("renew %d leases: %w", len(leases), err)
	}
	if err != nil {
		s.log.Warn("the database refuses to renew a lease", slog.Int("error_number", errorNumber(err)))
	}
	return result, nil
}

func (s *Store) renew(ctx context.Context, q querier, o *ourTables, ids []uuid.UUID, by time.Duration) error {
	until := s.now + " + INTERVAL ? MICROSECOND"
	for part := range slices.Chunk(sortedUUIDs(ids), keysPerStatement) {
		b := (&statement{}).add("UPDATE "+s.names.deliveries+" AS d FORCE INDEX (PRIMARY) SET lease_until = "+until+", next_retry_at = "+until+
			", updated_date = "+s.now+" WHERE d.id IN ", micros(by), micros(by)).list(o.id.uuids(part))
		if err := b.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}
