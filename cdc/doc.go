// Package cdc is the contract between a reader of a database log and the
// pipeline: what a reader hands over ([Transaction], [Record]), and what it is
// told back ([Position]).
//
// Promise of every [Source]:
//
//   - A record is handed over only after its transaction committed; rolled-back
//     work is never seen.
//   - Transactions come in commit order. A large one may come in parts; every part
//     but the last has Partial set and no Position.
//   - After a lost connection, and after a restart, everything that was not
//     acknowledged comes again, from the first row of its transaction. A commit whose
//     parts had not all come before begins anew; the parts that came count for nothing.
//   - The position given to Ack is durable knowledge of the consumer: everything
//     up to it has been stored. Until then the source may be asked for it again.
//   - A stretch of log that cannot be read is announced by a Transaction with a
//     Gap, in its place in the stream. It is never skipped in silence.
//
// Ownership: Run owns its connections and all its goroutines, and returns after
// each has ended. It never closes the channel it writes to. Ack may be called
// from any goroutine and does not block.
//
// On failure Run returns an error; the caller logs it once and calls Run again
// after a pause. [IsPermanent] tells an error that no further Run can mend.
package cdc
