package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	driver "github.com/go-sql-driver/mysql"
)

// Numbers of the server's errors that decide what happens next.
const (
	numCheckRead       = 1020 // the row has changed since the snapshot (MariaDB)
	numDuplicate       = 1062
	numTooManyColumns  = 1117
	numRowTooLarge     = 1118
	numUnknownColumn   = 1054
	numWSRepNotReady   = 1047 // Galera: this node is not ready; MySQL: unknown command
	numPacketTooLarge  = 1153
	numUnknownTable    = 1146
	numMissingIndex    = 1176
	numLockWait        = 1205
	numDeadlock        = 1213
	numCollations      = 1267
	numTruncated       = 1265
	numInvalidText     = 1300
	numResultTooLarge  = 1301
	numWrongValue      = 1366
	numBadView         = 1356
	numNoPartition     = 1526
	numTableChanged    = 1412
	numReadOnlyOption  = 1290
	numReadOnlyTx      = 1792
	numReadOnly        = 1836
	numReprepare       = 1615
	numSignal          = 1644
	numRolledBack      = 3101 // Group Replication
	numInvalidJSON     = 3140
	numInvalidJSONPath = 3143
	numJSONCharset     = 3144
	numJSONDepth       = 3157
	numLockedNowait    = 3572
	numCannotConvert   = 3854
	numCheckMySQL      = 3819
	numCheckMariaDB    = 4025
)

// Classes of SQLSTATE that are about the values of a row. 45 is what a user's trigger signals.
const (
	classData       = "22"
	classConstraint = "23"
	classSignal     = "45"
)

// Rejected says whether err means that the database refused the data of a row: a value out of range, a
// constraint, invalid JSON, a size limit, an error that a user's trigger signals. Running the
// same statement again cannot help; leaving the row out can.
func (s *Store) Rejected(err error) bool { return rejected(err) }

// errCollision is what a unique key that is not ours, or the database's own idea of equal texts, can do to us.
var errCollision = errors.New("a delivery was not inserted although there is none for its event and handler: another unique key " +
	"of event_notifications, or a handler whose name differs from another's only by what the database does not count, such as a blank at its end")

// errVanished says that a row that was read without a lock was deleted before its deliveries were inserted. The transaction
// is run again, and finds that.
var errVanished = errors.New("an event's row was deleted while it was fanned out")

// errInvalidText is about a value that some servers would change in silence.
var errInvalidText = errors.New("a text of the event is not valid UTF-8")

func rejected(err error) bool {
	if errors.Is(err, driver.ErrPktTooLarge) || errors.Is(err, errCollision) || errors.Is(err, errInvalidText) {
		return true
	}
	e, ok := errors.AsType[*driver.MySQLError](err)
	if !ok || passing(err) {
		return false
	}
	switch string(e.SQLState[:2]) {
	case classData, classConstraint, classSignal:
		return true
	}
	return slices.Contains([]uint16{
		numTooManyColumns, numRowTooLarge, numPacketTooLarge, numResultTooLarge, numTruncated, numInvalidText, numCannotConvert, numWrongValue, numNoPartition, numSignal,
		numInvalidJSON, numInvalidJSONPath, numJSONCharset, numJSONDepth, numCheckMySQL, numCheckMariaDB,
	}, e.Number)
}

// passing says whether the transaction may succeed when it is run again at once.
func passing(err error) bool {
	return errors.Is(err, errVanished) || is(err, numDeadlock, numLockWait, numCheckRead, numRolledBack, numWSRepNotReady, numReprepare, numTableChanged)
}

// readOnly says that the server takes no writes: it is not the primary, or not any more.
func readOnly(err error) bool { return is(err, numReadOnlyOption, numReadOnlyTx, numReadOnly) }

// locked says that somebody else holds a lock that the statement did not wait for any longer.
func locked(err error) bool { return is(err, numLockWait, numLockedNowait) }

// changed says whether err may come from a table that is not as it was.
func changed(err error) bool {
	_, scan := errors.AsType[scanError](err)
	return scan || is(err, numUnknownColumn, numUnknownTable, numMissingIndex, numCollations, numBadView)
}

func is(err error, numbers ...uint16) bool {
	e, ok := errors.AsType[*driver.MySQLError](err)
	return ok && slices.Contains(numbers, e.Number)
}

// errorNumber returns the number of err, 0 when it has none.
func errorNumber(err error) int {
	if e, ok := errors.AsType[*driver.MySQLError](err); ok {
		return int(e.Number)
	}
	return 0
}

// scanError is a value that is not in the form that the description of its column promised.
type scanError struct{ error }

func (e scanError) Unwrap() error { return e.error }

// attemptsPerTransaction bounds how often a transaction is run that lost a conflict.
const attemptsPerTransaction = 8

// again runs fn, and runs it again when it failed for a reason that passes by itself.
// fn must be one transaction.
func again(ctx context.Context, fn func() error) error {
	for n := 1; ; n++ {
		err := fn()
		if err == nil || n == attemptsPerTransaction || !passing(err) {
			return err
		}
		if !pause(ctx, rand.N(time.Duration(n)*10*time.Millisecond)) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// pause waits, and says whether it waited for the whole time.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// separately runs fn on all items at once and, when the database refuses that because of a
// row, on ever smaller parts, until the rows at fault stand alone. It returns those and
// one error for each. Any other error ends it.
func separately[T any](items []T, fn func([]T) error) (refused []T, err error) {
	if len(items) == 0 {
		return nil, nil
	}
	err = fn(items)
	if err == nil || !rejected(err) {
		return nil, err
	}
	if len(items) == 1 {
		return items, err
	}
	half := len(items) / 2
	first, err1 := separately(items[:half], fn)
	if err1 != nil && !rejected(err1) {
		return first, err1
	}
	second, err2 := separately(items[half:], fn)
	if err2 != nil && !rejected(err2) {
		return append(first, second...), err2
	}
	return append(first, second...), errors.Join(err1, err2)
}

// errorCode is what last_error says about a refused row: the number, never the message, which
// quotes values.
func errorCode(err error) string {
	if n := errorNumber(err); n != 0 {
		return fmt.Sprintf("mysql_%d", n)
	}
	if errors.Is(err, driver.ErrPktTooLarge) {
		return "packet_too_large"
	}
	if errors.Is(err, errCollision) {
		return "collision"
	}
	if errors.Is(err, errInvalidText) {
		return "invalid_text"
	}
	return ""
}

// codedError is an error of the server with its number as a code. The server's message quotes values of the row, so
// the code is what may be logged.
type codedError struct{ error }

// Code implements [github.com/cdc-dispatcher/cdc-dispatcher/event.Coded].
func (e codedError) Code() string { return errorCode(e.error) }

func (e codedError) Unwrap() error { return e.error }

// coded gives err a code, if it has a number or is one of ours.
func coded(err error) error {
	if errorCode(err) == "" {
		return err
	}
	return codedError{err}
}
