//go:build !linux

package testbed

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func DieWithParent() *syscall.SysProcAttr { return nil }

// PeakMemory is the resident set of a running process, in bytes: what it has now, as
// the peak of another process cannot be asked for everywhere.
func PeakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	kB, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kB << 10
}
