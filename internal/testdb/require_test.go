package testdb

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// ending records how a test ended instead of ending it.
type ending struct {
	testing.TB
	failed, skipped string
}

func (e *ending) Helper() {}

func (e *ending) Fatalf(format string, args ...any) {
	e.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (e *ending) Skipf(format string, args ...any) {
	e.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// A continuous run never passes by not testing.
func TestMissingServerFailsWhereCIIsSetAndIsAVisibleSkipElsewhere(t *testing.T) {
	t.Setenv(reportVariable, "")
	for _, ci := range []string{"", "true"} {
		t.Setenv("CI", ci)
		e := &ending{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			require(e, 9)
		}()
		<-done
		message, other := e.skipped, e.failed
		if ci != "" {
			message, other = other, message
		}
		if !strings.Contains(message, "PostgreSQL 9") || !strings.Contains(message, "install-servers.sh") || other != "" {
			t.Errorf("CI=%q: failed with %q, skipped with %q", ci, e.failed, e.skipped)
		}
	}
}
