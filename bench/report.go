package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// figure is one line of the table.
type figure struct {
	Figure string `json:"figure"`
	// Who was measured; empty for a ratio.
	Who  string `json:"who,omitempty"`
	Unit string `json:"unit"`
	// Want is what a ratio must reach, as "≥ 2.0" or "≤ 1.1"; empty for what is only shown.
	Want   string    `json:"want,omitempty"`
	Rounds []float64 `json:"rounds"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Met    *bool     `json:"met,omitempty"`
}

// report gathers figures in the order in which they were first seen.
type report struct {
	Date     time.Time         `json:"date"`
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Setup    map[string]string `json:"setup"`
	// Load is the load average of the last minute when an experiment began: what the machine did besides.
	Load    map[string]string `json:"load"`
	Figures []*figure         `json:"figures"`
}

func newReport(o options) *report {
	r := &report{
		Date:     time.Now().UTC().Truncate(time.Second),
		Machine:  machine(),
		Versions: map[string]string{"go": runtime.Version(), "cdc-dispatcher": revision()},
		Load:     map[string]string{},
		Setup: map[string]string{
			"rounds":                 fmt.Sprint(o.rounds),
			"events per transaction": fmt.Sprint(o.perTx),
		},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/riverqueue/river" {
				r.Versions["river"] = dep.Version
			}
		}
	}
	return r
}

// show adds one round's value of a figure.
func (r *report) show(name, who, unit string, value float64) { r.add(name, who, unit, "", value) }

// ratio adds one round's value of a figure that has to reach something.
func (r *report) ratio(name, want string, value float64) { r.add(name, "", "×", want, value) }

// limit is like ratio for a figure with a unit.
func (r *report) limit(name, who, unit, want string, value float64) {
	r.add(name, who, unit, want, value)
}

func (r *report) add(name, who, unit, want string, value float64) {
	i := slices.IndexFunc(r.Figures, func(f *figure) bool { return f.Figure == name && f.Who == who && f.Unit == unit })
	if i < 0 {
		i = len(r.Figures)
		r.Figures = append(r.Figures, &figure{Figure: name, Who: who, Unit: unit, Want: want})
	}
	f := r.Figures[i]
	f.Rounds = append(f.Rounds, value)
	sorted := slices.Sorted(slices.Values(f.Rounds))
	n := len(sorted)
	f.Min, f.Max, f.Median = sorted[0], sorted[n-1], (sorted[(n-1)/2]+sorted[n/2])/2
	f.Met = met(want, f.Median)
	fmt.Fprintf(os.Stderr, "   %s\t%s\t%s\n", name, who, number(value, unit))
}

// met compares the median with what is wanted; nil when nothing is.
func met(want string, value float64) *bool {
	var sign string
	var bound float64
	if n, _ := fmt.Sscanf(want, "%s %g", &sign, &bound); n != 2 {
		return nil
	}
	ok := value >= bound
	if sign == "≤" {
		ok = value <= bound
	}
	return &ok
}

func number(v float64, unit string) string {
	format := "%.0f %s"
	switch {
	case unit == "×" || v < 10:
		format = "%.2f %s"
	case v < 100:
		format = "%.1f %s"
	}
	return fmt.Sprintf(format, v, unit)
}

// table is what a person reads at the end.
func (r *report) table() string {
	w := &strings.Builder{}
	_, _ = fmt.Fprintf(w, "\n%s, %s\n", r.Date.Format(time.DateOnly), r.Machine)
	for _, list := range []map[string]string{r.Versions, r.Setup, r.Load} {
		var parts []string
		for name, value := range list {
			parts = append(parts, name+": "+value)
		}
		slices.Sort(parts)
		_, _ = fmt.Fprintln(w, strings.Join(parts, "; "))
	}
	_, _ = fmt.Fprintln(w, "(load average of the last minute when each of these began)")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "\nfigure\twho\tmedian\tmin\tmax\twanted\t")
	for _, f := range r.Figures {
		verdict := ""
		if f.Met != nil {
			verdict = map[bool]string{true: "yes", false: "NO"}[*f.Met]
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Figure, f.Who, number(f.Median, f.Unit), number(f.Min, f.Unit), number(f.Max, f.Unit), f.Want, verdict)
	}
	_ = t.Flush() // into memory, like the lines above
	return w.String()
}

func (r *report) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644) //nolint:gosec // results are for everybody
}

// machine says what the figures were measured on.
func machine() string {
	model := "unknown CPU"
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d CPUs (%s), %s/%s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH)
}

// load is the load average of the last minute; empty where that is not known.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	minute, _, _ := strings.Cut(string(data), " ")
	return minute
}

// revision is the commit that is measured.
func revision() string {
	out, err := exec.Command("git", "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
