package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// claimSQL leases due deliveries, and ends those that may not be tried any more.
//
// want has one row per stored handler name: n numbers the claim it belongs to, room is how many
// rows the claim may lease, scan how many the statement may look at. The look is
// ordered by the due time alone: rows that became due together, such as those of one big transaction,
// come in any order, because sorting them would mean reading them all.
// A row with a token whose lease has run out is a lost claim: nobody settled it or gave it back. When many
// of them are lost on end, the row is put off (LATER) as after a failure, and in the end given up (CRASHES),
// see delivery.LostForFree. The delay is drawn, so that deliveries that were lost because another one killed their
// process do not come back together with it.
//
// The CTEs are materialized, because a locking LIMIT inside a join can be run
// more than once and then takes more rows than it says (Q9). There are two limits, because the
// planner takes one that varies for a tenth of the table, and reads all of it. The inner
// one is the largest scan; the outer one decides how far the inner one gets.
const claimSQL = `
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), want AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $13::bigint[], $14::bigint[])
        AS w (n, stored, room, scan, window_us, max_claims, base_us, cap_us)
), due AS MATERIALIZED (
    SELECT w.n, w.room, d.id, d.next_retry_at, d.lost,
           LEAST(w.cap_us, w.base_us * power(2, d.lost - 1)) * (1 + random()) / 2 * interval '1 microsecond' AS delay,
           CASE WHEN w.window_us > 0 AND d.window_start < c.now - w.window_us * interval '1 microsecond' THEN 'EXPIRED'
                WHEN w.max_claims > 0 AND d.claims >= w.max_claims THEN 'DEAD'
                WHEN d.lost >= $16::bigint THEN 'CRASHES'
                WHEN d.lost > $15::bigint AND d.abandoned THEN 'LATER'
           END AS ends
    FROM want w
    CROSS JOIN clock c
    CROSS JOIN LATERAL (
        SELECT f.* FROM (
            SELECT d.id, d.next_retry_at, GREATEST(d.event_date, d.retried_date) AS window_start,
                   COALESCE(d.claim_count, d.attempts) AS claims, d.lease_token IS NOT NULL AS abandoned,
                   COALESCE(d.lost_claims, 0) + (d.lease_token IS NOT NULL)::int AS lost
            FROM {deliveries} AS d
            WHERE d.handler_name = w.stored
              AND d.state IN ('PENDING', 'FAILED')
              AND d.next_retry_at <= c.now
              AND (d.lease_until IS NULL OR d.lease_until <= c.now)
              AND ($10::uuid IS NULL OR d.id = $10::uuid)
              AND d.id <> ALL ($11::text[]::uuid[])
            ORDER BY d.next_retry_at
            LIMIT $12::bigint
            FOR UPDATE SKIP LOCKED
        ) AS f
        LIMIT w.scan
    ) AS d
), chosen AS MATERIALIZED (
    SELECT r.* FROM (
        SELECT due.*, row_number() OVER (PARTITION BY due.n, due.ends IS NULL ORDER BY due.next_retry_at) AS place FROM due
    ) AS r
    WHERE r.ends IS NOT NULL OR r.place <= r.room
)
UPDATE {deliveries} AS d SET
    state = CASE WHEN r.ends IN ('EXPIRED', 'DEAD') THEN r.ends WHEN r.ends = 'CRASHES' THEN 'DEAD' ELSE d.state END,
    claim_count = COALESCE(d.claim_count, d.attempts) + CASE WHEN r.ends IS NULL THEN 1 ELSE 0 END,
    lease_token = CASE WHEN r.ends IS NULL THEN $7::uuid END,
    lease_until = CASE WHEN r.ends IS NULL THEN c.now + $9::bigint * interval '1 microsecond' END,
    lease_owner = CASE WHEN r.ends IS NULL THEN $8::text END,
    next_retry_at = CASE WHEN r.ends IS NULL THEN c.now + $9::bigint * interval '1 microsecond'
        WHEN r.ends = 'LATER' THEN c.now + r.delay ELSE d.next_retry_at END,
    lost_claims = NULLIF(r.lost, 0),
    reason = CASE r.ends WHEN 'EXPIRED' THEN 'age' WHEN 'DEAD' THEN 'attempts' WHEN 'CRASHES' THEN 'crashes' ELSE d.reason END,
    finished_date = CASE WHEN r.ends <> 'LATER' THEN c.now END,
    updated_date = c.now
FROM chosen AS r, clock AS c
WHERE d.id = ANY (ARRAY[r.id])
RETURNING r.n, COALESCE(r.ends, ''), r.place, d.id, d.handler_name, d.attempts, d.claim_count,
    d.event_id::text, d.namespace, d.action_id::text, d.action_name,
    CASE WHEN r.ends IS NULL THEN d.action_params::text END,
    GREATEST(LEAST(d.started_date, '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00.000001'),
    GREATEST(LEAST(d.completion_date, '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00.000001'),
    COALESCE(d.model_id, ''), COALESCE(d.model_type, ''), d.event_type,
    CASE WHEN r.ends IS NULL THEN COALESCE(d.payload_raw, convert_to(d.payload::text, 'UTF8')) END,
    GREATEST(LEAST(d.event_date, '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00.000001'),
    COALESCE(d.traceparent, ''),
    CASE WHEN r.ends IS NULL THEN d.headers::text END`

