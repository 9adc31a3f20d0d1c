package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Position is a place in a log, in the text form of the database it came from:
// "0/16B3748" for PostgreSQL, a GTID set or file:offset for MySQL and MariaDB.
// Only the source that made it parses it. The zero value means "no position".
type Position string

// Value is one column of a row image.
type Value struct {
	// Data is the text form of the value; meaningless when Null or Unchanged.
	// It belongs to the receiver of the record.
	Data []byte
	Null bool
	// Unchanged marks a value that the log does not carry (an out-of-line value
	// that the statement did not touch). It is not null (B36).
	Unchanged bool
}

// Relation describes the columns of a row image. It is immutable and shared by
// the records that were written under it.
type Relation struct {
	// Schema and Table name the registered table, for a partition its root.
	Schema, Table string
	Columns       []Column
}

// Name returns "schema.table".
func (r *Relation) Name() string { return r.Schema + "." + r.Table }

// Index returns the position of the named column, or -1. Columns are always
// found by name: their order changes with the schema (B34).
func (r *Relation) Index(column string) int {
	for i := range r.Columns {
		if r.Columns[i].Name == column {
			return i
		}
	}
	return -1
}

// IndexNow returns the position of the column that was renamed, since the row was
// written, to this name; or -1.
func (r *Relation) IndexNow(column string) int {
	for i := range r.Columns {
		if r.Columns[i].Now == column && column != "" {
			return i
		}
	}
	return -1
}

// Column is one column of a [Relation].
type Column struct {
	Name string
	// Type is the database's own type identifier: the type OID on PostgreSQL.
	Type uint32
	// Now is the name that this very column had in the catalog when the source connected,
	// if that is another one and the source can tell; else empty.
	Now string
}

// Record is one inserted row.
type Record struct {
	Relation *Relation
	Values   []Value // parallel to Relation.Columns
}

// Value returns the named column; ok is false when the relation has no such
// column or the log did not carry it.
func (r Record) Value(column string) (v Value, ok bool) {
	i := r.Relation.Index(column)
	if i < 0 || i >= len(r.Values) || r.Values[i].Unchanged {
		return Value{}, false
	}
	return r.Values[i], true
}

// Transaction is what a source hands over: the registered rows of one commit, or
// a part of them, or the news of a gap.
type Transaction struct {
	Records []Record
	// Position is safe to resume after once this transaction, and all before it,
	// are durable. Empty when Partial.
	Position Position
	// Epoch fences Position where positions are kept by a store and not by the server:
	// the store writes Position only while this is the epoch of the source's reader.
	// Zero where the server keeps the position.
	Epoch uint64
	// Partial says that more of the same commit follows.
	Partial bool
	// CommitTime is the server's commit time; zero when unknown.
	CommitTime time.Time
	// Gap, when set, says that a stretch of log before this point was not read.
	// Records is then empty, and Position is the place where reading resumes.
	Gap *Gap
	// Sweep, when not empty, is a short code for why the table may have rows that this
	// stream does not carry although no log was lost, such as "statement" or "xa". It asks
	// the poller for a look soon and is counted; nothing is recorded.
	Sweep string
}

// Gap is a stretch of log that was not read. The table still has the rows, so a
// sweep by the poller closes it.
type Gap struct {
	// Reason is a short code: slot_missing, slot_lost, publication_missing,
	// slot_moved, decode …
	Reason string
	// Detail is one sentence for the operator: what happened, which setting.
	Detail string
	// From is the last confirmed position before the gap, To the place where
	// reading resumed; either may be empty when unknown.
	From, To Position
}

// Source reads one database's log.
type Source interface {
	// Run streams until ctx ends (it then returns nil after it has confirmed what
	// was acknowledged) or the stream fails. It blocks on out when the consumer is
	// slow, and keeps the connection alive meanwhile. It never closes out.
	Run(ctx context.Context, out chan<- Transaction) error
	// Ack says that everything up to and including pos is durable. Calls come with
	// rising positions. Ack does not block and may be called after Run returned, in
	// which case the next Run reports it. An empty position is ignored.
	Ack(pos Position)
}

// Mode is what a source is doing now.
type Mode string

// The modes of a source (postgres-cdc.md section 7.10).
const (
	ModeStopped    Mode = "stopped"
	ModeConnecting Mode = "connecting"
	// ModeStandby: another process holds the log position; this one waits.
	ModeStandby Mode = "standby"
	// ModeCatchingUp: streaming, but behind the end of the log.
	ModeCatchingUp Mode = "catching_up"
	ModeStreaming  Mode = "streaming"
	// ModeWaitingForStandby: the server holds the stream back until a physical
	// standby has caught up (B30).
	ModeWaitingForStandby Mode = "waiting_for_standby"
	// ModePolling: no log at all; the poller does the work.
	ModePolling Mode = "polling"
)

// Status is a snapshot of a source for health pages and metrics.
type Status struct {
	Mode Mode
	// Detail explains the mode in one sentence, with the fix when there is one.
	Detail string
	// Received, Durable and Confirmed are positions; ServerEnd is the end of the
	// server's log as last heard of.
	Received, Durable, Confirmed, ServerEnd Position
	// LagBytes is ServerEnd minus Confirmed where positions are byte offsets, else -1.
	LagBytes int64
	// RetainedBytes is how much log the server keeps for us, RetainLimitBytes the
	// configured bound; -1 when unknown or unlimited.
	RetainedBytes, RetainLimitBytes int64
	// LastByte is when the wire last carried anything (by this process's clock).
	LastByte time.Time
	// StaleAfter is the silence after which the stream counts as dead.
	StaleAfter time.Duration
	Reconnects int64
	Gaps       int64
	// ForeignRows counts rows of tables that the log carries and nobody registered.
	// They are thrown away early; many of them are a cost worth knowing about.
	ForeignRows int64
}

// Reporter is an optional ability of a [Source].
type Reporter interface {
	// Status may be called from any goroutine at any time.
	Status() Status
}

// Permanent marks an error that running again cannot mend, such as a wrong
// log level: the pipeline then stays with the poller and tells the operator.
// hint is the second line that an operator reads: what to do.
func Permanent(err error, hint string) error {
	return &SourceError{Err: err, Hint: hint, Permanent: true}
}

// SourceError is an error of a source with advice.
type SourceError struct {
	Err error
	// Hint names the statement or setting that mends it.
	Hint string
	// Permanent: a new Run cannot succeed until somebody acts. Sources are still
	// run again, at a slow pace, so that the mend is noticed.
	Permanent bool
	// Reason is a short code for metrics, such as "wal_level" or "auth".
	Reason string
}

func (e *SourceError) Error() string {
	if e.Hint == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s (try: %s)", e.Err, e.Hint)
}

// Unwrap returns the cause.
func (e *SourceError) Unwrap() error { return e.Err }

// IsPermanent says whether err carries a permanent [SourceError].
func IsPermanent(err error) bool {
	var s *SourceError
	return errors.As(err, &s) && s.Permanent
}
