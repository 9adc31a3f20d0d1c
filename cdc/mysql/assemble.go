package mysql

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// assembler turns the events of a binlog into transactions. It has no clock, no
// goroutine and no connection: what it needs of the catalog it asks lookUp for, and what is
// finished it gives to emit, in order.
//
// A group of events begins with a GTID event and ends with an XID event or a query
// (mysql-cdc.md section 3.1). Rows leave at its end, in parts of bounded size, of which only the last
// carries the position. No sooner, because servers log some transactions that were rolled back, and
// only the end tells. One that is too large to be held until then is read twice: the first time to
// learn that it was committed, the second time in parts as they come. What
// is half open when another group begins was never finished, and is dropped.
type assembler struct {
	limits struct{ records, bytes int }
	epoch  uint64
	tables tableSet
	own    tableSet
	fold   bool // capitals in the names of tables do not count
	lookUp func(Table) (definition, error)
	emit   func(cdc.Transaction) error
	// warn tells an operator, once, what makes rows take the long way.
	warn func(reason string, table Table, why string)
	// forgive is the transaction whose undecodable rows are given up, because they could
	// not be decoded before.
	forgive string
	// certain are large transactions that were read to their end before, and are committed.
	certain []string

	layouts map[Table]*layout
	// These keep the room that rows are decoded in.
	reader    rowReader
	decoded   []sizedRecord
	signature []byte

	// end is where the last transaction ended, endText its text once it was asked for.
	end     place
	endText cdc.Position
	// file is the file that is being read, at the last offset seen in it. wrapped: it is
	// larger than an offset can say, so that its positions are worth nothing.
	file    string
	at      uint32
	wrapped bool

	group  group
	counts counts
}

// group is the open transaction.
type group struct {
	open   bool
	id     gtid
	commit time.Time
	// alone: exactly one query follows (MariaDB). body: what follows is inside BEGIN.
	alone, body bool
	// hold: it has savepoints, so that it may be rolled back in part, and nothing leaves early.
	hold bool
	// certain: it is known to be committed. again: it is not, and too large to be held.
	certain, again bool
	// prepared: an XA transaction, whose verdict comes later in another group.
	prepared bool

	// ours: rows went into a registered table; ownWrites, others: what else was done.
	ours, ownWrites, others bool
	// mapped: the statement that is being read has a registered table.
	mapped  bool
	records []cdc.Record
	bytes   int
	inParts bool // a part has left
	dropped bool // too large to be held, so left to the poller
	marks   []savepoint
	sweep   string
	gap     string // reason of the gap that the group ends with
	damage  string // its sentence
}

type savepoint struct {
	name           string
	records, bytes int
}

// counts are for Status and logs.
type counts struct {
	foreign int64 // row events of tables that nobody registered
	own     int64 // row events of the dispatcher's own tables
	unknown int64 // events of types that nobody knows
	// moved: the end moved because of something else than our own writes and what was
	// handed over.
	moved bool
	// undone counts groups that were rolled back after a part of them had left, which cannot
	// be: they were read to a commit before.
	undone int64
}

// holdFactor is how many parts are held of a group that may still be rolled back in part.
const holdFactor = 8

// largeCommit ends the connection: a transaction that was too large to be held turned out to be
// committed. It is read once more.
type largeCommit struct{ transaction string }

func (e *largeCommit) Error() string {
	return "large transaction " + e.transaction + " is committed, and read again"
}

// Flags of a GTID event of MariaDB that the library does not name.
const flagPreparedXA = 64

// undecodable says where something could not be decoded. The first time it ends the
// connection, because a fault of the wire does not come again.
type undecodable struct{ transaction string }

func (e *undecodable) Error() string {
	return fmt.Sprintf("%s (in transaction %s)", errDecode, e.transaction)
}
func (e *undecodable) Unwrap() error { return errDecode }

func newAssembler(cfg Config, start place, epoch uint64) *assembler {
	a := &assembler{
		epoch: epoch, end: start, layouts: map[Table]*layout{},
		tables: newTableSet(cfg.Tables), own: newTableSet(cfg.Own),
		warn: func(string, Table, string) {},
	}
	a.limits.records, a.limits.bytes = cfg.MaxRecords, cfg.MaxBytes
	if start.mode == modeFile {
		a.file, a.at = start.file, start.offset
	}
	return a
}

