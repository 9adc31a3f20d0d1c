package testdb

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reportVariable names the file to which every test binary appends what ran on
// which server. scripts/test.sh sets it and prints the matrix from it, so that
// a run without -v still says what it ran on.
const reportVariable = "CDC_DISPATCHER_TEST_REPORT"

// report appends one line: kind, database server, package, test or origin. One
// write each, so that binaries running at the same time do not mix their lines.
func report(t testing.TB, kind, server, detail string) {
	path := os.Getenv(reportVariable)
	if path == "" {
		return
	}
	pkg := strings.TrimSuffix(filepath.Base(os.Args[0]), ".test")
	line := strings.Join([]string{kind, server, pkg, detail}, "\t") + "\n"
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Errorf("testdb: %s: %v", reportVariable, err)
		return
	}
	_, err = f.WriteString(line)
	if closeErr := f.Close(); err != nil || closeErr != nil {
		t.Errorf("testdb: write report: %v, %v", err, closeErr)
	}
}

// Report records in the run's matrix that a test ran on a server that testdb
// did not start, for example in a container.
func Report(t testing.TB, server, origin string) {
	t.Helper()
	t.Logf("%s: %s", server, origin)
	report(t, "server", server, origin)
	report(t, "test", server, t.Name())
}

// Note adds a remark to the end of the run's output: what a reader of nothing but
// the end should know.
func Note(t testing.TB, text string) {
	t.Helper()
	t.Log(text)
	report(t, "note", "", text)
}

func postgresName(major int) string { return fmt.Sprintf("PostgreSQL %d", major) }
