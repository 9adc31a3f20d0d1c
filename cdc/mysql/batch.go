package mysql

import (
	"bytes"

	"github.com/go-mysql-org/go-mysql/replication"
)

// logBatch are events that the stream takes at once, usually those of a transaction: handing each over by
// itself costs as much as reading it.
type logBatch struct {
	events []*replication.BinlogEvent
	rows   keptRows
	bytes  int
}

// A batch is handed over when it has so much, if no end of a transaction comes before.
const (
	mostHeld      = 64
	mostHeldBytes = 64 << 10
)

// add takes an event, and says whether the batch goes. It may be held only if the server is sure to send more: it sends
// whole transactions.
func (b *logBatch) add(e *replication.BinlogEvent) (full bool) {
	b.events = append(b.events, e)
	b.bytes += len(e.RawData)
	return len(b.events) >= mostHeld || b.bytes >= mostHeldBytes || !goesOn(e)
}

// goesOn says that the event is not the last one of its transaction.
func goesOn(e *replication.BinlogEvent) bool {
	switch ev := e.Event.(type) {
	case *replication.GTIDEvent, *replication.GtidTaggedLogEvent, *replication.MariadbGTIDEvent,
		*replication.TableMapEvent, *replication.RowsEvent, *replication.RowsQueryEvent, *replication.MariadbAnnotateRowsEvent:
		return true
	case *replication.QueryEvent:
		return bytes.Equal(ev.Query, []byte("BEGIN"))
	}
	return false
}

// reset makes room for other events.
func (b *logBatch) reset() {
	clear(b.events)
	clear(b.rows.list)
	b.events, b.rows, b.bytes = b.events[:0], keptRows{list: b.rows.list[:0]}, 0
}

// HandleEvent implements replication.EventHandler on the library's goroutine. It holds no more than
// a batch, and returns once that is taken: nothing is queued, so that memory does not grow.
func (c *logConn) HandleEvent(e *replication.BinlogEvent) error {
	if !c.filling.add(e) {
		return nil
	}
	return c.hand()
}

// hand waits until the batch is taken. The one before it is done with by then, because
// one goroutine takes them, one by one.
func (c *logConn) hand() error {
	if len(c.filling.events) == 0 {
		return nil
	}
	select {
	case c.events <- c.filling:
		c.filling, c.taken = c.taken, c.filling
		c.filling.reset()
		c.filter.kept = &c.filling.rows
		return nil
	case <-c.done:
		return errCut
	}
}
