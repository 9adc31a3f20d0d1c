package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// refreshEvery is the pace of the gauges that are counted from the tables, and
	// refreshTimeout bounds one count.
	refreshEvery   = 30 * time.Second
	refreshTimeout = 10 * time.Second
)

// HandlerCounts is what the delivery table says about one handler.
type HandlerCounts struct {
	Handler string
	// Pending, Retrying, Dead and Blocked count deliveries by state.
	Pending, Retrying, Dead, Blocked int64
	// Capped says that counting one of them stopped at the limit.
	Capped bool
	// OldestAge is the age of the oldest delivery that is pending or retrying, among those that
	// were counted; zero when there is none.
	OldestAge time.Duration
}

// tables holds the gauges that speak for the tables as a whole. Processes
// that stand by for another do not export them.
type tables struct {
	pending, retrying, dead, blocked, capped, oldest *prometheus.Desc

	mu     sync.Mutex
	counts map[string][]HandlerCounts // by source
}

func newTables() *tables {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help+" Processes that stand by do not say; aggregate with max.",
			[]string{"source", "handler"}, nil)
	}
	return &tables{
		pending:  desc("deliveries_pending", "Deliveries that were not attempted yet; counted up to 10,000."),
		retrying: desc("deliveries_retrying", "Deliveries that wait for another attempt; counted up to 10,000."),
		dead:     desc("deliveries_dead", "Deliveries that failed for good: permanently, with all attempts used up, or lost too often; counted up to 10,000."),
		blocked:  desc("deliveries_blocked", "Deliveries that cannot be attempted as they are; counted up to 10,000."),
		capped:   desc("deliveries_counts_capped", "1 while one of the counts of deliveries stopped at 10,000: there may be more."),
		oldest:   desc("delivery_oldest_age_seconds", "Age of the oldest delivery that is pending or retrying, among those that were counted: the ones due first."),
		counts:   map[string][]HandlerCounts{},
	}
}

// Describe implements [prometheus.Collector].
func (t *tables) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{t.pending, t.retrying, t.dead, t.blocked, t.capped, t.oldest} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (t *tables) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for source, counts := range t.counts {
		for _, c := range counts {
			capped := 0.0
			if c.Capped {
				capped = 1
			}
			for _, v := range []struct {
				desc  *prometheus.Desc
				value float64
			}{
				{t.pending, float64(c.Pending)}, {t.retrying, float64(c.Retrying)}, {t.dead, float64(c.Dead)},
				{t.blocked, float64(c.Blocked)}, {t.capped, capped}, {t.oldest, c.OldestAge.Seconds()},
			} {
				ch <- prometheus.MustNewConstMetric(v.desc, prometheus.GaugeValue, v.value, source, c.Handler)
			}
		}
	}
}

// set replaces the counts of a source; nil takes them away.
func (t *tables) set(source string, counts []HandlerCounts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if counts == nil {
		delete(t.counts, source)
		return
	}
	t.counts[source] = counts
}

// Refresh counts the tables of a source every 30 s, unless this process stands by for
// another, until ctx ends. A count that fails takes the gauges away: no figure is better
// than an old one.
func (m *Metrics) Refresh(ctx context.Context, s Source, count func(context.Context) ([]HandlerCounts, error), log *slog.Logger) {
	defer m.tables.set(s.Name, nil)
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	failing := false
	for {
		if !s.Report().speaks() {
			m.tables.set(s.Name, nil)
		} else if err := m.refresh(ctx, s.Name, count); err != nil && ctx.Err() == nil {
			if !failing {
				log.Warn("counting deliveries for the metrics failed", slog.String("source", s.Name), slog.Any("err", err))
			}
			failing = true
		} else {
			failing = false
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Metrics) refresh(ctx context.Context, source string, count func(context.Context) ([]HandlerCounts, error)) error {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	counts, err := count(ctx)
	if err != nil {
		m.tables.set(source, nil)
		return err
	}
	if counts == nil {
		counts = []HandlerCounts{}
	}
	m.tables.set(source, counts)
	return nil
}
