package ledger_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

func pair(ev, h string) ledger.Pair { return ledger.Pair{Event: ev, Handler: h} }

// start returns a receipt of process p1; a negative end is "never returned".
func start(ev, h string, attempt, from, to int, outcome string) ledger.Receipt {
	r := ledger.Receipt{Pair: pair(ev, h), Process: "p1", Attempt: attempt, Start: at(from), Outcome: outcome}
	if to >= 0 {
		r.End = at(to)
	}
	return r
}

func settled(r ledger.Receipt) ledger.Receipt {
	r.Settled = true
	return r
}

func succeededRow(ev, h string, attempts int) ledger.Row {
	return ledger.Row{Pair: pair(ev, h), State: delivery.Succeeded, Attempts: attempts, Claims: attempts + 1}
}

// clean is a run without a fault: two committed events for two handlers, one
// failed attempt, one rolled-back event that nobody saw.
func clean() ledger.Input {
	return ledger.Input{
		Writers: ledger.Snapshot{
			Committed:  map[string]ledger.Event{"e1": {ID: "e1", Type: "a", At: at(0)}, "e2": {ID: "e2", Type: "a", At: at(1)}},
			RolledBack: map[string]ledger.Event{"r1": {ID: "r1", Type: "a"}},
		},
		Subscribers: func(string) []string { return []string{"h1", "h2"} },
		Rows: []ledger.Row{
			succeededRow("e1", "h1", 0), succeededRow("e1", "h2", 1), succeededRow("e2", "h1", 0), succeededRow("e2", "h2", 0),
		},
		Receipts: []ledger.Receipt{
			start("e1", "h1", 1, 10, 11, "ok"), start("e1", "h2", 1, 10, 11, "retry"), start("e1", "h2", 2, 20, 21, "ok"),
			start("e2", "h1", 1, 10, 12, "ok"), start("e2", "h2", 1, 10, 12, "ok"),
		},
	}
}

