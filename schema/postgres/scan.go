package postgres

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// timeTarget scans a timestamp without zone, which is UTC, into a time; null is the zero time.
type timeTarget struct{ t *time.Time }

// ScanTimestamp implements [pgtype.TimestampScanner].
func (s timeTarget) ScanTimestamp(v pgtype.Timestamp) error {
	if !v.Valid {
		*s.t = time.Time{}
		return nil
	}
	*s.t = v.Time.UTC()
	return nil
}

// nonNil keeps an empty list from becoming NULL, which no comparison is true of.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
