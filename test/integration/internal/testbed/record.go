package testbed

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

// Size is n with SOAK set, else the smaller number that fits into a run of all tests.
func Size(short, n int) int {
	if os.Getenv("SOAK") != "" {
		return n
	}
	return short
}

// reportVariable names the file that scripts/test.sh makes its closing tables of.
const reportVariable = "CDC_DISPATCHER_TEST_REPORT"

// Record adds the result of one guarantee test to the closing table, one line of
// fields parted by tabs, and logs it where there is no table.
func Record(t testing.TB, server string, r ledger.Report, faults []string) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	line := fmt.Sprintf("ledger\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", name, server,
		r.Events, r.RolledBack, r.Deliveries, len(r.Lost)+len(r.Phantom), r.Duplicates, Tally(faults))
	write(t, line)
}

// Print adds lines to the end of a run.
func Print(t testing.TB, lines ...string) {
	t.Helper()
	for _, line := range lines {
		write(t, "table\t"+line+"\n")
	}
}

func write(t testing.TB, line string) {
	t.Helper()
	path := os.Getenv(reportVariable)
	if path == "" {
		t.Log(strings.ReplaceAll(line, "\t", "  "))
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(line); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// Tally turns "a", "a", "b" into "2 × a, b".
func Tally(list []string) string {
	var out []string
	counts := map[string]int{}
	for _, one := range list {
		if counts[one]++; counts[one] == 1 {
			out = append(out, one)
		}
	}
	for i, one := range out {
		if n := counts[one]; n > 1 {
			out[i] = fmt.Sprintf("%d × %s", n, one)
		}
	}
	return strings.Join(out, ", ")
}
