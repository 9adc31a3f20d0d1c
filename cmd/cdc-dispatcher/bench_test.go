package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// smallBench is a bench of a second, which waits for no backlog to grow old.
func smallBench(dsn string) benchOptions {
	o := benchOptions{dsn: dsn, events: 400, rate: 200, length: time.Second, limits: defaultBenchLimits()}
	o.limits.backlogAge = 0
	return o
}

// benchRun is what one run said and returned.
type benchRun struct {
	err    error
	exit   int
	words  string
	result benchResult
}

// runBench runs bench in this process. at is called once, before the words with the marker are out.
func runBench(ctx context.Context, o benchOptions, marker string, at func()) benchRun {
	return runBenchOf(ctx, "", o, marker, at)
}

// runBenchOf is runBench with a configuration file.
func runBenchOf(ctx context.Context, file string, o benchOptions, marker string, at func()) benchRun {
	var out bytes.Buffer
	words := &cue{marker: marker, at: at}
	a := &app{out: &out, err: words, format: outputJSON, configFile: file, lookup: func(string) (string, bool) { return "", false }}
	err := a.bench(ctx, o)
	r := benchRun{err: err, exit: exitOK}
	if err != nil {
		r.exit = a.explain(err)
	}
	r.words = words.String()
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &r.result); err != nil {
			r.err = errors.Join(r.err, err)
		}
	}
	return r
}

// cue is a buffer of words that calls somebody when certain words come.
type cue struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	marker string
	at     func()
}

func (c *cue) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at != nil && c.marker != "" && strings.Contains(string(p), c.marker) {
		c.at()
		c.at = nil
	}
	return c.buf.Write(p)
}

func (c *cue) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// estate is somebody's database, with what its owner keeps there.
type estate struct {
	kind string
	dsn  string
	// exec runs a statement, try one that may fail, count a query for a number.
	exec  func(sql string)
	try   func(sql string) error
	count func(sql string) int
	// inventory lists everything of the server that a bench could leave or touch.
	inventory func() []string
	// hold opens a transaction that keeps a schema from being dropped, until release.
	hold func(schema string) (release func())
	// poor is a connection string of a user who may not create anything, and what he is to be given.
	poor func() (dsn, grant string)
}

// eachEstate runs fn with a furnished database on each server, on all at the same time: most of a run is waiting. An inventory is
// that of the server, so no two tests share one.
func eachEstate(t *testing.T, fn func(t *testing.T, e *estate)) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		fn(t, postgresEstate(t, major))
	})
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		fn(t, mysqlEstate(t, kind))
	})
}

// unchanged fails the test when the inventory is another one than before.
func (e *estate) unchanged(t *testing.T, before []string) {
	t.Helper()
	if diff := cmp.Diff(before, e.inventory()); diff != "" {
		t.Errorf("the server is not as it was (-before +after):\n%s", diff)
	}
}

// TestBench_LeavesTheServerAsItWas: it measures, its ledger balances, and a database with a life of its own has
// neither gained nor lost anything.
func TestBench_LeavesTheServerAsItWas(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		r := runBench(t.Context(), smallBench(e.dsn), "", func() {})
		if r.err != nil {
			t.Fatalf("%v\n%s", r.err, r.words)
		}
		e.unchanged(t, before)
		got := r.result
		if got.Mode != "log" || got.Reason != "" || got.EventsViaLog == 0 || !strings.HasPrefix(got.Server, e.kind+" ") || !strings.HasPrefix(got.Schema, benchPrefix) {
			t.Errorf("mode %q (%s), %d events via the log, server %q, schema %q", got.Mode, got.Reason, got.EventsViaLog, got.Server, got.Schema)
		}
		if want := 100 + 200 + 400; got.Events != want || got.Deliveries != want || got.EventsViaLog+got.EventsViaPoller != want {
			t.Errorf("%d events, %d deliveries, %d + %d arrived, want %d", got.Events, got.Deliveries, got.EventsViaLog, got.EventsViaPoller, want)
		}
		if got.Lost != 0 || got.Duplicates != 0 || got.Open != 0 || len(got.Broken) != 0 {
			t.Errorf("lost %d, duplicates %d, open %d, broken %q", got.Lost, got.Duplicates, got.Open, got.Broken)
		}
		if l := got.Latency; l.Events != 200 || l.Offered != 200 || l.PerSecond <= 0 || l.P50 <= 0 || l.P99 < l.P50 || l.Max < l.P99 {
			t.Errorf("latency %+v", l)
		}
		if d := got.Drain; d.Events != 400 || d.Seconds <= 0 || d.PerSecond <= 0 {
			t.Errorf("drain %+v", d)
		}
	})
}

