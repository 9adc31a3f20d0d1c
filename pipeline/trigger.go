package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
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
	// it is called again. end is what is complete once these records are, empty when that is nothing yet.
	handle(run, work context.Context, end place) error
	// len is the number of records that handle will look at.
	len() int
	// unreadable is not nil when records were added that cannot be read although there is
	// nothing wrong with their values: they must not be acknowledged.
	unreadable() error
}

// recordCreatedTrigger is a [Trigger] of the configuration with its condition compiled.
type recordCreatedTrigger struct {
	Trigger
	cond *condition
	log  *slog.Logger
	obs  Observer
	bad  seldom
}

func newTrigger(t Trigger, c *Config, path string, ps *problems) *recordCreatedTrigger {
	made := &recordCreatedTrigger{Trigger: t, log: c.Logger, obs: c.Observer, bad: seldom{every: remindEvery}}
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

func (m *matching) unreadable() error { return nil } // a callback reads for itself

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
					slog.String("trigger", t.Name), slog.String("table", t.Table), slog.Any("error", err), slog.Int("held_back", held))
			}
		}
	}
	m.records = append(m.records, r)
}

func (m *matching) handle(_, work context.Context, _ place) error {
	return m.trigger.call(work, m.records)
}

// callbackPatience is how much longer than its context a callback is waited for.
const callbackPatience = 2 * time.Second

var (
	errAbandoned = errors.New("the callback ignores that its context has ended, and is not waited for any longer")
	errGoexit    = errors.New("the callback ended its goroutine")
)

// call runs the callback. One that ignores the end of its context does not hold up the stop: it is
// left to itself, and its records, which are not acknowledged, come again.
func (t *recordCreatedTrigger) call(ctx context.Context, records []RecordCreated) error {
	done := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { done <- err }()
		err = t.guarded(ctx, records)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(callbackPatience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.log.Error("a trigger's callback ignores that its context has ended; it is left to itself, and its records come again",
			slog.String("trigger", t.Name), slog.Int("records", len(records)))
		return errAbandoned
	}
}

// guarded makes a panic an error like any other, so that one bad callback does not end the process. What it panicked with
// may quote the records, and is told to nobody.
func (t *recordCreatedTrigger) guarded(ctx context.Context, records []RecordCreated) (err error) {
	defer func() {
		if r := recover(); r != nil {
			t.log.Error("a trigger's callback panicked", slog.String("trigger", t.Name), slog.String("panic", fmt.Sprintf("%T", r)), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("callback panicked with a %T", r)
		}
	}()
	return t.OnRecordCreated(ctx, records)
}

// fanOutTrigger is the pipeline's own recordCreatedTrigger, on the event table.
type fanOutTrigger struct {
	source, table string
	decode        func(cdc.Record) (event.Event, error)
	router        *router
	fanOut        *fanOut
	log           *slog.Logger
	obs           Observer
	warn          seldom
	// expected is how many events the last batch had: growing a slice of them copies a lot. Only the collector uses it.
	expected int
}

func (t *fanOutTrigger) label() (name, table string) { return fanOutName, t.table }

func (t *fanOutTrigger) begin() collection { return &arrivals{trigger: t} }

// arrivals is the events of one batch, routed as they arrive, so that routing
// overlaps with the statement of the batch before.
type arrivals struct {
	trigger *fanOutTrigger
	rows    int
	events  []routed
	// unread counts rows that are not events, by reason, with an example.
	unread map[string]*unreadRows
	// fault is the first of them that lies in the table and not in the row.
	fault error
}

type unreadRows struct {
	n       int
	example error
}

func (a *arrivals) len() int { return a.rows }

func (a *arrivals) unreadable() error { return a.fault }

// ofTable is implemented by errors of decoding, and says that not the row is at fault but
// the table or the configured columns.
type ofTable interface{ OfTable() bool }

func (a *arrivals) add(r RecordCreated) {
	t := a.trigger
	a.rows++
	ev, err := t.decode(r.Record)
	if err != nil {
		a.cannotRead(err)
		return
	}
	out, ok := t.router.route(ev)
	switch {
	case ev.Type == "":
		t.obs.Count(CountSentinel, "", 1)
	case !ok:
		t.obs.Count(CountUnsubscribed, "", 1)
	default:
		out.fan.FromLog = true
		out.commitTime = r.CommitTime
		if a.events == nil {
			a.events = make([]routed, 0, max(t.expected, 1))
		}
		a.events = append(a.events, out)
		t.expected = len(a.events)
	}
}

// cannotRead notes a row that is not an event: without an id it can have no
// delivery. It stays in its table, and stops nothing else. A fault of the table is
// another matter: every row has it, and those that were deleted in their own transaction
// are in the log only, so the log waits for whoever mends it.
func (a *arrivals) cannotRead(err error) {
	if fault := ofTable(nil); a.fault == nil && errors.As(err, &fault) && fault.OfTable() {
		a.fault = err
	}
	if a.unread == nil {
		a.unread = make(map[string]*unreadRows)
	}
	reason := event.Code(err)
	if a.unread[reason] == nil {
		a.unread[reason] = &unreadRows{example: err}
	}
	a.unread[reason].n++
}

func (a *arrivals) handle(run, work context.Context, end place) error {
	a.reportUnread(end.position)
	if len(a.events) == 0 {
		return nil
	}
	return a.trigger.fanOut.deliver(run, work, a.events, viaLog, end)
}

func (a *arrivals) reportUnread(position cdc.Position) {
	t := a.trigger
	for reason, u := range a.unread {
		t.obs.Count(CountRowError, "", u.n)
		if held, ok := t.warn.allow(reason); ok {
			t.log.Error("rows of the event table cannot be read as events, and have no delivery",
				slog.String("source", t.source), slog.String("table", t.table), slog.String("up_to_position", string(position)),
				slog.Int("rows", u.n), slog.String("reason", reason), slog.Any("error", u.example), slog.Int("held_back", held))
		}
	}
	a.unread = nil
}