// position is the text of the end of the last transaction.
func (a *assembler) position() cdc.Position {
	if a.endText == "" {
		a.endText = a.end.position()
	}
	return a.endText
}

// where names the open transaction, or the place between two.
func (a *assembler) where() string {
	if id := a.group.id.String(); a.group.open && id != "" {
		return id
	}
	return "after " + string(a.position())
}

// take processes one event as it came from the server.
func (a *assembler) take(e logEvent) error {
	switch e.Event.(type) {
	case *replication.FormatDescriptionEvent, *replication.RotateEvent, *replication.HeartbeatEvent:
	default:
		// An offset that goes back within a file has outgrown its 32 bits (gh-ost #1366).
		if at := e.Header.LogPos; at != 0 {
			if at < a.at && a.end.mode == modeFile && !a.wrapped {
				a.wrapped = true
				a.warn("large_file", Table{}, fmt.Sprintf(
					"file %s has outgrown the offsets of the protocol; the position stands still until the next file", a.file))
			}
			a.at = at
		}
	}
	return a.event(e)
}

func (a *assembler) event(e logEvent) error {
	switch ev := e.Event.(type) {
	case *replication.FormatDescriptionEvent:
		return a.drop()
	case *replication.RotateEvent:
		return a.rotate(e.Header, ev)
	case *replication.GTIDEvent:
		return a.beginMySQL(e.Header, ev)
	case *replication.GtidTaggedLogEvent:
		return a.beginMySQL(e.Header, &ev.GTIDEvent)
	case *replication.MariadbGTIDEvent:
		return a.beginMariaDB(e.Header, ev)
	case *replication.QueryEvent:
		return a.query(e.Header, ev)
	case *replication.XIDEvent:
		return a.finish(e.Header, true)
	case *replication.TableMapEvent:
		if _, ours := a.tables.mapped(ev, a.fold); ours {
			a.group.mapped = true
		}
	case *replication.RowsEvent:
		return a.rows(e, ev)
	case *replication.TransactionPayloadEvent:
		if n := len(ev.Events); n > 0 && ev.Events[n-1].Header.EventType == replication.XID_EVENT {
			a.group.certain = true
		}
		for _, inner := range ev.Events {
			if err := a.event(logEvent{inner, e.rows}); err != nil {
				return err
			}
		}
	case *replication.PreviousGTIDsEvent:
		// The last of a file's own events, before any transaction.
		if a.end.mode == modeFile && a.end.file == a.file && a.end.offset < e.Header.LogPos {
			a.advance(gtid{}, e.Header)
			a.counts.moved = true
		}
	case *replication.ExecuteLoadQueryEvent:
		return a.statement("", string(e.RawData)) // LOAD DATA; the library leaves its text out
	case *replication.GenericEvent:
		return a.generic(e.Header, ev)
	}
	return nil // heartbeats, annotations, lists of GTIDs …
}

// rotate: another file follows. An artificial event only says which file is being read.
func (a *assembler) rotate(h *replication.EventHeader, ev *replication.RotateEvent) error {
	if err := a.drop(); err != nil {
		return err
	}
	a.file, a.at, a.wrapped = string(ev.NextLogName), 0, false
	if a.end.mode == modeFile && h.Flags&replication.LOG_EVENT_ARTIFICIAL_F == 0 && h.Timestamp != 0 {
		a.end.file, a.end.offset, a.endText = a.file, uint32(ev.Position), ""
		a.counts.moved = true
	}
	return nil
}

func (a *assembler) beginMySQL(h *replication.EventHeader, ev *replication.GTIDEvent) error {
	g := group{commit: ev.ImmediateCommitTime()}
	if h.EventType != replication.ANONYMOUS_GTID_EVENT {
		sid, err := uuid.FromBytes(ev.SID)
		if err != nil {
			return &undecodable{a.where()}
		}
		g.id = gtid{flavor: modeGTID, sid: sid, tag: ev.Tag, number: ev.GNO}
	} else if a.end.mode == modeGTID {
		return errSettings // GTIDs were switched off: this one has no place in the set
	}
	return a.begin(h, g)
}

