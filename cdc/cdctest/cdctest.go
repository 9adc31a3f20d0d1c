package cdctest

import (
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Database is one database on a real server with an empty table Schema.Table,
// whose columns are id (a text or number, the primary key) and payload (a text
// that may be null), in this order. All of it is thrown away by the test's cleanup.
type Database struct {
	// Schema and Table are the names that records carry.
	Schema, Table string
	// Open makes a reader of the table. One that is opened after another was stopped
	// continues where the acknowledgements of that one ended.
	Open func(t *testing.T) cdc.Source
	// Exec runs statements in a session of its own, each committed by itself.
	Exec func(t *testing.T, sql ...string)
	// Begin opens a transaction in a session of its own.
	Begin func(t *testing.T) Tx
	// Disconnect ends the connections of readers from the server's side.
	Disconnect func(t *testing.T)
}

// Tx is an open transaction. Its methods fail the test on an error.
type Tx interface {
	Exec(sql string)
	Commit()
	Rollback()
}

// Run runs the whole suite; open is called once per test.
func Run(t *testing.T, open func(t *testing.T) Database) {
	for name, test := range map[string]func(*testing.T, Database){
		"rows come in commit order":                  commitOrder,
		"rolled-back work is never seen":             rolledBack,
		"values keep null, empty and text apart":     values,
		"columns are found by name":                  columns,
		"unregistered tables are left out":           unregistered,
		"a large commit comes in parts":              parts,
		"positions rise":                             positionsRise,
		"what was not acknowledged comes again":      unacknowledged,
		"what was acknowledged does not come again":  acknowledged,
		"an acknowledgement after Run counts":        lateAck,
		"a worthless acknowledgement counts nothing": worthlessAck,
		"a lost connection loses nothing":            disconnected,
		"a commit cut in its middle begins anew":     cutInTheMiddle,
		"a blocked consumer does not hold Run up":    blockedConsumer,
		"Run can be called again":                    runAgain,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}
