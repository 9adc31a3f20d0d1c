package postgres

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// The builders below write pgoutput messages as the documentation of the
// protocol describes them.

type wireText struct{ bytes.Buffer }

func (w *wireText) put(values ...any) *wireText {
	for _, v := range values {
		switch v := v.(type) {
		case string:
			w.WriteString(v)
			w.WriteByte(0)
		case []byte:
			w.Write(v)
		default:
			if err := binary.Write(w, binary.BigEndian, v); err != nil {
				panic(err) // a mistake in the test
			}
		}
	}
	return w
}

func beginBytes(final uint64, commitMicros int64) []byte {
	return new(wireText).put(final, commitMicros, uint32(7)).Bytes()
}

func commitBytes(start, end uint64, micros int64) []byte {
	return new(wireText).put(byte(0), start, end, micros).Bytes()
}

func relationBytes(oid uint32, schema, table string, columns ...cdc.Column) []byte {
	w := new(wireText).put(oid, schema, table, byte('d'), uint16(len(columns)))
	for _, c := range columns {
		w.put(byte(0), c.Name, c.Type, int32(-1))
	}
	return w.Bytes()
}

// tupleBytes takes text, nil for null, and unchanged{}.
type unchanged struct{}

func tupleBytes(values ...any) []byte {
	w := new(wireText).put(uint16(len(values)))
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			w.put(byte('n'))
		case unchanged:
			w.put(byte('u'))
		case string:
			w.put(byte('t'), uint32(len(v)), []byte(v))
		}
	}
	return w.Bytes()
}

func insertBytes(oid uint32, values ...any) []byte {
	return new(wireText).put(oid, byte('N'), tupleBytes(values...)).Bytes()
}

func TestDecodeBeginAndCommit(t *testing.T) {
	when := time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)
	micros := when.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()
	b, err := decodeBegin(beginBytes(500, micros))
	if err != nil || !b.commitTime.Equal(when) {
		t.Errorf("begin = %+v, %v", b, err)
	}
	c, err := decodeCommit(commitBytes(500, 540, micros))
	if err != nil || c.end != 540 || !c.commitTime.Equal(when) {
		t.Errorf("commit = %+v, %v: the position must be the end, not the start", c, err)
	}
}

func TestDecodeRelation(t *testing.T) {
	columns := []cdc.Column{{Name: "id", Type: 20}, {Name: "pay load", Type: 3802}}
	m, err := decodeRelation(relationBytes(16400, "eventlog", "events", columns...))
	if err != nil {
		t.Fatal(err)
	}
	if m.oid != 16400 || m.table != (Table{"eventlog", "events"}) {
		t.Errorf("relation = %+v", m)
	}
	if diff := cmp.Diff(columns, m.columns); diff != "" {
		t.Error(diff)
	}
	if m, err = decodeRelation(relationBytes(1, "", "pg_class")); err != nil || m.table.Schema != "pg_catalog" {
		t.Errorf("relation of pg_catalog = %+v, %v", m, err)
	}
}

func TestB36_UnchangedIsNotNull(t *testing.T) {
	m, err := decodeInsert(insertBytes(1, "a", nil, unchanged{}, "", "end"))
	if err != nil {
		t.Fatal(err)
	}
	values, err := decodeRow(m.tuple, 5)
	if err != nil {
		t.Fatal(err)
	}
	want := []cdc.Value{{Data: []byte("a")}, {Null: true}, {Unchanged: true}, {Data: []byte{}}, {Data: []byte("end")}}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Error(diff)
	}
}

func TestRowsBelongToTheReceiver(t *testing.T) {
	tuple := tupleBytes("first", "second")
	values, err := decodeRow(tuple, 2)
	if err != nil {
		t.Fatal(err)
	}
	clear(tuple) // the read buffer is used again
	if got := string(values[0].Data) + string(values[1].Data); got != "firstsecond" {
		t.Errorf("values changed with the read buffer: %q", got)
	}
	if grown := append(values[0].Data, "xxxxxxxx"...); string(values[1].Data) != "second" {
		t.Errorf("appending %q to one value overwrote the next: %q", grown, values[1].Data)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, decode := range map[string]func() error{
		"a row with too many values":  func() error { _, err := decodeRow(tupleBytes("a", "b"), 1); return err },
		"a row with too few values":   func() error { _, err := decodeRow(tupleBytes("a"), 2); return err },
		"a row that ends in a value":  func() error { _, err := decodeRow(tupleBytes("abc")[:8], 1); return err },
		"a value of negative length":  func() error { _, err := decodeRow([]byte{0, 1, 't', 255, 255, 255, 255}, 1); return err },
		"a value of an unknown kind":  func() error { _, err := decodeRow([]byte{0, 1, 'b', 0, 0, 0, 0}, 1); return err },
		"an insert with an old tuple": func() error { _, err := decodeInsert([]byte{0, 0, 0, 1, 'K', 0, 0}); return err },
		"an empty begin":              func() error { _, err := decodeBegin(nil); return err },
		"a short commit":              func() error { _, err := decodeCommit(commitBytes(1, 2, 3)[:20]); return err },
		"a name without an end":       func() error { _, err := decodeRelation([]byte{0, 0, 0, 1, 'a', 'b'}); return err },
		"a relation short of columns": func() error {
			_, err := decodeRelation(relationBytes(1, "s", "t", cdc.Column{Name: "c"})[:14])
			return err
		},
		"log data without a message": func() error { _, err := decodeWAL(make([]byte, 24)); return err },
	} {
		if decode() == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestDecodeAllocatesTwicePerRow(t *testing.T) {
	tuple := tupleBytes("id", "namespace", nil, "a rather long payload of some kind", "x", "y", "z")
	if n := testing.AllocsPerRun(100, func() {
		if _, err := decodeRow(tuple, 7); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations per row, want one for the bytes and one for the values", n)
	}
}