// A claim that finds deliveries to end looks again, further, so that a backlog that has
// expired does not take as many claims as it has rows (Q27).
const (
	endScan   = 1000
	maxPasses = 20
)

// Claim implements pipeline.HandlingStore. Deliveries that are past their window or out of
// attempts are ended on the way; they do not count against the limit. A delivery that the
// database refuses to update is left out, reported to the logger, and tried again later.
func (s *Store) Claim(ctx context.Context, lease delivery.Lease, claims []delivery.Claim) (delivery.ClaimResult, error) {
	c := claiming{
		Store:  s,
		lease:  lease,
		claims: claims,
		leased: make([]int, len(claims)),
		ended:  make([]bool, len(claims)),
		result: delivery.ClaimResult{Ended: map[string]map[delivery.State]int{}, Postponed: map[string]int{}},
	}
	for pass := range maxPasses {
		w := c.wanted(pass > 0)
		if len(w.numbers) == 0 {
			break
		}
		err := c.pass(ctx, w, nil)
		if rejected(err) {
			err = c.oneByOne(ctx, w)
		}
		if err == nil {
			continue
		}
		if len(c.result.Claimed) == 0 {
			return delivery.ClaimResult{}, fmt.Errorf("claim deliveries: %w", err)
		}
		// What is leased is not thrown away. If the error lasts, the next claim returns it.
		s.log.Warn("a claim ended early", slog.Int("claimed", len(c.result.Claimed)), slog.Any("error", err))
		break
	}
	return c.result, nil
}

// claiming is one call of Claim.
type claiming struct {
	*Store
	lease  delivery.Lease
	claims []delivery.Claim
	// leased counts the rows leased per claim; ended says that the last pass ended
	// some, so that there may be more.
	leased []int
	ended  []bool
	result delivery.ClaimResult
}

// wants are the columns of want.
type wants struct {
	numbers, rooms, scans, windows, limits, bases, caps []int64
	names                                               []string
}

// wanted lists the claims that still have room. On a further look those take part that have reason
// to believe in more.
func (c *claiming) wanted(further bool) wants {
	var w wants
	for i, claim := range c.claims {
		room := claim.Limit - c.leased[i]
		if room <= 0 || (further && !c.ended[i]) {
			continue
		}
		scan := room
		if further {
			scan = max(room, endScan)
		}
		c.ended[i] = false
		for _, name := range claim.Names {
			w.numbers = append(w.numbers, int64(i))
			w.names = append(w.names, name)
			w.rooms = append(w.rooms, int64(room))
			w.scans = append(w.scans, int64(scan))
			w.windows = append(w.windows, micros(claim.Window))
			w.limits = append(w.limits, int64(claim.MaxAttempts))
			w.bases = append(w.bases, micros(claim.Base))
			w.caps = append(w.caps, micros(claim.Cap))
		}
	}
	return w
}

