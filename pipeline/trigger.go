package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// trigger is a recordCreatedTrigger as the stream sees it. The fan-out is one,
// and so is every [Trigger] of the configuration.
type trigger interface {
	// label is the trigger's name and the "schema.table" it watches.
	label() (name, table string)
	// begin returns an empty collection for one batch.
	begin() collection
}

// collection gathers the records of one batch for one trigger, and then handles them.
// add and handle are called by different goroutines, never at the same time.
type collection interface {
	// add takes a committed record. It does no I/O.
	add(RecordCreated)
	// handle returns nil once the records are durable or dealt with. After an error
	// it is called again. position is what the batch completes, empty inside a transaction.
	handle(run, work context.Context, position cdc.Position) error
	// len is the number of records that handle will look at.
	len() int
}

// recordCreatedTrigger is a [Trigger] of the configuration with its condition compiled.
type recordCreatedTrigger struct {
	Trigger
	cond *condition
	log  *slog.Logger
	obs  Observer
	bad  seldom
}

func newTrigger(t Trigger, path string, ps *problems) *recordCreatedTrigger {
	made := &recordCreatedTrigger{Trigger: t, bad: seldom{every: remindEvery}}
	if t.When != "" {
		cond, err := compileRecordCondition(t.When)
		if err != nil {
			ps.condition(path+".when", err)
		}
		made.cond = cond
	}
	return made
}

func (t *recordCreatedTrigger) label() (name, table string) { return t.Name, t.Table }

func (t *recordCreatedTrigger) begin() collection { return &matching{trigger: t} }

// matching is the records of one batch for which the condition does not say no.
type matching struct {
	trigger *recordCreatedTrigger
	records []RecordCreated
}

func (m *matching) len() int { return len(m.records) }

func (m *matching) add(r RecordCreated) {
	if t := m.trigger; t.cond != nil {
		holds, err := t.cond.holdsForRecord(r.Record)
		if err == nil && !holds {
			return
		}
		if r.ConditionError = err; err != nil {
			t.obs.Count(CountConditionError, t.Name, 1)
			if held, ok := t.bad.allow(err.Error()); ok {
				t.log.Warn("a trigger's condition could not be evaluated; its callback gets the record with the error",
					"trigger", t.Name, "table", t.Table, "error", err, "held_back", held)
			}
		}
	}
	m.records = append(m.records, r)
}

func (m *matching) handle(_, work context.Context, _ cdc.Position) error {
	return m.trigger.call(work, m.records)
}

// call runs the callback; a panic is an error like any other, so that one bad
// callback does not end the process.
func (t *recordCreatedTrigger) call(ctx context.Context, records []RecordCreated) (err error) {
	defer func() {
		if r := recover(); r != nil {
			t.log.Error("a trigger's callback panicked", "trigger", t.Name, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("callback panicked: %v", r)
		}
	}()
	return t.OnRecordCreated(ctx, records)
}
