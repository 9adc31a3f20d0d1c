package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Querier is what reading the tables needs; a pool and a connection have it.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ReadRows reads every delivery row of a PostgreSQL database with the tables in
// schema eventlog. It is one statement, so the rows are of one moment.
func ReadRows(ctx context.Context, db Querier) ([]Row, error) {
	return ReadRowsOf(ctx, db, "eventlog.event_notifications")
}

// ReadRowsOf is [ReadRows] for a delivery table of any name, quoted and qualified.
func ReadRowsOf(ctx context.Context, db Querier, table string) ([]Row, error) {
	rows, err := db.Query(ctx, `
		SELECT event_id::text, handler_name, state, coalesce(reason, ''), attempts, coalesce(claim_count, 0),
		       state IN ('PENDING', 'FAILED') AND coalesce(lease_until > clock_timestamp() AT TIME ZONE 'UTC', false)
		  FROM `+table)
	if err != nil {
		return nil, fmt.Errorf("read delivery rows: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Row, error) {
		var r Row
		var state string
		err := row.Scan(&r.Event, &r.Handler, &state, &r.Reason, &r.Attempts, &r.Claims, &r.Leased)
		r.State = delivery.State(state)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("read delivery rows: %w", err)
	}
	return out, nil
}

// ReadStored reads the ids of all rows of an event table, given as a quoted,
// qualified name, to resolve commits that were never answered.
func ReadStored(ctx context.Context, db Querier, table string) (map[string]struct{}, error) {
	rows, err := db.Query(ctx, `SELECT id::text FROM `+table)
	if err != nil {
		return nil, fmt.Errorf("read stored events: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read stored events: %w", err)
	}
	out := make(map[string]struct{}, len(ids))
	for _, id := range ids {
		out[id] = struct{}{}
	}
	return out, nil
}
