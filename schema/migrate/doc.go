// Package migrate creates the product's tables and takes them away again.
//
// Promise: migrations run unchanged beside tables that already exist with exactly
// the published columns, and keep what is in them. Each step is one transaction, or
// statements that may run twice: MySQL and MariaDB commit every one of them. No step rewrites a table. None waits longer than
// five seconds for a lock that others would queue behind: it fails instead, and can be run again. No step builds an index
// under a lock that stops writers, with one exception: PostgreSQL can build a missing index of a partitioned event table
// in no other way. Build it on each partition first where that takes too long. The user's event table is never altered: it is
// created when it is the product's own and missing, else left alone.
//
// Down removes what the product added and nothing else. Event rows and delivery
// rows stay, and so do their two tables and the published indexes. It refuses while deliveries
// keep the only copy of their payload in a column that would go. Stop the
// dispatcher before going down.
//
// Everything can be printed instead ([Print]), for people whose statements are run by
// somebody else; what is printed is what [Migrator.Up] runs.
//
// Ownership: nothing here starts a goroutine that outlives the call. The caller's pool is used and never closed. A
// session-level lock of the server keeps two migrations of one schema apart, so the pool must
// lead to the server itself, not through a pooler in transaction mode.
package migrate
