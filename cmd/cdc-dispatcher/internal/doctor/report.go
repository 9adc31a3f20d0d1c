package doctor

import (
	"fmt"
	"io"
	"strings"
)

// mark is the sign of a status in the text form.
func (s Status) mark() string {
	switch s {
	case OK:
		return "✓"
	case Warn:
		return "!"
	case Fail:
		return "✗"
	}
	return "-"
}

// Find returns the result of one check.
func (r Report) Find(code string) (Result, bool) {
	for _, res := range r.Results {
		if res.Code == code {
			return res, true
		}
	}
	return Result{}, false
}

// LogProblem returns the check because of which the log cannot be read; ok is false when there
// is none. That checks of the log are skipped because of the event table or our own ones does not count.
func (r Report) LogProblem() (cause Result, ok bool) {
	for _, res := range r.Results {
		if !strings.HasPrefix(res.Code, logChecks) && !strings.HasPrefix(res.Code, binlogChecks) {
			continue
		}
		if res.Status == Skipped {
			res, _ = r.Find(res.Because)
		}
		if res.Status == Fail && !strings.HasPrefix(res.Code, tableChecks) {
			return res, true
		}
	}
	return Result{}, false
}

// What the codes of a group of checks begin with.
const (
	tableChecks  = "CD21"
	logChecks    = "CD22"
	binlogChecks = "CD24"
)

// WriteText writes the report for people: one line per check, under a finding what to run,
// and a summary.
func (r Report) WriteText(w io.Writer) error {
	width := 0
	for _, res := range r.Results {
		width = max(width, len(res.Name))
	}
	indent := strings.Repeat(" ", len("x CD2001  ")+width+2)
	var b strings.Builder
	for _, res := range r.Results {
		fmt.Fprintf(&b, "%s %s  %-*s%s", res.Status.mark(), res.Code, width+2, res.Name, res.Message)
		if res.Value != "" {
			fmt.Fprintf(&b, " (%s)", res.Value)
		}
		b.WriteByte('\n')
		for _, statement := range res.Fix {
			fmt.Fprintf(&b, "%s  run   %s;\n", indent, statement)
		}
		if res.Hint != "" {
			fmt.Fprintf(&b, "%s  note  %s\n", indent, res.Hint)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d to look at, %d failed, %d not checked\n", r.Count(OK), r.Count(Warn), r.Count(Fail), r.Count(Skipped))
	_, err := io.WriteString(w, b.String())
	return err
}
