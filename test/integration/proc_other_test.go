//go:build !linux

package integration

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func dieWithParent() *syscall.SysProcAttr { return nil }

// peakMemory is the resident set of a running process, in bytes: what it has now, as
// the peak of another process cannot be asked for everywhere.
func peakMemory(t testing.TB, pid int) int64 {
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
