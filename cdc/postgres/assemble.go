package postgres

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// assembler turns the messages of a stream into transactions. It is a value
// without a clock, a goroutine or I/O.
//
// The server sends a transaction only after its commit, one at a time, so what
// arrives between a begin and a commit is committed work in commit order. A
// large transaction leaves in parts of bounded size, so that memory does not
// grow with it; only the last part carries the position (B23, B24).
type assembler struct {
	maxRecords, maxBytes int
	epoch                uint64
	// names are the registered tables; roots are their OIDs and those of their
	// partitions and inheritance children, as far as they are known.
	names map[Table]struct{}
	roots map[uint32]Table
	// relations has an entry for each table the stream described; nil marks one
	// that nobody registered. lost says why for one of these that may have been part of a
	// registered one.
	relations map[uint32]*cdc.Relation
	lost      map[uint32]string
	// now holds the columns of registered tables as the catalog has them, by OID, where
	// a column's place in the row is its place there.
	now map[uint32][]cdc.Column

	open       bool
	xid        uint32 // of the open transaction
	commitTime time.Time
	records    []cdc.Record
	bytes      int
	inParts    bool   // a part of the open transaction has left
	damage     damage // of the open transaction
	sweep      string // why the poller should look, after the open transaction
	foreign    int64  // rows of tables that nobody registered
}

// damage is what a transaction has that cannot be handed over.
type damage struct {
	rows           int
	reason, detail string // of the first
	unreadable     bool   // there are rows that cannot be read
}

// gap is the gap that the damage leaves at the transaction's end.
func (d damage) gap(at cdc.Position) *cdc.Gap {
	detail := d.detail
	if d.rows > 1 {
		detail = fmt.Sprintf("%s, and %d more rows of its transaction", detail, d.rows-1)
	}
	return &cdc.Gap{Reason: d.reason, Detail: detail, From: at, To: at}
}

// finished is what a commit leads to: transactions that the consumer must make
// durable, in this order. Only the last has the position, so that nothing of the commit
// is confirmed before all of it is on record, a gap too.
type finished struct {
	end resumePoint
	txs []cdc.Transaction
}

var (
	errNested      = errors.New("begin inside a transaction")
	errNotOpen     = errors.New("row or commit outside a transaction")
	errNoRelation  = errors.New("row of a table that was never described")
	errEmptyCommit = errors.New("commit without an end position")
)

func newAssembler(tables []Table, roots map[uint32]Table, epoch uint64, maxRecords, maxBytes int) *assembler {
	a := &assembler{
		maxRecords: maxRecords,
		maxBytes:   maxBytes,
		epoch:      epoch,
		names:      make(map[Table]struct{}, len(tables)),
		roots:      roots,
		relations:  map[uint32]*cdc.Relation{},
		lost:       map[uint32]string{},
	}
	for _, t := range tables {
		a.names[t] = struct{}{}
	}
	return a
}

// relation takes a table's description, which replaces an earlier one (B34). It
// returns false when it is not known whether the table belongs to a registered
// one: resolve must then be called before the next row.
//
// A registered name counts first. After that the OID counts: it finds the root
// of a partition that is announced under its own name (B33), and a registered
// table that was renamed while the stream runs.
func (a *assembler) relation(m relationMessage) (known bool) {
	if _, ok := a.names[m.table]; ok {
		a.resolve(m, m.table, true)
		return true
	}
	if root, ok := a.roots[m.oid]; ok {
		a.resolve(m, root, true)
		return true
	}
	return false
}

// resolve says which registered table the described one belongs to, or none.
func (a *assembler) resolve(m relationMessage, root Table, registered bool) {
	delete(a.lost, m.oid)
	if !registered {
		a.relations[m.oid] = nil
		return
	}
	a.roots[m.oid] = root
	nameAsNow(m.columns, a.now[m.oid])
	a.relations[m.oid] = &cdc.Relation{Schema: root.Schema, Table: root.Name, Columns: m.columns}
}

