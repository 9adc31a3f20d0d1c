package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// namespace begins the name of every metric.
const namespace = "cdc_dispatcher"

// Metrics holds the metrics of a process, in a registry of its own.
type Metrics struct {
	registry *prometheus.Registry

	captured         *prometheus.CounterVec
	captureLatency   *prometheus.HistogramVec
	fanOuts          *prometheus.CounterVec
	fannedEvents     *prometheus.CounterVec
	fannedDeliveries *prometheus.CounterVec
	repeated         *prometheus.CounterVec
	absent           *prometheus.CounterVec
	unmatched        *prometheus.CounterVec
	fanOutDuration   *prometheus.HistogramVec

	attempts        *prometheus.CounterVec
	attemptDuration *prometheus.HistogramVec
	finished        *prometheus.CounterVec
	latency         *prometheus.HistogramVec
	wait            *prometheus.HistogramVec
	tries           *prometheus.HistogramVec

	polled       *prometheus.CounterVec
	missed       *prometheus.CounterVec
	pollErrors   *prometheus.CounterVec
	filterErrors *prometheus.CounterVec
	leasesLost   *prometheus.CounterVec
	storeErrors  *prometheus.CounterVec
	occurrences  *prometheus.CounterVec

	tables *tables
}

// NewMetrics makes the metrics of a program of this version.
func NewMetrics(version, goVersion string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), tables: newTables()}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the labels say what program this is.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": goVersion},
	})
	info.Set(1)
	m.registry.MustRegister(info, m.tables,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.makeFanOut()
	m.makeHandling()
	m.makeOccurrences()
	return m
}

// Gatherer is what /metrics shows.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Sources adds the gauges that are read from the sources at every scrape.
func (m *Metrics) Sources(sources []Source) { m.registry.MustRegister(newGauges(sources)) }

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

// histogram has classic buckets for everybody, and native ones for those who scrape
// them.
func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}, labels)
	m.registry.MustRegister(h)
	return h
}

var (
	// latencyBuckets reach from the fan-out's own time to a retry window.
	latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400}
	// durationBuckets reach to the longest sensible attempt.
	durationBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	triesBuckets    = []float64{1, 2, 3, 5, 10, 20, 50, 100}
)

func (m *Metrics) makeFanOut() {
	m.captured = m.counter("events_captured_total", "Event rows that arrived, by the way they came (log or poll).", "source", "via")
	m.captureLatency = m.histogram("capture_latency_seconds", "Time from the commit to the arrival of the newest event of a batch.", latencyBuckets, "source")
	m.fanOuts = m.counter("fanouts_total", "Fan-out statements that committed.", "source", "via")
	m.fannedEvents = m.counter("fanout_events_total", "Events in committed fan-out statements, repetitions included.", "source", "via")
	m.fannedDeliveries = m.counter("fanout_deliveries_total", "Deliveries that fan-out created.", "source", "via")
	m.repeated = m.counter("events_repeated_total", "Events that came again after they had been fanned out; nothing was done.", "source")
	m.absent = m.counter("events_absent_total", "Events that were delivered from the log's image, because the table did not show them.", "source")
	m.unmatched = m.counter("events_unmatched_total", "Events that no handler wanted.", "source")
	m.fanOutDuration = m.histogram("fanout_duration_seconds", "Run time of a fan-out statement, its commit included.", durationBuckets, "source")
}

func (m *Metrics) makeHandling() {
	m.attempts = m.counter("attempts_total", "Attempts, by outcome: ok, retry, permanent, blocked, discarded, give_back, stale.", "source", "handler", "kind", "outcome")
	m.attemptDuration = m.histogram("attempt_duration_seconds", "Run time of the handler in one attempt.", durationBuckets, "source", "handler", "kind")
	m.finished = m.counter("deliveries_finished_total", "Deliveries that ended by an attempt, by state.", "source", "handler", "state")
	m.latency = m.histogram("delivery_latency_seconds", "Time from the commit to the success of a delivery; from the event's date where the time of the commit is not known.", latencyBuckets, "source", "handler")
	m.wait = m.histogram("delivery_wait_seconds", "Time from the commit to the start of the first attempt; from the event's date where the time of the commit is not known.", latencyBuckets, "source", "handler")
	m.tries = m.histogram("delivery_attempts", "Attempts that an ended delivery took.", triesBuckets, "source", "handler")
}

func (m *Metrics) makeOccurrences() {
	m.polled = m.counter("poll_events_total", "Events that the poller found, by the reason why it had to look.", "source", "reason")
	m.missed = m.counter("poll_missed_events_total", "Events that the poller found although the log was being read. An alert when it moves.", "source")
	m.pollErrors = m.counter("poll_errors_total", "Looks of the poller that failed.", "source")
	m.filterErrors = m.counter("filter_errors_total", "Conditions that could not be evaluated.", "source", "handler")
	m.leasesLost = m.counter("lease_lost_total", "Leases that were lost before their delivery had an outcome.", "source", "handler")
	m.storeErrors = m.counter("store_errors_total", "Statements that failed and are tried again, by operation.", "source", "op")
	m.occurrences = m.counter("occurrences_total", "Everything else that is counted; docs/metrics.md lists what each means.", "source", "handler", "what")
}

