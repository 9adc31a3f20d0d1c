package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// settleSQL writes outcomes. The verdicts are numbers: 0 success, 1 retry, 2 fail, 3 block,
// 4 discard, 5 give back; see delivery.Verdict. It waits for no lock: target takes the rows whose
// lease is held, and leaves out those that another session has locked; they are returned as such. A row
// that was taken from us between the look and the lock is among them, and is found to be so the next time.
const settleSQL = `
WITH outcome AS MATERIALIZED (
    SELECT o.id::uuid AS id, o.token::uuid AS token, o.verdict, o.delay_us * interval '1 microsecond' AS delay,
           o.window_us, o.max_claims, NULLIF(o.reason, '') AS reason, NULLIF(o.error, '') AS error, NULLIF(o.message, '') AS message,
           o.attempt, o.took_us
    FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[],
                $7::text[], $8::text[], $9::text[], $10::int[], $11::bigint[])
        AS o (id, token, verdict, delay_us, window_us, max_claims, reason, error, message, attempt, took_us)
), clock AS MATERIALIZED (
    SELECT {now} AS now
), target AS MATERIALIZED (
    SELECT o.*
    FROM outcome AS o JOIN {deliveries} AS d ON d.id = ANY (ARRAY[o.id])
    WHERE d.lease_token = o.token AND {open}
    FOR NO KEY UPDATE OF d SKIP LOCKED
), settled AS (
    UPDATE {deliveries} AS d SET
        state = CASE o.verdict
            WHEN 0 THEN 'SUCCEEDED'
            WHEN 1 THEN CASE WHEN {expired} THEN 'EXPIRED' WHEN {exhausted} THEN 'DEAD' ELSE 'FAILED' END
            WHEN 2 THEN 'DEAD'
            WHEN 3 THEN 'BLOCKED'
            WHEN 4 THEN 'DISCARDED'
            ELSE d.state END,
        attempts = d.attempts + CASE WHEN o.verdict IN (1, 2) THEN 1 ELSE 0 END,
        claim_count = GREATEST({claims} - CASE WHEN o.verdict IN (3, 5) THEN 1 ELSE 0 END, 0),
        next_retry_at = CASE WHEN o.verdict = 5 OR (o.verdict = 1 AND NOT {expired} AND NOT {exhausted})
            THEN c.now + o.delay ELSE d.next_retry_at END,
        lease_token = NULL,
        lease_until = NULL,
        lease_owner = NULL,
        lost_claims = NULL,
        reason = CASE o.verdict
            WHEN 0 THEN NULL
            WHEN 1 THEN CASE WHEN {expired} THEN 'age' WHEN {exhausted} THEN 'attempts' ELSE o.reason END
            WHEN 2 THEN COALESCE(o.reason, 'permanent')
            WHEN 5 THEN d.reason
            ELSE o.reason END,
        last_error = CASE o.verdict
            WHEN 0 THEN NULL
            WHEN 5 THEN d.last_error
            ELSE NULLIF(left(concat_ws(': ', o.error, o.message), 1000), '') END,
        finished_date = CASE WHEN o.verdict IN (0, 2, 4) OR (o.verdict = 1 AND ({expired} OR {exhausted})) THEN c.now END,
        updated_date = c.now
    FROM target AS o CROSS JOIN clock AS c
    WHERE d.id = ANY (ARRAY[o.id])
      AND (o.verdict <> 0 OR d.lease_until > {now})
    RETURNING d.id, d.state, d.reason, o.verdict, o.error, o.message, o.attempt, o.took_us, c.now
), history AS (
    INSERT INTO {attempts} (delivery_id, attempt, outcome, reason, error, message, started_date, duration_us)
    SELECT s.id, s.attempt, s.state, s.reason, s.error, s.message, s.now - s.took_us * interval '1 microsecond', s.took_us
    FROM settled AS s
    WHERE s.verdict NOT IN (0, 5)
)
SELECT id, state, false FROM settled
UNION ALL
SELECT d.id, '', true
FROM outcome AS o JOIN {deliveries} AS d ON d.id = ANY (ARRAY[o.id])
WHERE d.lease_token = o.token AND {open} AND o.id NOT IN (SELECT id FROM target)`