func TestCompare_CleanRunBreaksNothing(t *testing.T) {
	got := ledger.Compare(clean())
	want := ledger.Report{
		Events: 2, RolledBack: 1, Deliveries: 4, Starts: 5, Retried: 1,
		States: map[delivery.State]int{delivery.Succeeded: 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if broken := got.Broken(); broken != nil {
		t.Errorf("broken promises in a clean run: %v", broken)
	}
}

// Each case breaks one promise, and the report must name that one only.
func TestCompare_NamesTheBrokenPromise(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*ledger.Input)
		want  func(*ledger.Report)
	}{
		{"no delivery row", func(in *ledger.Input) {
			in.Rows, in.Receipts = in.Rows[:3], in.Receipts[:4]
		}, func(r *ledger.Report) { r.Lost = []ledger.Pair{pair("e2", "h2")} }},
		{"succeeded without success", func(in *ledger.Input) {
			in.Receipts[0].Outcome = "retry"
		}, func(r *ledger.Report) { r.Phantom = []ledger.Pair{pair("e1", "h1")} }},
		{"rolled back, with a row", func(in *ledger.Input) {
			in.Rows = append(in.Rows, ledger.Row{Pair: pair("r1", "h1"), State: delivery.Pending})
		}, func(r *ledger.Report) { r.RolledBackSeen = []string{"r1"} }},
		{"two rows of one pair", func(in *ledger.Input) {
			in.Rows = append(in.Rows, in.Rows[0])
		}, func(r *ledger.Report) { r.Extra = []ledger.Pair{pair("e1", "h1")} }},
		{"row for nobody", func(in *ledger.Input) {
			in.Rows = append(in.Rows, ledger.Row{Pair: pair("e1", "h9"), State: delivery.Pending})
		}, func(r *ledger.Report) { r.Extra = []ledger.Pair{pair("e1", "h9")} }},
		{"row of an unknown event", func(in *ledger.Input) {
			in.Rows = append(in.Rows, ledger.Row{Pair: pair("x1", "h1"), State: delivery.Pending})
		}, func(r *ledger.Report) { r.Extra = []ledger.Pair{pair("x1", "h1")} }},
		{"ran twice", func(in *ledger.Input) {
			in.Receipts = append(in.Receipts, start("e2", "h2", 2, 30, 31, "ok"))
		}, func(r *ledger.Report) {
			r.Duplicates, r.Unexplained = 1, []ledger.Pair{pair("e2", "h2")}
		}},
		{"ran twice at once", func(in *ledger.Input) {
			in.Receipts[1].End = at(25)
		}, func(r *ledger.Report) { r.Overlaps = []ledger.Pair{pair("e1", "h2")} }},
		{"two workers on one claim", func(in *ledger.Input) {
			in.Receipts[2].Attempt = 1
		}, func(r *ledger.Report) { r.RepeatedClaims = []ledger.Pair{pair("e1", "h2")} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := clean()
			tt.spoil(&in)
			got := ledger.Compare(in)
			want := ledger.Report{}
			tt.want(&want)
			if len(got.Broken()) != 1 {
				t.Errorf("broken promises = %v, want exactly one", got.Broken())
			}
			got.Events, got.RolledBack, got.Deliveries, got.Starts, got.Retried, got.States = 0, 0, 0, 0, 0, nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

// A second start of a settled delivery is explained by a fault of its process, or of the
// server, between the first start and the moment its outcome must have been written.
func TestCompare_FaultsThatLast(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault ledger.Fault
		want  bool
	}{
		{"while it ran", ledger.Fault{Process: "p1", At: at(5), Until: at(15)}, true},
		{"begun in the window after it", ledger.Fault{Process: "p1", At: at(20), Until: at(25), Window: 10 * time.Millisecond}, true},
		{"begun later", ledger.Fault{Process: "p1", At: at(20), Until: at(25), Window: 5 * time.Millisecond}, false},
		{"over before it", ledger.Fault{Process: "p1", At: at(1), Until: at(9), Window: time.Second}, false},
		{"of another process", ledger.Fault{Process: "p2", At: at(5), Until: at(15)}, false},
		{"of the server", ledger.Fault{At: at(11), Until: at(15)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := clean()
			in.Receipts = append(in.Receipts, start("e2", "h2", 2, 30, 31, "ok"))
			in.Faults = []ledger.Fault{tt.fault}
			if got := ledger.Compare(in); (len(got.Unexplained) == 0) != tt.want || got.Duplicates != 1 {
				t.Errorf("explained = %t, want %t: %s", !tt.want, tt.want, got)
			}
		})
	}
}

// An attempt of a frozen process may overlap with the one that took its place, also when the
// process wakes up and begins it late; one of a process that was only cut off may not.
func TestCompare_OverlapsOfAFrozenProcess(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault ledger.Fault
		want  bool
	}{
		{"frozen while it ran", ledger.Fault{Process: "p1", At: at(12), Until: at(22), Frozen: true}, true},
		{"woke up just before", ledger.Fault{Process: "p1", At: at(1), Until: at(9), Window: 5 * time.Millisecond, Frozen: true}, true},
		{"woke up long before", ledger.Fault{Process: "p1", At: at(1), Until: at(4), Window: 5 * time.Millisecond, Frozen: true}, false},
		{"frozen afterwards", ledger.Fault{Process: "p1", At: at(30), Until: at(40), Frozen: true}, false},
		{"another one frozen", ledger.Fault{Process: "p2", At: at(12), Until: at(22), Frozen: true}, false},
		{"cut off", ledger.Fault{Process: "p1", At: at(12), Until: at(22)}, false},
		{"the whole machine", ledger.Fault{At: at(12), Until: at(22), Frozen: true}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := clean()
			in.Receipts[1].End = at(25) // the second attempt is from 20 to 21
			in.Faults = []ledger.Fault{tt.fault}
			if got := ledger.Compare(in); (len(got.Overlaps) == 0) != tt.want {
				t.Errorf("forgiven = %t, want %t", !tt.want, tt.want)
			}
		})
	}
}

func TestCompare_RolledBackSeenByAHandlerWithoutARow(t *testing.T) {
	in := clean()
	in.Receipts = append(in.Receipts, start("r1", "h1", 1, 5, 6, "ok"))
	got := ledger.Compare(in)
	if diff := cmp.Diff([]string{"r1"}, got.RolledBackSeen); diff != "" {
		t.Errorf("rolled back, seen (-want +got):\n%s", diff)
	}
}

// A start that a kill cut off is a duplicate within the promise; the same start
// in a process that was not killed, or long before the kill, is not.
func TestCompare_DuplicateIsExplainedOnlyByItsFault(t *testing.T) {
	window := 100 * time.Millisecond
	tests := []struct {
		name      string
		first     ledger.Receipt
		fault     ledger.Fault
		explained bool
	}{
		{"killed while running", start("e1", "h1", 1, 10, -1, ""), ledger.Fault{Process: "p1", At: at(50)}, true},
		{"killed before the outcome was written", start("e1", "h1", 1, 10, 20, "ok"), ledger.Fault{Process: "p1", At: at(50)}, true},
		{"killed after the outcome was written", settled(start("e1", "h1", 1, 10, 20, "ok")), ledger.Fault{Process: "p1", At: at(50)}, false},
		{"another process was killed", start("e1", "h1", 1, 10, 20, "ok"), ledger.Fault{Process: "p2", At: at(50)}, false},
		{"killed before it started", start("e1", "h1", 1, 10, 20, "ok"), ledger.Fault{Process: "p1", At: at(5)}, false},
		{"the server crashed before the outcome was on disk", settled(start("e1", "h1", 1, 10, 20, "ok")), ledger.Fault{At: at(50), Window: window}, true},
		{"the server crashed long after", start("e1", "h1", 1, 10, 20, "ok"), ledger.Fault{At: at(900), Window: window}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := clean()
			second := start("e1", "h1", 2, 1000, 1001, "ok")
			second.Process = "p3"
			in.Receipts[0] = tt.first
			in.Receipts = append(in.Receipts, second)
			in.Rows[0].Claims = 2
			in.Faults = []ledger.Fault{tt.fault}
			got := ledger.Compare(in)
			if got.Duplicates != 1 {
				t.Errorf("duplicates = %d, want 1", got.Duplicates)
			}
			if explained := len(got.Unexplained) == 0; explained != tt.explained {
				t.Errorf("explained = %v, want %v", explained, tt.explained)
			}
			if len(got.Overlaps) != 0 {
				t.Errorf("overlaps = %v: the first attempt ended with its process", got.Overlaps)
			}
		})
	}
}

