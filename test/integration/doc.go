// Package integration proves the product's promises end to end on real servers.
//
// Each TestGuarantee_ test breaks something on purpose, such as the process, the
// server, the slot or the lock that fan-out needs, and ends in the ledger (package
// ledger): the set of events that the writers committed equals the set that was
// delivered, with exactly one delivery row per (event, handler); nothing that was
// rolled back was seen; and a handler ran more often than its row accounts for
// only where a fault that the test made explains it. TestB…, TestQ… and TestT… carry the
// number of the known failure of another product that they would find here.
//
// A dispatcher that is to be killed is a real process: the test binary starts
// itself again (child_test.go). Where memory is the promise it is the real program, built
// without the race detector. What was inserted, delivered and repeated is
// printed as one table at the end of the run.
//
// With SOAK set, the sizes are the full ones; see size.
package integration
