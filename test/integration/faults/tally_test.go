package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/nemesis"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// tally adds results up, per server.
type tally struct {
	mu      sync.Mutex
	servers map[string]*sum
}

type sum struct {
	plans, faults, events, undone, deliveries, starts, repeats int
	broken                                                     int
	kinds                                                      map[string]int
	recovery                                                   []time.Duration
}

func (y *tally) add(r result) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.servers == nil {
		y.servers = map[string]*sum{}
	}
	s := y.servers[r.title]
	if s == nil {
		s = &sum{kinds: map[string]int{}}
		y.servers[r.title] = s
	}
	s.plans++
	s.faults += len(r.injected)
	s.events += r.report.Events
	s.undone += r.report.RolledBack
	s.deliveries += r.report.Deliveries
	s.starts += r.report.Starts
	s.repeats += r.report.Duplicates
	s.broken += len(r.report.Broken())
	s.recovery = append(s.recovery, r.recovery)
	for _, kind := range r.injected {
		s.kinds[kind]++
	}
}

// publish prints two tables in Markdown: the figures, and the faults by kind.
func (y *tally) publish(t testing.TB) {
	t.Helper()
	titles := slices.Sorted(maps.Keys(y.servers))
	var out []string
	out = append(out,
		"| server | plans | faults | committed | undone | deliveries | attempts | promises broken | repeats | recovery, median and longest |",
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, title := range titles {
		s := y.servers[title]
		slices.Sort(s.recovery)
		out = append(out, fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %d | %s, %s |", title, s.plans, s.faults, s.events, s.undone,
			s.deliveries, s.starts, s.broken, s.repeats, seconds(s.recovery[len(s.recovery)/2]), seconds(s.recovery[len(s.recovery)-1])))
	}
	out = append(out, "", "| fault | "+strings.Join(titles, " | ")+" |", "| ---"+strings.Repeat(" | ---", len(titles))+" |")
	for _, kind := range nemesis.Kinds() {
		line := "| " + string(kind)
		for _, title := range titles {
			line += fmt.Sprintf(" | %d", y.servers[title].kinds[string(kind)])
		}
		out = append(out, line+" |")
	}
	testbed.Print(t, out...)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
