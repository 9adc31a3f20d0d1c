// Package storetest is the suite that every implementation of [pipeline.Store]
// passes. [Run] takes a function that makes a [Backend]: a store on real, empty tables, with
// a clock that the test holds, and hooks to arrange and to read what is in them.
//
// Tests are named after the rule they prove: A, B, C and M numbers are rules of the
// behaviours reference, Q numbers are items of the queue reference's list of bugs.
//
// The database's clock stands still unless a test moves it. Nothing here reads the
// clock of the process, so a store that lets it into a statement fails: the time in
// the database is years away (Q34).
package storetest
