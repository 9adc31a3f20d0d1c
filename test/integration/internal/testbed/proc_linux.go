package testbed

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// DieWithParent lets no child outlive a test binary that is killed.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// PeakMemory is the largest resident set that a running process has had, in bytes.
// What wait reports instead would count the parent's memory too, which a child shares
// until its exec.
func PeakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kB int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kB); n == 1 {
			return kB << 10
		}
	}
	t.Fatalf("no VmHWM in:\n%s", status)
	return 0
}
