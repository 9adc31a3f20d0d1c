package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// healthy is a pipeline that reads the log.
func healthy() pipeline.Health {
	now := time.Now()
	return pipeline.Health{
		At: now, Running: true, Registered: true, Mode: cdc.ModeStreaming, DatabaseOK: now, PolledAt: now,
		Log:      &cdc.Status{Mode: cdc.ModeStreaming, LastByte: now, StaleAfter: time.Minute, LagBytes: 12, RetainedBytes: 4096, RetainLimitBytes: -1, Reconnects: 2},
		Handlers: []pipeline.HandlerHealth{{Name: "billing", Running: 3, Limit: 16}},
	}
}

// stage is a source whose report a test changes.
type stage struct {
	mu     sync.Mutex
	report Report
}

func (s *stage) set(r Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report = r
}

func (s *stage) source(name string) Source {
	return Source{Name: name, Report: func() Report {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.report
	}}
}

// start runs a server and stops it with the test.
func start(t *testing.T, sources ...Source) *Server {
	t.Helper()
	m := NewMetrics("1.2.3", "go1")
	m.Sources(sources)
	s, err := Listen(t.Context(), Config{Listen: "127.0.0.1:0", Sources: sources, Metrics: m.Gatherer()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, s *Server, path string) (status int, body string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Get("http://" + s.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// TestHealthzIsTheProcessOnly: no database makes anybody restart the process.
func TestHealthzIsTheProcessOnly(t *testing.T) {
	var s stage
	s.set(Report{Waiting: "the database at db:5432 cannot be reached"})
	status, body := get(t, start(t, s.source("orders")), "/healthz")
	if status != http.StatusOK || body != "{\"alive\":true}\n" {
		t.Errorf("%d %s", status, body)
	}
}

// TestReadyzTellsTheTruth: 200 only while every source does its work, with the
// reasons otherwise.
func TestReadyzTellsTheTruth(t *testing.T) {
	broken := healthy()
	broken.Database = pipeline.Trouble{Since: broken.At.Add(-time.Minute), Err: errors.New("connection refused")}
	polling := healthy()
	polling.Mode, polling.Log.Mode = cdc.ModeConnecting, cdc.ModeConnecting
	polling.LogTrouble = pipeline.Trouble{Since: polling.At.Add(-time.Minute), Err: errors.New("wal_level is replica")}
	gaveUp := polling
	gaveUp.Mode = cdc.ModeStopped
	standby := healthy()
	standby.Mode, standby.Log.Mode = cdc.ModeStandby, cdc.ModeStandby
	silent := healthy()
	silent.Log.LastByte = silent.At.Add(-5 * time.Minute)
	stopping := healthy()
	stopping.Running = false

	for _, tt := range []struct {
		name   string
		report Report
		status int
		want   sourceReadiness
	}{
		{"streaming", Report{Health: healthy()}, 200, sourceReadiness{Ready: true, Mode: "streaming", Reasons: []string{}}},
		{"standby", Report{Health: standby, LogRequired: true}, 200, sourceReadiness{Ready: true, Mode: "standby", Reasons: []string{}}},
		{"waiting", Report{Waiting: "schema eventlog is not migrated"}, 503, sourceReadiness{Mode: "waiting", Reasons: []string{"schema eventlog is not migrated"}}},
		{"database away", Report{Health: broken}, 503, sourceReadiness{Mode: "streaming", Reasons: []string{"the database has been failing for 1m0s: connection refused"}}},
		{"log away, poller works", Report{Health: polling}, 200, sourceReadiness{Ready: true, Mode: "connecting", Reasons: []string{"reading the log has been failing for 1m0s: wal_level is replica"}}},
		{"log away, log required", Report{Health: polling, LogRequired: true}, 503, sourceReadiness{Mode: "connecting",
			Reasons: []string{"the log is required (mode: log) and is not being read", "reading the log has been failing for 1m0s: wal_level is replica"}}},
		{"silent", Report{Health: silent}, 503, sourceReadiness{Mode: "streaming", Reasons: []string{"the log has been silent for 5m0s"}}},
		{"reader gave up, poller works", Report{Health: gaveUp}, 200, sourceReadiness{Ready: true, Mode: "polling", Reasons: []string{"reading the log has been failing for 1m0s: wal_level is replica"}}},
		{"stopping", Report{Health: stopping}, 503, sourceReadiness{Mode: "streaming", Reasons: []string{"not running"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s stage
			s.set(tt.report)
			status, body := get(t, start(t, s.source("orders")), "/readyz")
			tt.want.Name = "orders"
			var got readiness
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			want := readiness{Ready: tt.want.Ready, Sources: []sourceReadiness{tt.want}}
			if diff := cmp.Diff(want, got); diff != "" || status != tt.status {
				t.Errorf("status %d, want %d; answer (-want +got):\n%s", status, tt.status, diff)
			}
		})
	}
}

// TestReadyzOfSeveralSources: one that is away does not hide that the other works.
func TestReadyzOfSeveralSources(t *testing.T) {
	var a, b stage
	a.set(Report{Health: healthy()})
	b.set(Report{Waiting: "away"})
	s := start(t, a.source("a"), b.source("b"))
	for path, want := range map[string]int{"/readyz": 503, "/readyz?source=a": 200, "/readyz?source=b": 503, "/readyz?source=c": 404} {
		if status, body := get(t, s, path); status != want {
			t.Errorf("%s: %d, want %d: %s", path, status, want, body)
		}
	}
	b.set(Report{Health: healthy()})
	if status, body := get(t, s, "/readyz"); status != 200 {
		t.Errorf("after b came: %d %s", status, body)
	}
}

// TestNothingElseIsServed: no other path, no method that changes something.
func TestNothingElseIsServed(t *testing.T) {
	var a stage
	a.set(Report{Health: healthy()})
	s := start(t, a.source("a"))
	for _, path := range []string{"/", "/debug/pprof/", "/api/v1/events", "/healthz/x"} {
		if status, _ := get(t, s, path); status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Post("http://"+s.Addr()+"/readyz", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", resp.StatusCode)
	}
}

func TestListenOnAPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	m := NewMetrics("1", "go1")
	if _, err := Listen(t.Context(), Config{Listen: taken.Addr().String(), Metrics: m.Gatherer()}); err == nil {
		t.Error("no error")
	}
	s, err := Listen(t.Context(), Config{Listen: "127.0.0.1:0", Metrics: m.Gatherer()})
	if err != nil {
		t.Fatal(err)
	}
	if _, port, err := net.SplitHostPort(s.Addr()); err != nil || port == "0" {
		t.Errorf("address %s", s.Addr())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}

// TestStopWaitsForRequests: a scrape that runs when the server stops is answered, and
// one that does not end is cut.
func TestStopWaitsForRequests(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	source := Source{Name: "a", Report: func() Report {
		close(entered)
		<-leave
		return Report{Health: healthy()}
	}}
	m := NewMetrics("1", "go1")
	s, err := Listen(t.Context(), Config{Listen: "127.0.0.1:0", Sources: []Source{source}, Metrics: m.Gatherer()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	answered := make(chan int, 1)
	go func() {
		status, _ := get(t, s, "/readyz")
		answered <- status
	}()
	<-entered
	cancel()
	close(leave)
	if status := <-answered; status != 200 {
		t.Errorf("status %d", status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
