// Command cdc-dispatcher delivers the events that an application commits into
// its own database to their handlers. See its sub-commands' help, and docs/.
//
// This folder holds the command line, the configuration file and the wiring; it
// is the only place that knows all the others, and the only one that turns the
// kind of a handler into its constructor (wire.go).
package main

import "os"

// version is set by the linker.
var version string

func main() {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, lookup: os.LookupEnv}
	os.Exit(a.main(os.Args[1:]))
}
