package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// picture is everything that one frame shows.
type picture struct {
	server            string
	elapsed, total    time.Duration // total 0: until interrupted
	phase             string
	committed, undone int
	viaLog, viaPoller int
	starts            int
	p50, p99          time.Duration
	roles             []role
	states            map[string]map[delivery.State]int // by handler
	look              string                            // how to look into the tables: a program up to its statement
	table             string                            // of deliveries
}

// columns of the table of deliveries, in the order of a delivery's life.
var columns = []struct {
	title string
	state delivery.State
}{
	{"pending", delivery.Pending},
	{"retrying", delivery.Failed},
	{"succeeded", delivery.Succeeded},
	{"dead", delivery.Dead},
	{"blocked", delivery.Blocked},
	{"expired", delivery.Expired},
}

// frame draws one picture as lines without line ends.
func frame(p picture, paint painter) []string {
	clock := p.elapsed.Truncate(time.Second).String()
	if p.total > 0 {
		clock = min(p.elapsed, p.total).Truncate(time.Second).String() + " of " + p.total.String()
	}
	lines := []string{
		paint.bold("cdc-dispatcher demo") + paint.dim("  "+p.server),
		paint.dim(fmt.Sprintf("%s, %s. Ctrl-C ends it and removes everything.", p.phase, clock)),
		"",
		fmt.Sprintf("  the application    committed %-7d rolled back %d", p.committed, p.undone),
		fmt.Sprintf("  arrived            via log   %-7d via poller  %d", p.viaLog, p.viaPoller),
		fmt.Sprintf("  handlers           starts    %-7d commit to start: p50 %s, p99 %s", p.starts, short(p.p50), short(p.p99)),
		"",
		paint.bold(header()),
	}
	for _, r := range p.roles {
		lines = append(lines, tableRow(r, p.states[r.Name], paint))
	}
	return append(lines, "",
		paint.dim("  every number is a row; look yourself while it runs:"),
		fmt.Sprintf("  %s 'SELECT handler_name, state, attempts, reason FROM %s'", p.look, p.table),
	)
}

func header() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-9s", "handler")
	for _, c := range columns {
		fmt.Fprintf(&b, "%10s", c.title)
	}
	return b.String()
}

func tableRow(r role, states map[delivery.State]int, paint painter) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-9s", r.Name)
	for _, c := range columns {
		n := states[c.state]
		cell := fmt.Sprintf("%10d", n)
		switch {
		case n == 0:
			cell = paint.dim(cell)
		case c.state == delivery.Succeeded:
			cell = paint.green(cell)
		case c.state == delivery.Failed:
			cell = paint.yellow(cell)
		case !c.state.Open():
			cell = paint.red(cell)
		}
		b.WriteString(cell)
	}
	b.WriteString(paint.dim("  " + r.about))
	return b.String()
}

// line is the picture for a log: one line per second.
func line(p picture) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%4.0fs  committed %d, rolled back %d, via log %d, via poller %d", p.elapsed.Seconds(),
		p.committed, p.undone, p.viaLog, p.viaPoller)
	for _, c := range columns {
		n := 0
		for _, states := range p.states {
			n += states[c.state]
		}
		fmt.Fprintf(&b, ", %s %d", c.title, n)
	}
	fmt.Fprintf(&b, ", p50 %s", short(p.p50))
	return b.String()
}

// short prints a duration with three figures at most.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(time.Microsecond).String()
	}
}

// painter colours text; the zero value does not.
type painter struct{ on bool }

func (p painter) code(code, s string) string {
	if !p.on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p painter) bold(s string) string   { return p.code("1", s) }
func (p painter) dim(s string) string    { return p.code("2", s) }
func (p painter) red(s string) string    { return p.code("31", s) }
func (p painter) green(s string) string  { return p.code("32", s) }
func (p painter) yellow(s string) string { return p.code("33", s) }

// screen draws frames over each other on a terminal. Lines wrap nowhere while it
// is in use, so a narrow window cuts them off instead of breaking the picture.
type screen struct {
	out   io.Writer
	lines int // of the last frame
}

const (
	wrapOff, wrapOn = "\x1b[?7l", "\x1b[?7h"
	clearToLineEnd  = "\x1b[K"
)

// draw puts a frame in the place of the last one, in one write.
func (s *screen) draw(lines []string) error {
	var b strings.Builder
	if s.lines == 0 {
		b.WriteString(wrapOff)
	} else {
		fmt.Fprintf(&b, "\x1b[%dA\r", s.lines)
	}
	for _, l := range lines {
		b.WriteString(l)
		b.WriteString(clearToLineEnd + "\r\n")
	}
	s.lines = len(lines)
	_, err := io.WriteString(s.out, b.String())
	return err
}

// close gives the terminal back; the last frame stays.
func (s *screen) close() error {
	if s.lines == 0 {
		return nil
	}
	_, err := io.WriteString(s.out, wrapOn)
	return err
}
