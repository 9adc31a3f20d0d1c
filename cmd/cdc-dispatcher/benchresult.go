package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

// benchResult is what a bench measured and counted.
type benchResult struct {
	// Server is its product and version.
	Server string `json:"server"`
	// Mode is "log", or "poll" with the reason.
	Mode   string `json:"mode"`
	Reason string `json:"reason,omitempty"`
	// Schema is the name of the scratch schema, which is gone by now.
	Schema string `json:"schema"`

	Drain   benchDrain   `json:"drain"`
	Latency benchLatency `json:"latency"`

	// Events were committed, Deliveries are the rows that they have led to, of which Open had not ended.
	Events     int `json:"events"`
	Deliveries int `json:"deliveries"`
	Open       int `json:"open"`
	Lost       int `json:"lost"`
	Duplicates int `json:"duplicates"`
	// EventsViaLog and EventsViaPoller say how events came.
	EventsViaLog    int `json:"events_via_log"`
	EventsViaPoller int `json:"events_via_poller"`
	// Broken lists the broken promises in words, with ids.
	Broken []string `json:"broken,omitempty"`
}

// benchDrain is how fast a backlog went.
type benchDrain struct {
	Events int `json:"events"`
	// Seconds are from the start of the dispatcher until the last outcome was in the table.
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	// CPUSeconds is what this process used meanwhile; 0 where the system does not tell.
	CPUSeconds float64 `json:"client_cpu_seconds"`
}

// benchLatency is how long events took from the moment their COMMIT was sent to the start of the handler.
type benchLatency struct {
	Events int `json:"events"`
	// Offered and PerSecond are the rate that was wanted and the one that the database took.
	Offered   int     `json:"offered_per_second"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Max       float64 `json:"max_ms"`
	// CPUSeconds is what this process used, for dispatching and for the inserts.
	CPUSeconds float64 `json:"client_cpu_seconds"`
}

func (r *benchResult) measuredLatency(sorted []time.Duration, events, rate int, took, cpu time.Duration) {
	ms := func(p float64) float64 {
		return rounded(float64(ledger.Percentile(sorted, p))/float64(time.Millisecond), 2)
	}
	r.Latency = benchLatency{
		Events: events, Offered: rate, PerSecond: rounded(float64(events)/took.Seconds(), 1),
		P50: ms(50), P99: ms(99), Max: ms(100), CPUSeconds: rounded(cpu.Seconds(), 2),
	}
}

func (r *benchResult) measuredDrain(events int, took, cpu time.Duration) {
	r.Drain = benchDrain{
		Events: events, Seconds: rounded(took.Seconds(), 3), PerSecond: rounded(float64(events)/took.Seconds(), 0), CPUSeconds: rounded(cpu.Seconds(), 2),
	}
}

func (r *benchResult) compared(rep ledger.Report) {
	r.Events, r.Deliveries = rep.Events, rep.Deliveries
	r.Open = rep.States[delivery.Pending] + rep.States[delivery.Failed]
	r.Lost, r.Duplicates = len(rep.Lost)+len(rep.Phantom), rep.Duplicates
	r.Broken = rep.Broken()
}

// err is not nil when the ledger does not balance.
func (r *benchResult) err() error {
	switch {
	case len(r.Broken) > 0:
		return failed(codeLedger, "report it, with the JSON of the result (-o json)", "the ledger does not balance: %s", strings.Join(r.Broken, "; "))
	case r.Open > 0:
		return failed(codeLedger, "run it again with fewer --events, or when the database has less to do", "%s of %s deliveries had not ended", thousands(r.Open), thousands(r.Deliveries))
	}
	return nil
}

// paper is the result for people.
func (r *benchResult) paper() *paper {
	mode := r.Mode
	if r.Reason != "" {
		mode += ": " + r.Reason
	}
	ledger := fmt.Sprintf("%s events committed, %s deliveries, %d lost, %d duplicates", thousands(r.Events), thousands(r.Deliveries), r.Lost, r.Duplicates)
	if r.Open > 0 {
		ledger += fmt.Sprintf(", %s still open", thousands(r.Open))
	}
	var p paper
	p.line("Server", "%s", r.Server)
	p.line("Mode", "%s", mode)
	p.line("Events", "%s via the log, %s via the poller", thousands(r.EventsViaLog), thousands(r.EventsViaPoller))
	p.line("Drain", "%s deliveries in %.1f s: %s/s", thousands(r.Drain.Events), r.Drain.Seconds, thousands(int(r.Drain.PerSecond)))
	p.line("Latency", "p50 %.2f ms, p99 %.2f ms, max %.2f ms at %.0f of %d events/s, from commit to handler", r.Latency.P50, r.Latency.P99, r.Latency.Max, r.Latency.PerSecond, r.Latency.Offered)
	if r.Drain.CPUSeconds > 0 || r.Latency.CPUSeconds > 0 {
		p.line("Client CPU", "%.2f s for the drain, %.2f s for the latency, inserts included", r.Drain.CPUSeconds, r.Latency.CPUSeconds)
	}
	p.line("Ledger", "%s", ledger)
	for _, b := range r.Broken {
		p.line("BROKEN", "%s", b)
	}
	return &p
}

// rounded keeps so many digits.
func rounded(v float64, digits int) float64 {
	out, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'f', digits, 64), 64) // what was formatted can be parsed
	return out
}

// thousands writes a number with commas.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
