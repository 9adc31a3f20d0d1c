package mysql

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

// FuzzTarget reads statements of any form. A table that is found has a name, and stands in
// the statement.
func FuzzTarget(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		if into, found := target(text); found && (into.Name == "" || !strings.Contains(text, into.Name) || !strings.Contains(text, into.Schema)) {
			t.Errorf("%q: found %+v", text, into)
		}
		first, rest := word(text)
		if strings.ToUpper(first) != first || len(first)+len(rest) > len(text) {
			t.Errorf("%q: word %q, and then %q", text, first, rest)
		}
	})
}

// FuzzTargetOfAnyName writes statements into tables of any name, behind any comment: the name is
// found.
func FuzzTargetOfAnyName(f *testing.F) {
	f.Fuzz(func(t *testing.T, schema, name, comment string) {
		if schema == "" || name == "" || strings.ContainsAny(schema+name, "`\x00") || strings.Contains(comment, "*/") || strings.ContainsAny(comment, "\n") {
			return
		}
		statement := "INSERT INTO `" + schema + "`.`" + name + "` VALUES (1)"
		for _, text := range []string{
			statement, "/* " + comment + " */ " + statement, "-- " + comment + "\n" + statement, "--\t" + comment + "\n" + statement,
			"# " + comment + "\n" + statement, strings.Replace(statement, "INSERT INTO", "replace low_priority", 1),
		} {
			if into, found := target(text); !found || into != (Table{Schema: schema, Name: name}) {
				t.Errorf("%q: %+v, %v", text, into, found)
			}
		}
	})
}

// FuzzQuotedNames writes the members of an ENUM as the server prints them: they read as
// themselves.
func FuzzQuotedNames(f *testing.F) {
	f.Fuzz(func(t *testing.T, one, two string) {
		quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
		if got := quotedNames("enum(" + quote(one) + "," + quote(two) + ")"); !slices.Equal(got, []string{one, two}) {
			t.Errorf("%q and %q read as %q", one, two, got)
		}
	})
}

// FuzzPosition reads a position. One that is read prints as itself, contains itself, and
// shares nothing with its copy.
func FuzzPosition(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlace(cdc.Position(text))
		if err != nil {
			return
		}
		again, err := parsePlace(p.position())
		if err != nil || again.position() != p.position() {
			t.Errorf("%q reads as %s, which reads as %s (%v)", text, p.position(), again.position(), err)
			return
		}
		if !p.contains(again) || !again.contains(p) {
			t.Errorf("%s does not contain itself", p.position())
		}
		before := p.position()
		later := p.clone()
		later.add(gtid{flavor: p.mode, number: 1 << 40, mariadb: gomysql.MariadbGTID{DomainID: 3, SequenceNumber: math.MaxUint64}})
		if p.position() != before || !later.contains(p) {
			t.Errorf("%s became %s, and its copy %s", before, p.position(), later.position())
		}
	})
}

// FuzzJSON reads a document as the server stores it: what is no such document is refused, and what is read is JSON
// of bounded size.
func FuzzJSON(f *testing.F) {
	f.Fuzz(func(t *testing.T, doc []byte) {
		before := []byte("before")
		text, ok := appendJSON(before, doc)
		if len(text) > len(before)+(jsonGrowth+8)*len(doc)+128 || !bytes.HasPrefix(text, before) {
			t.Fatalf("%d bytes became %d", len(doc), len(text))
		}
		// Texts of intact documents are UTF-8.
		if text = text[len(before):]; ok && !json.Valid(bytes.ToValidUTF8(text, nil)) {
			t.Fatalf("%x became %s", doc, text)
		}
	})
}

// FuzzValue reads a value of any type. It takes no more than there is, and keeps what stands before it.
func FuzzValue(f *testing.F) {
	f.Fuzz(func(t *testing.T, typ byte, meta uint16, fullType string, data []byte) {
		m := &replication.TableMapEvent{ColumnCount: 1, ColumnType: []byte{typ}, ColumnMeta: []uint16{meta}, NullBitmap: []byte{0}, ColumnName: [][]byte{{'c'}}}
		dataType, _, _ := strings.Cut(fullType, "(")
		l, err := newLayout(Table{"app", "events"}, m, definition{{name: "c", dataType: dataType, fullType: fullType}})
		if err != nil {
			return
		}
		before := []byte("before")
		text, n, ok := l.columns[0].append(before, data)
		if ok && (n <= 0 || n > len(data)) || !bytes.HasPrefix(text, before) || len(text) > 4096+(jsonGrowth+8)*len(data) {
			t.Fatalf("took %d of %d bytes, %v, and made %d", n, len(data), ok, len(text))
		}
		if _, _, took := new(rowReader).record(l, append([]byte{0}, data...)); (took > 0) != ok || ok && took != 1+n {
			t.Fatalf("the row took %d bytes, and the value %d, %v", took, n, ok)
		}
	})
}
