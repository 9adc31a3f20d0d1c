package mysql

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// logEvent is an event of the binlog with what is needed to decode its rows. Rows are
// decoded when their turn comes, not when their event is parsed: a compressed transaction is
// one event with all its rows.
type logEvent struct {
	*replication.BinlogEvent
	rows map[*replication.RowsEvent]rawRows
}

// rawRows are the rows of an event, not decoded.
type rawRows struct {
	at   int
	data []byte
}

// decode fills the Rows of one event. The library's error is not passed on: it quotes
// the rows. Its panics over damaged data, which it recovers from in its own goroutine and in most of this call, are errors too.
func (e logEvent) decode(rows *replication.RowsEvent) (err error) {
	raw, ok := e.rows[rows]
	if !ok {
		return nil // decoded already
	}
	delete(e.rows, rows)
	defer func() {
		if recover() != nil {
			err = errDecode
		}
	}()
	if rows.DecodeData(raw.at, raw.data) != nil {
		return errDecode
	}
	return nil
}

// rowsFilter is the library's hook for row events: it reads the head of each, and
// keeps the rows of registered tables for later. Everybody else's are not looked at, which is
// what makes a busy neighbour cheap, and columns that nobody can decode harmless.
type rowsFilter struct {
	tables map[Table]struct{}
	fold   bool
	kept   map[*replication.RowsEvent]rawRows
}

func (f *rowsFilter) filter(e *replication.RowsEvent, data []byte) error {
	at, err := e.DecodeHeader(data)
	if err != nil {
		return err
	}
	if _, ours := find(f.tables, tableOf(e.Table), f.fold); ours && at <= len(data) {
		if f.kept == nil {
			f.kept = map[*replication.RowsEvent]rawRows{}
		}
		f.kept[e] = rawRows{at, data}
	}
	return nil
}

// take hands over what was kept since the last time.
func (f *rowsFilter) take() map[*replication.RowsEvent]rawRows {
	kept := f.kept
	f.kept = nil
	return kept
}

// find returns the name that a table has in a set. fold: capitals do not count.
func find(set map[Table]struct{}, t Table, fold bool) (Table, bool) {
	if _, ok := set[t]; ok || !fold {
		return t, ok
	}
	for known := range set {
		if strings.EqualFold(known.Schema, t.Schema) && strings.EqualFold(known.Name, t.Name) {
			return known, true
		}
	}
	return t, false
}

func tableOf(m *replication.TableMapEvent) Table {
	return Table{Schema: string(m.Schema), Name: string(m.Table)}
}

// record turns a decoded row into a record, with copies of all values: the library's
// share the memory of the packet. size is that of the values.
func (l *layout) record(row []any) (record cdc.Record, size int, err error) {
	if len(row) != len(l.columns) {
		return record, 0, errDecode
	}
	values := make([]cdc.Value, len(row))
	for i := range row {
		if row[i] == nil {
			values[i].Null = true
			continue
		}
		data, ok := l.columns[i].text(row[i])
		if !ok {
			return record, 0, fmt.Errorf("%w: column %q", errDecode, l.columns[i].name)
		}
		values[i].Data = data
		size += len(data)
	}
	return cdc.Record{Relation: l.relation, Values: values}, size, nil
}

// text is the value as a SELECT prints it.
func (c *column) text(v any) (text []byte, ok bool) {
	switch v := v.(type) {
	case string:
		return c.bytes(v)
	case []byte:
		return c.bytes(string(v))
	case float32:
		return float(float64(v), 32), true
	case float64:
		return float(v, 64), true
	}
	if n, ok := unsignedInteger(v); ok {
		return c.number(n, false)
	}
	n, ok := signedInteger(v)
	if !ok {
		return nil, false
	}
	return c.number(uint64(n), n < 0)
}

