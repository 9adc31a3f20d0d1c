package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// paper collects the text form of data, so that it is written in one piece whose
// failure is noticed.
type paper struct{ strings.Builder }

// add adds text as it is.
func (p *paper) add(format string, args ...any) { _, _ = fmt.Fprintf(&p.Builder, format, args...) }

// line adds a label and a value.
func (p *paper) line(label, format string, args ...any) {
	p.add("%-12s%s\n", label, printable(fmt.Sprintf(format, args...)))
}

// fields adds labels and values, those that have one.
func (p *paper) fields(list [][2]string) {
	for _, f := range list {
		if f[1] != "" && f[1] != "-" {
			p.line(f[0], "%s", f[1])
		}
	}
}

// table adds rows in columns. The first row is the header.
func (p *paper) table(rows [][]string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		_, _ = io.WriteString(w, strings.Join(cells, "\t")+"\n") // a Builder takes everything
	}
	_ = w.Flush() // likewise
	for line := range strings.Lines(b.String()) {
		p.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// print writes data.
func (a *app) print(p *paper) error {
	_, err := io.WriteString(a.out, p.String())
	return err
}

// printTable writes data in columns.
func (a *app) printTable(rows [][]string) error {
	var p paper
	p.table(rows)
	return a.print(&p)
}

// words writes to stderr. There is nobody to tell if that fails.
func (a *app) words(text string) { _, _ = io.WriteString(a.err, text) }

// say writes a line of words, unless --quiet was given.
func (a *app) say(format string, args ...any) {
	if !a.quiet {
		a.words(fmt.Sprintf(format+"\n", args...))
	}
}

// printable keeps what came out of a database from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// list joins at most n of the items and says how many there are more.
func list(items []string, n int) string {
	if len(items) <= n {
		return strings.Join(items, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(items[:n], ", "), len(items)-n)
}

// count is "1 handler" or "2 handlers".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// bytesOf writes a number of bytes for people.
func bytesOf(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// span writes a duration for people, in at most two units.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return strings.TrimSuffix(d.Round(time.Second).String(), "m0s") + minuteUnit(d.Round(time.Second))
	case d < 48*time.Hour:
		text := strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
		if d.Round(time.Minute)%time.Hour == 0 {
			text = strings.TrimSuffix(text, "0m")
		}
		return text
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// minuteUnit gives a whole number of minutes its unit back.
func minuteUnit(d time.Duration) string {
	if d%time.Minute == 0 {
		return "m"
	}
	return ""
}

// moment writes an instant for people; "-" for the zero one.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000")
}