// succeedSQL is settleSQL for outcomes that are all successes, which is nearly all there are: a third of its
// cost. It says whether all were written, and which if not, and nothing about those that it
// leaves out; settleSQL is asked about them. The clock is read once, after the rows are locked: whoever holds the token when its
// row is locked has been alone with it until then.
const succeedSQL = `
WITH outcome AS MATERIALIZED (
    SELECT o.id, o.token FROM unnest($1::uuid[], $2::uuid[]) AS o (id, token)
), target AS MATERIALIZED (
    SELECT o.id
    FROM outcome AS o JOIN {deliveries} AS d ON d.id = ANY (ARRAY[o.id])
    WHERE d.lease_token = o.token AND {open}
    FOR NO KEY UPDATE OF d SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT {now} AS now FROM (SELECT count(*) FROM target) AS after_target
), written AS (
    UPDATE {deliveries} AS d SET
        state = 'SUCCEEDED',
        claim_count = GREATEST({claims}, 0),
        lease_token = NULL,
        lease_until = NULL,
        lease_owner = NULL,
        lost_claims = NULL,
        reason = NULL,
        last_error = NULL,
        finished_date = c.now,
        updated_date = c.now
    FROM clock AS c
    WHERE d.id = ANY (ARRAY(SELECT id FROM target)) AND d.lease_until > c.now
    RETURNING d.id
)
SELECT w.n = cardinality($1::uuid[]), CASE WHEN w.n < cardinality($1::uuid[]) THEN ARRAY(SELECT id FROM written) END
FROM (SELECT count(*) AS n FROM written) AS w`

// Parts of settleSQL. The comparisons are written so that no sum leaves the range of a timestamp:
// event_date may be anything.
const (
	// claimsSQL counts claims of rows that another program wrote as well (A78).
	claimsSQL = "COALESCE(d.claim_count, d.attempts)"
	// windowStartSQL: a delivery that a person sent back gets a whole new window; otherwise it would
	// expire again without an attempt.
	windowStartSQL = "GREATEST(d.event_date, d.retried_date)"
	// expiredSQL: the next due time is strictly later than the window allows (A111).
	expiredSQL   = "(o.window_us > 0 AND " + windowStartSQL + " < c.now + o.delay - o.window_us * interval '1 microsecond')"
	exhaustedSQL = "(o.max_claims > 0 AND " + claimsSQL + " >= o.max_claims)"
)

// Settle implements pipeline.HandlingStore. Successes and the others are two statements of one transaction. Only
// successes that did not take effect are looked at once more, to learn why; what is returned together with an error
// then is what was written before. No outcome waits for a row that another session has locked; see
// [delivery.Settled].
func (s *Store) Settle(ctx context.Context, outcomes []delivery.Outcome) ([]delivery.Settled, error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	var successes, others []delivery.Outcome
	for _, o := range outcomes {
		if o.Verdict == delivery.Success {
			successes = append(successes, o)
		} else {
			others = append(others, o)
		}
	}
	settled, err := s.settle(ctx, successes, others)
	if err != nil {
		return nil, fmt.Errorf("settle %d deliveries: %w", len(outcomes), err)
	}
	left := unsettled(successes, settled)
	if len(left) == 0 {
		return settled, nil
	}
	more, err := s.settle(ctx, nil, left)
	if err != nil {
		return settled, fmt.Errorf("settle %d of %d deliveries: %w", len(left), len(outcomes), err)
	}
	return append(settled, more...), nil
}

// unsettled lists the outcomes that have no answer.
func unsettled(outcomes []delivery.Outcome, settled []delivery.Settled) (left []delivery.Outcome) {
	answered := make(map[uuid.UUID]struct{}, len(settled))
	for _, one := range settled {
		answered[one.ID] = struct{}{}
	}
	for _, o := range outcomes {
		if _, ok := answered[o.ID]; !ok {
			left = append(left, o)
		}
	}
	return left
}

