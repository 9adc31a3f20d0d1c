package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// ReadRowsMySQL is [ReadRows] for the delivery table of a MySQL or MariaDB database,
// given as a quoted, qualified name.
func ReadRowsMySQL(ctx context.Context, db *sql.DB, table string) ([]Row, error) {
	rows, err := db.QueryContext(ctx, `
		SELECT event_id, handler_name, state, coalesce(reason, ''), attempts, coalesce(claim_count, 0),
		       state IN ('PENDING', 'FAILED') AND coalesce(lease_until > UTC_TIMESTAMP(6), false)
		  FROM `+table)
	if err != nil {
		return nil, fmt.Errorf("read delivery rows: %w", err)
	}
	defer func() { _ = rows.Close() }() // its errors are those of Err
	var out []Row
	for rows.Next() {
		var r Row
		var id []byte
		var state string
		if err := rows.Scan(&id, &r.Handler, &state, &r.Reason, &r.Attempts, &r.Claims, &r.Leased); err != nil {
			return nil, fmt.Errorf("read delivery rows: %w", err)
		}
		r.Event, r.State = idText(id), delivery.State(state)
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read delivery rows: %w", err)
	}
	return out, nil
}

// ReadStoredMySQL is [ReadStored] for MySQL and MariaDB.
func ReadStoredMySQL(ctx context.Context, db *sql.DB, table string) (map[string]struct{}, error) {
	rows, err := db.QueryContext(ctx, `SELECT id FROM `+table)
	if err != nil {
		return nil, fmt.Errorf("read stored events: %w", err)
	}
	defer func() { _ = rows.Close() }() // its errors are those of Err
	out := map[string]struct{}{}
	for rows.Next() {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("read stored events: %w", err)
		}
		out[idText(id)] = struct{}{}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read stored events: %w", err)
	}
	return out, nil
}

// idText is the writers' form of an id, whether the column is BINARY(16), text or
// MariaDB's UUID.
func idText(id []byte) string {
	if parsed, err := uuid.FromBytes(id); err == nil {
		return parsed.String()
	}
	return strings.ToLower(string(id))
}
