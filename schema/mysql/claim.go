package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/internal/refusal"
)

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
		Store: s, lease: lease, claims: claims,
		leased: make([]int, len(claims)), ended: make([]bool, len(claims)),
		result: delivery.ClaimResult{Ended: map[string]map[delivery.State]int{}, Postponed: map[string]int{}},
	}
	for pass := range maxPasses {
		w := c.wanted(pass > 0)
		if len(w) == 0 {
			break
		}
		err := c.pass(ctx, w, nil)
		if rejected(err) || locked(err) {
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

// want is one stored name of one claim: room is how many rows the claim may lease, scan how many may be looked at.
type want struct {
	claim      int
	name       string
	room, scan int
}

// wanted lists the claims that still have room. On a further look those take part that have reason
// to believe in more.
func (c *claiming) wanted(further bool) []want {
	var list []want
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
			list = append(list, want{claim: i, name: name, room: room, scan: scan})
		}
	}
	return list
}

// dueRow is a delivery that is due, with what decides about it.
type dueRow struct {
	want  int
	id    uuid.UUID
	due   string
	state string
	// claims counts the claims so far, lost those on end without an outcome, this one included if abandoned
	// says that it is one. age is how long the window has been running, in microseconds.
	claims, lost, age int64
	abandoned         bool
	// ends is what becomes of the row instead of a lease.
	ends string
}

// What becomes of a row that is not leased. The first two are states.
const (
	endsExpired = "EXPIRED"
	endsDead    = "DEAD"
	// endsCrashes: too many claims on end were lost. endsLater: it waits as after a failure.
	endsCrashes = "CRASHES"
	endsLater   = "LATER"
)

// decide says what becomes of the row. A row with a token whose lease has run out is a lost claim: nobody
// settled it or gave it back, see delivery.LostForFree.
func (r *dueRow) decide(claim *delivery.Claim) {
	switch window := micros(claim.Window); {
	case window > 0 && r.age > window:
		r.ends = endsExpired
	case claim.MaxAttempts > 0 && r.claims >= int64(claim.MaxAttempts):
		r.ends = endsDead
	case r.lost >= delivery.LostAtMost:
		r.ends = endsCrashes
	case r.lost > delivery.LostForFree && r.abandoned:
		r.ends = endsLater
	}
}

// pass leases and ends once, in one transaction: one delivery only unless only is nil.
func (c *claiming) pass(ctx context.Context, w []want, only *uuid.UUID) error {
	var chosen []dueRow
	var events map[uuid.UUID]delivery.Claimed
	err := c.withOurs(ctx, func(o *ourTables) error {
		srv, err := c.serverOf(ctx)
		if err != nil {
			return err
		}
		run := func() error {
			return c.once(ctx, lockSeconds, func(q querier) (err error) {
				chosen, events, err = c.take(ctx, q, o, srv, w, only)
				return err
			})
		}
		if !srv.skipLocked {
			// A row that somebody holds for long is told from the others one by one.
			run = func() error {
				return c.once(ctx, shortWait, func(q querier) (err error) {
					chosen, events, err = c.take(ctx, q, o, srv, w, only)
					return err
				})
			}
			if err := run(); !passing(err) || locked(err) {
				return err
			}
		}
		return again(ctx, run)
	})
	if err != nil {
		return err
	}
	for i := range chosen {
		r := &chosen[i]
		claim := w[r.want].claim
		handler := c.claims[claim].Handler
		if r.ends != "" {
			c.ended[claim] = true
			c.notLeased(handler, r.ends)
			continue
		}
		one, ok := events[r.id]
		if !ok {
			continue // another claimer was faster, on a server that cannot skip
		}
		c.leased[claim]++
		one.Handler, one.Token = handler, c.lease.Token
		c.result.Claimed = append(c.result.Claimed, one)
	}
	return nil
}

func (c *claiming) notLeased(handler, ends string) {
	state := delivery.State(ends)
	switch ends {
	case endsLater:
		c.result.Postponed[handler]++
		return
	case endsCrashes:
		state = delivery.Dead
	}
	if c.result.Ended[handler] == nil {
		c.result.Ended[handler] = map[delivery.State]int{}
	}
	c.result.Ended[handler][state]++
}

// take is the transaction of a pass: it finds rows, decides, updates them by their primary keys in order, and
// reads what it leased.
func (c *claiming) take(ctx context.Context, q querier, o *ourTables, srv *server, w []want, only *uuid.UUID) ([]dueRow, map[uuid.UUID]delivery.Claimed, error) {
	lock := "FOR UPDATE SKIP LOCKED"
	if !srv.skipLocked {
		lock = ""
	}
	due, err := c.due(ctx, q, o, w, only, lock)
	if err != nil {
		return nil, nil, err
	}
	chosen := c.choose(w, due)
	if err := c.end(ctx, q, o, w, chosen); err != nil {
		return nil, nil, err
	}
	var ids []uuid.UUID
	for _, r := range chosen {
		if r.ends == "" {
			ids = append(ids, r.id)
		}
	}
	ids = sortedUUIDs(ids)
	if err := c.stamp(ctx, q, o, ids); err != nil {
		return nil, nil, err
	}
	events, err := c.deliveries(ctx, q, o, ids, c.lease.Token)
	return chosen, events, err
}

