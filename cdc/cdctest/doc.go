// Package cdctest is the suite that every reader of a database log must pass. It
// runs against a real server and checks the promises of package cdc, its
// prohibitions included.
//
// A reader's own test gives [Run] a function that opens a fresh [Database]. The
// suite needs a reader that implements cdc.Reporter, in order to know when it
// streams.
//
// [Reader] is what a reader's own tests stand on: it runs a source and keeps account of what comes.
package cdctest
