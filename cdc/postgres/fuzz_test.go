package postgres

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

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
		if f := feed(t, a, s); f.done != nil {
			for _, tx := range f.done.txs {
				rows += len(tx.Records)
			}
		}
	}
	if rows != 2 {
		t.Errorf("the seeds brought %d rows, want 2", rows)
	}
}

// FuzzStream feeds a sequence of messages. Whatever comes: nothing panics, each row that
// was taken leaves exactly once, whole, in a transaction that is committed or in a part of bounded size
// before its end, and only the last of a commit has a position.
func FuzzStream(f *testing.F) {
	var whole []byte
	for _, s := range seeds() {
		f.Add(framed(s))
		whole = append(whole, framed(s)...)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, data []byte) {
		const maxRecords, maxBytes = 3, 1 << 10
		a := newAssembler([]Table{{"public", "events"}}, map[uint32]Table{}, 0, maxRecords, maxBytes)
		taken, left := 0, 0
		for len(data) >= 2 {
			n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
			out := feed(t, a, data[2:2+n])
			data = data[2+n:]
			taken += out.taken
			if out.part != nil {
				left += len(out.part.Records)
				wellFormed(t, *out.part)
				if !out.part.Partial || out.part.Position != "" || len(out.part.Records) > maxRecords {
					t.Fatalf("a part of %d records, partial %v, position %q", len(out.part.Records), out.part.Partial, out.part.Position)
				}
			}
			if out.done == nil {
				continue
			}
			if a.open {
				t.Fatal("a commit left its transaction open")
			}
			for i, tx := range out.done.txs {
				left += len(tx.Records)
				wellFormed(t, tx)
				if last := i == len(out.done.txs)-1; last != (tx.Position != "") {
					t.Fatalf("transaction %d of %d has the position %q", i+1, len(out.done.txs), tx.Position)
				}
			}
			if left != taken {
				t.Fatalf("%d rows were taken until the commit, and %d left", taken, left)
			}
		}
	})
}

// fed is what one message led to.
type fed struct {
	taken int
	part  *cdc.Transaction
	done  *finished
}

// feed runs one message through decoder and assembler, as a stream does.
func feed(t testing.TB, a *assembler, payload []byte) (out fed) {
	t.Helper()
	w, err := decodeWAL(payload)
	if err != nil {
		return out
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
			foreign := a.foreign
			part, full, err := a.insert(m)
			if full {
				out.part = &part
			}
			if err == nil && a.foreign == foreign {
				out.taken = 1
			}
		}
	case messageCommit:
		if m, err := decodeCommit(body); err == nil {
			if f, err := a.commit(m); err == nil {
				out.done = &f
			}
		}
	}
	return out
}

// FuzzRow decodes a tuple for any number of columns. What is decoded is what the tuple says,
// byte for byte, and has no more room than the tuple is long; an error quotes no value.
func FuzzRow(f *testing.F) {
	f.Add(tupleBytes("1", nil, unchanged{}), uint8(3))
	f.Add(tupleBytes("1"), uint8(2))
	f.Fuzz(func(t *testing.T, tuple []byte, columns uint8) {
		values, err := decodeRow(slices.Clone(tuple), int(columns))
		if err != nil {
			if long := longest(tuple); len(long) > 8 && strings.Contains(err.Error(), long) {
				t.Fatalf("%v quotes the row", err)
			}
			return
		}
		again := make([]any, len(values))
		room := 0
		for i, v := range values {
			switch {
			case v.Null:
			case v.Unchanged:
				again[i] = unchanged{}
			default:
				again[i] = string(v.Data)
			}
			room += cap(v.Data)
		}
		if len(tuple) < 2 {
			t.Fatalf("%q has no count of values, and was decoded", tuple)
		}
		if written := tupleBytes(again...); len(values) != int(columns) || !slices.Equal(written, tuple[:min(len(written), len(tuple))]) {
			t.Fatalf("%d values for %d columns: %q reads as %q", len(values), columns, tuple, written)
		}
		if room > len(tuple) {
			t.Fatalf("%d bytes made room for %d", len(tuple), room)
		}
	})
}

// longest is the longest run of letters and digits.
func longest(data []byte) (long string) {
	for part := range strings.FieldsFuncSeq(string(data), func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		if len(part) > len(long) {
			long = part
		}
	}
	return long
}

// FuzzRelation decodes a description; a forged count must not ask for memory. What was
// understood reads the same when it is written again.
func FuzzRelation(f *testing.F) {
	f.Add(relationBytes(7, "public", "events", cdc.Column{Name: "id", Type: 20}))
	f.Add([]byte{0, 0, 0, 1, 0, 0, 'd', 255, 255})
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := decodeRelation(body)
		if cap(m.columns) > len(body)/10+1 {
			t.Fatalf("%d bytes made room for %d columns", len(body), cap(m.columns))
		}
		if err != nil {
			return
		}
		if m.table.Schema == "" {
			t.Fatal("a table without a schema")
		}
		again, err := decodeRelation(relationBytes(m.oid, m.table.Schema, m.table.Name, m.columns...))
		if diff := cmp.Diff(m, again, cmp.AllowUnexported(relationMessage{})); err != nil || diff != "" {
			t.Fatalf("%v (-read +read again):\n%s", err, diff)
		}
	})
}

// FuzzPosition reads a position. One that is read prints as itself, and is neither before
// nor after itself.
func FuzzPosition(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMark(cdc.Position(text))
		if err != nil || m.at == 0 {
			return
		}
		again, err := parseMark(m.position())
		if err != nil || again != m || m.before(again) {
			t.Fatalf("%q reads as %+v, which reads as %+v (%v)", text, m, again, err)
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
