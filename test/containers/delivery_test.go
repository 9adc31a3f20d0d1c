package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/google/go-cmp/cmp"
)

// As processes the product is tested everywhere, on every server; this is also
// what remains of this package's tests where no engine answers.
func TestProcessesDeliverWhatWasCommitted(t *testing.T) {
	if !engineAnswers() {
		testdb.Note(t, "no container engine answers: the tests of images ran the same programs as processes")
	}
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		proveDelivery(t, processes(t, major))
	})
}

// The images of the Dockerfile, beside PostgreSQL in a container, one network.
func TestContainersDeliverWhatWasCommitted(t *testing.T) {
	if !engineAnswers() {
		t.Log("no container engine answers: see TestProcessesDeliverWhatWasCommitted")
		return
	}
	proveDelivery(t, containers(t))
}

const (
	killAt  = 100 // committed events before the dispatcher is killed
	startAt = 200 // and before it is started again
	endAt   = 300 // and before the application stops
)

// handlers are those of compose/cdc-dispatcher.yaml; the application's types
// suit both.
var handlers = [...]string{"billing", "journal"}

// proveDelivery lets an application commit and roll back, kills the dispatcher
// under it and starts it again, and then compares three accounts: what was
// committed, what the tables say, and what the receiver was sent.
func proveDelivery(t *testing.T, w world) {
	t.Helper()
	if err := w.db.setup(t.Context()); err != nil {
		t.Fatal(err)
	}

	var account ledger.Writers
	committed := func() int { n, _, _ := account.Counts(); return n }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	config := w.db.workload()
	config.Ledger, config.Rate = &account, 100
	go func() { ended <- workload.Run(ctx, config) }()
	for _, step := range []struct {
		events int
		do     func()
	}{{killAt, func() { w.kill() }}, {startAt, func() { w.start() }}, {endAt, cancel}} {
		testdb.WaitFor(t, fmt.Sprintf("%d committed events", step.events), func() bool { return committed() >= step.events })
		step.do()
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	events := account.Snapshot()
	want := len(events.Committed) * len(handlers)
	testdb.WaitFor(t, fmt.Sprintf("%d deliveries to succeed", want), func() bool {
		n, err := w.db.succeeded(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n >= want
	})
	checkRows(t, w.db, events)
	checkReceived(t, w.receiver, events)
	t.Logf("%d events committed, %d rolled back, %d deliveries", len(events.Committed), len(events.RolledBack), want)
}

// checkRows expects exactly one successful row per committed event and handler.
func checkRows(t *testing.T, db database, events ledger.Snapshot) {
	t.Helper()
	rows, err := db.rows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, row := range rows {
		got[row.Event] = append(got[row.Event], row.Handler+" "+string(row.State))
	}
	want := map[string][]string{}
	for id := range events.Committed {
		for _, handler := range handlers {
			want[id] = append(want[id], handler+" SUCCEEDED")
		}
	}
	for _, list := range got {
		slices.Sort(list)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delivery rows (-want +got):\n%s", diff)
	}
}

// checkReceived expects that the receiver was sent the committed events and no
// others. Some may have arrived twice: the dispatcher was killed.
func checkReceived(t *testing.T, receiver string, events ledger.Snapshot) {
	t.Helper()
	page, err := get(t.Context(), receiver)
	if err != nil {
		t.Fatal(err)
	}
	var arrived []struct {
		Arrivals int
		First    time.Time
		Body     struct{ ID string }
	}
	if err := json.Unmarshal(page, &arrived); err != nil {
		t.Fatal(err)
	}
	got, repeated := map[string]int{}, 0
	for _, delivery := range arrived {
		got[delivery.Body.ID]++
		repeated += delivery.Arrivals - 1
	}
	want := map[string]int{}
	for id := range maps.Keys(events.Committed) {
		want[id] = 1
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events received under one idempotency key each (-want +got):\n%s", diff)
	}
	t.Logf("%d arrivals were repeats", repeated)
}
