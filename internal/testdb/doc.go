// Package testdb gives tests real database servers. It is imported by tests
// only.
//
// Postgres and MySQL hand out a fresh database on a server that the tests of one
// package share; Dedicated and DedicatedMySQL hand out a server of its own, to crash,
// stop or freeze. EachPostgres and EachMySQL run a test once per version.
// Each package that uses a shared server calls Main from its TestMain.
//
// A server that this machine does not have is a visible skip on a developer's
// machine and a failure when the CI environment variable is not empty: a
// continuous run never passes by not testing. This is the only package in which
// a test may be skipped.
package testdb
