package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

// Result is what a run of the demo counted. Events and RolledBack come from the
// application's account, deliveries and their states from the delivery table; lost,
// duplicates, rolled_back_seen, extra and overlapping from comparing the two with what the
// handlers received; see package ledger for the exact meaning of each.
type Result struct {
	Server   string `json:"server"`   // where the server came from
	Database string `json:"database"` // its product and version
	Mode     string `json:"mode"`     // "log", or "poll" when the server gives no log

	DurationSeconds float64 `json:"duration_seconds"` // how long the application wrote
	EventsPerSecond float64 `json:"events_per_second"`

	Events     int `json:"events"`      // committed
	RolledBack int `json:"rolled_back"` // inserted and undone
	Deliveries int `json:"deliveries"`

	Succeeded int `json:"succeeded"`
	Retried   int `json:"retried"` // deliveries that were attempted more than once
	Dead      int `json:"dead"`
	Blocked   int `json:"blocked"`
	Expired   int `json:"expired"`
	Discarded int `json:"discarded"`
	Open      int `json:"open"` // not ended when the time to settle was over

	Lost           int `json:"lost"`
	Duplicates     int `json:"duplicates"`
	RolledBackSeen int `json:"rolled_back_seen"`
	Extra          int `json:"extra"`
	Overlapping    int `json:"overlapping"`

	EventsViaLog    int `json:"events_via_log"`
	EventsViaPoller int `json:"events_via_poller"`

	LatencyMS Latency `json:"latency_ms"`

	// Broken lists the broken promises in words, with ids.
	Broken []string `json:"broken,omitempty"`
}

// Latency is from the moment the application sent COMMIT to the handler's first
// start, over all pairs of a committed event and a handler, in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// fill adds what the comparison of the accounts found.
func (r *Result) fill(rep ledger.Report, latencies []time.Duration) {
	r.Events, r.RolledBack, r.Deliveries = rep.Events, rep.RolledBack, rep.Deliveries
	r.Succeeded, r.Retried = rep.States[delivery.Succeeded], rep.Retried
	r.Dead, r.Blocked = rep.States[delivery.Dead], rep.States[delivery.Blocked]
	r.Expired, r.Discarded = rep.States[delivery.Expired], rep.States[delivery.Discarded]
	r.Open = rep.States[delivery.Pending] + rep.States[delivery.Failed]
	r.Lost, r.Duplicates = len(rep.Lost)+len(rep.Phantom), rep.Duplicates
	r.RolledBackSeen, r.Extra = len(rep.RolledBackSeen), len(rep.Extra)
	r.Overlapping = len(rep.Overlaps) + len(rep.RepeatedClaims)
	r.Broken = rep.Broken()
	r.LatencyMS = Latency{
		P50: milliseconds(ledger.Percentile(latencies, 50)),
		P99: milliseconds(ledger.Percentile(latencies, 99)),
		Max: milliseconds(ledger.Percentile(latencies, 100)),
	}
	if r.DurationSeconds > 0 {
		r.EventsPerSecond = round(float64(r.Events)/r.DurationSeconds, 1)
	}
}

// Err is not nil when a promise was broken.
func (r Result) Err() error {
	if len(r.Broken) == 0 {
		return nil
	}
	return fmt.Errorf("the run broke a promise: %s", strings.Join(r.Broken, "; "))
}

// WriteText writes the result for people.
func (r Result) WriteText(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		_, _ = fmt.Fprintf(tw, "%s\t%s\n", label, fmt.Sprintf(format, args...)) // Flush reports the error
	}
	row("database", "%s, %s", r.Database, r.Server)
	row("committed", "%d events in %.1f s (%.1f/s), and %d more rolled back", r.Events, r.DurationSeconds, r.EventsPerSecond, r.RolledBack)
	row("arrived", "%d via the log, %d via the poller", r.EventsViaLog, r.EventsViaPoller)
	row("deliveries", "%d: %d succeeded, %d dead, %d blocked, %d expired, %d still open; %d were retried",
		r.Deliveries, r.Succeeded, r.Dead, r.Blocked, r.Expired, r.Open, r.Retried)
	row("latency", "p50 %.1f ms, p99 %.1f ms from commit to handler start", r.LatencyMS.P50, r.LatencyMS.P99)
	row("promises", "%d lost, %d duplicates, %d rolled back but seen", r.Lost, r.Duplicates, r.RolledBackSeen)
	for _, b := range r.Broken {
		row("BROKEN", "%s", b)
	}
	return tw.Flush()
}

func milliseconds(d time.Duration) float64 { return round(float64(d)/float64(time.Millisecond), 2) }

func round(v float64, digits int) float64 {
	scale := 1.0
	for range digits {
		scale *= 10
	}
	return float64(int64(v*scale+0.5)) / scale
}
