package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// filled has something in every metric.
func filled(t *testing.T) *Metrics {
	t.Helper()
	m := NewMetrics("1.2.3", "go1.26")
	var s stage
	h := healthy()
	h.Log.RetainLimitBytes, h.Log.Gaps, h.Backlog, h.SetAside, h.Stale = 1<<30, 1, 7, 1, 4
	h.Handlers[0].Paused = &delivery.Pause{By: "maria"}
	h.Poller = pipeline.Trouble{Since: h.At, Err: errors.New("x")}
	s.set(Report{Health: h})
	m.Sources([]Source{s.source("orders")})
	m.tables.set("orders", []HandlerCounts{{Handler: "billing", Pending: 1, Retrying: 2, Dead: 3, Blocked: 4, Capped: true, OldestAge: 90 * time.Second}})

	o := m.Observer("orders", map[string]string{"billing": "webhook"})
	o.Captured("log", 5, 20*time.Millisecond)
	o.Captured("poll", 2, 0)
	o.FannedOut(pipeline.FanOutStats{Via: "log", Events: 5, Deliveries: 9, Leased: 8, Repeated: 1, Absent: 2, Unmatched: 3, Took: time.Millisecond})
	attempt := func(v delivery.Verdict, s delivery.State, n int) {
		o.Attempted(pipeline.AttemptStats{Handler: "billing", Verdict: v, State: s, Wait: 100 * time.Millisecond, Took: 50 * time.Millisecond, Attempt: n})
	}
	attempt(delivery.Success, delivery.Succeeded, 1)
	attempt(delivery.Retry, delivery.Failed, 1)
	attempt(delivery.Retry, delivery.Expired, 9)
	attempt(delivery.Fail, delivery.Dead, 2)
	attempt(delivery.Block, delivery.Blocked, 1)
	attempt(delivery.Discard, delivery.Discarded, 1)
	attempt(delivery.GiveBack, delivery.Pending, 1)
	attempt(delivery.Success, "", 3)
	for _, c := range counters(t) {
		o.Count(c, "billing", 2)
	}
	return m
}

// TestPromlint: names, units and help texts follow Prometheus' rules.
func TestPromlint(t *testing.T) {
	families, err := filled(t).Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, namespace) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	ours := 0
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), namespace+"_") {
			ours++
		} else if !strings.HasPrefix(f.GetName(), "go_") && !strings.HasPrefix(f.GetName(), "process_") {
			t.Errorf("%s has no prefix", f.GetName())
		}
	}
	if ours < 45 {
		t.Errorf("%d metrics are ours; does one export nothing?", ours)
	}
}

