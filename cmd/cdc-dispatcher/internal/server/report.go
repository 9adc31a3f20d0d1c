package server

import (
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// Source is one source of a running dispatcher.
type Source struct {
	Name string
	// Report takes a snapshot. It is called from any goroutine and does no I/O.
	Report func() Report
}

// Report is a snapshot of one source.
type Report struct {
	// Waiting says why the pipeline is not running yet; empty when it is.
	Waiting string
	// Health is the pipeline's own report, meaningless while Waiting.
	Health pipeline.Health
	// LogRequired says that the poller is not accepted in the log's place.
	LogRequired bool
}

// Mode is what the source does. A reader that has given up, while its pipeline works,
// leaves the poller.
func (r Report) Mode() cdc.Mode {
	switch {
	case r.Waiting != "":
		return cdc.ModeStopped
	case r.Health.Mode == cdc.ModeStopped && r.Health.Running && r.Health.LogTrouble.Present():
		return cdc.ModePolling
	}
	return r.Health.Mode
}

// Ready says whether the source does its work, and what is missing or, when it is
// ready, degraded.
func (r Report) Ready() (ready bool, reasons []string) {
	if r.Waiting != "" {
		return false, []string{r.Waiting}
	}
	ready, reasons = r.Health.Ready()
	if ready && r.LogRequired && !reading(r.Health.Mode) {
		return false, append([]string{"the log is required (mode: log) and is not being read"}, reasons...)
	}
	return ready, reasons
}

// reading says whether events come by the log, or by the process that this one
// stands by for.
func reading(m cdc.Mode) bool {
	switch m {
	case cdc.ModeStandby, cdc.ModeCatchingUp, cdc.ModeStreaming, cdc.ModeWaitingForStandby:
		return true
	}
	return false
}

// speaks says whether this process exports figures about the tables as a whole:
// the one that holds the reader, and not those that stand by for it. While the log
// can be read by nobody there is no such process, and each speaks: better the same
// figure twice than none at all.
func (r Report) speaks() bool { return r.Waiting == "" && r.Mode() != cdc.ModeStandby }

// leads says whether this process holds the reader.
func (r Report) leads() bool { return reading(r.Mode()) && r.Mode() != cdc.ModeStandby }
