package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/internal/refusal"
)

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
	rows, err := c.query(ctx, c.sql.candidates, w.numbers, w.names, c.refused.List(), slices.Max(w.scans))
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
			if c.refused.Add(x.id) {
				c.log.Warn("the database refuses to lease a delivery; it is left out for now",
					slog.String("delivery_id", x.id), slog.String("handler", c.claims[x.claim].Handler),
					slog.String("sqlstate", sqlState(err)), slog.Duration("retry_in", refusal.For))
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
