package demo

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

func somePicture() picture {
	return picture{
		server: "PostgreSQL 15.18 (local binaries /bin)", look: "psql -p 1 -c", table: "eventlog.event_notifications", phase: "the application writes",
		elapsed: 7 * time.Second, total: 15 * time.Second,
		committed: 702, undone: 81, viaLog: 700, viaPoller: 2, starts: 2310,
		p50: 4 * time.Millisecond, p99: 21 * time.Millisecond,
		roles: []role{
			{Handler: pipeline.Handler{Name: "ok"}, about: "returns at once"},
			{Handler: pipeline.Handler{Name: "failing"}, about: "always fails"},
		},
		states: map[string]map[delivery.State]int{
			"ok":      {delivery.Succeeded: 690, delivery.Blocked: 12},
			"failing": {delivery.Failed: 31, delivery.Dead: 130, delivery.Expired: 2},
		},
	}
}

func TestFrame(t *testing.T) {
	want := strings.TrimPrefix(`
cdc-dispatcher demo  PostgreSQL 15.18 (local binaries /bin)
the application writes, 7s of 15s. Ctrl-C ends it and removes everything.

  the application    committed 702     rolled back 81
  arrived            via log   700     via poller  2
  handlers           starts    2310    commit to start: p50 4ms, p99 21ms

  handler     pending  retrying succeeded      dead   blocked   expired
  ok                0         0       690         0        12         0  returns at once
  failing           0        31         0       130         0         2  always fails

  every number is a row; look yourself while it runs:
  psql -p 1 -c 'SELECT handler_name, state, attempts, reason FROM eventlog.event_notifications'`, "\n")
	got := strings.Join(frame(somePicture(), painter{}), "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frame (-want +got):\n%s", diff)
	}
}

// Colours change no character that is not part of an escape sequence.
func TestFrame_ColoursOnlyAddEscapes(t *testing.T) {
	plain := strings.Join(frame(somePicture(), painter{}), "\n")
	coloured := strings.Join(frame(somePicture(), painter{on: true}), "\n")
	if coloured == plain {
		t.Fatal("nothing is coloured")
	}
	for _, code := range []string{"0", "1", "2", "31", "32", "33"} {
		coloured = strings.ReplaceAll(coloured, "\x1b["+code+"m", "")
	}
	if diff := cmp.Diff(plain, coloured); diff != "" {
		t.Errorf("text under the colours (-plain +coloured):\n%s", diff)
	}
}

func TestLine(t *testing.T) {
	want := "   7s  committed 702, rolled back 81, via log 700, via poller 2, " +
		"pending 0, retrying 31, succeeded 690, dead 130, blocked 12, expired 2, p50 4ms"
	if diff := cmp.Diff(want, line(somePicture())); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

// Each frame is drawn over the last, and the terminal wraps lines again afterwards.
func TestScreen_DrawsOverTheLastFrame(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out}
	for _, lines := range [][]string{{"a", "b"}, {"c", "d"}} {
		if err := s.draw(lines); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[?7la\x1b[K\r\nb\x1b[K\r\n" + "\x1b[2A\rc\x1b[K\r\nd\x1b[K\r\n" + "\x1b[?7h"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
}

// A screen that never drew leaves the terminal alone.
func TestScreen_UnusedWritesNothing(t *testing.T) {
	var out bytes.Buffer
	if err := (&screen{out: &out}).close(); err != nil || out.Len() > 0 {
		t.Errorf("wrote %q, error %v", out.String(), err)
	}
}

func TestResult_HasTheDocumentedKeys(t *testing.T) {
	var r Result
	r.DurationSeconds = 2
	r.fill(ledger.Report{
		Events: 10, States: map[delivery.State]int{delivery.Succeeded: 7, delivery.Failed: 1},
		Lost: []ledger.Pair{{Event: "e", Handler: "h"}}, Duplicates: 3,
	}, []time.Duration{time.Millisecond, 1234567 * time.Nanosecond})
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"events": 10.0, "deliveries": 0.0, "succeeded": 7.0, "retried": 0.0, "dead": 0.0, "blocked": 0.0, "expired": 0.0,
		"open": 1.0, "lost": 1.0, "duplicates": 3.0, "rolled_back_seen": 0.0, "events_per_second": 5.0,
		"latency_ms": map[string]any{"p50": 1.0, "p99": 1.23, "max": 1.23},
	} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	if r.Err() == nil {
		t.Error("a lost delivery is no error")
	}
}

// The demo's claims about its own handlers, which the screen repeats.
func TestHandlers_MisbehaveAsTheScreenSays(t *testing.T) {
	var never, once, twice int
	for i := range 1000 {
		e := event.Envelope{Event: event.Event{ID: strings.Repeat("x", i)}}
		fails := 0
		for e.Attempt = 1; flaky(t.Context(), e) != nil; e.Attempt++ {
			fails++
		}
		switch fails {
		case 0:
			never++
		case 1:
			once++
		case 2:
			twice++
		default:
			t.Fatalf("flaky failed %d times on one event", fails)
		}
	}
	if never < 700 || once < 50 || twice < 50 {
		t.Errorf("flaky never, once, twice = %d, %d, %d of 1000", never, once, twice)
	}
}

func TestSubscribers_AgreeWithTheHandlers(t *testing.T) {
	for _, typ := range []string{"order.placed", "order.paid", "order.shipped", "order.cancelled"} {
		var want []string
		for _, r := range roles(ledger.NewRecorder("t")) {
			if r.On[0] == "*" || r.On[0] == typ {
				want = append(want, r.Name)
			}
		}
		if diff := cmp.Diff(want, subscribers(typ)); diff != "" {
			t.Errorf("%s (-handlers +ledger):\n%s", typ, diff)
		}
	}
}

func TestWithDatabase(t *testing.T) {
	tests := []struct{ dsn, want string }{
		{"postgres://u:p%40@h:1/app?sslmode=disable", "postgres://u:p%40@h:1/demo?sslmode=disable"},
		{"postgresql://h/?dbname=app", "postgresql://h/demo?"},
		{"host=h dbname=app", "host=h dbname=app dbname=demo"},
	}
	for _, tt := range tests {
		got, err := withDatabase(tt.dsn, "demo")
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSuffix(got, "?") != strings.TrimSuffix(tt.want, "?") {
			t.Errorf("withDatabase(%q) = %q, want %q", tt.dsn, got, tt.want)
		}
	}
	if _, err := withDatabase("postgres://u:se%cret@h/app", "demo"); err == nil || strings.Contains(err.Error(), "se%cret") {
		t.Errorf("error of a bad URL = %v; it must not quote the password", err)
	}
}