// A repeat is explained by a lease that ran out when leases are known to have run
// out, and it began no sooner than a lease later.
func TestCompare_DuplicateIsExplainedByALapse(t *testing.T) {
	tests := []struct {
		name      string
		first     ledger.Receipt
		lease     time.Duration
		explained bool
	}{
		{"a lease later", start("e1", "h1", 1, 10, 20, "ok"), 900 * time.Millisecond, true},
		{"started when a tenth was left", start("e1", "h1", 1, 10, 20, "ok"), 9800 * time.Millisecond, true},
		{"while the lease held for certain", start("e1", "h1", 1, 10, 20, "ok"), 10 * time.Second, false},
		{"settled", settled(start("e1", "h1", 1, 10, 20, "ok")), 900 * time.Millisecond, false},
		{"no lease ran out", start("e1", "h1", 1, 10, 20, "ok"), 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := clean()
			in.Receipts[0] = tt.first
			in.Receipts = append(in.Receipts, start("e1", "h1", 2, 1000, 1001, "ok"))
			in.Lease = tt.lease
			if explained := len(ledger.Compare(in).Unexplained) == 0; explained != tt.explained {
				t.Errorf("explained = %v, want %v", explained, tt.explained)
			}
		})
	}
}

// A handler that was told to stop gives its claim back, so the next start has the
// same number.
func TestCompare_GivenBackAttemptKeepsItsNumber(t *testing.T) {
	in := clean()
	in.Receipts[0].Outcome = ledger.OutcomeStopped
	in.Receipts = append(in.Receipts, start("e1", "h1", 1, 40, 41, "ok"))
	in.Faults = []ledger.Fault{{Process: "p1", At: at(11)}}
	got := ledger.Compare(in)
	if broken := got.Broken(); broken != nil {
		t.Errorf("broken promises: %v", broken)
	}
}

func TestCompare_BlockedByTheHandlerAccountsForItsStart(t *testing.T) {
	in := clean()
	in.Rows[0] = ledger.Row{Pair: pair("e1", "h1"), State: delivery.Blocked, Reason: delivery.ReasonUndecodable}
	in.Receipts[0].Outcome = "undecodable"
	got := ledger.Compare(in)
	if broken := got.Broken(); broken != nil || got.Duplicates != 0 {
		t.Errorf("duplicates %d, broken %v; want none", got.Duplicates, broken)
	}
}

