// Package postgres is the SQL store on PostgreSQL: it creates deliveries, leases
// them, writes outcomes, and finds events that the log did not bring. [Store]
// implements the Store interface of package pipeline.
//
// Promises:
//
//   - An event is marked and its deliveries are inserted by one statement, guarded by the
//     mark and by the unique (event, handler) key: a repeated call changes nothing.
//     The payload stays in the database, unless the table does not show the row
//     (not visible yet, or deleted in its own transaction): then the log's image of it, whose
//     commit is certain, stands in.
//   - A write that ends an attempt is fenced by the lease token. What it returns is
//     what it changed; everything else was stale.
//   - A claim never leases more rows than it was asked for.
//   - The database's clock decides every lease, due time and expiry. No instant of this
//     process reaches a statement, except as the content of an event.
//   - A row that the database refuses is separated from the others, which go on. Which
//     errors say so is [Store.Rejected].
//
// Ownership: the store opens nothing and closes nothing; it uses the pool it was
// given, which must lead to the primary, and may lead through a pooler in transaction
// mode if the pool's query mode fits that: nothing is left behind in a session. It starts
// no goroutine. All methods may be called from any goroutine.
//
// On failure: every statement is one transaction, so an error means that nothing was
// written, or that the commit's answer was lost, which a repeated call finds out by
// itself. Deadlocks and serialization failures are tried again inside, a few times.
//
// The event table's columns are looked up on first use, and again when a statement finds
// them changed.
package postgres
