// Package demo shows the whole product on one screen, without an account, a
// container or a configuration file: it starts a throw-away PostgreSQL, MySQL or MariaDB, runs
// an application that commits events, and four handlers of which two misbehave.
//
// Promise: every figure of the [Result] is counted, from the tables and from the
// application's own account (package ledger), none is assumed. When [Run]
// returns, for whatever reason, the server is stopped and its folder removed.
// With a server of the user's own, Run works in a database that it creates and drops
// again, and leaves no replication slot behind.
//
// Ownership: Run owns the server, the application (package workload), one
// pipeline and the connection that the view reads through, and returns after all
// of them have ended. They end in this order: the application, so that there is a last
// event; the view's wait for open deliveries, which is bounded; the pipeline, which
// finishes running handlers; the counting; the server.
//
// On failure: whatever fails first ends the run and is returned; what was started
// is taken down in the same order. A second interrupt skips the waiting, never
// the cleaning.
package demo
