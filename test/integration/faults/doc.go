// Package faults breaks everything at once and compares the books afterwards.
//
// A seed makes a plan (package nemesis). Writers commit, roll back, copy and hold transactions
// open; one or two real programs deliver to a receiver that keeps receipts; and step by step
// the plan kills, freezes and cuts off the programs, crashes the server, takes its log away,
// locks its tables, uses up its connections, and fills the destination. When the last fault
// is over and the writers have ended, everything must be delivered, by itself, and the ledger
// compares what was committed with the tables and with what the receiver got.
//
// A repeat is accepted only where a fault lay between the attempt and the moment when its
// outcome must have been written, and never before a tenth of a lease has passed; two attempts
// of one delivery at the same time only where a process was frozen, which cannot watch its lease.
//
//	make test                                        one short plan on every server
//	SEED=7 go test -run TestFaults ./test/integration/faults    the plan of a seed again
//	SOAK=1h make soak RUN=TestFaults                 one seed after the other
//
// DECKS says how often every kind of fault is dealt in a plan.
package faults