func TestSnapshot_ResolveSettlesUnansweredCommits(t *testing.T) {
	var w ledger.Writers
	w.Committed(ledger.Event{ID: "c"})
	w.Unknown(ledger.Event{ID: "u1"}, ledger.Event{ID: "u2"})
	got := w.Snapshot().Resolve(map[string]struct{}{"c": {}, "u1": {}})
	want := ledger.Snapshot{
		Committed:  map[string]ledger.Event{"c": {ID: "c"}, "u1": {ID: "u1"}},
		RolledBack: map[string]ledger.Event{"u2": {ID: "u2"}},
		Unknown:    map[string]ledger.Event{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resolved (-want +got):\n%s", diff)
	}
	got = w.Snapshot().ResolveAfterLoss(map[string]struct{}{"c": {}, "u1": {}})
	want.RolledBack, want.Unknown = want.Unknown, want.RolledBack
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resolved after the loss of a server (-want +got):\n%s", diff)
	}
}

// record runs one attempt through a recorder.
func record(t *testing.T, r *ledger.Recorder, attempt int, result error) {
	t.Helper()
	h := r.Wrap(event.HandlerFunc(func(context.Context, event.Envelope) error { return result }))
	err := h.Handle(t.Context(), event.Envelope{Event: event.Event{ID: "e1"}, Handler: "h1", DeliveryID: "d1", Attempt: attempt})
	if !errors.Is(err, result) {
		t.Fatalf("handler returned %v, want %v", err, result)
	}
}

func TestRecorder_FileSurvivesACutLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "receipts")
	r, err := ledger.OpenRecorder(path, "p1")
	if err != nil {
		t.Fatal(err)
	}
	record(t, r, 1, errors.New("no"))
	if err := r.Settled("d1", "never started"); err != nil {
		t.Fatal(err)
	}
	record(t, r, 2, nil)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"n":2,"at":17`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	got, err := ledger.ReadReceipts(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Outcome != "retry" || got[1].Outcome != ledger.OutcomeOK || got[1].Attempt != 2 || got[1].Process != "p1" {
		t.Errorf("receipts = %+v, want a retry and a success of process p1", got)
	}
	if !got[0].Settled || got[1].Settled {
		t.Errorf("settled = %v, %v; want the first only", got[0].Settled, got[1].Settled)
	}
	for _, rc := range got {
		if rc.End.Before(rc.Start) {
			t.Errorf("attempt %d ended %s before it started", rc.Attempt, rc.Start.Sub(rc.End))
		}
	}
}

func TestRecorder_DamageInTheMiddleIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "receipts")
	if err := os.WriteFile(path, []byte("{\"n\":0\n{\"n\":0,\"at\":1,\"event\":\"e\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.ReadReceipts(path); err == nil {
		t.Error("a damaged file was read without an error")
	}
}

func TestRecorder_OutcomeTellsAStopFromATimeout(t *testing.T) {
	r := ledger.NewRecorder("p1")
	h := r.Wrap(event.HandlerFunc(func(ctx context.Context, _ event.Envelope) error { return ctx.Err() }))
	stopped, stop := context.WithCancel(t.Context())
	stop()
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	for _, ctx := range []context.Context{stopped, late} {
		if err := h.Handle(ctx, event.Envelope{}); err == nil {
			t.Fatal("the handler's error was swallowed")
		}
	}
	var got []string
	for _, rc := range r.Receipts() {
		got = append(got, rc.Outcome)
	}
	if diff := cmp.Diff([]string{ledger.OutcomeStopped, "retry"}, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestLatencies_FirstStartOfCommittedPairs(t *testing.T) {
	in := clean()
	in.Receipts = append(in.Receipts, start("r1", "h1", 1, 0, 1, "ok"))
	got := ledger.Latencies(in.Writers, in.Receipts)
	ms := time.Millisecond
	if diff := cmp.Diff([]time.Duration{9 * ms, 9 * ms, 10 * ms, 10 * ms}, got); diff != "" {
		t.Errorf("latencies (-want +got):\n%s", diff)
	}
	for p, want := range map[float64]time.Duration{0: 9 * ms, 50: 9 * ms, 51: 10 * ms, 99: 10 * ms, 100: 10 * ms} {
		if got := ledger.Percentile(got, p); got != want {
			t.Errorf("p%v = %s, want %s", p, got, want)
		}
	}
	if got := ledger.Percentile(nil, 50); got != 0 {
		t.Errorf("median of nothing = %s, want 0", got)
	}
}

func TestStory(t *testing.T) {
	in := clean()
	in.Receipts[0] = settled(start("e1", "h1", 1, 10, 20, "ok"))
	story := in.Story(in.Receipts[0].Pair)
	for _, want := range []string{"row SUCCEEDED", "attempt 1", "ok after 10ms", "settled"} {
		if !strings.Contains(story, want) {
			t.Errorf("the story lacks %q: %s", want, story)
		}
	}
}
