// Command bench measures cdc-dispatcher beside what its users would pick instead, and
// prints ratios.
//
// Promise. Every figure is the median of several rounds, with the lowest and the highest.
// A ratio is made of two runs of the same round, one after the other, on the same throw-away
// server, and the order changes with every round, so that a machine that is slower today
// slows both. Each run has a fresh database and ends in a check of what was inserted
// against what was delivered: a fast run that lost an event is an error, not a figure.
//
// The dispatcher is run as a user's program runs it, through the public packages, with the
// defaults. The server and the load share the machine; nothing is measured over a network.
//
// Ownership. An [experiment] makes its databases and drops them. The server belongs to main,
// which stops it at the end; a benchmark that is killed leaves none behind, see package
// localserver.
package main
