// Package admin is the vocabulary in which an operator asks about events, deliveries,
// handlers and sources, and gives orders: filters, pages, rows, counts, audited orders, and
// the errors that an operator can act on. Every SQL store answers in it, so that who asks
// need not know which database answers.
//
// Promises: nothing here touches a database, starts a goroutine or keeps state; all values
// may be copied. The store packages implement the questions and orders, and package
// admintest is the suite that each of them must pass:
//
//   - A question writes nothing, takes no longer than [Config].Timeout per statement (else
//     [ErrSlow]), and counts no further than [Config].CountLimit.
//   - An order is one transaction that holds its own line of audit_log: who, what, on
//     which deliveries, how many. When that line cannot be written, nothing is changed.
//   - An order never takes a delivery from a process that works on it.
package admin
