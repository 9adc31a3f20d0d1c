// Package schema describes event tables: which column carries what ([Table],
// [Columns]), how an event is known to be fanned out ([Mark]), and how a row of
// the log becomes an [event.Event] ([Table.Decoder]).
//
// Promise: a row is read the same way on every path. The decoder of the log and
// the SQL stores in the packages below agree on the id of an event, on the bytes of its payload and on
// its times, so that it does not matter which of them saw the row first. A row
// that cannot be read is a [RowError] with a reason, never a panic and never a
// guess, and its message holds no value of the row.
//
// The package is pure: no I/O, no clock, no goroutine. Package
// [github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate] creates the tables;
// package [github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres] is the SQL
// store.
//
// # Event ids
//
// An event is identified by a UUID. A key that is the canonical lower-case text
// of a UUID is its own event id, whatever the column's type. Any other key, such as a bigint, gets
// a UUID of version 3 whose other bits are those of
//
//	md5(schema || '.' || table || ':' || key::text)
//
// which is the same in SQL and in [EventID].
package schema