// openStates are the states of deliveries that can be attempted. An index that begins with the state has the
// rows of each of them in the order of the due time, and nothing of it is read beyond the limit; of both together it
// would have to be sorted, and every row of the backlog locked.
func openStates() []delivery.State { return []delivery.State{delivery.Pending, delivery.Failed} }

// claimIndex is the index that a look for due deliveries goes along.
const claimIndex = "event_notifications_claim"

// dueSQL reads the due rows of one name in one state.
func (s *Store) dueSQL(o *ourTables, where, lock string) string {
	return "SELECT ? AS want, " + o.id.text("d.id") + ", CAST(d.next_retry_at AS CHAR) AS due, d.state, COALESCE(d.claim_count, d.attempts), " +
		"d.lease_token IS NOT NULL, COALESCE(d.lost_claims, 0) + (d.lease_token IS NOT NULL), " + s.windowRunsSince() +
		"\nFROM " + s.names.deliveries + " AS d FORCE INDEX (" + claimIndex + ")" +
		"\nWHERE d.handler_name = ? AND d.state = ? AND d.next_retry_at <= " + s.now +
		" AND (d.lease_until IS NULL OR d.lease_until <= " + s.now + ")" + where +
		"\nORDER BY d.next_retry_at LIMIT ? " + lock
}