// TestBench_Interrupted: whenever Ctrl-C comes, nothing is left behind.
func TestBench_Interrupted(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		for _, moment := range []string{"working in", "latency:", "drain: inserting", "drain: starting"} {
			ctx, interrupt := context.WithCancel(t.Context())
			o := smallBench(e.dsn)
			o.events, o.length = 2_000, time.Minute
			if strings.HasPrefix(moment, "drain") {
				o.length = time.Second
			}
			r := runBench(ctx, o, moment, interrupt)
			interrupt()
			if r.exit != exitFailed || !strings.Contains(r.words, "error CD5005: interrupted; everything that was made is removed\n") || r.result.Server != "" {
				t.Errorf("at %q: exit code %d, result %+v\n%s", moment, r.exit, r.result, r.words)
			}
			e.unchanged(t, before)
		}
	})
}

// TestBench_CannotClean: what could not be removed is listed, and those statements remove it.
func TestBench_CannotClean(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		o := smallBench(e.dsn)
		o.limits.clean = time.Second
		release := func() {}
		r := runBench(t.Context(), o, "drain: starting", func() { release = e.hold(e.scratchName()) })
		release()
		_, advice, found := strings.Cut(r.words, "\nTry: run by hand: ")
		if r.exit != exitFailed || !found || !strings.Contains(r.words, "error CD5002: not everything that was made could be removed: ") {
			t.Fatalf("exit code %d\n%s", r.exit, r.words)
		}
		if diff := cmp.Diff(before, e.inventory()); diff == "" {
			t.Error("everything was removed, though it was held")
		}
		for statement := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(advice), ";"), "; ") {
			e.exec(statement)
		}
		e.unchanged(t, before)
	})
}

// scratchName finds the name of the run's schema.
func (e *estate) scratchName() string {
	for _, line := range e.inventory() {
		if _, name, ok := strings.Cut(line, "schema "+benchPrefix); ok {
			return benchPrefix + name
		}
	}
	return ""
}

// TestBench_Poor: a user who may not create a schema is told which right it takes. What an earlier run
// has left is listed with the statements that remove it, and is not touched.
func TestBench_Poor(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		const left = benchPrefix + "00000000"
		e.exec("CREATE SCHEMA " + left)
		t.Cleanup(func() { e.exec("DROP SCHEMA " + left) })
		dsn, grant := e.poor()
		before := e.inventory()
		r := runBench(t.Context(), smallBench(dsn), "", func() {})
		if r.exit != exitDatabase || !strings.Contains(r.words, "error CD4004: the user may not create the scratch schema: ") || !strings.Contains(r.words, "\nTry: run, as an administrator: "+grant+"\n") {
			t.Errorf("exit code %d, want the advice %s\n%s", r.exit, grant, r.words)
		}
		e.unchanged(t, before)

		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		r = runBench(ctx, smallBench(e.dsn), "working in", interrupt)
		if !strings.Contains(r.words, "warning: "+left+" is there.") || !strings.Contains(r.words, "IF EXISTS "+left) {
			t.Errorf("the leftover is not told:\n%s", r.words)
		}
		e.unchanged(t, before)
	})
}

// TestBench_LedgerIsCounted: an event whose delivery disappears makes the run fail, with the figures.
func TestBench_LedgerIsCounted(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		r := runBench(t.Context(), smallBench(e.dsn), "drain: starting", func() {
			e.exec("DELETE FROM " + e.scratchName() + ".event_notifications")
		})
		if r.exit != exitFailed || r.result.Lost != 300 || !strings.Contains(r.words, "error CD5006: the ledger does not balance: lost") {
			t.Errorf("exit code %d, lost %d, want 300\n%s", r.exit, r.result.Lost, r.words)
		}
		e.unchanged(t, before)
	})
}

func TestBenchResult_Err(t *testing.T) {
	pair := ledger.Pair{Event: "e", Handler: benchHandler}
	for _, tt := range []struct {
		name   string
		report ledger.Report
		want   string
	}{
		{"balanced", ledger.Report{Events: 1, Deliveries: 1, States: map[delivery.State]int{delivery.Succeeded: 1}}, ""},
		{"lost", ledger.Report{Lost: []ledger.Pair{pair}}, "lost"},
		{"not handled", ledger.Report{Phantom: []ledger.Pair{pair}}, "lost"},
		{"twice", ledger.Report{Duplicates: 1, Unexplained: []ledger.Pair{pair}}, "duplicates"},
		{"a row too many", ledger.Report{Extra: []ledger.Pair{pair}}, "extra"},
		{"open", ledger.Report{Deliveries: 2, States: map[delivery.State]int{delivery.Pending: 1}}, "1 of 2 deliveries had not ended"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r benchResult
			r.compared(tt.report)
			err := r.err()
			if tt.want == "" {
				if err != nil {
					t.Errorf("error %v, want none", err)
				}
				return
			}
			if f := classify(err); f.code != codeLedger || f.exit != exitFailed || !strings.Contains(f.message, tt.want) {
				t.Errorf("failure %+v, want %s with %q", f, codeLedger, tt.want)
			}
		})
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 22_100: "22,100", 1_000_000: "1,000,000", -5000: "-5,000", -500: "-500"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}

// sorted lines of an inventory are made of these.
func tableLine(schema, table string, rows, undelivered int) string {
	return fmt.Sprintf("table %s.%s: %d rows, %d not delivered", schema, table, rows, undelivered)
}
