//go:build !unix

package localserver

import (
	"context"
	"errors"
	"os"
	"os/exec"
)

// Server processes are controlled with signals, so this platform has none.

func canChroot() bool { return false }

func chroot(*exec.Cmd, string) {}

func newProcess(context.Context, Install, PostgresOptions) (backend, error) {
	return nil, errors.New("local server binaries can only be run on Unix systems; use a container engine")
}

// claim and claimAbandoned: without file locks nothing left behind can be told
// from something in use, so nothing is taken over.
func claim(string) (*os.File, error) { return nil, nil }

func claimAbandoned(string) *os.File { return nil }

func newMySQLProcess(context.Context, MySQLInstall, MySQLOptions) (mysqlBackend, error) {
	return nil, errors.New("local server binaries can only be run on Unix systems")
}

// terminate: there is no gentler signal.
var terminate = os.Kill
