package mysql

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"

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

// FuzzJSONSpaces spaces a JSON text as the server does: it stays the same document, and what is
// not JSON neither panics nor grows beyond twice its size.
func FuzzJSONSpaces(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		got := spaced(text)
		if len(got) > 2*len(text) {
			t.Fatalf("%d bytes became %d", len(text), len(got))
		}
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
			return
		}
		var was, is bytes.Buffer
		if err := json.Compact(&was, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&is, got); err != nil || was.String() != is.String() {
			t.Fatalf("%s became %s (%v)", text, got, err)
		}
	})
}
