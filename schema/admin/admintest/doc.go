// Package admintest is the suite that the Admin of every SQL store passes. [Run] takes a
// [Server]: the layouts of event tables to run on, and a function that opens one on
// real, migrated tables, with hooks to arrange and to read what is in them.
//
// Each layout is opened once; its tables are emptied before each test. Tests are named after
// the rule they prove: N and Q numbers are items of the queue reference.
//
// Ages are told to the hooks as durations before the database's now, and nothing is asserted
// on how long anything takes: a slow machine passes too.
package admintest