// Observer returns the observer of one source. kinds tells the kind of each handler.
func (m *Metrics) Observer(source string, kinds map[string]string) pipeline.Observer {
	return &observer{m: m, source: source, kinds: kinds}
}

// observer turns what happens in a pipeline into metrics. It keeps no state of
// its own, and nothing in it blocks.
type observer struct {
	pipeline.NopObserver
	m      *Metrics
	source string
	kinds  map[string]string
}

// Captured implements [pipeline.Observer].
func (o *observer) Captured(via string, n int, lag time.Duration) {
	o.m.captured.WithLabelValues(o.source, via).Add(float64(n))
	if lag > 0 {
		o.m.captureLatency.WithLabelValues(o.source).Observe(lag.Seconds())
	}
}

// FannedOut implements [pipeline.Observer].
func (o *observer) FannedOut(s pipeline.FanOutStats) {
	o.m.fanOuts.WithLabelValues(o.source, s.Via).Inc()
	o.m.fannedEvents.WithLabelValues(o.source, s.Via).Add(float64(s.Events))
	o.m.fannedDeliveries.WithLabelValues(o.source, s.Via).Add(float64(s.Deliveries))
	o.m.repeated.WithLabelValues(o.source).Add(float64(s.Repeated))
	o.m.absent.WithLabelValues(o.source).Add(float64(s.Absent))
	o.m.unmatched.WithLabelValues(o.source).Add(float64(s.Unmatched))
	o.m.fanOutDuration.WithLabelValues(o.source).Observe(s.Took.Seconds())
}

// Attempted implements [pipeline.Observer].
func (o *observer) Attempted(s pipeline.AttemptStats) {
	kind := o.kinds[s.Handler]
	o.m.attempts.WithLabelValues(o.source, s.Handler, kind, outcome(s)).Inc()
	o.m.attemptDuration.WithLabelValues(o.source, s.Handler, kind).Observe(s.Took.Seconds())
	if s.Attempt == 1 {
		o.m.wait.WithLabelValues(o.source, s.Handler).Observe(max(s.Wait, 0).Seconds())
	}
	if s.State == "" || s.State.Open() {
		return
	}
	o.m.finished.WithLabelValues(o.source, s.Handler, string(s.State)).Inc()
	o.m.tries.WithLabelValues(o.source, s.Handler).Observe(float64(s.Attempt))
	if s.State == delivery.Succeeded {
		o.m.latency.WithLabelValues(o.source, s.Handler).Observe(max(s.Wait+s.Took, 0).Seconds())
	}
}

// outcome is the label of an attempt.
func outcome(s pipeline.AttemptStats) string {
	if s.State == "" {
		return "stale"
	}
	switch s.Verdict {
	case delivery.Success:
		return "ok"
	case delivery.Fail:
		return "permanent"
	case delivery.Block:
		return "blocked"
	case delivery.Discard:
		return "discarded"
	}
	return s.Verdict.String()
}

// Count implements [pipeline.Observer].
func (o *observer) Count(what pipeline.Counter, handler string, n int) {
	by := float64(n)
	switch what {
	case pipeline.CountPolledMissed:
		o.m.missed.WithLabelValues(o.source).Add(by)
		o.m.polled.WithLabelValues(o.source, "missed").Add(by)
	case pipeline.CountPolledStartup, pipeline.CountPolledGap, pipeline.CountPolledAsked, pipeline.CountPolledPollMode, pipeline.CountPolledBehind, pipeline.CountPolledLogDown:
		o.m.polled.WithLabelValues(o.source, string(what)[len("polled_"):]).Add(by)
	case pipeline.CountPollError:
		o.m.pollErrors.WithLabelValues(o.source).Add(by)
	case pipeline.CountConditionError:
		o.m.filterErrors.WithLabelValues(o.source, handler).Add(by)
	case pipeline.CountLeaseLost:
		o.m.leasesLost.WithLabelValues(o.source, handler).Add(by)
	case pipeline.CountClaimError, pipeline.CountSettleError, pipeline.CountRenewError, pipeline.CountRegistryError:
		o.m.storeErrors.WithLabelValues(o.source, string(what)[:len(what)-len("_error")]).Add(by)
	case pipeline.CountFanOutRetry:
		o.m.storeErrors.WithLabelValues(o.source, "fanout").Add(by)
	default:
		o.m.occurrences.WithLabelValues(o.source, handler, string(what)).Add(by)
	}
}
