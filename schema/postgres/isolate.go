package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// A row that the database refuses to update, because of a user's trigger or constraint,
// would otherwise stop every claim that meets it: claims begin at the oldest row, and
// that is where it stays.

// refusedFor is how long such a row is left out before it is tried again.
const refusedFor = time.Minute

// refusedMost bounds the list; beyond it the oldest entry is tried again early.
const refusedMost = 1000

// refusals is the list of rows to leave out. It is a hint of this process and no truth: an
// entry that is missing costs a slow claim.
type refusals struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// add reports whether the id is new on the list.
func (r *refusals) add(id string) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.until[id]
	if r.until == nil {
		r.until = map[string]time.Time{}
	}
	r.until[id] = now.Add(refusedFor)
	for len(r.until) > refusedMost {
		var oldest string
		for id, until := range r.until {
			if oldest == "" || until.Before(r.until[oldest]) {
				oldest = id
			}
		}
		delete(r.until, oldest)
	}
	return !known
}

// list returns what is to be left out now, never nil.
func (r *refusals) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]string, 0, len(r.until))
	now := time.Now()
	for id, until := range r.until {
		if now.After(until) {
			delete(r.until, id)
			continue
		}
		ids = append(ids, id)
	}
	return ids
}

// candidatesSQL reads what claimSQL would take, without a lock and without a change.
const candidatesSQL = `
SELECT w.n, d.id::text
FROM unnest($1::bigint[], $2::text[]) AS w (n, stored)
CROSS JOIN LATERAL (
    SELECT d.id FROM {deliveries} AS d
    WHERE d.handler_name = w.stored AND d.state IN ('PENDING', 'FAILED') AND d.next_retry_at <= {now}
      AND d.id <> ALL ($3::text[]::uuid[])
    ORDER BY d.next_retry_at
    LIMIT $4::bigint
) AS d`

// oneByOne claims the candidates one at a time, and puts those that the database refuses on
// the list.
func (c *claiming) oneByOne(ctx context.Context, w wants) error {
	rows, err := c.query(ctx, c.sql.candidates, w.numbers, w.names, c.refused.list(), slices.Max(w.scans))
	if err != nil {
		return err
	}
	type candidate struct {
		claim int
		id    string
	}
	candidates, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x candidate, err error) {
		err = row.Scan(&x.claim, &x.id)
		return x, err
	})
	if err != nil {
		return fmt.Errorf("list candidates: %w", err)
	}
	for _, x := range candidates {
		if c.leased[x.claim] >= c.claims[x.claim].Limit {
			continue
		}
		one := w.of(x.claim)
		err := c.pass(ctx, one, &x.id)
		if rejected(err) {
			if c.refused.add(x.id) {
				c.log.Warn("the database refuses to lease a delivery; it is left out for now",
					slog.String("delivery_id", x.id), slog.String("handler", c.claims[x.claim].Handler),
					slog.String("sqlstate", sqlState(err)), slog.Duration("retry_in", refusedFor))
			}
			// There may be good rows behind it.
			c.ended[x.claim] = true
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// of is the part of w that belongs to one claim, for a single row.
func (w wants) of(claim int) wants {
	var one wants
	for i, n := range w.numbers {
		if n == int64(claim) {
			one.numbers = append(one.numbers, n)
			one.names = append(one.names, w.names[i])
			one.rooms = append(one.rooms, 1)
			one.scans = append(one.scans, 1)
			one.windows = append(one.windows, w.windows[i])
			one.limits = append(one.limits, w.limits[i])
			one.bases = append(one.bases, w.bases[i])
			one.caps = append(one.caps, w.caps[i])
		}
	}
	return one
}
