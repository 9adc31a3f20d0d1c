package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

var eventTable = &cdc.Relation{Schema: "eventlog", Table: "events", Columns: []cdc.Column{{Name: "id"}, {Name: "type"}, {Name: "payload"}}}

// row is a row image of the event table; an id of "" is null.
func row(id, typ string) cdc.Record {
	v := func(s string) cdc.Value { return cdc.Value{Data: []byte(s), Null: s == ""} }
	return cdc.Record{Relation: eventTable, Values: []cdc.Value{v(id), v(typ), v(`{}`)}}
}

type codedError struct{ code, msg string }

func (e codedError) Error() string { return e.msg }
func (e codedError) Code() string  { return e.code }

// tableFault is what decoding says when the table lacks a column.
type tableFault struct{ codedError }

func (tableFault) OfTable() bool { return true }

func decodeRow(r cdc.Record) (event.Event, error) {
	if len(r.Values) == 0 {
		return event.Event{}, tableFault{codedError{"missing_column", "column type does not exist"}}
	}
	id, _ := r.Value("id")
	typ, _ := r.Value("type")
	payload, _ := r.Value("payload")
	if id.Null {
		return event.Event{}, codedError{"null_id", "column id is null"}
	}
	return event.Event{ID: string(id.Data), Type: string(typ.Data), Payload: payload.Data, Date: time.Now()}, nil
}

// ackSource notes what is acknowledged.
type ackSource struct {
	silentSource
	mu    sync.Mutex
	acks  []cdc.Position
	after func() // called at each Ack
}

func (s *ackSource) Ack(pos cdc.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acks = append(s.acks, pos)
	if s.after != nil {
		s.after()
	}
}

func (s *ackSource) acked() []cdc.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]cdc.Position(nil), s.acks...)
}

// streamBench is a stream over fakes that runs until the test ends.
type streamBench struct {
	*fanBench
	s      *stream
	source *ackSource
	stop   context.CancelFunc
	cut    context.CancelFunc
	done   chan struct{}
	gaps   atomic.Int32
	sweeps atomic.Int32
}

func newStreamBench(t *testing.T, limits FanOutConfig, triggers ...Trigger) *streamBench {
	t.Helper()
	b := &streamBench{fanBench: newFanBench(t, nil, on("a", []string{"*"}, "")), source: &ackSource{}, done: make(chan struct{})}
	c := Config{Source: "test", Store: b.store, Log: b.source, Table: "eventlog.events", Decode: decodeRow, Triggers: triggers,
		FanOut: limits, Handlers: []Handler{on("a", []string{"*"}, "")}, Observer: b.obs, Logger: slog.New(slog.NewTextHandler(b.book, nil))}
	plan, err := c.prepare()
	if err != nil {
		t.Fatal(err)
	}
	b.s = newStream(plan, newFanOutTrigger(plan, b.router, b.fanOut), func() {}, func() { b.gaps.Add(1) }, func() { b.sweeps.Add(1) })
	return b
}

// launch runs the stream inside a bubble.
func (b *streamBench) launch(t *testing.T) {
	run, stop := context.WithCancel(t.Context())
	work, cut := context.WithCancel(context.WithoutCancel(run))
	b.stop, b.cut = stop, cut
	go func() {
		defer close(b.done)
		_ = b.s.run(run, work)
	}()
	t.Cleanup(b.halt)
}

func (b *streamBench) halt() {
	b.stop()
	<-b.done
	b.cut()
}

func tx(pos string, ids ...string) cdc.Transaction {
	t := cdc.Transaction{Position: cdc.Position(pos), CommitTime: time.Now()}
	for _, id := range ids {
		t.Records = append(t.Records, row(id, "x"))
	}
	return t
}

func (b *streamBench) sizes() []int {
	var sizes []int
	for _, batch := range b.store.batches {
		sizes = append(sizes, len(batch.Fans))
	}
	return sizes
}