func (a *assembler) beginMariaDB(h *replication.EventHeader, ev *replication.MariadbGTIDEvent) error {
	id := gtid{flavor: modeMariaDB, mariadb: ev.GTID}
	id.mariadb.ServerID = h.ServerID
	return a.begin(h, group{
		id:       id,
		alone:    ev.IsStandalone(),
		body:     !ev.IsStandalone(),
		prepared: ev.Flags&flagPreparedXA != 0,
	})
}

func (a *assembler) begin(h *replication.EventHeader, g group) error {
	if err := a.drop(); err != nil {
		return err
	}
	g.open = true
	if g.commit.IsZero() && h.Timestamp != 0 {
		g.commit = time.Unix(int64(h.Timestamp), 0)
	}
	a.group = g
	a.group.certain = len(a.certain) > 0 && slices.Contains(a.certain, a.where())
	return nil
}

// drop forgets a group that did not come to its end. What was lost with it is said.
func (a *assembler) drop() error {
	g := a.group
	a.group = group{}
	if g.gap != "" {
		return a.announce(g)
	}
	return nil
}

// finish ends the open group.
func (a *assembler) finish(h *replication.EventHeader, committed bool) error {
	if !a.group.open {
		a.counts.unknown++ // the rest of something that began before the stream
		return a.drop()
	}
	switch {
	case !committed:
		a.undo()
	case a.group.again:
		return &largeCommit{a.where()}
	}
	if err := a.parts(); err != nil {
		return err
	}
	g := a.group
	tx := cdc.Transaction{Records: g.records, CommitTime: g.commit, Epoch: a.epoch, Sweep: g.sweep}
	some := len(g.records) > 0 || g.inParts || g.sweep != ""
	if g.gap != "" && some {
		// Without its position, and before the end moves past it: nothing may be saved beyond
		// the gap before that is recorded.
		tx.Partial = true
		if err := a.emit(tx); err != nil {
			return err
		}
	}
	a.group = group{}
	a.advance(g.id, h)
	if g.others || !g.ownWrites && !g.ours {
		a.counts.moved = true
	}
	switch {
	case g.gap != "":
		return a.announce(g)
	case !some:
		return nil
	}
	tx.Position = a.position()
	return a.emit(tx)
}

// parts hands over what is held of a group that is committed, but for the last part.
func (a *assembler) parts() error {
	g := &a.group
	for n := a.part(g.records); n < len(g.records); n = a.part(g.records) {
		part := cdc.Transaction{Records: g.records[:n:n], Partial: true, CommitTime: g.commit, Epoch: a.epoch}
		g.records, g.inParts = g.records[n:], true
		if err := a.emit(part); err != nil {
			return err
		}
	}
	return nil
}

// part is how many of the records make a part.
func (a *assembler) part(records []cdc.Record) int {
	bytes := 0
	for i, r := range records {
		if i >= a.limits.records || bytes >= a.limits.bytes {
			return i
		}
		for _, v := range r.Values {
			bytes += len(v.Data)
		}
	}
	return len(records)
}

// undo forgets what the open group did.
func (a *assembler) undo() {
	g := &a.group
	if g.inParts {
		a.counts.undone++
		a.warn("undone", Table{}, "a transaction was rolled back in the log after a part of it had been handed over")
	}
	g.records, g.bytes, g.sweep, g.gap, g.inParts = nil, 0, "", "", false
}

// advance moves the end past a group.
func (a *assembler) advance(id gtid, h *replication.EventHeader) {
	switch {
	case a.end.mode != modeFile:
		a.end.add(id)
	case a.wrapped || h.LogPos == 0 || a.file == "":
		return // no position of this one can be trusted
	default:
		a.end.file, a.end.offset = a.file, h.LogPos
	}
	a.endText = ""
}

// announce hands over the gap of a group, at the end of what was read.
func (a *assembler) announce(g group) error {
	at := a.position()
	return a.emit(cdc.Transaction{
		Gap:      &cdc.Gap{Reason: g.gap, Detail: g.damage, From: at, To: at},
		Position: at, Epoch: a.epoch,
	})
}
