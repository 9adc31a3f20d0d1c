package postgres

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// resumePoint is a position that a stream may resume at: the end of a commit
// record, the end that a keepalive names, or the confirmed position of the slot.
// It is a type of its own so that the position of a change, which is none of
// these, cannot be confirmed by mistake.
type resumePoint pglogrepl.LSN

func (p resumePoint) String() string { return pglogrepl.LSN(p).String() }

// confirmRule decides what may be confirmed:
//
//	nothing open and nothing pending ? last received : end of the last durable commit
//
// It is a value without a clock, a goroutine or I/O. The result never goes
// backwards, is never zero, and is always a resumePoint that went in: nothing
// is ever added to a position (B1 to B8).
type confirmRule struct {
	received  resumePoint // the furthest resume point seen
	durable   resumePoint // end of the last commit that the consumer made durable
	confirmed resumePoint // the largest answer so far
	lastEnd   resumePoint // end of the last commit
	open      bool        // inside a transaction
	// pending holds the ends of the commits that were handed over and are not
	// durable, rising, from head on.
	pending []resumePoint
	head    int
}

var errZeroPosition = errors.New("position is zero")

// startConfirm begins at the place where the stream starts.
func startConfirm(at resumePoint) (confirmRule, error) {
	if at == 0 {
		return confirmRule{}, fmt.Errorf("start of the stream: %w", errZeroPosition)
	}
	return confirmRule{received: at, durable: at, confirmed: at, lastEnd: at}, nil
}

// begin: a transaction's rows follow.
func (c *confirmRule) begin() { c.open = true }

// commit: the transaction ends at end. handedOver says that the consumer gets
// something of it, so that it must become durable first.
func (c *confirmRule) commit(end resumePoint, handedOver bool) error {
	if end <= c.lastEnd {
		return fmt.Errorf("commit ends at %s, not after %s", end, c.lastEnd)
	}
	c.open = false
	c.lastEnd = end
	c.received = max(c.received, end)
	if handedOver {
		c.wait(end)
	}
	return nil
}

// wait: something is handed over with this position and is not durable yet.
func (c *confirmRule) wait(at resumePoint) {
	if c.head > len(c.pending)/2 {
		c.pending = append(c.pending[:0], c.pending[c.head:]...)
		c.head = 0
	}
	c.pending = append(c.pending, at)
}

// keepalive: the server has decoded everything before end.
func (c *confirmRule) keepalive(end resumePoint) { c.received = max(c.received, end) }

// ack: the consumer made everything up to at durable.
func (c *confirmRule) ack(at resumePoint) {
	for c.head < len(c.pending) && c.pending[c.head] <= at {
		c.durable = max(c.durable, c.pending[c.head])
		c.head++
	}
}

// waiting is how many commits are handed over and not durable.
func (c *confirmRule) waiting() int { return len(c.pending) - c.head }

// settled: nothing that was received can still be lost.
func (c *confirmRule) settled() bool { return !c.open && c.waiting() == 0 }

// flush is the position to confirm now.
func (c *confirmRule) flush() resumePoint {
	if c.settled() {
		c.confirmed = max(c.confirmed, c.received)
	} else {
		c.confirmed = max(c.confirmed, c.durable)
	}
	return c.confirmed
}

// status is the standby status update to send now. All three positions are set:
// the library would fill a zero flush with the write position, which would
// confirm what is merely received (B8).
func (c *confirmRule) status() (pglogrepl.StandbyStatusUpdate, error) {
	flush := pglogrepl.LSN(c.flush())
	if flush == 0 {
		return pglogrepl.StandbyStatusUpdate{}, fmt.Errorf("status: %w", errZeroPosition)
	}
	return pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(pglogrepl.LSN(c.received), flush),
		WALFlushPosition: flush,
		WALApplyPosition: flush,
	}, nil
}

// mark is a position together with the epoch it belongs to. Positions of two
// servers, or of two timelines, cannot be compared, and one from before a gap says nothing about
// the gap; each change of server and each gap that precedes a stream begins a new epoch, and an
// acknowledgement from an earlier one counts for nothing.
type mark struct {
	epoch uint64
	at    resumePoint
}

// position is the text that leaves this package: "0/16B3748", and in a later
// epoch "0/16B3748#1".
func (m mark) position() cdc.Position {
	if m.at == 0 {
		return ""
	}
	text := m.at.String()
	if m.epoch > 0 {
		text += "#" + strconv.FormatUint(m.epoch, 10)
	}
	return cdc.Position(text)
}

// place is a position as the server writes it. So stand the ends of a gap on record, for people and their queries.
func place(p cdc.Position) cdc.Position {
	text, _, _ := strings.Cut(string(p), "#")
	return cdc.Position(text)
}

// parseMark reads what position wrote.
func parseMark(p cdc.Position) (mark, error) {
	text, epoch, later := strings.Cut(string(p), "#")
	var m mark
	var err error
	if later {
		if m.epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
			return mark{}, fmt.Errorf("position %q: %w", p, err)
		}
	}
	if m.at, err = parsePoint(text); err != nil {
		return mark{}, fmt.Errorf("position %q: %w", p, err)
	}
	return m, nil
}

// parsePoint reads the server's own notation, "16/B374D848".
func parsePoint(text string) (resumePoint, error) {
	high, low, ok := strings.Cut(text, "/")
	if !ok {
		return 0, errors.New("no slash in it")
	}
	h, err := strconv.ParseUint(high, 16, 32)
	if err != nil {
		return 0, err
	}
	l, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		return 0, err
	}
	return resumePoint(h<<32 | l), nil
}

// raised is the later of m and o; one without a position says nothing.
func (m mark) raised(o mark) mark {
	if o.at != 0 && m.before(o) {
		return o
	}
	return m
}

// before says whether m is older knowledge than o.
func (m mark) before(o mark) bool {
	return m.epoch < o.epoch || m.epoch == o.epoch && m.at < o.at
}
