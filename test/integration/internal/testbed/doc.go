// Package testbed is what the tests of the whole product stand on: the databases of each
// kind of server, the real program as a process, and the table that a run ends with. It is
// imported by tests only.
//
// It knows nothing of the library's insides: how a dispatcher is wired is the business of
// the tests that wire one.
package testbed
