package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// modes are the values of the label mode, in a fixed order.
var modes = [...]cdc.Mode{
	cdc.ModeStopped, cdc.ModeConnecting, cdc.ModeStandby, cdc.ModeCatchingUp,
	cdc.ModeStreaming, cdc.ModeWaitingForStandby, cdc.ModePolling,
}

// gauges reads the sources at every scrape. It keeps nothing.
type gauges struct {
	sources []Source

	ready, connected, mode, leader    *prometheus.Desc
	lag, retained, limit, lastByte    *prometheus.Desc
	reconnects, gaps                  *prometheus.Desc
	running, concurrency, paused      *prometheus.Desc
	backlog, setAside, stale, healthy *prometheus.Desc
}

func newGauges(sources []Source) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, append([]string{"source"}, labels...), nil)
	}
	return &gauges{
		sources:    sources,
		ready:      desc("source_ready", "1 while /readyz would call this source ready."),
		connected:  desc("source_connected", "1 while the log is being read by this process."),
		mode:       desc("source_mode", "1 for the mode that the source is in.", "mode"),
		leader:     desc("leader", "1 in the process that holds the log position."),
		lag:        desc("source_lag_bytes", "End of the server's log minus the confirmed position."),
		retained:   desc("source_slot_retained_bytes", "Log that the server keeps for this source."),
		limit:      desc("source_slot_limit_bytes", "Log that the server keeps at most; absent when unlimited."),
		lastByte:   desc("source_last_byte_timestamp_seconds", "When the log's connection last carried anything."),
		reconnects: desc("source_reconnects_total", "Connections to the log that were made after the first."),
		gaps:       desc("source_gaps_total", "Stretches of log that were not read, since the start."),

		running:     desc("deliveries_running", "Attempts in progress.", "handler"),
		concurrency: desc("handler_concurrency_limit", "Attempts that may be in progress at once.", "handler"),
		paused:      desc("handler_paused", "1 while the handler is paused.", "handler"),

		backlog:  desc("poll_backlog_events", "Undelivered events that the poller's last look found."),
		setAside: desc("events_set_aside", "Events that cannot be fanned out and are tried again at a slow pace."),
		stale:    desc("stale_outcomes_total", "Outcomes that changed nothing, because another process held the delivery."),
		healthy:  desc("component_health", "1 for the status that a part of the dispatcher is in.", "component", "status"),
	}
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	for _, s := range g.sources {
		r := s.Report()
		e := emitter{ch: ch, source: s.Name}
		ready, _ := r.Ready()
		e.flag(g.ready, ready)
		g.collectMode(e, r)
		if r.Waiting != "" {
			continue
		}
		g.collectLog(e, r.Health)
		g.collectHandlers(e, r.Health)
		g.collectComponents(e, r.Health)
	}
}

// emitter sends the metrics of one source.
type emitter struct {
	ch     chan<- prometheus.Metric
	source string
}

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{e.source}, labels...)...)
}

func (e emitter) counter(d *prometheus.Desc, v float64) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, e.source)
}

func (e emitter) flag(d *prometheus.Desc, on bool, labels ...string) {
	v := 0.0
	if on {
		v = 1
	}
	e.gauge(d, v, labels...)
}

func (g *gauges) collectMode(e emitter, r Report) {
	mode := r.Mode()
	for _, m := range modes {
		e.flag(g.mode, m == mode, string(m))
	}
	e.flag(g.connected, reading(mode) && mode != cdc.ModeStandby)
	e.flag(g.leader, r.leads())
}

func (g *gauges) collectLog(e emitter, h pipeline.Health) {
	if h.Log == nil {
		return
	}
	for _, v := range []struct {
		desc  *prometheus.Desc
		bytes int64
	}{{g.lag, h.Log.LagBytes}, {g.retained, h.Log.RetainedBytes}, {g.limit, h.Log.RetainLimitBytes}} {
		if v.bytes >= 0 {
			e.gauge(v.desc, float64(v.bytes))
		}
	}
	if !h.Log.LastByte.IsZero() {
		e.gauge(g.lastByte, float64(h.Log.LastByte.UnixMilli())/1000)
	}
	e.counter(g.reconnects, float64(h.Log.Reconnects))
	e.counter(g.gaps, float64(h.Log.Gaps))
}

func (g *gauges) collectHandlers(e emitter, h pipeline.Health) {
	for _, x := range h.Handlers {
		e.gauge(g.running, float64(x.Running), x.Name)
		e.gauge(g.concurrency, float64(x.Limit), x.Name)
		e.flag(g.paused, x.Paused != nil, x.Name)
	}
	e.gauge(g.backlog, float64(h.Backlog))
	e.gauge(g.setAside, float64(h.SetAside))
	e.counter(g.stale, float64(h.Stale))
}

// collectComponents has one series per status, so that an alert needs no
// arithmetic.
func (g *gauges) collectComponents(e emitter, h pipeline.Health) {
	for _, c := range []struct {
		name    string
		trouble pipeline.Trouble
	}{
		{"database", h.Database}, {"log", h.LogTrouble}, {"fanout", h.FanOut}, {"poller", h.Poller}, {"handling", h.Handling},
	} {
		e.flag(g.healthy, !c.trouble.Present(), c.name, "ok")
		e.flag(g.healthy, c.trouble.Present(), c.name, "error")
	}
}
