//go:build !unix

package localserver

import (
	"context"
	"errors"
	"os/exec"
)

// Server processes are controlled with signals, so this platform has none.

func canChroot() bool { return false }

func chroot(*exec.Cmd, string) {}

func newProcess(context.Context, Install, PostgresOptions) (backend, error) {
	return nil, errors.New("local server binaries can only be run on Unix systems; use a container engine")
}