// TestValues: what happens in the pipeline is what is shown.
func TestValues(t *testing.T) {
	want := `
# HELP cdc_dispatcher_attempts_total Attempts, by outcome: ok, retry, permanent, blocked, discarded, give_back, stale.
# TYPE cdc_dispatcher_attempts_total counter
cdc_dispatcher_attempts_total{handler="billing",kind="webhook",outcome="blocked",source="orders"} 1
cdc_dispatcher_attempts_total{handler="billing",kind="webhook",outcome="discarded",source="orders"} 1
cdc_dispatcher_attempts_total{handler="billing",kind="webhook",outcome="give_back",source="orders"} 1
cdc_dispatcher_attempts_total{handler="billing",kind="webhook",outcome="ok",source="orders"} 1
cdc_dispatcher_attempts_total{handler="billing",kind="webhook",outcome="permanent",source="orders"} 1
cdc_dispatcher_attempts_total{handler="billing",kind="webhook",outcome="retry",source="orders"} 2
cdc_dispatcher_attempts_total{handler="billing",kind="webhook",outcome="stale",source="orders"} 1
# HELP cdc_dispatcher_component_health 1 for the status that a part of the dispatcher is in.
# TYPE cdc_dispatcher_component_health gauge
cdc_dispatcher_component_health{component="database",source="orders",status="error"} 0
cdc_dispatcher_component_health{component="database",source="orders",status="ok"} 1
cdc_dispatcher_component_health{component="fanout",source="orders",status="error"} 0
cdc_dispatcher_component_health{component="fanout",source="orders",status="ok"} 1
cdc_dispatcher_component_health{component="handling",source="orders",status="error"} 0
cdc_dispatcher_component_health{component="handling",source="orders",status="ok"} 1
cdc_dispatcher_component_health{component="log",source="orders",status="error"} 0
cdc_dispatcher_component_health{component="log",source="orders",status="ok"} 1
cdc_dispatcher_component_health{component="poller",source="orders",status="error"} 1
cdc_dispatcher_component_health{component="poller",source="orders",status="ok"} 0
# HELP cdc_dispatcher_deliveries_counts_capped 1 while one of the counts of deliveries stopped at 10,000: there may be more. Processes that stand by do not say; aggregate with max.
# TYPE cdc_dispatcher_deliveries_counts_capped gauge
cdc_dispatcher_deliveries_counts_capped{handler="billing",source="orders"} 1
# HELP cdc_dispatcher_deliveries_dead Deliveries that failed for good: permanently, with all attempts used up, or lost too often; counted up to 10,000. Processes that stand by do not say; aggregate with max.
# TYPE cdc_dispatcher_deliveries_dead gauge
cdc_dispatcher_deliveries_dead{handler="billing",source="orders"} 3
# HELP cdc_dispatcher_deliveries_finished_total Deliveries that ended by an attempt, by state.
# TYPE cdc_dispatcher_deliveries_finished_total counter
cdc_dispatcher_deliveries_finished_total{handler="billing",source="orders",state="BLOCKED"} 1
cdc_dispatcher_deliveries_finished_total{handler="billing",source="orders",state="DEAD"} 1
cdc_dispatcher_deliveries_finished_total{handler="billing",source="orders",state="DISCARDED"} 1
cdc_dispatcher_deliveries_finished_total{handler="billing",source="orders",state="EXPIRED"} 1
cdc_dispatcher_deliveries_finished_total{handler="billing",source="orders",state="SUCCEEDED"} 1
# HELP cdc_dispatcher_delivery_oldest_age_seconds Age of the oldest delivery that is pending or retrying, among those that were counted: the ones due first. Processes that stand by do not say; aggregate with max.
# TYPE cdc_dispatcher_delivery_oldest_age_seconds gauge
cdc_dispatcher_delivery_oldest_age_seconds{handler="billing",source="orders"} 90
# HELP cdc_dispatcher_events_captured_total Event rows that arrived, by the way they came (log or poll).
# TYPE cdc_dispatcher_events_captured_total counter
cdc_dispatcher_events_captured_total{source="orders",via="log"} 5
cdc_dispatcher_events_captured_total{source="orders",via="poll"} 2
# HELP cdc_dispatcher_handler_paused 1 while the handler is paused.
# TYPE cdc_dispatcher_handler_paused gauge
cdc_dispatcher_handler_paused{handler="billing",source="orders"} 1
# HELP cdc_dispatcher_poll_missed_events_total Events that the poller found although the log was being read. An alert when it moves.
# TYPE cdc_dispatcher_poll_missed_events_total counter
cdc_dispatcher_poll_missed_events_total{source="orders"} 2
# HELP cdc_dispatcher_source_lag_bytes End of the server's log minus the confirmed position.
# TYPE cdc_dispatcher_source_lag_bytes gauge
cdc_dispatcher_source_lag_bytes{source="orders"} 12
# HELP cdc_dispatcher_source_slot_limit_bytes Log that the server keeps at most; absent when unlimited.
# TYPE cdc_dispatcher_source_slot_limit_bytes gauge
cdc_dispatcher_source_slot_limit_bytes{source="orders"} 1.073741824e+09
`
	var names []string
	for line := range strings.Lines(want) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			names = append(names, name)
		}
	}
	if err := testutil.GatherAndCompare(filled(t).Gatherer(), strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// TestUnknownFiguresAreAbsent: what the server does not tell is no zero.
func TestUnknownFiguresAreAbsent(t *testing.T) {
	m := NewMetrics("1", "go1")
	var s stage
	h := healthy()
	h.Log.LagBytes, h.Log.RetainedBytes = -1, -1
	s.set(Report{Health: h})
	m.Sources([]Source{s.source("orders")})
	for _, name := range []string{"source_lag_bytes", "source_slot_retained_bytes", "source_slot_limit_bytes"} {
		n, err := testutil.GatherAndCount(m.Gatherer(), namespace+"_"+name)
		if err != nil || n != 0 {
			t.Errorf("%s has %d series, %v", name, n, err)
		}
	}
	s.set(Report{Waiting: "away"})
	n, err := testutil.GatherAndCount(m.Gatherer(), namespace+"_deliveries_running")
	if err != nil || n != 0 {
		t.Errorf("a source that waits has %d running series, %v", n, err)
	}
}

// TestOneProcessSpeaksForTheTables: a standby does not export figures about whole
// tables, and figures that cannot be had disappear.
func TestOneProcessSpeaksForTheTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMetrics("1", "go1")
		var s stage
		standby, leader := healthy(), healthy()
		standby.Mode, standby.Log.Mode = cdc.ModeStandby, cdc.ModeStandby
		s.set(Report{Health: standby})
		var mu sync.Mutex
		var fail error
		asked := 0
		failWith := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fail = err
		}
		pass := func(d time.Duration) { <-time.After(d) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Refresh(ctx, s.source("orders"), func(context.Context) ([]HandlerCounts, error) {
				mu.Lock()
				defer mu.Unlock()
				asked++
				return []HandlerCounts{{Handler: "billing", Dead: int64(asked)}}, fail
			}, slog.New(slog.DiscardHandler))
		}()
		expect := func(step string, series, questions int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			n, err := testutil.GatherAndCount(m.Gatherer(), namespace+"_deliveries_dead")
			if err != nil || n != series || asked != questions {
				t.Errorf("%s: %d series after %d questions, want %d after %d (%v)", step, n, asked, series, questions, err)
			}
		}
		expect("standby", 0, 0)
		s.set(Report{Health: leader})
		expect("before the next look", 0, 0)
		pass(refreshEvery)
		expect("leader", 1, 1)
		pass(2 * refreshEvery)
		expect("leader later", 1, 3)
		failWith(errors.New("too slow"))
		pass(refreshEvery)
		expect("failing", 0, 4)
		failWith(nil)
		pass(refreshEvery)
		expect("working again", 1, 5)
		s.set(Report{Health: standby})
		pass(refreshEvery)
		expect("standby again", 0, 5)
		s.set(Report{Health: leader})
		pass(refreshEvery)
		expect("leader again", 1, 6)
		cancel()
		<-done
		expect("stopped", 0, 6)
	})
}
