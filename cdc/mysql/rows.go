package mysql

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// rows takes a row event.
func (a *assembler) rows(e logEvent, ev *replication.RowsEvent) error {
	g := &a.group
	if ev.Flags&replication.RowsEventStmtEndFlag != 0 {
		defer func() { a.group.mapped = false }()
	}
	table, registered := a.tables.mapped(ev.Table, a.fold)
	switch {
	case registered && isInsert(e.Header.EventType):
	case registered, a.isOwn(ev.Table):
		// Marks of fanned-out events are updates of the event table.
		g.ownWrites = true
		a.counts.own++
		return nil
	default:
		g.others = true
		a.counts.foreign++
		return nil
	}
	g.ours = true
	if !g.open {
		// Nobody knows whose they are, or whether they stay.
		a.damage(gapDecode, fmt.Sprintf("rows of %s came outside of a transaction", table))
		return nil
	}
	if g.prepared || g.dropped {
		return nil
	}
	if !complete(ev) {
		return a.leaveToPoller(sweepRowImage, table, "a row came without all of its columns; binlog_row_image is not FULL in some session")
	}
	l, err := a.layout(table, ev.Table)
	if err != nil {
		if columns := new(errColumns); errors.As(err, &columns) {
			return a.leaveToPoller(sweepColumns, table, columns.why+"; set binlog_row_metadata to FULL")
		}
		return err
	}
	records, ok := a.decode(e, ev, l)
	if !ok {
		return a.undecodable(table)
	}
	return a.collect(table, records)
}

// decode makes records of the rows of one event, which is no larger than a few rows.
func (a *assembler) decode(e logEvent, ev *replication.RowsEvent, l *layout) ([]sizedRecord, bool) {
	raw, ok := e.rows.take(ev)
	if !ok || int(ev.ColumnCount) != len(l.columns) {
		return nil, false
	}
	data, err := raw.unpacked(e.Header.EventType == replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1)
	if err != nil {
		return nil, false
	}
	records := a.decoded[:0]
	for len(data) > 0 {
		record, size, n := a.reader.record(l, data)
		if n == 0 {
			clear(records)
			return nil, false
		}
		records, data = append(records, sizedRecord{record, size}), data[n:]
	}
	if len(records) <= mostDecoded {
		a.decoded = records
	}
	return records, true
}

// mostDecoded is how many records of one event room is kept for.
const mostDecoded = 4096

// sizedRecord is a record with the size of its values.
type sizedRecord struct {
	cdc.Record
	size int
}

// collect takes the records of one event, and lets go of each part that is full.
func (a *assembler) collect(table Table, records []sizedRecord) error {
	defer clear(records)
	g := &a.group
	for _, record := range records {
		if len(g.records) >= a.limits.records || g.bytes >= a.limits.bytes {
			if err := a.full(table); err != nil {
				return err
			}
			if g.dropped {
				return nil
			}
		}
		g.records = append(g.records, record.Record)
		g.bytes += record.size
	}
	return nil
}

// full: the records that are held make a part.
func (a *assembler) full(table Table) error {
	g := &a.group
	if g.certain && !g.hold {
		part := cdc.Transaction{Records: g.records, Partial: true, CommitTime: g.commit, Epoch: a.epoch}
		g.records, g.bytes, g.inParts = make([]cdc.Record, 0, a.limits.records), 0, true
		return a.emit(part)
	}
	if !g.hold {
		g.dropped, g.again, g.records, g.bytes = true, true, nil, 0
		return nil
	}
	if len(g.records) < holdFactor*a.limits.records && g.bytes < holdFactor*a.limits.bytes {
		return nil
	}
	g.dropped, g.records, g.bytes = true, nil, 0
	return a.leaveToPoller(sweepLarge, table, "a transaction that may be rolled back in part is too large to be held")
}

// leaveToPoller: the table has, or will have, rows that are not handed over from here.
func (a *assembler) leaveToPoller(sweep string, table Table, why string) error {
	if a.group.sweep == "" {
		a.group.sweep = sweep
	}
	a.warn(sweep, table, why)
	return nil
}

// undecodable gives a row up if it could not be decoded before.
func (a *assembler) undecodable(table Table) error {
	if at := a.where(); at != a.forgive {
		return &undecodable{at}
	}
	a.damage(gapDecode, fmt.Sprintf("a row of %s in transaction %s cannot be decoded", table, a.where()))
	return nil
}

// damage: the group ends with a gap.
func (a *assembler) damage(reason, sentence string) {
	if g := &a.group; g.gap == "" {
		g.gap, g.damage = reason, sentence
	}
}

// layout returns how rows of a table map are read.
func (a *assembler) layout(table Table, m *replication.TableMapEvent) (*layout, error) {
	a.signature = appendSignature(a.signature[:0], m)
	if l := a.layouts[table]; l != nil && bytes.Equal(l.signature, a.signature) {
		return l, nil
	}
	d, err := a.lookUp(table)
	if err != nil {
		return nil, err
	}
	l, err := newLayout(table, m, d)
	if err != nil {
		return nil, err
	}
	a.layouts[table] = l
	return l, nil
}

func (a *assembler) isOwn(m *replication.TableMapEvent) bool {
	if _, ok := a.own.mapped(m, a.fold); ok {
		return true
	}
	if _, ok := a.own[Table{Schema: string(m.Schema)}]; ok || !a.fold {
		return ok
	}
	_, ok := a.own.find(Table{Schema: string(m.Schema)}, true)
	return ok
}

func isInsert(t replication.EventType) bool {
	switch t {
	case replication.WRITE_ROWS_EVENTv0, replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2,
		replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		return true
	}
	return false
}

// complete says that the image has every column.
func complete(ev *replication.RowsEvent) bool {
	set := 0
	for i, b := range ev.ColumnBitmap1 {
		if rest := int(ev.ColumnCount) - 8*i; rest < 8 {
			b &= 1<<max(rest, 0) - 1
		}
		set += bits.OnesCount8(b)
	}
	return set == int(ev.ColumnCount)
}
