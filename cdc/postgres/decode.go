package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// This file reads the part of pgoutput protocol 1 that an insert-only reader
// needs: Begin, Commit, Relation and Insert. Every other type of message,
// including those of later protocols, is passed over. No input makes it panic.

// The message types that mean something here.
const (
	messageBegin    = 'B'
	messageCommit   = 'C'
	messageRelation = 'R'
	messageInsert   = 'I'
)

// beginMessage opens a transaction.
type beginMessage struct {
	commitTime time.Time
	xid        uint32
}

// commitMessage closes it. end is the end of the commit record: the only
// position of a transaction that may ever be confirmed.
type commitMessage struct {
	end        resumePoint
	commitTime time.Time
}

// relationMessage describes a table before its first row, and again after a
// change of it.
type relationMessage struct {
	oid     uint32
	table   Table
	columns []cdc.Column
}

// insertMessage is one row; tuple is not parsed and belongs to the read buffer.
type insertMessage struct {
	oid   uint32
	tuple []byte
}

// walData is the payload of one replication message that carries log.
type walData struct {
	start   pglogrepl.LSN
	sent    time.Time // by the server's clock
	message []byte
}

var errTruncated = errors.New("message ends too early")

// cursor reads from a message. After the first read past the end, bad is set
// and everything reads as zero.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.rest) {
		c.bad, c.rest = true, nil
		return nil
	}
	taken := c.rest[:n:n]
	c.rest = c.rest[n:]
	return taken
}

func (c *cursor) uint8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if b := c.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if b := c.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) uint64() uint64 {
	if b := c.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) time() time.Time { return serverTime(int64(c.uint64())) }

// text reads up to a zero byte and copies.
func (c *cursor) text() string {
	text, rest, ok := bytes.Cut(c.rest, []byte{0})
	if !ok {
		c.bad, c.rest = true, nil
		return ""
	}
	c.rest = rest
	return string(text)
}

// serverEpoch is 2000-01-01, from which the server counts microseconds.
const serverEpoch = 946684800

func serverTime(micros int64) time.Time {
	return time.Unix(serverEpoch+micros/1e6, micros%1e6*1e3).UTC()
}

// decodeWAL takes the header off a CopyData payload of type 'w'.
func decodeWAL(payload []byte) (walData, error) {
	c := cursor{rest: payload}
	w := walData{start: pglogrepl.LSN(c.uint64())}
	_ = c.uint64() // the server's end as of this message; it is no resume point
	w.sent = c.time()
	if c.bad || len(c.rest) == 0 {
		return walData{}, fmt.Errorf("log data of %d bytes: %w", len(payload), errTruncated)
	}
	w.message = c.rest
	return w, nil
}

func decodeBegin(body []byte) (beginMessage, error) {
	c := cursor{rest: body}
	_ = c.uint64() // start of the commit record
	m := beginMessage{commitTime: c.time(), xid: c.uint32()}
	return m, c.check("begin")
}

func decodeCommit(body []byte) (commitMessage, error) {
	c := cursor{rest: body}
	_ = c.uint8()  // flags, none defined
	_ = c.uint64() // start of the commit record
	m := commitMessage{end: resumePoint(c.uint64()), commitTime: c.time()}
	return m, c.check("commit")
}

func decodeRelation(body []byte) (relationMessage, error) {
	c := cursor{rest: body}
	m := relationMessage{oid: c.uint32(), table: Table{Schema: c.text(), Name: c.text()}}
	_ = c.uint8() // replica identity: inserts do not depend on it
	n := int(c.uint16())
	// A column takes at least 10 bytes, so that a forged count cannot ask for memory.
	m.columns = make([]cdc.Column, 0, min(n, len(c.rest)/10))
	for range n {
		_ = c.uint8() // part of the key or not
		column := cdc.Column{Name: c.text(), Type: c.uint32()}
		_ = c.uint32() // type modifier
		if c.bad {
			break
		}
		m.columns = append(m.columns, column)
	}
	if m.table.Schema == "" {
		m.table.Schema = "pg_catalog" // how the protocol writes it
	}
	return m, c.check("relation")
}

func decodeInsert(body []byte) (insertMessage, error) {
	c := cursor{rest: body}
	m := insertMessage{oid: c.uint32()}
	if kind := c.uint8(); kind != 'N' && !c.bad {
		return insertMessage{}, fmt.Errorf("insert carries tuple type %q, want 'N'", kind)
	}
	m.tuple = c.rest
	return m, c.check("insert")
}

// decodeRow copies a tuple out of the read buffer, in one piece, and cuts it
// into values. columns is how many the relation has.
func decodeRow(tuple []byte, columns int) ([]cdc.Value, error) {
	c := cursor{rest: tuple}
	n := int(c.uint16())
	if c.bad {
		return nil, fmt.Errorf("row: %w", errTruncated)
	}
	if n != columns {
		return nil, fmt.Errorf("row has %d values for %d columns", n, columns)
	}
	c.rest = append([]byte(nil), c.rest...)
	values := make([]cdc.Value, columns)
	for i := range values {
		switch kind := c.uint8(); kind {
		case 't':
			values[i].Data = c.take(int(int32(c.uint32())))
		case 'n':
			values[i].Null = true
		case 'u':
			values[i].Unchanged = true
		default:
			if !c.bad {
				return nil, fmt.Errorf("column %d has the unknown format %q", i, kind)
			}
		}
		if c.bad {
			return nil, fmt.Errorf("row, column %d of %d: %w", i, columns, errTruncated)
		}
	}
	return values, nil
}

func (c *cursor) check(what string) error {
	if c.bad {
		return fmt.Errorf("%s: %w", what, errTruncated)
	}
	return nil
}
