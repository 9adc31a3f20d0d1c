package integration

import (
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// No log at all: no slot is made, and the poller keeps the same promises, with the
// dispatcher killed under load. The writers commit out of the order of their ids and dates, of which
// "greater than the last seen" would miss some (T52).
func TestGuarantee_PollOnly(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		end := w.write(workload.Config{Writers: testbed.Size(8, 64), Rate: 200})
		for range 3 {
			c := w.spawn(childLife{options: options{Poll: true}})
			w.letPass(50 + w.rng.IntN(150))
			c.kill()
		}
		last := w.spawn(childLife{options: options{Poll: true}})
		w.letPass(100)
		end()
		w.settle()
		t.Logf("last life: %s", last.stop())
		if _, ok := w.db.(*postgres); ok {
			if n := w.number(`SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`); n != 0 {
				t.Errorf("%d slots in poll-only mode, want none", n)
			}
		}
		w.verdict()
	})
}

// Q26: a row that is older by every column, but commits after a newer one was
// polled, is found: the poller selects by state, never by "greater than the last".
func TestQ26_PollerFindsALateCommitOfAnEarlierRow(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		w.dispatch(options{Poll: true}, steadyAndMoody(), hooks{})
		tx := w.begin()
		early := w.insert(tx, 1, "order.placed", `{"n": 5}`)
		w.emit(1, "order.placed", `{"n": 6}`)
		w.settle()
		w.commit(tx, early)
		w.settle()
		w.verdict()
	})
}

// While the log is read, the poller finds nothing, not even the rows that were not
// in sight yet when the log brought them. Its grace is longer than the test here, so what it
// took would have no other reason.
func TestGuarantee_PollerFindsNothingInSteadyState(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		d := w.dispatch(options{Grace: time.Hour, PollInterval: 100 * time.Millisecond}, steadyAndMoody(), hooks{})
		w.streaming()
		testdb.WaitFor(t, "the poller's first look", func() bool { return !d.pipe.Health().PolledAt.IsZero() })
		end := w.write(workload.Config{Writers: 8, Rate: 200})
		w.letPass(400)
		end()
		w.settle() // which includes that every row is marked
		d.stop()
		t.Logf("%s", d.counts.totals())
		if n := d.counts.totals().Other[pipeline.CountPolledMissed]; n != 0 {
			t.Errorf("the poller found %d events that the log had not brought", n)
		}
		w.verdict()
	})
}
