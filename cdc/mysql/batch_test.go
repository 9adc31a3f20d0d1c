package mysql

import (
	"errors"
	"slices"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"
)

// Batches hold all events in order, end with each transaction, and are of bounded size; what is held is
// handed over before a failure is told.
func TestBatches(t *testing.T) {
	event := func(e replication.Event, size int) *replication.BinlogEvent {
		return &replication.BinlogEvent{Header: &replication.EventHeader{}, Event: e, RawData: make([]byte, size)}
	}
	begin, xid := &replication.QueryEvent{Query: []byte("BEGIN")}, &replication.XIDEvent{}
	rows := &replication.RowsEvent{}
	sent := []*replication.BinlogEvent{
		event(&replication.GTIDEvent{}, 80), event(begin, 80), event(rows, 80), event(xid, 31),
		event(&replication.HeartbeatEvent{}, 20),
		event(&replication.MariadbGTIDEvent{}, 80), event(&replication.QueryEvent{Query: []byte("DROP TABLE x")}, 80),
		event(rows, mostHeldBytes), event(rows, mostHeldBytes/2), event(rows, mostHeldBytes/2),
	}
	want := []int{4, 1, 2, 1, 2}
	for range mostHeld + 1 {
		sent = append(sent, event(rows, 10))
	}
	want = append(want, mostHeld, 1)
	c := &logConn{filling: new(logBatch), taken: new(logBatch), events: make(chan *logBatch), failed: make(chan error, 1), done: make(chan struct{})}
	c.filter.kept = &c.filling.rows
	c.ended.Go(func() {
		for _, e := range sent {
			if err := c.HandleEvent(e); err != nil {
				t.Error(err)
			}
		}
		if err := c.hand(); err != nil {
			t.Error(err)
		}
		c.failed <- errDecode
	})
	var got []*replication.BinlogEvent
	var sizes []int
	for failed := false; !failed; {
		select {
		case batch := <-c.events:
			got, sizes = append(got, batch.events...), append(sizes, len(batch.events))
		case err := <-c.failed:
			if !errors.Is(err, errDecode) {
				t.Error(err)
			}
			failed = true
		}
	}
	if !slices.Equal(got, sent) || !slices.Equal(sizes, want) {
		t.Errorf("%d of %d events came, in batches of %d, want %d", len(got), len(sent), sizes, want)
	}
	close(c.done)
	if err := c.HandleEvent(event(xid, 31)); !errors.Is(err, errCut) {
		t.Errorf("after the end: %v", err)
	}
}
