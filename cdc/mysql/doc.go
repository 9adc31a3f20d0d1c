// Package mysql reads committed inserts from the binlog of MySQL (8.0 to 9.7) and
// MariaDB (10.6 to 11.8).
//
// # Promise
//
// A [Source] keeps the promises of [cdc.Source]. In particular:
//
//   - Rows are handed over when the end of their transaction has been read, large ones
//     in parts that count for nothing before the last one. Those above one part are read twice: a
//     server may log what was rolled back, and only the end tells. Rows of XA
//     transactions are never handed over, because the binlog has them before the verdict.
//   - The position is that of a transaction's end, always: nothing open and nothing
//     pending ? end of the last transaction : end of the last one that was acknowledged.
//     No arithmetic is done on positions.
//   - The binlog is the fast way to learn of a row, the table is the truth. What the binlog
//     has in a form that cannot be read as rows (statements, prepared transactions, partial
//     images) asks the poller for a look; what was lost is announced as a gap.
//   - Memory does not grow with the size of a transaction, except that a compressed one is
//     unpacked as a whole, as the protocol wants it.
//
// # Modes
//
// The probe at the start of each connection decides how positions are kept:
//
//	MySQL, gtid_mode ON   the whole executed set
//	MariaDB               gtid_binlog_pos, one entry per domain
//	MySQL otherwise       file and offset, on this one server only
//	no usable binlog      Run returns a permanent error that says why; the poller works alone
//
// # Who reads
//
// A [Keeper] makes sure that one process reads at a time, and keeps the position in the
// source's database. A store writes acknowledged positions itself, in the transaction of the
// deliveries; the reader saves what moved beside them, and what was acknowledged without any,
// on a timer, and when it stops.
//
// # Ownership
//
// Run owns all of its goroutines and connections: the binlog connection, which belongs to
// one goroutine at a time, and a plain SQL connection for the probe. It returns after all
// have ended. A connection to a server that does not answer is abandoned after StopTimeout
// by closing its socket.
//
// # What happens on failure
//
//	connection lost, server restarts    new connection after a pause that doubles
//	server silent for ReadTimeout       connection dropped, then as above
//	another process is the reader       standby: look every StandbyPoll, take over
//	tenure lost                         the stream ends at once; standby
//	position purged                     gap purged, reading goes on at the current end
//	position ahead of the server        gap ahead_of_source, likewise
//	other server (file mode)            gap server_changed, likewise
//	GTIDs switched on or off            gap mode_changed, likewise
//	event that cannot be decoded        one more try, then gap decode at its transaction
//	anything that needs a person        Run returns a permanent error with the statement
//
// The place to go on from is taken before a gap is announced, and the gap is handed over in
// the stream before anything that follows it.
package mysql
