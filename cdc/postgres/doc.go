// Package postgres reads committed inserts from a PostgreSQL server's log
// (15 or later) by logical replication with the pgoutput plugin, protocol 1.
//
// # Promise
//
// A [Source] keeps the promises of [cdc.Source]. In particular:
//
//   - The position that is confirmed to the server is never past a commit that the
//     consumer has not made durable. One rule decides it, in one place
//     (confirmRule): nothing open and nothing pending ? last received : end of the
//     last durable commit.
//   - Status reaches the server on a timer, whatever the consumer does, so a slow
//     consumer costs time and not the connection.
//   - An idle event table beside a busy neighbour does not hold the log back: the
//     server's keepalives move the slot. Nothing is written to the database for it.
//   - The server's clean shutdown is not held up for longer than StopGrace.
//   - Memory does not grow with the size of a transaction.
//
// The stream starts at the slot's own confirmed position, or at a later commit
// that this process has seen made durable on the same server. After a lost
// connection the server repeats what was not confirmed.
//
// # Ownership
//
// Run owns two connections, each owned by one goroutine:
//
//	the stream   one replication connection: set-up, reading, status, all of it
//	the watcher  one plain SQL connection for things beside the stream: retained
//	             log, drift of the publication, roots of partitions, and the first
//	             sign of a shutdown
//
// Ack stores a value; the stream picks it up. Run returns after both goroutines
// have ended and both connections are closed.
//
// # What happens on failure
//
//	connection lost, server restarts   new connection after a pause that doubles
//	server silent                      connection dropped after 1.5 × wal_sender_timeout
//	slot held by another session       standby: look every StandbyPoll, take over
//	slot missing, which was there,     new slot, gap slot_missing
//	  or Recall remembers one
//	slot invalidated                   new slot, gap slot_lost
//	publication missing in the log     new slot, gap publication_missing
//	table missing in the publication   added, gap publication_table
//	partitions under their own names   publication set to via root, gap publication_table
//	row of a table that is gone, or no more below a
//	registered one                     left out, gap table_gone
//	slot moved by somebody             stream from there, gap slot_moved
//	other server or timeline, or a log
//	that ends before where it was      new epoch, gap server_changed
//	row that cannot be decoded         one more try, then gap decode, stream goes on
//	unknown table, nobody answers      a registered table with partitions or children:
//	                                   new connection; else not ours, the poller looks
//	anything that needs a person       Run returns a permanent error with the statement
//
// A gap is handed over in the stream, before anything that follows it, and
// nothing after it is confirmed until it is acknowledged. A gap inside a commit has the
// commit's position; the rows of that commit go before it without one. Slots and publications are
// created, changed and replaced only when Config.Create allows it, and never dropped on
// exit; [Drop] is the explicit way.
//
// # Positions
//
// A position is a commit's end as the server prints it, such as "0/16B3748".
// After a gap that was found between two connections, such as one for a change of the server's history (another system,
// another timeline, a restored copy), positions carry the number of the epoch, such as "0/16B3748#1", so that a late
// acknowledgement from before cannot confirm anything after. A new process counts from 0. The ends of a gap are
// written without it.
package postgres