// settle writes successes by succeedSQL and others, whatever their verdicts are, by settleSQL.
func (s *Store) settle(ctx context.Context, successes, others []delivery.Outcome) (settled []delivery.Settled, err error) {
	var statements []statement
	if len(successes) > 0 {
		statements = append(statements, statement{s.sql.succeed, successArgs(successes)})
	}
	if len(others) > 0 {
		statements = append(statements, statement{s.sql.settle, outcomeArgs(others)})
	}
	err = again(ctx, func() error {
		return s.batch(ctx, fastFor(max(len(successes), len(others))), statements, func(results pgx.BatchResults) error {
			settled = make([]delivery.Settled, 0, len(successes)+len(others))
			if len(successes) > 0 {
				var all bool
				var written []pgtype.UUID
				if err := results.QueryRow().Scan(&all, &written); err != nil {
					return err
				}
				settled = appendWritten(settled, successes, all, written)
			}
			if len(others) == 0 {
				return nil
			}
			rows, err := results.Query()
			if err != nil {
				return err
			}
			settled, err = pgx.AppendRows(settled, rows, scanSettled)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return settled, nil
}

// appendWritten translates what succeedSQL returns.
func appendWritten(settled []delivery.Settled, successes []delivery.Outcome, all bool, written []pgtype.UUID) []delivery.Settled {
	if all {
		for _, o := range successes {
			settled = append(settled, delivery.Settled{ID: o.ID, State: delivery.Succeeded})
		}
	}
	for _, id := range written {
		settled = append(settled, delivery.Settled{ID: id.Bytes, State: delivery.Succeeded})
	}
	return settled
}

func successArgs(outcomes []delivery.Outcome) []any {
	ids, tokens := make([]pgtype.UUID, len(outcomes)), make([]pgtype.UUID, len(outcomes))
	for i, o := range outcomes {
		ids[i], tokens[i] = asUUID(o.ID), asUUID(o.Token)
	}
	return []any{ids, tokens}
}

// asUUID is what a list for the database is made of.
func asUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func outcomeArgs(outcomes []delivery.Outcome) []any {
	var (
		ids, tokens, reasons, codes, messages []string
		verdicts, attempts                    []int32
		delays, windows, limits, took         []int64
	)
	for _, o := range outcomes {
		ids = append(ids, o.ID.String())
		tokens = append(tokens, o.Token.String())
		verdicts = append(verdicts, int32(o.Verdict)) //nolint:gosec // a small enumeration
		delays = append(delays, micros(max(o.Delay, 0)))
		windows = append(windows, micros(o.Window))
		limits = append(limits, int64(o.MaxAttempts))
		reasons = append(reasons, clean(o.Reason))
		codes = append(codes, clean(o.Error))
		messages = append(messages, clean(o.Message))
		attempts = append(attempts, int32(min(o.Attempt, 1<<31-1))) //nolint:gosec // bounded
		took = append(took, micros(o.Took))
	}
	return []any{ids, tokens, verdicts, delays, windows, limits, reasons, codes, messages, attempts, took}
}

func scanSettled(row pgx.CollectableRow) (one delivery.Settled, err error) {
	var id pgtype.UUID
	err = row.Scan(&id, &one.State, &one.Locked)
	one.ID = id.Bytes
	return one, err
}

type renewedLease struct {
	id     uuid.UUID
	locked bool
}

func scanRenewed(row pgx.CollectableRow) (one renewedLease, err error) {
	var id pgtype.UUID
	err = row.Scan(&id, &one.locked)
	one.id = id.Bytes
	return one, err
}

// renewSQL extends leases. A renewed lease is the new due time as well, so that the row
// stays not due (A76). It waits for no lock, as settleSQL does not.
const renewSQL = `
WITH lease AS MATERIALIZED (
    SELECT l.id::uuid AS id, l.token::uuid AS token FROM unnest($1::text[], $2::text[]) AS l (id, token)
), target AS MATERIALIZED (
    SELECT l.id
    FROM lease AS l JOIN {deliveries} AS d ON d.id = ANY (ARRAY[l.id])
    WHERE d.lease_token = l.token AND {open}
    FOR NO KEY UPDATE OF d SKIP LOCKED
), renewed AS (
UPDATE {deliveries} AS d SET
    lease_until = c.now + $3::bigint * interval '1 microsecond',
    next_retry_at = c.now + $3::bigint * interval '1 microsecond',
    updated_date = c.now
FROM target AS l
CROSS JOIN (SELECT {now} AS now) AS c
WHERE d.id = ANY (ARRAY[l.id])
RETURNING d.id
)
SELECT id, false FROM renewed
UNION ALL
SELECT d.id, true
FROM lease AS l JOIN {deliveries} AS d ON d.id = ANY (ARRAY[l.id])
WHERE d.lease_token = l.token AND {open} AND l.id NOT IN (SELECT id FROM target)`

// Renew implements pipeline.HandlingStore. A lease that ran out is renewed as long as nobody else
// has claimed the delivery. Leases of rows that the database refuses to update are not held; the
// others are renewed.
func (s *Store) Renew(ctx context.Context, leases []delivery.LeaseRef, by time.Duration) (result delivery.Renewal, err error) {
	_, err = separately(leases, func(part []delivery.LeaseRef) error {
		ids, tokens := make([]string, len(part)), make([]string, len(part))
		for i, l := range part {
			ids[i], tokens[i] = l.ID.String(), l.Token.String()
		}
		var renewed []renewedLease
		err := again(ctx, func() (err error) {
			renewed, err = changeRows(ctx, s, durable, scanRenewed, s.sql.renew, ids, tokens, micros(by))
			return err
		})
		for _, one := range renewed {
			if one.locked {
				result.Locked = append(result.Locked, one.id)
			} else {
				result.Held = append(result.Held, one.id)
			}
		}
		return err
	})
	if err != nil && !rejected(err) {
		return result, fmt.Errorf("renew %d leases: %w", len(leases), err)
	}
	if err != nil {
		s.log.Warn("the database refuses to renew a lease", slog.String("sqlstate", sqlState(err)))
	}
	return result, nil
}
