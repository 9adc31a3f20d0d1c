// Package nemesis decides what is broken, when, and for how long. It is the pure half of the
// fault harness (package faults): a seed makes a plan, and the same seed the same plan. It
// knows no server and no clock; who carries a plan out measures time in commits of the writers,
// and only the length of a fault in seconds.
//
// Promise: a plan deals whole decks, so that every kind of fault is in every plan, in another
// order and company each time. Faults of one step happen together; no two of them need the
// same thing, so that each one finds what it breaks.
package nemesis

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Kind is a kind of fault, in the words that a report prints.
type Kind string

// The kinds.
const (
	// Kill is kill -9 of a dispatcher, Terminate a polite stop; a new life begins afterwards.
	Kill      Kind = "kill -9"
	Terminate Kind = "SIGTERM"
	// Freeze is SIGSTOP, and SIGCONT after a while.
	Freeze Kind = "SIGSTOP"
	// Cut, Stall, BlackHole and Delay concern the connections of a dispatcher.
	Cut       Kind = "cut"
	Stall     Kind = "stall"
	BlackHole Kind = "black hole"
	Delay     Kind = "delay"
	// Crash is kill -9 of the server, Restart a clean shutdown; it is started again.
	Crash   Kind = "server crash"
	Restart Kind = "server restart"
	// ForgetLog drops the slot, or purges log that nobody has read.
	ForgetLog Kind = "log lost"
	// Exhaust takes all connections that the server has, Lock the table of deliveries.
	Exhaust Kind = "no connections"
	Lock    Kind = "table lock"
	// Alter adds a column to the event table.
	Alter Kind = "ADD COLUMN"
	// Pause pauses a handler and lets it go on after a while.
	Pause Kind = "pause"
	// Refuse and Hang concern the destination: it answers 503, or not at all.
	Refuse Kind = "503"
	Hang   Kind = "hanging receiver"
)

// Kinds are all of them, in the order in which a report lists them.
func Kinds() []Kind {
	return []Kind{
		Kill, Terminate, Freeze, Cut, Stall, BlackHole, Delay, Crash, Restart,
		ForgetLog, Exhaust, Lock, Alter, Pause, Refuse, Hang,
	}
}

// Path is a set of a dispatcher's connections.
type Path string

// The sets: those of its pool, the one that reads the log, and all.
const (
	Pool  Path = "pool"
	Log   Path = "log"
	Every Path = "pool and log"
)

// Fault is one thing that is broken.
type Fault struct {
	Kind Kind
	// Process says which dispatcher, for the kinds that concern one.
	Process int
	// Path is set for Cut, Stall, BlackHole and Delay.
	Path Path
	// For is how long it lasts. A dispatcher and a server are down for so long.
	For time.Duration
	// Handler says which handler, for Pause, Refuse and Hang.
	Handler int
}

// String names a fault in a log.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(string(f.Kind))
	switch f.Kind {
	case Kill, Terminate, Freeze:
		fmt.Fprintf(&b, " of process %d", f.Process)
	case Cut, Stall, BlackHole, Delay:
		fmt.Fprintf(&b, " of %s of process %d", f.Path, f.Process)
	case Pause, Refuse, Hang:
		fmt.Fprintf(&b, " of handler %d", f.Handler)
	}
	if f.For > 0 {
		fmt.Fprintf(&b, " for %s", f.For)
	}
	return b.String()
}

// Step is what happens together.
type Step struct {
	// Commits is how many events the writers commit before it.
	Commits int
	Faults  []Fault
}

// Plan is what a seed makes.
type Plan struct {
	// Processes is how many dispatchers run: one or two.
	Processes int
	Steps     []Step
}

// Options bound a plan.
type Options struct {
	// Decks is how often every kind is dealt.
	Decks int
	// Handlers is how many there are.
	Handlers int
	// Lease is the dispatchers'. Some faults last longer than it.
	Lease time.Duration
}

// Make makes the plan of a seed.
func Make(seed uint64, o Options) Plan {
	d := dealer{rand.New(rand.NewPCG(seed, 0)), o, 1}
	if d.IntN(4) > 0 {
		d.processes = 2
	}
	p := Plan{Processes: d.processes}
	for range o.Decks {
		p.Steps = append(p.Steps, d.steps(d.deck())...)
	}
	return p
}

type dealer struct {
	*rand.Rand
	o         Options
	processes int
}

// deck is one fault of every kind, more of those that have variants, shuffled.
func (d dealer) deck() []Fault {
	var out []Fault
	for _, kind := range Kinds() {
		out = append(out, d.fault(kind))
	}
	out = append(out, d.fault(Kill), d.fault(Cut), d.fault(BlackHole))
	past := d.fault(Freeze)
	past.For = d.o.Lease + d.upTo(time.Second)
	out = append(out, past)
	d.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func (d dealer) fault(kind Kind) Fault {
	f := Fault{Kind: kind}
	switch kind {
	case Kill, Terminate:
		f.Process, f.For = d.IntN(d.processes), d.upTo(500*time.Millisecond)
	case Freeze:
		f.Process, f.For = d.IntN(d.processes), d.upTo(2*time.Second)
	case Cut:
		f.Process, f.Path = d.IntN(d.processes), d.path()
	case Stall, BlackHole, Delay:
		f.Process, f.Path, f.For = d.IntN(d.processes), d.path(), d.upTo(2*time.Second)
	case Crash, Restart:
		f.For = d.upTo(300 * time.Millisecond)
	case Exhaust, Lock:
		f.For = d.upTo(2 * time.Second)
	case Pause, Refuse, Hang:
		f.Handler, f.For = d.IntN(d.o.Handlers), d.upTo(2*time.Second)
	}
	return f
}

func (d dealer) path() Path {
	return []Path{Pool, Log, Every}[d.IntN(3)]
}

// upTo draws a length, in steps of a tenth.
func (d dealer) upTo(most time.Duration) time.Duration {
	return most / 10 * time.Duration(1+d.IntN(10))
}

// steps deals a deck out in groups of up to three that do not need the same thing.
func (d dealer) steps(deck []Fault) []Step {
	var out []Step
	for len(deck) > 0 {
		step := Step{Commits: 10 + d.IntN(60)}
		want := 1 + d.IntN(3)
		var rest []Fault
		for _, f := range deck {
			if len(step.Faults) < want && free(step.Faults, f) {
				step.Faults = append(step.Faults, f)
			} else {
				rest = append(rest, f)
			}
		}
		out, deck = append(out, step), rest
	}
	return out
}

// free says that a fault needs nothing that one of the others needs.
func free(others []Fault, f Fault) bool {
	for _, other := range others {
		for _, a := range needs(other) {
			for _, b := range needs(f) {
				if a == b || a == everything || b == everything {
					return false
				}
			}
		}
	}
	return true
}

// everything is needed by those that a second fault would keep from happening.
const everything = "everything"

func needs(f Fault) []string {
	switch f.Kind {
	case Kill, Terminate, Freeze:
		return []string{fmt.Sprint("process ", f.Process)}
	case Cut, Stall, BlackHole, Delay:
		return []string{fmt.Sprint("connections ", f.Process)}
	case Refuse, Hang:
		return []string{"receiver"}
	case Restart, ForgetLog:
		// A clean shutdown waits for a reader that is frozen; a log is lost when nobody reads it.
		return []string{everything}
	default: // the server itself, or somebody who must be able to ask it
		return []string{"server"}
	}
}