func (c *claiming) due(ctx context.Context, q querier, o *ourTables, w []want, only *uuid.UUID, lock string) ([]dueRow, error) {
	b := &statement{}
	var where statement
	if refused := o.id.ids(c.refused.List()); len(refused) > 0 {
		where.add(" AND d.id NOT IN ").list(refused)
	}
	if only != nil {
		where.add(" AND d.id = ?", o.id.uuid(*only))
	}
	sqlText := c.dueSQL(o, where.sql.String(), lock)
	for i, one := range w {
		for _, state := range openStates() {
			if b.sql.Len() > 0 {
				b.add("\nUNION ALL ")
			}
			b.add("(").add(sqlText, i, one.name, string(state)).add(")", where.args...)
			b.args = append(b.args, one.scan)
		}
	}
	rows, err := query(ctx, q, b, func(rows *sql.Rows) (r dueRow, err error) {
		err = rows.Scan(&r.want, uuidTarget{&r.id}, textTarget{&r.due}, &r.state, &r.claims, &r.abandoned, &r.lost, &r.age)
		return r, err
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, func(a, b dueRow) int { return cmp.Compare(a.due, b.due) })
	return rows, nil
}

// choose keeps the rows that are to be ended, and as many of the others as their claims have room for, oldest first. At
// most scan rows of a name count: each of its states was read that far.
func (c *claiming) choose(w []want, due []dueRow) []dueRow {
	room, scanned := map[int]int{}, map[int]int{}
	var chosen []dueRow
	for _, r := range due {
		one := w[r.want]
		if scanned[r.want]++; scanned[r.want] > one.scan {
			continue
		}
		if r.decide(&c.claims[one.claim]); r.ends == "" {
			if room[one.claim]++; room[one.claim] > one.room {
				continue
			}
		}
		chosen = append(chosen, r)
	}
	return chosen
}

// stillDue is the condition under which a row that was found without a lock may be changed.
func (s *Store) stillDue() string {
	return "d.state IN ('PENDING', 'FAILED') AND d.next_retry_at <= " + s.now + " AND (d.lease_until IS NULL OR d.lease_until <= " + s.now + ")"
}

// stamp leases the rows. Assignments take effect from left to right.
func (c *claiming) stamp(ctx context.Context, q querier, o *ourTables, ids []uuid.UUID) error {
	until := c.now + " + INTERVAL ? MICROSECOND"
	for part := range slices.Chunk(ids, keysPerStatement) {
		b := (&statement{}).add("UPDATE "+c.names.deliveries+" AS d FORCE INDEX (PRIMARY) SET "+
			"lost_claims = NULLIF(COALESCE(d.lost_claims, 0) + (d.lease_token IS NOT NULL), 0), claim_count = COALESCE(d.claim_count, d.attempts) + 1, "+
			"lease_token = ?, lease_owner = ?, lease_until = "+until+", next_retry_at = "+until+", finished_date = NULL, updated_date = "+c.now+
			" WHERE "+c.stillDue()+" AND d.id IN ",
			o.token.uuid(c.lease.Token), clean(c.lease.Owner), micros(c.lease.For), micros(c.lease.For)).list(o.id.uuids(part))
		if err := b.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// end ends the rows that may not be tried any more, and puts off those that wait. The delay of the latter is drawn,
// so that deliveries that were lost because another one killed their process do not come back together with it.
func (c *claiming) end(ctx context.Context, q querier, o *ourTables, w []want, chosen []dueRow) error {
	const common = "lost_claims = NULLIF(COALESCE(d.lost_claims, 0) + (d.lease_token IS NOT NULL), 0), claim_count = COALESCE(d.claim_count, d.attempts), " +
		"lease_token = NULL, lease_until = NULL, lease_owner = NULL, updated_date = "
	update := func(set string, args []any, ids []uuid.UUID) error {
		for part := range slices.Chunk(sortedUUIDs(ids), keysPerStatement) {
			b := (&statement{}).add("UPDATE "+c.names.deliveries+" AS d FORCE INDEX (PRIMARY) SET "+set+", "+common+c.now+
				" WHERE "+c.stillDue()+" AND d.id IN ", args...).list(o.id.uuids(part))
			if err := b.exec(ctx, q); err != nil {
				return err
			}
		}
		return nil
	}
	ended := map[string][]uuid.UUID{}
	later := map[int][]uuid.UUID{}
	for _, r := range chosen {
		if r.ends == endsLater {
			later[w[r.want].claim] = append(later[w[r.want].claim], r.id)
		} else if r.ends != "" {
			ended[r.ends] = append(ended[r.ends], r.id)
		}
	}
	for _, how := range []struct {
		ends   string
		state  delivery.State
		reason string
	}{
		{endsExpired, delivery.Expired, delivery.ReasonAge},
		{endsDead, delivery.Dead, delivery.ReasonAttempts},
		{endsCrashes, delivery.Dead, delivery.ReasonCrashes},
	} {
		set := "finished_date = " + c.now + ", state = ?, reason = ?"
		if err := update(set, []any{string(how.state), how.reason}, ended[how.ends]); err != nil {
			return err
		}
	}
	for i := range c.claims {
		claim := &c.claims[i]
		delay := "LEAST(?, ? * POW(2, COALESCE(d.lost_claims, 0) + (d.lease_token IS NOT NULL) - 1)) * (1 + RAND()) / 2"
		set := "next_retry_at = " + c.now + " + INTERVAL CAST(" + delay + " AS SIGNED) MICROSECOND"
		if err := update(set, []any{micros(claim.Cap), micros(claim.Base)}, later[i]); err != nil {
			return err
		}
	}
	return nil
}

// oneByOne claims the candidates one at a time, and puts those that the database refuses on
// the list.
func (c *claiming) oneByOne(ctx context.Context, w []want) error {
	var candidates []dueRow
	err := c.withOurs(ctx, func(o *ourTables) error {
		return c.read(ctx, func(q querier) (err error) {
			candidates, err = c.due(ctx, q, o, w, nil, "")
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("list candidates: %w", err)
	}
	for _, x := range candidates {
		one := w[x.want]
		if c.leased[one.claim] >= c.claims[one.claim].Limit {
			continue
		}
		one.room, one.scan = 1, 1
		err := c.pass(ctx, []want{one}, &x.id)
		if rejected(err) || locked(err) {
			if c.refused.Add(x.id.String()) {
				c.log.Warn("the database refuses to lease a delivery; it is left out for now",
					slog.String("delivery_id", x.id.String()), slog.String("handler", c.claims[one.claim].Handler),
					slog.Int("error_number", errorNumber(err)), slog.Duration("retry_in", refusal.For))
			}
			// There may be good rows behind it.
			c.ended[one.claim] = true
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// NextDue implements pipeline.HandlingStore. The answer is 0 when a delivery is overdue, and at most a
// year. A leased delivery is due when its lease ends.
func (s *Store) NextDue(ctx context.Context, handlers []string) (in time.Duration, ok bool, err error) {
	if len(handlers) == 0 {
		return 0, false, nil
	}
	var us sql.NullInt64
	err = s.withOurs(ctx, func(o *ourTables) error {
		b := (&statement{}).add("SELECT LEAST(TIMESTAMPDIFF(MICROSECOND, " + s.now + ", MIN(x.due)), 31536000000000) FROM (")
		refused := o.id.ids(s.refused.List())
		for i, name := range handlers {
			for j, state := range openStates() {
				if i+j > 0 {
					b.add(" UNION ALL ")
				}
				b.add("(SELECT d.next_retry_at AS due FROM "+s.names.deliveries+" AS d FORCE INDEX ("+claimIndex+
					") WHERE d.handler_name = ? AND d.state = ?", name, string(state))
				if len(refused) > 0 {
					b.add(" AND d.id NOT IN ").list(refused)
				}
				b.add(" ORDER BY d.next_retry_at LIMIT 1)")
			}
		}
		b.add(") AS x")
		return s.read(ctx, func(q querier) error {
			return q.QueryRowContext(ctx, b.sql.String(), b.args...).Scan(&us)
		})
	})
	if err != nil {
		return 0, false, fmt.Errorf("look for the next due delivery: %w", err)
	}
	if !us.Valid {
		return 0, false, nil
	}
	return max(0, time.Duration(us.Int64)*time.Microsecond), true, nil
}
