package mysql

import "github.com/cdc-dispatcher/cdc-dispatcher/cdc"

// confirmRule decides which position may be saved:
//
//	nothing open and nothing pending ? end of the last transaction : last acknowledged
//
// It is a value without a clock, a goroutine or I/O. It only ever answers with
// positions that went in.
type confirmRule struct {
	durable cdc.Position // the last acknowledged, or the start
	// acked: durable was acknowledged, and nothing was saved since.
	acked bool
	// pending are the positions that were handed over and are not acknowledged, in the
	// order of the log, from head on.
	pending []cdc.Position
	head    int
}

// startConfirm begins at the place where the stream starts.
func startConfirm(at cdc.Position) confirmRule { return confirmRule{durable: at} }

// handOver: the consumer gets something with this position.
func (c *confirmRule) handOver(at cdc.Position) {
	if c.head > len(c.pending)/2 {
		c.pending = append(c.pending[:0], c.pending[c.head:]...)
		c.head = 0
	}
	c.pending = append(c.pending, at)
}

// ack: the consumer made everything up to at durable. A position that does not wait
// proves nothing, and false is returned.
func (c *confirmRule) ack(at cdc.Position) bool {
	for i := c.head; i < len(c.pending); i++ {
		if c.pending[i] == at {
			c.durable, c.acked, c.head = at, true, i+1
			return true
		}
	}
	return false
}

// waiting is how many positions are handed over and not acknowledged.
func (c *confirmRule) waiting() int { return len(c.pending) - c.head }

// settled: nothing that was read can still be lost.
func (c *confirmRule) settled(open bool) bool { return !open && c.waiting() == 0 }

// answer is the position to save now; end is that of the last transaction.
func (c *confirmRule) answer(open bool, end func() cdc.Position) cdc.Position {
	if c.settled(open) {
		return end()
	}
	return c.durable
}
