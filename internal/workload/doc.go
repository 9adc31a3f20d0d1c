// Package workload is an application that behaves like a real one, with many
// writers: each commits a business row and its event rows in one transaction,
// and some of its transactions are rolled back, undone to a savepoint, refused by a
// constraint, or held open while others commit. The demo and the tests run it, and it
// keeps the account (ledger.Writers) that their results are checked against.
//
// Promise: every event row that Run inserts is in the ledger when Run returns, as
// committed, rolled back, or unknown when the COMMIT was sent and never answered.
//
// Ownership: Run owns one connection per writer and returns after all writers
// have ended. When its context ends, each finishes its transaction first.
//
// On failure: with Config.Faults, a writer that loses its connection opens a
// new one and goes on; without it, Run returns the first error.
package workload
