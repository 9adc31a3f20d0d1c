// Package delivery holds the vocabulary that the pipeline and the SQL stores
// share: the states of a delivery, and the requests and results of fan-out,
// claim, settle and poll.
//
// Promise: plain data, no I/O, no clock, no goroutine. Durations travel, instants
// do not: every lease, due and expiry decision is made by the database's clock
// (M6, C84).
package delivery
