// Package mysql is the SQL store on MySQL (8.0 to 9.7) and MariaDB (10.6 to 11.8): it creates
// deliveries, leases them, writes outcomes, finds events that the log did not bring, and
// keeps who reads the log and how far. [Store] implements the Store interface of package
// pipeline, [Tenure] what package cdc/mysql asks of a keeper.
//
// Promises:
//
//   - An event is marked and its deliveries are inserted in one transaction, guarded by the
//     mark and by the unique (event, handler) key: a repeated call changes nothing. The
//     position of the log is written in the last transaction of the batch.
//   - The payload is never sent back to the server, and what is delivered are always the
//     bytes of the stored row: the log writes the same JSON in another form. Only for a row that
//     was deleted before it could be read does the log's image stand in.
//   - A row that the log shows before a query does is "not yet", never "rolled back": it is
//     looked for again for a moment, and then left to the poller.
//   - A write that ends an attempt is fenced by the lease token. What it returns is
//     what it changed; everything else was stale.
//   - A claim never leases more rows than it was asked for.
//   - The database's clock, in UTC, decides every lease, due time and expiry. No instant of
//     this process reaches a statement, except as the content of an event.
//   - No INSERT IGNORE: a row that the database refuses is an error and no warning. It is
//     separated from the others, which go on. Which errors say so is [Store.Rejected].
//   - Rows are locked in the order of their keys, and what is locked by a session that is not
//     ours is skipped or waited for shortly.
//
// Every transaction sets its session to READ COMMITTED, UTC, strict mode and utf8mb4 before
// it begins, in one statement; nothing is inherited from the server or the pool. How fast outcomes
// reach the disk is the server's own setting.
//
// Ownership: the store opens nothing and closes nothing; it uses the pool it was given, which
// must lead to the primary. It starts no goroutine. All methods may be called from any goroutine.
// A tenure holds one connection of its own until it is released.
//
// The pool should be made with InterpolateParams, see [PoolConfig]: without it each statement costs
// more trips to the server, with the same results.
//
// On failure: every method is one transaction or several that stand by themselves, so an error means
// that nothing of the last one was written, or that the commit's answer was lost, which a repeated call
// finds out by itself. Deadlocks, lock waits and conflicts are tried again inside, a few times, as whole
// transactions.
//
// What the columns of the event table and of our own tables are (a UUID may be text, 16 bytes, or a type
// of its own) is looked up on first use, and again when a statement finds them changed.
package mysql
