package pipeline

import (
	"errors"
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Trouble is something that fails now; the zero value means that it does not.
type Trouble struct {
	// Since is when it began.
	Since time.Time
	// Err is the latest failure.
	Err error
}

// Present says whether there is trouble.
func (t Trouble) Present() bool { return t.Err != nil }

// Health is a snapshot of a pipeline, for readiness probes, status pages and
// metrics. All times are by this process's clock.
type Health struct {
	// At is when the snapshot was taken.
	At time.Time
	// Source is the name of the source, Owner this process's name in leases.
	Source, Owner string
	// Running says that Run has been called and still feeds: it has not begun to stop, or the fan-out in flight then has not
	// ended yet.
	Running bool
	// Registered says that the database was reached and accepted the handlers.
	Registered bool

	// Mode is what the source does; ModePolling when there is no log at all.
	Mode cdc.Mode
	// Log is the source's own report; nil in poll-only mode.
	Log *cdc.Status
	// LogTrouble is why the log is not being read.
	LogTrouble Trouble

	// Database is the registry heartbeat, one small write every 10 s.
	Database   Trouble
	DatabaseOK time.Time
	// FanOut is the way from the log to the delivery rows.
	FanOut   Trouble
	FanOutOK time.Time
	// Poller is the fallback; Backlog is how many undelivered events its last look
	// found, BacklogMore that there may be more. SetAside counts events that
	// could not be fanned out and are tried again at a slow pace.
	Poller      Trouble
	PolledAt    time.Time
	Backlog     int
	BacklogMore bool
	SetAside    int
	// Triggers holds the triggers of the configuration whose callbacks fail now.
	Triggers map[string]Trouble
	// Handling is the way from the delivery rows to the handlers and back.
	Handling Trouble
	Handlers []HandlerHealth
	// Stale counts outcomes that changed nothing since the start (M32).
	Stale int64
}

// Ready says whether the pipeline does its work: the database answers, and
// events come by the log, or by the process this one stands by for, or by the poller. The
// reasons say what is missing; when ready, they say what is degraded. Handlers'
// own failures, and those of what they call, never count.
func (h Health) Ready() (ready bool, reasons []string) {
	switch {
	case !h.Running:
		return false, []string{"not running"}
	case h.Database.Present():
		return false, []string{h.describe("the database", h.Database)}
	case !h.Registered:
		return false, []string{"the handlers are not registered in the database yet"}
	}
	ready, reasons = h.eventsCome()
	for _, t := range []struct {
		what    string
		trouble Trouble
	}{{"fan-out", h.FanOut}, {"handling", h.Handling}} {
		if t.trouble.Present() {
			reasons = append(reasons, h.describe(t.what, t.trouble))
		}
	}
	for name, t := range h.Triggers {
		reasons = append(reasons, h.describe("trigger "+name, t))
	}
	if h.SetAside > 0 {
		reasons = append(reasons, fmt.Sprintf("%d events are set aside because they cannot be fanned out", h.SetAside))
	}
	return ready, reasons
}

// eventsCome says by which way events arrive, if any.
func (h Health) eventsCome() (bool, []string) {
	if h.Log != nil && readingOf(h.Mode) != notReading {
		if silent := h.At.Sub(h.Log.LastByte); h.Mode != cdc.ModeStandby && h.Log.StaleAfter > 0 && silent > h.Log.StaleAfter {
			return false, []string{fmt.Sprintf("the log has been silent for %s", silent.Round(time.Second))}
		}
		if h.Poller.Present() {
			return true, []string{h.describe("the poller", h.Poller)}
		}
		return true, nil
	}
	var reasons []string
	if h.Log != nil {
		reasons = append(reasons, h.describe("reading the log", h.LogTrouble))
	}
	switch {
	case h.Poller.Present():
		return false, append(reasons, h.describe("the poller", h.Poller))
	case h.PolledAt.IsZero() || h.PolledAt.Before(h.LogTrouble.Since):
		return false, append(reasons, "the poller has not looked yet")
	}
	return true, reasons
}

func (h Health) describe(what string, t Trouble) string {
	if !t.Present() {
		return what + ": not yet"
	}
	return fmt.Sprintf("%s has been failing for %s: %v", what, h.At.Sub(t.Since).Round(time.Second), t.Err)
}

func (t *trouble) export() Trouble {
	since, err := t.present()
	return Trouble{Since: since, Err: err}
}

// Health may be called from any goroutine at any time.
func (p *Pipeline) Health() Health {
	h := Health{
		At: time.Now(), Source: p.plan.Source, Owner: p.plan.Owner, Running: p.running.Load(),
		Mode: cdc.ModePolling, Database: p.heartbeat.trouble.export(),
		FanOut: p.fanOut.viaLog.export(), Poller: p.poller.trouble.export(),
	}
	p.heartbeat.mu.Lock()
	h.DatabaseOK = p.heartbeat.lastOK
	p.heartbeat.mu.Unlock()
	h.Registered = !h.DatabaseOK.IsZero()

	p.fanOut.mu.Lock()
	h.FanOutOK = p.fanOut.lastOK
	p.fanOut.mu.Unlock()

	p.poller.mu.Lock()
	h.PolledAt, h.Backlog, h.BacklogMore = p.poller.last.at, p.poller.last.found, p.poller.last.more
	p.poller.mu.Unlock()
	if t := p.fanOut.viaPoll.export(); t.Present() && !h.Poller.Present() {
		h.Poller = t
	}
	h.SetAside = p.fanOut.aside.size(h.At)

	p.addLog(&h)
	handling := p.slots.health()
	h.Handling = Trouble{Since: handling.since, Err: handling.err}
	h.Handlers, h.Stale = handling.handlers, handling.stale
	return h
}

func (p *Pipeline) addLog(h *Health) {
	if p.supervisor == nil {
		return
	}
	status, state := p.supervisor.status(), p.supervisor.state()
	h.Log, h.Mode = &status, status.Mode
	if state.reading == notReading && readingOf(status.Mode) != notReading {
		h.Mode = cdc.ModeConnecting
	}
	switch {
	case state.err != nil:
		h.LogTrouble = Trouble{Since: state.since, Err: state.err}
	case state.reading == notReading && status.Detail != "":
		// The source tries again by itself, and says why.
		h.LogTrouble = Trouble{Since: state.since, Err: errors.New(status.Detail)}
	}
	for _, t := range []*trouble{p.stream.holding, p.stream.gapping} {
		if t := t.export(); t.Present() {
			h.FanOut = t
		}
	}
	for i, t := range p.stream.troubles {
		if name, _ := p.stream.triggers[i].label(); t.export().Present() && name != fanOutName {
			if h.Triggers == nil {
				h.Triggers = make(map[string]Trouble)
			}
			h.Triggers[name] = t.export()
		}
	}
}