// nameAsNow notes the present names of columns that were renamed after the rows to come
// were written. Names that changed places say nothing: the rows keep the old ones.
func nameAsNow(columns, now []cdc.Column) {
	if len(columns) != len(now) {
		return
	}
	named := func(all []cdc.Column, name string) bool {
		return slices.ContainsFunc(all, func(c cdc.Column) bool { return c.Name == name })
	}
	for i := range columns {
		was, is := columns[i].Name, now[i].Name
		if columns[i].Type != now[i].Type || was != is && (named(now, was) || named(columns, is)) {
			return
		}
	}
	for i := range columns {
		if is := now[i].Name; is != columns[i].Name {
			columns[i].Now = is
		}
	}
}

// lose says that the described table may have belonged to a registered one, and that
// nobody can tell: a transaction with rows of it leaves a gap.
func (a *assembler) lose(m relationMessage, why string) {
	a.relations[m.oid] = nil
	a.lost[m.oid] = fmt.Sprintf("rows of table %s, %s, were left out", m.table, why)
}

// askForSweep: the poller should look, after the open transaction.
func (a *assembler) askForSweep(why string) { a.sweep = why }

func (a *assembler) begin(m beginMessage) error {
	if a.open {
		return errNested
	}
	a.open, a.inParts, a.damage, a.sweep = true, false, damage{}, ""
	a.commitTime, a.xid = m.commitTime, m.xid
	return nil
}

// insert takes a row. When the rows held are enough for a part, that part is
// returned, without the new row, so that the last part is never empty.
func (a *assembler) insert(m insertMessage) (part cdc.Transaction, full bool, err error) {
	if !a.open {
		return part, false, errNotOpen
	}
	relation, described := a.relations[m.oid]
	if !described {
		return part, false, fmt.Errorf("%w (OID %d)", errNoRelation, m.oid)
	}
	if why := a.lost[m.oid]; why != "" {
		a.giveUp(gapTableGone, why)
		return part, false, nil
	}
	if relation == nil {
		a.foreign++
		return part, false, nil
	}
	values, err := decodeRow(m.tuple, len(relation.Columns))
	if err != nil {
		return part, false, fmt.Errorf("%s: %w", relation.Name(), err)
	}
	if len(a.records) >= a.maxRecords || a.bytes >= a.maxBytes {
		part, full = cdc.Transaction{Records: a.records, Partial: true, CommitTime: a.commitTime}, true
		a.records, a.bytes, a.inParts = make([]cdc.Record, 0, a.maxRecords), 0, true
	}
	a.records = append(a.records, cdc.Record{Relation: relation, Values: values})
	a.bytes += len(m.tuple)
	return part, full, nil
}

// giveUp leaves out a row that cannot be handed over; the commit will say so.
func (a *assembler) giveUp(reason, detail string) {
	a.damage.unreadable = a.damage.unreadable || reason == gapDecode
	if a.damage.rows++; a.damage.rows == 1 {
		a.damage.reason, a.damage.detail = reason, detail
	}
}

func (a *assembler) commit(m commitMessage) (finished, error) {
	if !a.open {
		return finished{}, errNotOpen
	}
	if m.end == 0 {
		return finished{}, errEmptyCommit
	}
	f := finished{end: m.end}
	at := mark{a.epoch, m.end}.position()
	rows := cdc.Transaction{Records: a.records, Position: at, CommitTime: m.commitTime, Sweep: a.sweep}
	damaged := a.damage.rows > 0
	if damaged {
		rows.Partial, rows.Position = true, ""
	}
	if len(a.records) > 0 || a.inParts && !damaged || a.sweep != "" {
		f.txs = append(f.txs, rows)
	}
	if damaged {
		f.txs = append(f.txs, cdc.Transaction{Gap: a.damage.gap(mark{at: m.end}.position()), Position: at, CommitTime: m.commitTime})
	}
	a.open, a.records, a.bytes = false, nil, 0
	return f, nil
}
