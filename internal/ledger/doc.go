// Package ledger decides whether a run kept its promises, by comparing three
// accounts that know nothing of each other: what the writers committed and
// rolled back ([Writers]), what the tables say ([Row]), and what the handlers
// really received ([Receipt]).
//
// Promise: [Compare] is pure. It takes the three accounts as values, reads no
// clock, and reports every difference with the ids involved, so that a failed
// run can be followed up in the tables. [Writers] and [Recorder] are safe for
// concurrent use; a [Recorder] over a file survives kill -9 of its process, as
// each line is handed to the kernel before the handler goes on.
//
// The accounts are compared like this:
//
//   - lost: a committed (event, subscribed handler) pair without a delivery row,
//     or whose row says SUCCEEDED though no handler ever returned success.
//   - rolled back, seen: an event whose transaction, or savepoint, was rolled
//     back, and that has a delivery row or reached a handler all the same.
//   - extra: a delivery row beyond one per (event, handler), or one for a pair that
//     nobody subscribed to.
//   - duplicates: handler starts that no row accounts for. A row accounts for its
//     failed attempts, and for one start more when an attempt ended it as
//     SUCCEEDED, BLOCKED or DISCARDED, or is running. A start beyond that is one
//     whose outcome was never written, so the handler had to run again: the
//     process died, the server lost the asynchronous acknowledgement, or the lease ran out.
//     A duplicate is explained when a known [Fault] fell between that start and the
//     moment its outcome must have been durable; any other is a broken promise.
//   - overlaps: two attempts of one delivery that ran at the same time, unless the process of
//     one of them was frozen meanwhile (Fault.Frozen) and could not watch its lease.
//   - repeated claims: two starts of one delivery with the same attempt number,
//     which two workers on one claim would produce.
package ledger
