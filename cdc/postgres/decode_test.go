package postgres

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
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

// messages are whole messages as the server sends them, the seeds of the fuzz
// targets.
func seeds() [][]byte {
	message := func(kind byte, body []byte) []byte {
		return append(append(new(wireText).put(uint64(100), uint64(200), int64(300)).Bytes(), kind), body...)
	}
	return [][]byte{
		message('B', beginBytes(500, 1)),
		message('R', relationBytes(7, "public", "events", cdc.Column{Name: "id", Type: 20}, cdc.Column{Name: "payload", Type: 25})),
		message('I', insertBytes(7, "1", "payload")),
		message('I', insertBytes(7, nil, unchanged{})),
		message('C', commitBytes(500, 540, 1)),
		message('U', insertBytes(7, "1", "payload")),
		message('T', []byte{0, 0, 0, 1, 0, 0, 0, 0, 7}),
		message('O', []byte("origin")),
		message('?', nil),
	}
}

func TestFuzzSeedsDecode(t *testing.T) {
	if len(seeds()) < 5 {
		t.Fatal("the seeds are missing")
	}
	a := newAssembler([]Table{{"public", "events"}}, map[uint32]Table{}, 0, 10, 1<<20)
	var rows int
	for _, s := range seeds() {
		if f := feed(t, a, s); f != nil {
			for _, tx := range f.txs {
				rows += len(tx.Records)
			}
		}
	}
	if rows != 2 {
		t.Errorf("the seeds brought %d rows, want 2", rows)
	}
}

// feed runs one message through decoder and assembler, as a stream does.
func feed(t testing.TB, a *assembler, payload []byte) *finished {
	t.Helper()
	w, err := decodeWAL(payload)
	if err != nil {
		return nil
	}
	body := w.message[1:]
	switch w.message[0] {
	case messageBegin:
		if m, err := decodeBegin(body); err == nil {
			_ = a.begin(m)
		}
	case messageRelation:
		if m, err := decodeRelation(body); err == nil && !a.relation(m) {
			a.resolve(m, Table{}, false)
		}
	case messageInsert:
		if m, err := decodeInsert(body); err == nil {
			_, _, _ = a.insert(m)
		}
	case messageCommit:
		if m, err := decodeCommit(body); err == nil {
			if f, err := a.commit(m); err == nil {
				return &f
			}
		}
	}
	return nil
}

// FuzzStream feeds a sequence of messages: whatever comes, nothing panics, and
// what leaves is well formed.
func FuzzStream(f *testing.F) {
	var whole []byte
	for _, s := range seeds() {
		f.Add(framed(s))
		whole = append(whole, framed(s)...)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, data []byte) {
		a := newAssembler([]Table{{"public", "events"}}, map[uint32]Table{}, 0, 3, 1<<10)
		for len(data) >= 2 {
			n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
			if done := feed(t, a, data[2:2+n]); done != nil {
				for _, tx := range done.txs {
					wellFormed(t, tx)
				}
			}
			data = data[2+n:]
		}
	})
}

// FuzzRow decodes a tuple for any number of columns.
func FuzzRow(f *testing.F) {
	f.Add(tupleBytes("1", nil, unchanged{}), uint8(3))
	f.Add(tupleBytes("1"), uint8(2))
	f.Fuzz(func(t *testing.T, tuple []byte, columns uint8) {
		values, err := decodeRow(tuple, int(columns))
		if err == nil && len(values) != int(columns) {
			t.Fatalf("%d values for %d columns", len(values), columns)
		}
	})
}

// FuzzRelation decodes a description; a forged count must not ask for memory.
func FuzzRelation(f *testing.F) {
	f.Add(relationBytes(7, "public", "events", cdc.Column{Name: "id", Type: 20}))
	f.Add([]byte{0, 0, 0, 1, 0, 0, 'd', 255, 255})
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := decodeRelation(body)
		if cap(m.columns) > len(body)/10+1 {
			t.Fatalf("%d bytes made room for %d columns", len(body), cap(m.columns))
		}
		if err == nil && m.table.Schema == "" {
			t.Fatal("a table without a schema")
		}
	})
}

func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
}

func wellFormed(t testing.TB, tx cdc.Transaction) {
	t.Helper()
	for _, r := range tx.Records {
		if r.Relation == nil || len(r.Values) != len(r.Relation.Columns) {
			t.Fatalf("record %+v has no parallel values", r)
		}
	}
}

func TestFuzzCorpusIsNotEmpty(t *testing.T) {
	for _, target := range []string{"FuzzStream", "FuzzRow", "FuzzRelation"} {
		files, err := filepath.Glob(filepath.Join("testdata", "fuzz", target, "*"))
		if err != nil || len(files) == 0 {
			t.Errorf("no corpus for %s (%v)", target, err)
		}
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || info.Size() == 0 {
				t.Errorf("%s is empty (%v)", f, err)
			}
		}
	}
}
