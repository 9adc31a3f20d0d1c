package mysql

import (
	"strings"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// logEvent is an event of the binlog with what is needed to decode its rows. Rows are
// decoded when their turn comes, not when their event is parsed: a compressed transaction is
// one event with all its rows.
type logEvent struct {
	*replication.BinlogEvent
	rows *keptRows
}

// keptRows are the rows of some events, not decoded, in the order of the events.
type keptRows struct {
	list []rawRows
	next int // before it are those whose turn is over
}

type rawRows struct {
	event *replication.RowsEvent
	at    int
	data  []byte
}

// take returns the rows of an event, once.
func (k *keptRows) take(event *replication.RowsEvent) (raw rawRows, ok bool) {
	for i := k.next; i < len(k.list); i++ {
		if k.list[i].event == event {
			raw, k.list[i] = k.list[i], rawRows{}
			k.next = i + 1
			return raw, true
		}
	}
	return raw, false
}

// unpacked are the bytes of the rows. The library panics over some that are cut off, and its
// errors are not passed on: they quote the rows.
func (r rawRows) unpacked(compressed bool) (data []byte, err error) {
	if !compressed {
		return r.data[r.at:], nil
	}
	defer func() {
		if recover() != nil {
			err = errDecode
		}
	}()
	data, err = gomysql.DecompressMariadbData(r.data[r.at:])
	if err != nil {
		return nil, errDecode
	}
	return data, nil
}

// rowsFilter is the library's hook for row events: it reads the head of each, and
// keeps the rows of registered tables for later. Everybody else's are not looked at, which is
// what makes a busy neighbour cheap, and columns that nobody can decode harmless.
type rowsFilter struct {
	tables tableSet
	fold   bool
	kept   *keptRows
}

func (f *rowsFilter) filter(e *replication.RowsEvent, data []byte) error {
	at, err := e.DecodeHeader(data)
	if err != nil {
		return err
	}
	if _, ours := f.tables.mapped(e.Table, f.fold); ours && at <= len(data) {
		f.kept.list = append(f.kept.list, rawRows{e, at, data})
	}
	return nil
}

// tableSet are tables by their names, as they are configured.
type tableSet map[Table]Table

func newTableSet(tables []Table) tableSet {
	set := make(tableSet, len(tables))
	for _, t := range tables {
		set[t] = t
	}
	return set
}

// find returns the name that a table has in the set. fold: capitals do not count.
func (s tableSet) find(t Table, fold bool) (Table, bool) {
	if known, ok := s[t]; ok {
		return known, true
	}
	if fold {
		for known := range s {
			if strings.EqualFold(known.Schema, t.Schema) && strings.EqualFold(known.Name, t.Name) {
				return known, true
			}
		}
	}
	return Table{}, false
}

// mapped is find for the table of a table map. It makes no strings, unless capitals do not count.
func (s tableSet) mapped(m *replication.TableMapEvent, fold bool) (Table, bool) {
	if known, ok := s[Table{string(m.Schema), string(m.Table)}]; ok || !fold {
		return known, ok
	}
	return s.find(Table{string(m.Schema), string(m.Table)}, true)
}

// rowReader makes records of rows. It keeps the room it works in.
type rowReader struct {
	text []byte
	ends []int
}

// mostRoom is what a rowReader keeps at most between two rows.
const mostRoom = 1 << 20

// record reads one row and says how many bytes it took, and 0 if it cannot be read. Its values share
// one piece of memory, of their size, and nothing with the packet.
func (r *rowReader) record(l *layout, row []byte) (record cdc.Record, size, n int) {
	n = (len(l.columns) + 7) / 8
	if len(row) < n || n == 0 {
		return record, 0, 0
	}
	nulls := row[:n]
	values := make([]cdc.Value, len(l.columns))
	r.text, r.ends = r.text[:0], r.ends[:0]
	for i := range l.columns {
		if nulls[i/8]&(1<<(i%8)) != 0 {
			values[i].Null = true
		} else {
			text, took, ok := l.columns[i].append(r.text, row[n:])
			if !ok {
				return record, 0, 0
			}
			r.text = text
			n += took
		}
		r.ends = append(r.ends, len(r.text))
	}
	size = len(r.text)
	data, start := append(make([]byte, 0, size), r.text...), 0
	for i, end := range r.ends {
		if !values[i].Null {
			values[i].Data = data[start:end:end]
		}
		start = end
	}
	if cap(r.text) > mostRoom {
		r.text = nil
	}
	return cdc.Record{Relation: l.relation, Values: values}, size, n
}
