package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes and classes that decide what happens next.
const (
	codeSerialization   = "40001"
	codeDeadlock        = "40P01"
	codeUniqueViolation = "23505"
	codeNotSupported    = "0A000"
	codeDataCorrupted   = "XX001"

	classData       = "22"
	classConstraint = "23"
	className       = "42"
	classLimit      = "54"
	classPLpgSQL    = "P0"
)

// Rejected says whether err means that the database refused the data of a row: a value out of
// range, a constraint, a size limit, an exception raised by a user's trigger, a
// row that cannot be read back. Running the same statement again cannot help; leaving
// the row out can.
func (s *Store) Rejected(err error) bool { return rejected(err) }

// errNoUUID is what the database would say of an event's id that is none.
var errNoUUID = errors.New("the id of an event is not a UUID")

func rejected(err error) bool {
	code := sqlState(err)
	if code == codeDataCorrupted || errors.Is(err, errNoUUID) {
		return true
	}
	switch class(code) {
	case classData, classConstraint, classLimit, classPLpgSQL:
		return true
	default:
		return false
	}
}

// passing says whether the statement may succeed when it is run again at once.
func passing(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case codeSerialization, codeDeadlock:
		return true
	case codeUniqueViolation:
		// Our inserts skip the keys we know of, so this is somebody else's index, met
		// by two transactions at once. If it comes back, it is the row's fault.
		return true
	case codeNotSupported:
		// A statement that was prepared before its table changed.
		return pgErr.Routine == "RevalidateCachedQuery"
	default:
		return false
	}
}

// changed says whether err may come from a table that is not as it was.
func changed(err error) bool {
	var scan pgx.ScanArgError
	return class(sqlState(err)) == className || errors.As(err, &scan)
}

// sqlState returns the SQLSTATE of err, empty when it has none.
func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

func class(code string) string {
	if len(code) < 2 {
		return ""
	}
	return code[:2]
}