// bytes is a value of characters or bytes. The text is copied.
func (c *column) bytes(v string) ([]byte, bool) {
	switch c.kind {
	case fixed:
		return pad(v, c.width)
	case asUUID:
		padded, ok := pad(v, 16)
		if !ok {
			return nil, false
		}
		return formatUUID(padded), true
	case asINET4:
		padded, ok := pad(v, 4)
		if !ok {
			return nil, false
		}
		return []byte(netip.AddrFrom4([4]byte(padded)).String()), true
	case asINET6:
		padded, ok := pad(v, 16)
		if !ok {
			return nil, false
		}
		return []byte(netip.AddrFrom16([16]byte(padded)).String()), true
	case asJSON:
		return spaced(v), true
	case asEnum, asSet, asBits, asYear:
		return nil, false
	}
	return []byte(v), true
}

// spaced puts a space after each comma and colon of a JSON text, as the server prints
// it.
func spaced(json string) []byte {
	text := make([]byte, 0, len(json)+len(json)/8)
	inString := false
	for i := 0; i < len(json); i++ {
		c := json[i]
		text = append(text, c)
		switch {
		case inString && c == '\\' && i+1 < len(json):
			i++
			text = append(text, json[i])
		case c == '"':
			inString = !inString
		case !inString && (c == ',' || c == ':'):
			text = append(text, ' ')
		}
	}
	return text
}

// number is an integer, which also stands for names and bits.
func (c *column) number(n uint64, negative bool) ([]byte, bool) {
	switch c.kind {
	case asEnum:
		switch {
		case n == 0:
			return []byte{}, true // the empty name of an invalid value
		case n > uint64(len(c.names)):
			return nil, false
		}
		return []byte(c.names[n-1]), true
	case asSet:
		if len(c.names) < 64 && n>>len(c.names) != 0 {
			return nil, false
		}
		var members []string
		for i, name := range c.names {
			if n&(1<<i) != 0 {
				members = append(members, name)
			}
		}
		return []byte(strings.Join(members, ",")), true
	case asBits:
		var all [8]byte
		binary.BigEndian.PutUint64(all[:], n)
		return append([]byte{}, all[8-min(c.width, 8):]...), true
	case asYear:
		return fmt.Appendf(nil, "%04d", n), true
	}
	if negative && c.unsigned {
		return strconv.AppendUint(nil, n&widthMask(c.typ), 10), true
	}
	if negative {
		return strconv.AppendInt(nil, int64(n), 10), true
	}
	return strconv.AppendUint(nil, n, 10), true
}

// widthMask cuts a number that was sign-extended back to its column's width.
func widthMask(typ byte) uint64 {
	switch typ {
	case 1: // TINYINT
		return 1<<8 - 1
	case 2: // SMALLINT
		return 1<<16 - 1
	case 9: // MEDIUMINT
		return 1<<24 - 1
	case 3: // INT
		return 1<<32 - 1
	}
	return 1<<64 - 1
}

func unsignedInteger(v any) (uint64, bool) {
	switch v := v.(type) {
	case uint8:
		return uint64(v), true
	case uint16:
		return uint64(v), true
	case uint32:
		return uint64(v), true
	case uint64:
		return v, true
	case uint:
		return uint64(v), true
	}
	return 0, false
}

func signedInteger(v any) (int64, bool) {
	switch v := v.(type) {
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case int:
		return int64(v), true
	}
	return 0, false
}

// float is the shortest text that reads back as the same number, with the server's form
// of an exponent.
func float(v float64, bits int) []byte {
	return []byte(strings.Replace(strconv.FormatFloat(v, 'g', -1, bits), "e+", "e", 1))
}

// pad adds the trailing zero bytes that the log leaves out.
func pad(v string, width int) ([]byte, bool) {
	if len(v) > width {
		return nil, false
	}
	padded := make([]byte, width)
	copy(padded, v)
	return padded, true
}

// formatUUID prints 16 bytes in network order as the lower-case text of a UUID.
func formatUUID(b []byte) []byte {
	text := make([]byte, 36)
	hex.Encode(text, b[:4])
	at := 8
	for _, group := range [][]byte{b[4:6], b[6:8], b[8:10], b[10:16]} {
		text[at] = '-'
		hex.Encode(text[at+1:], group)
		at += 1 + 2*len(group)
	}
	return text
}
