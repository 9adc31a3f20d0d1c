package postgres

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

var (
	events   = Table{Schema: "public", Name: "events"}
	idColumn = []cdc.Column{{Name: "id", Type: 20}}
)

func testAssembler(maxRecords, maxBytes int) *assembler {
	return newAssembler([]Table{events}, map[uint32]Table{}, 0, maxRecords, maxBytes)
}

func describe(t rapid.TB, a *assembler, oid uint32, table Table, columns ...cdc.Column) (known bool) {
	t.Helper()
	return a.relation(relationMessage{oid: oid, table: table, columns: columns})
}

func row(oid uint32, values ...any) insertMessage {
	return insertMessage{oid: oid, tuple: tupleBytes(values...)}
}

func mustInsert(t rapid.TB, a *assembler, m insertMessage) {
	t.Helper()
	if _, full, err := a.insert(m); err != nil || full {
		t.Fatalf("insert: full %v, %v", full, err)
	}
}

func mustBegin(t rapid.TB, a *assembler) {
	t.Helper()
	if err := a.begin(beginMessage{}); err != nil {
		t.Fatal(err)
	}
}

func mustCommit(t rapid.TB, a *assembler, end resumePoint) finished {
	t.Helper()
	f, err := a.commit(commitMessage{end: end})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func ids(records []cdc.Record) []string {
	all := []string{}
	for _, r := range records {
		v, ok := r.Value("id")
		if !ok {
			all = append(all, "absent")
			continue
		}
		all = append(all, string(v.Data))
	}
	return all
}

func TestAssembleOneTransaction(t *testing.T) {
	a := testAssembler(10, 1<<20)
	mustBegin(t, a)
	describe(t, a, 1, events, idColumn...)
	mustInsert(t, a, row(1, "a"))
	mustInsert(t, a, row(1, "b"))
	f := mustCommit(t, a, 0x540)
	if len(f.txs) != 1 || f.txs[0].Position != "0/540" || f.txs[0].Partial {
		t.Fatalf("transactions %+v", f.txs)
	}
	if diff := cmp.Diff([]string{"a", "b"}, ids(f.txs[0].Records)); diff != "" {
		t.Error(diff)
	}
}

func TestAssembleNothingOfOurs(t *testing.T) {
	a := testAssembler(10, 1<<20)
	mustBegin(t, a)
	if describe(t, a, 2, Table{"public", "other"}, idColumn...) {
		t.Fatal("an unregistered table is known")
	}
	a.resolve(relationMessage{oid: 2}, Table{}, false)
	mustInsert(t, a, row(2, "x", "y", "not even parsed"))
	f := mustCommit(t, a, 0x540)
	if len(f.txs) != 0 || f.end != 0x540 || a.foreign != 1 {
		t.Errorf("%+v, %d foreign rows", f, a.foreign)
	}
}

func TestB7_RowsOfOneStatementShareOnePosition(t *testing.T) {
	a := testAssembler(3, 1<<20)
	mustBegin(t, a)
	describe(t, a, 1, events, idColumn...)
	var parts []cdc.Transaction
	for i := range 7 {
		part, full, err := a.insert(row(1, strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		if full {
			parts = append(parts, part)
		}
	}
	parts = append(parts, mustCommit(t, a, 0x540).txs...)
	var got []string
	for i, p := range parts {
		got = append(got, ids(p.Records)...)
		last := i == len(parts)-1
		if p.Partial == last || (p.Position != "") != last {
			t.Errorf("part %d of %d: partial %v, position %q", i, len(parts), p.Partial, p.Position)
		}
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "5", "6"}, got); diff != "" || len(parts) != 3 {
		t.Errorf("%d parts: %s", len(parts), diff)
	}
}

func TestPartsAreBoundedByBytes(t *testing.T) {
	a := testAssembler(1000, 100)
	mustBegin(t, a)
	describe(t, a, 1, events, idColumn...)
	mustInsert(t, a, row(1, string(make([]byte, 200))))
	part, full, err := a.insert(row(1, "b"))
	if err != nil || !full || len(part.Records) != 1 {
		t.Fatalf("part %+v, full %v, %v", part, full, err)
	}
	if f := mustCommit(t, a, 9); len(f.txs) != 1 || len(f.txs[0].Records) != 1 {
		t.Errorf("the last part: %+v", f.txs)
	}
}

func TestB34_ValuesAreMatchedByName(t *testing.T) {
	a := testAssembler(10, 1<<20)
	mustBegin(t, a)
	describe(t, a, 1, events, cdc.Column{Name: "id"}, cdc.Column{Name: "payload"})
	mustInsert(t, a, row(1, "1", "p1"))
	describe(t, a, 1, events, cdc.Column{Name: "new"}, cdc.Column{Name: "payload"}, cdc.Column{Name: "id"})
	mustInsert(t, a, row(1, "n", "p2", "2"))
	f := mustCommit(t, a, 9)
	if diff := cmp.Diff([]string{"1", "2"}, ids(f.txs[0].Records)); diff != "" {
		t.Error(diff)
	}
	if f.txs[0].Records[0].Relation.Index("new") != -1 {
		t.Error("the first row's relation changed under it")
	}
}

func TestARenamedColumnHasItsPresentName(t *testing.T) {
	columns := func(names ...string) []cdc.Column {
		var all []cdc.Column
		for _, name := range names {
			all = append(all, cdc.Column{Name: name, Type: 25})
		}
		return all
	}
	for name, tc := range map[string]struct {
		was, is []cdc.Column
		want    string // the present names that are noted
	}{
		"one renamed":         {columns("id", "body"), columns("id", "payload"), "-payload"},
		"nothing renamed":     {columns("id", "body"), columns("id", "body"), "-"},
		"two changed places":  {columns("id", "body"), columns("body", "id"), "-"},
		"one took a place":    {columns("id", "body", "old"), columns("id", "payload", "body"), "--"},
		"another type":        {columns("id", "body"), []cdc.Column{{Name: "id", Type: 25}, {Name: "payload", Type: 17}}, "-"},
		"one more":            {columns("id", "body"), columns("id", "payload", "more"), "-"},
		"places are unknown":  {columns("id", "body"), nil, "-"},
		"all of them renamed": {columns("a", "b"), columns("c", "d"), "c-d"},
	} {
		t.Run(name, func(t *testing.T) {
			a := testAssembler(10, 1<<20)
			a.now = map[uint32][]cdc.Column{1: tc.is}
			describe(t, a, 1, events, tc.was...)
			var got []string
			for _, c := range a.relations[1].Columns {
				got = append(got, c.Now)
			}
			if strings.Join(got, "-") != tc.want {
				t.Errorf("present names %q, want %q", got, tc.want)
			}
		})
	}
}

func TestB33_PartitionCountsAsItsRoot(t *testing.T) {
	a := newAssembler([]Table{events}, map[uint32]Table{50: events}, 0, 10, 1<<20)
	mustBegin(t, a)
	if !describe(t, a, 50, Table{"public", "events_2026"}, cdc.Column{Name: "payload"}, cdc.Column{Name: "id"}) {
		t.Fatal("a known partition is not known")
	}
	mustInsert(t, a, row(50, "p", "1"))
	late := relationMessage{oid: 51, table: Table{"public", "events_2027"}, columns: idColumn}
	if a.relation(late) {
		t.Fatal("a new partition is known before it was looked up")
	}
	a.resolve(late, events, true)
	mustInsert(t, a, row(51, "2"))
	f := mustCommit(t, a, 9)
	if diff := cmp.Diff([]string{"1", "2"}, ids(f.txs[0].Records)); diff != "" {
		t.Error(diff)
	}
	for _, r := range f.txs[0].Records {
		if r.Relation.Name() != "public.events" {
			t.Errorf("a row of %s", r.Relation.Name())
		}
	}
}

func TestAssembleRefusesBrokenSequences(t *testing.T) {
	a := testAssembler(10, 1<<20)
	if _, _, err := a.insert(row(1, "a")); !errors.Is(err, errNotOpen) {
		t.Errorf("row outside: %v", err)
	}
	if _, err := a.commit(commitMessage{end: 9}); !errors.Is(err, errNotOpen) {
		t.Errorf("commit outside: %v", err)
	}
	mustBegin(t, a)
	if err := a.begin(beginMessage{}); !errors.Is(err, errNested) {
		t.Errorf("begin inside: %v", err)
	}
	if _, _, err := a.insert(row(1, "a")); !errors.Is(err, errNoRelation) {
		t.Errorf("row of an unknown table: %v", err)
	}
	if _, err := a.commit(commitMessage{}); !errors.Is(err, errEmptyCommit) {
		t.Errorf("commit at zero: %v", err)
	}
}

func TestAGivenUpRowIsReportedAtItsCommit(t *testing.T) {
	a := testAssembler(10, 1<<20)
	mustBegin(t, a)
	describe(t, a, 1, events, idColumn...)
	if _, _, err := a.insert(row(1, "a", "one too many")); err == nil {
		t.Fatal("a row with too many values was taken")
	}
	a.giveUp(gapDecode, "too many values")
	mustInsert(t, a, row(1, "b"))
	rows, gap := rowsAndGap(t, mustCommit(t, a, 9))
	if len(rows.Records) != 1 || gap.Reason != gapDecode || gap.Detail != "too many values" || gap.From != "0/9" || gap.To != "0/9" {
		t.Errorf("rows %+v, gap %+v", rows, gap)
	}
	mustBegin(t, a)
	if f := mustCommit(t, a, 10); len(f.txs) != 0 {
		t.Error("the damage stuck to the next transaction")
	}
}

// rowsAndGap is a commit that left something out: its rows wait for the gap, which
// alone has the position.
func rowsAndGap(t *testing.T, f finished) (rows cdc.Transaction, gap *cdc.Gap) {
	t.Helper()
	if len(f.txs) != 2 || !f.txs[0].Partial || f.txs[0].Position != "" || f.txs[1].Partial || f.txs[1].Gap == nil ||
		f.txs[1].Position != (mark{0, f.end}).position() || len(f.txs[1].Records) != 0 {
		t.Fatalf("%+v, want the rows without a position, and then a gap with it", f.txs)
	}
	return f.txs[0], f.txs[1].Gap
}

func TestRowsOfALostTableAreAGap(t *testing.T) {
	a := testAssembler(2, 1<<20)
	mustBegin(t, a)
	describe(t, a, 1, events, idColumn...)
	lost := relationMessage{oid: 2, table: Table{"public", "events_2020"}, columns: idColumn}
	a.lose(lost, "which no longer exists")
	mustInsert(t, a, row(2, "x"))
	mustInsert(t, a, row(1, "a"))
	mustInsert(t, a, row(2, "y"))
	rows, gap := rowsAndGap(t, mustCommit(t, a, 9))
	if diff := cmp.Diff([]string{"a"}, ids(rows.Records)); diff != "" || gap.Reason != gapTableGone ||
		!strings.Contains(gap.Detail, "public.events_2020, which no longer exists") || !strings.Contains(gap.Detail, "1 more row") {
		t.Errorf("rows %s, gap %+v", diff, gap)
	}
	if a.foreign != 0 {
		t.Error("rows that may be ours count as foreign")
	}

	// All rows but those left have gone ahead in parts.
	mustBegin(t, a)
	mustInsert(t, a, row(2, "x"))
	if f := mustCommit(t, a, 10); len(f.txs) != 1 || f.txs[0].Gap == nil || f.txs[0].Position != "0/A" {
		t.Errorf("a transaction of lost rows only: %+v", f.txs)
	}
	mustBegin(t, a)
	a.resolve(lost, events, true) // described anew, and found
	mustInsert(t, a, row(2, "z"))
	if f := mustCommit(t, a, 11); len(f.txs) != 1 || f.txs[0].Gap != nil {
		t.Errorf("the loss stuck to the table: %+v", f.txs)
	}
}

func TestASweepIsAskedForWithTheTransaction(t *testing.T) {
	a := testAssembler(10, 1<<20)
	mustBegin(t, a)
	a.askForSweep("why")
	if f := mustCommit(t, a, 9); len(f.txs) != 1 || f.txs[0].Sweep != "why" || f.txs[0].Position != "0/9" || f.txs[0].Partial {
		t.Errorf("%+v", f.txs)
	}
	mustBegin(t, a)
	if f := mustCommit(t, a, 10); len(f.txs) != 0 {
		t.Error("the next transaction asks again")
	}
}

// TestAssemblerKeepsEveryRow compares any stream with a plain model of it.
func TestAssemblerKeepsEveryRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxRecords := rapid.IntRange(1, 5).Draw(t, "records per part")
		a := newAssembler([]Table{events}, map[uint32]Table{}, 0, maxRecords, rapid.IntRange(10, 200).Draw(t, "bytes per part"))
		var want, got []string
		var end resumePoint
		for range rapid.IntRange(1, 8).Draw(t, "transactions") {
			mustBegin(t, a)
			describe(t, a, 1, events, idColumn...)
			a.resolve(relationMessage{oid: 2}, Table{}, false)
			ours := 0
			var parts []cdc.Transaction
			for range rapid.IntRange(0, 20).Draw(t, "rows") {
				if rapid.Bool().Draw(t, "foreign") {
					mustInsert(t, a, row(2, "x"))
					continue
				}
				id := fmt.Sprintf("%d-%d", end, ours)
				ours++
				want = append(want, id)
				part, full, err := a.insert(row(1, id))
				if err != nil {
					t.Fatal(err)
				}
				if full {
					parts = append(parts, part)
				}
			}
			end += 8
			f := mustCommit(t, a, end)
			if (len(f.txs) > 0) != (ours > 0) {
				t.Fatalf("%d rows of ours, handed over: %v", ours, f.txs)
			}
			if len(f.txs) == 0 {
				continue
			}
			last := f.txs[0]
			for _, p := range parts {
				if !p.Partial || p.Position != "" || len(p.Records) == 0 {
					t.Fatalf("part %+v", p)
				}
			}
			if last.Partial || last.Position != (mark{0, end}).position() || len(last.Records) == 0 {
				t.Fatalf("last part %+v", last)
			}
			for _, p := range append(parts, last) {
				if len(p.Records) > maxRecords {
					t.Fatalf("%d records in a part of at most %d", len(p.Records), maxRecords)
				}
				got = append(got, ids(p.Records)...)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