// pass runs the statement once, on one delivery only unless only is nil.
func (c *claiming) pass(ctx context.Context, w wants, only *string) error {
	var rows []claimedRow
	err := again(ctx, func() (err error) {
		rows, err = changeRows(ctx, c.Store, durable, scanClaimed, c.sql.claim,
			w.numbers, w.names, w.rooms, w.scans, w.windows, w.limits,
			c.lease.Token.String(), clean(c.lease.Owner), micros(c.lease.For), only, c.refused.List(), slices.Max(w.scans),
			w.bases, w.caps, delivery.LostForFree, delivery.LostAtMost)
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b claimedRow) int { return cmp.Compare(a.place, b.place) })
	for _, row := range rows {
		handler := c.claims[row.claim].Handler
		if row.ends != "" {
			c.ended[row.claim] = true
			c.notLeased(handler, row.ends)
			continue
		}
		c.leased[row.claim]++
		row.Handler, row.Token = handler, c.lease.Token
		c.result.Claimed = append(c.result.Claimed, row.Claimed)
	}
	return nil
}

func (c *claiming) notLeased(handler, ends string) {
	state := delivery.State(ends)
	switch ends {
	case "LATER":
		c.result.Postponed[handler]++
		return
	case "CRASHES":
		state = delivery.Dead
	}
	if c.result.Ended[handler] == nil {
		c.result.Ended[handler] = map[delivery.State]int{}
	}
	c.result.Ended[handler][state]++
}

type claimedRow struct {
	delivery.Claimed
	claim int
	// ends is what claimSQL does with the row instead of leasing it.
	ends  string
	place int64
}

func scanClaimed(row pgx.CollectableRow) (r claimedRow, err error) {
	var id pgtype.UUID
	e := &r.Event
	err = row.Scan(&r.claim, &r.ends, &r.place, &id, &r.Stored, &r.Attempts, &r.Claims,
		&e.ID, &e.Namespace, &e.ActionID, &e.ActionName, (*[]byte)(&e.ActionParams),
		timeTarget{&e.StartedDate}, timeTarget{&e.CompletionDate}, &e.ModelID, &e.ModelType, &e.Type,
		(*[]byte)(&e.Payload), timeTarget{&e.Date}, &e.Traceparent, (*[]byte)(&e.Headers))
	r.ID = uuid.UUID(id.Bytes)
	return r, err
}

// nextDueSQL counts what is overdue as due now before it subtracts: another program may have
// written -infinity, from which nothing can be subtracted.
const nextDueSQL = `
SELECT CASE WHEN min(d.next_retry_at) IS NOT NULL
       THEN (extract(epoch FROM LEAST(GREATEST(min(d.next_retry_at), {now}) - {now}, interval '365 days')) * 1000000)::bigint END
FROM unnest($1::text[]) AS w (stored)
CROSS JOIN LATERAL (
    SELECT d.next_retry_at FROM {deliveries} AS d
    WHERE d.handler_name = w.stored AND d.state IN ('PENDING', 'FAILED') AND d.next_retry_at < 'infinity'
      AND d.id <> ALL ($2::text[]::uuid[])
    ORDER BY d.next_retry_at
    LIMIT 1
) AS d`

// NextDue implements pipeline.HandlingStore. The answer is 0 when a delivery is overdue, and at most a
// year. A leased delivery is due when its lease ends.
func (s *Store) NextDue(ctx context.Context, names []string) (in time.Duration, ok bool, err error) {
	var us *int64
	if err := s.queryRow(ctx, s.sql.nextDue, nonNil(names), s.refused.List()).Scan(&us); err != nil {
		return 0, false, fmt.Errorf("look for the next due delivery: %w", err)
	}
	if us == nil {
		return 0, false, nil
	}
	return max(0, time.Duration(*us)*time.Microsecond), true, nil
}
