package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
)

// script feeds the assembler lines of a small language and writes down what it hands
// over.
//
//	gtid N [sbr]         a GTID event of MySQL
//	mariadb N [alone] [plain] [prepared]
//	                     a GTID event of MariaDB; plain: cannot be rolled back safely
//	anonymous            a GTID event without a GTID
//	q TEXT               a query, in the schema app
//	rows TABLE ID…       inserted rows; TABLE@part: not all columns; TABLE@bad: cannot be decoded
//	update TABLE         an update
//	xid                  the end of a transaction
//	prepare [one]        XA_PREPARE
//	event N [ignorable]  an event of type N
//	rotate FILE, switch FILE, format, incident
//	payload … end        what is between is one compressed event
type script struct {
	t     rapid.TB
	a     *assembler
	pos   uint32
	out   []string
	warns []string
	inner []*replication.BinlogEvent
	kept  keptRows
	depth bool
	ended error
	// begun are the lines of the open group, from what they began at, and again counts the groups that
	// were read twice.
	begun   []string
	begunAt uint32
	again   int
}

const sid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

func scriptConfig() Config {
	return Config{Tables: []Table{{"app", "events"}}, Own: []Table{{Schema: "eventlog"}, {"app", "deliveries"}}, MaxRecords: 3, MaxBytes: 1 << 20}
}

func newScript(t rapid.TB, start place) *script {
	s := &script{t: t, pos: 100}
	s.a = newAssembler(scriptConfig(), start, 7)
	s.a.lookUp = func(Table) (definition, error) {
		return definition{{name: "id", dataType: "bigint", fullType: "bigint"}}, nil
	}
	s.a.warn = func(reason string, table Table, _ string) { s.warns = append(s.warns, reason+" "+table.Name) }
	s.a.emit = func(tx cdc.Transaction) error {
		s.out = append(s.out, show(tx))
		return nil
	}
	return s
}

func show(tx cdc.Transaction) string {
	var parts []string
	for _, r := range tx.Records {
		parts = append(parts, cdctest.Text(r, "id"))
	}
	line := "[" + strings.Join(parts, " ") + "]"
	if tx.Partial {
		line += " partial"
	}
	if tx.Sweep != "" {
		line += " sweep " + tx.Sweep
	}
	if tx.Gap != nil {
		line += " gap " + tx.Gap.Reason
	}
	if tx.Position != "" {
		_, at, _ := strings.Cut(string(tx.Position), ":")
		line += " @" + strings.TrimPrefix(strings.TrimPrefix(at, sid), "/")
	}
	return line
}

func (s *script) run(text string) *script {
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if s.ended != nil {
			break
		}
		line = strings.TrimSpace(line)
		switch verb, _, _ := strings.Cut(line, " "); verb {
		case "gtid", "anonymous", "mariadb":
			s.begun, s.begunAt = nil, s.pos
		}
		s.begun = append(s.begun, line)
		s.line(line)
		s.reread()
	}
	return s
}

// reread does what the stream does after a large transaction that turned out to be committed.
func (s *script) reread() {
	var large *largeCommit
	if !errors.As(s.ended, &large) {
		return
	}
	s.a.certain, s.a.group, s.ended = append(s.a.certain, large.transaction), group{}, nil
	s.pos = s.begunAt
	s.again++
	for _, line := range s.begun {
		if s.ended == nil {
			s.line(line)
		}
	}
}

func (s *script) line(line string) {
	verb, rest, _ := strings.Cut(line, " ")
	words := strings.Fields(rest)
	has := func(word string) bool { return slices.Contains(words, word) }
	switch verb {
	case "":
	case "payload":
		s.depth = true
	case "end":
		s.depth = false
		inner := s.inner
		s.inner = nil
		s.event(replication.TRANSACTION_PAYLOAD_EVENT, 0, &replication.TransactionPayloadEvent{Events: inner})
	case "gtid":
		id := uuid.MustParse(sid)
		e := &replication.GTIDEvent{SID: id[:], GNO: int64(number(s.t, words[0])), ImmediateCommitTimestamp: 1700000000000000}
		if has("sbr") {
			e.CommitFlag = 1
		}
		s.event(replication.GTID_EVENT, 0, e)
	case "anonymous":
		s.event(replication.ANONYMOUS_GTID_EVENT, 0, &replication.GTIDEvent{SID: make([]byte, 16)})
	case "mariadb":
		e := &replication.MariadbGTIDEvent{}
		e.GTID.SequenceNumber = uint64(number(s.t, words[0]))
		for flag, on := range map[byte]bool{1: has("alone"), 4: !has("plain"), flagPreparedXA: has("prepared")} {
			if on {
				e.Flags |= flag
			}
		}
		s.event(replication.MARIADB_GTID_EVENT, 0, e)
	case "q":
		s.event(replication.QUERY_EVENT, 0, &replication.QueryEvent{Schema: []byte("app"), Query: []byte(rest)})
	case "rows", "update":
		s.rows(verb, words)
	case "xid":
		s.event(replication.XID_EVENT, 0, &replication.XIDEvent{})
	case "prepare":
		data := []byte{0}
		if has("one") {
			data[0] = 1
		}
		s.event(replication.XA_PREPARE_LOG_EVENT, 0, &replication.GenericEvent{Data: data})
	case "incident":
		s.event(replication.INCIDENT_EVENT, 0, &replication.GenericEvent{})
	case "event":
		var flags uint16
		if has("ignorable") {
			flags = replication.LOG_EVENT_IGNORABLE_F
		}
		s.event(replication.EventType(number(s.t, words[0])), flags, &replication.GenericEvent{})
	case "rotate":
		s.event(replication.ROTATE_EVENT, 0, &replication.RotateEvent{Position: 4, NextLogName: []byte(rest)})
		s.pos = 4
	case "switch":
		s.event(replication.ROTATE_EVENT, replication.LOG_EVENT_ARTIFICIAL_F, &replication.RotateEvent{Position: 99999, NextLogName: []byte(rest)})
	case "format":
		s.event(replication.FORMAT_DESCRIPTION_EVENT, 0, &replication.FormatDescriptionEvent{})
	case "wrap":
		s.pos = 4
	default:
		s.t.Fatalf("line %q", line)
	}
}

func number(t rapid.TB, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *script) rows(verb string, words []string) {
	name, fault, _ := strings.Cut(words[0], "@")
	schema, name, qualified := strings.Cut(name, ".")
	if !qualified {
		schema, name = "app", schema
	}
	m := &replication.TableMapEvent{
		TableID: 1, Schema: []byte(schema), Table: []byte(name),
		ColumnCount: 1, ColumnType: []byte{8}, ColumnMeta: []uint16{0}, NullBitmap: []byte{0}, ColumnName: [][]byte{[]byte("id")},
	}
	s.event(replication.TABLE_MAP_EVENT, 0, m)
	e := &replication.RowsEvent{Table: m, ColumnCount: 1, ColumnBitmap1: []byte{0xff}, Flags: replication.RowsEventStmtEndFlag}
	var data []byte
	for _, id := range words[1:] {
		data = binary.LittleEndian.AppendUint64(append(data, 0), uint64(number(s.t, id)))
	}
	switch fault {
	case "part":
		e.ColumnBitmap1 = []byte{0xfe}
	case "bad":
		data = []byte{0, 1}
	}
	s.kept.list = append(s.kept.list, rawRows{event: e, data: data})
	kind := replication.WRITE_ROWS_EVENTv2
	if verb == "update" {
		kind = replication.UPDATE_ROWS_EVENTv2
	}
	s.event(kind, 0, e)
}

func (s *script) event(kind replication.EventType, flags uint16, e replication.Event) {
	s.pos += 10
	b := &replication.BinlogEvent{
		Header: &replication.EventHeader{Timestamp: 1700000000, EventType: kind, Flags: flags, ServerID: 5, LogPos: s.pos},
		Event:  e,
	}
	if s.depth {
		s.inner = append(s.inner, b)
		return
	}
	s.ended = s.a.take(logEvent{b, &s.kept})
}

func startGTID(t rapid.TB) place { return parsed(t, "mysql-gtid:"+sid+":1-5") }

func startFile(t rapid.TB) place { return parsed(t, "mysql-file:"+sid+"/b.000001:100") }

func parsed(t rapid.TB, text string) place {
	t.Helper()
	p, err := parsePlace(cdc.Position(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The golden scripts: what is read, and what is handed over.
func TestAssembleScripts(t *testing.T) {
	for name, c := range map[string]struct {
		start  string
		script string
		want   string
	}{
		"a transaction":      {"", "gtid 6\nq BEGIN\nrows events 1 2\nxid", "[1 2] @:1-6"},
		"commit by a query":  {"", "gtid 6\nq BEGIN\nrows events 1\nq COMMIT", "[1] @:1-6"},
		"rolled back":        {"", "gtid 6 sbr\nq BEGIN\nrows events 1\nq ROLLBACK\ngtid 7\nq BEGIN\nrows events 2\nxid", "[2] @:1-7"},
		"foreign rows":       {"", "gtid 6\nq BEGIN\nrows other 1\nrows elsewhere.events 9\nxid\ngtid 7\nq BEGIN\nrows events 2\nxid", "[2] @:1-7"},
		"updates":            {"", "gtid 6\nq BEGIN\nupdate events\nxid", ""},
		"holes in the set":   {"", "gtid 9\nq BEGIN\nrows events 1\nxid\ngtid 7\nq BEGIN\nrows events 2\nxid", "[1] @:1-5:9\n[2] @:1-5:7:9"},
		"parts":              {"", "gtid 6\nq BEGIN\nrows events 1 2 3 4\nrows events 5 6 7\nxid", "[1 2 3] partial\n[4 5 6] partial\n[7] @:1-6"},
		"held back whole":    {"", "gtid 6 sbr\nq BEGIN\nrows events 1 2 3 4\nxid", "[1 2 3] partial\n[4] @:1-6"},
		"too large to hold":  {"", "gtid 6\nq BEGIN\nq SAVEPOINT a\nrows events 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25\nrows events 26\nxid", "[] sweep large @:1-6"},
		"savepoints":         {"", "gtid 6\nq BEGIN\nrows events 1\nq SAVEPOINT `a`\nrows events 2 3\nq SAVEPOINT b\nrows events 4\nq ROLLBACK TO `a`\nrows events 5\nxid", "[1 5] @:1-6"},
		"unknown savepoint":  {"", "gtid 6\nq BEGIN\nrows events 1\nq ROLLBACK TO SAVEPOINT nowhere\nxid", "[] sweep statement @:1-6"},
		"half, then whole":   {"", "gtid 6\nq BEGIN\nrows events 1 2\ngtid 6\nq BEGIN\nrows events 1 2\nxid", "[1 2] @:1-6"},
		"half, then format":  {"", "gtid 6\nq BEGIN\nrows events 1 2\nformat\ngtid 6\nq BEGIN\nrows events 3\nxid", "[3] @:1-6"},
		"half, then rotate":  {"", "gtid 6\nq BEGIN\nrows events 1 2\nswitch b.000002\nxid\ngtid 6\nq BEGIN\nrows events 3\nxid", "[3] @:1-6"},
		"DDL":                {"", "gtid 6\nq ALTER TABLE events ADD x int\ngtid 7\nq BEGIN\nrows events 1\nxid", "[1] @:1-7"},
		"create and select":  {"", "gtid 6\nq CREATE TABLE `c` (a int) START TRANSACTION\nrows c 1\nrows events 1\nxid", "[1] @:1-6"},
		"XA":                 {"", "gtid 6\nq XA START X'61',X'',1\nrows events 1\nq XA END X'61',X'',1\nprepare\ngtid 7\nq XA COMMIT X'61',X'',1", "[] sweep xa @:1-7"},
		"XA rolled back":     {"", "gtid 6\nq XA START X'61',X'',1\nrows events 1\nq XA END X'61',X'',1\nprepare\ngtid 7\nq XA ROLLBACK X'61',X'',1\ngtid 8\nq BEGIN\nrows events 2\nxid", "[2] @:1-8"},
		"XA in one phase":    {"", "gtid 6\nq XA START X'61',X'',1\nrows events 1\nq XA END X'61',X'',1\nprepare one", "[] sweep xa @:1-6"},
		"compressed":         {"", "gtid 6\npayload\nq BEGIN\nrows events 1 2 3 4\nxid\nend\ngtid 7\nq BEGIN\nrows events 5\nxid", "[1 2 3] partial\n[4] @:1-6\n[5] @:1-7"},
		"statement":          {"", "gtid 6\nq BEGIN\nq INSERT INTO events VALUES (1)\nxid", "[] sweep statement @:1-6"},
		"statement, other":   {"", "gtid 6\nq BEGIN\nq INSERT INTO other SELECT 'events'\nxid", ""},
		"statement, update":  {"", "gtid 6\nq BEGIN\nq UPDATE events SET a = REPLACE(a, 'x', 'y')\nxid", ""},
		"statement, quoted":  {"", "gtid 6\nq BEGIN\nq /* a */ REPLACE LOW_PRIORITY INTO `app`.`events` VALUES (1)\nxid", "[] sweep statement @:1-6"},
		"incomplete image":   {"", "gtid 6\nq BEGIN\nrows events 1\nrows events@part 2\nxid", "[1] sweep row_image @:1-6"},
		"incident":           {"", "gtid 6\nincident\ngtid 7\nq BEGIN\nrows events 1\nxid", "[] gap incident @:1-6\n[1] @:1-7"},
		"outside":            {"", "rows events 1\nrows events 2\nxid\ngtid 7\nq BEGIN\nrows events 3\nxid", "[] gap decode @:1-5\n[3] @:1-5:7"},
		"incident, bare":     {"", "incident", "[] gap incident @:1-5"},
		"incident, inside":   {"", "gtid 6\nq BEGIN\nrows events 1\nincident\nxid", "[1] partial\n[] gap incident @:1-6"},
		"fragments":          {"", "gtid 6\nq BEGIN\nrows events 1\nxid\ngtid 7\nq BEGIN\nevent 172\nxid", "[1] @:1-6"},
		"unknown, ignorable": {"", "gtid 6\nq BEGIN\nevent 200 ignorable\nrows events 1\nxid", "[1] @:1-6"},
		"GTID mode, rotate":  {"", "rotate b.000009\nswitch b.000010\ngtid 6\nq BEGIN\nrows events 1\nxid", "[1] @:1-6"},

		"file":                  {"file", "switch b.000001\nanonymous\nq BEGIN\nrows events 1\nxid", "[1] @b.000001:160"},
		"file, rotate":          {"file", "switch b.000001\nrotate b.000002\nswitch b.000002\nformat\nanonymous\nq BEGIN\nrows events 1\nxid", "[1] @b.000002:74"},
		"file, artificial":      {"file", "switch b.000001\nanonymous\nq XA COMMIT X'61',X'',1\nswitch b.000007", "[] sweep xa @b.000001:130"},
		"file, wrapped":         {"file", "switch b.000001\nanonymous\nq BEGIN\nrows events 1\nxid\nwrap\nanonymous\nq BEGIN\nrows events 2\nxid\nanonymous\nq BEGIN\nrows events 3\nxid\nrotate b.000002\nanonymous\nq BEGIN\nrows events 4\nxid", "[1] @b.000001:160\n[2] @b.000001:160\n[3] @b.000001:160\n[4] @b.000002:54"},
		"file, compressed":      {"file", "switch b.000001\nanonymous\npayload\nq BEGIN\nrows events 1\nxid\nend", "[1] @b.000001:160"},
		"MariaDB":               {"mariadb", "mariadb 6\nrows events 1\nxid", "[1] @0-5-6,3-1-9"},
		"MariaDB, alone":        {"mariadb", "mariadb 6 alone\nq ALTER TABLE events ADD x int\nmariadb 7\nrows events 1\nxid", "[1] @0-5-7,3-1-9"},
		"MariaDB, statement":    {"mariadb", "mariadb 6\nq INSERT INTO events VALUES (1)\nxid", "[] sweep statement @0-5-6,3-1-9"},
		"MariaDB, not safe":     {"mariadb", "mariadb 6 plain\nrows events 1 2 3 4\nq ROLLBACK\nmariadb 7\nrows events 5\nq COMMIT", "[5] @0-5-7,3-1-9"},
		"MariaDB, XA":           {"mariadb", "mariadb 6 prepared\nrows events 1\nq XA END X'61',X'',1\nprepare\nmariadb 7 alone\nq XA COMMIT X'61',X'',1", "[] sweep xa @0-5-7,3-1-9"},
		"MariaDB, out of order": {"mariadb", "mariadb 9\nrows events 1\nxid\nmariadb 8\nrows events 2\nxid", "[1] @0-5-9,3-1-9\n[2] @0-5-8,3-1-9"},
	} {
		t.Run(name, func(t *testing.T) {
			at := startGTID(t)
			switch c.start {
			case "file":
				at = startFile(t)
			case "mariadb":
				at = parsed(t, "mariadb-gtid:0-1-5,3-1-9")
			}
			s := newScript(t, at).run(c.script)
			if s.ended != nil {
				t.Fatal(s.ended)
			}
			if diff := cmp.Diff(c.want, strings.Join(s.out, "\n")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// An event of an unknown type among the rows of our table is a gap, and among those of
// another table it is nothing (test 30); the fragments come after the table map.
func TestM30_Fragments(t *testing.T) {
	for table, want := range map[string]string{"events": "[] gap decode @:1-6", "other": ""} {
		s := newScript(t, startGTID(t)).run("gtid 6\nq BEGIN")
		s.event(replication.TABLE_MAP_EVENT, 0, &replication.TableMapEvent{Schema: []byte("app"), Table: []byte(table)})
		s.run("event 172\nevent 172\nxid")
		if got := strings.Join(s.out, "\n"); got != want || s.ended != nil {
			t.Errorf("%s: %q, %v", table, got, s.ended)
		}
		if s.a.counts.unknown != 2 {
			t.Errorf("%d unknown events counted", s.a.counts.unknown)
		}
	}
}

// A row that cannot be decoded ends the connection once; the second time it is given up.
func TestUndecodableRow(t *testing.T) {
	const lines = "gtid 6\nq BEGIN\nrows events 1\nrows events@bad 2\nrows events 3\nxid"
	first := newScript(t, startGTID(t)).run(lines)
	var bad *undecodable
	if !errors.As(first.ended, &bad) || len(first.out) != 0 {
		t.Fatalf("%v, handed over %v", first.ended, first.out)
	}
	again := newScript(t, startGTID(t))
	again.a.forgive = bad.transaction
	again.run(lines)
	if got := strings.Join(again.out, "\n"); got != "[1 3] partial\n[] gap decode @:1-6" || again.ended != nil {
		t.Errorf("%q, %v", got, again.ended)
	}
}

// While rows are handed over whose transaction ends with a gap, and when that fails, the
// end of what was read is still before them: it may be saved at any time.
func TestEndStaysBeforeRowsThatAreBeingHandedOver(t *testing.T) {
	s := newScript(t, startGTID(t))
	s.a.emit = func(cdc.Transaction) error {
		if s.a.position() != startGTID(t).position() || !s.a.group.open {
			t.Errorf("at %s, open %v", s.a.position(), s.a.group.open)
		}
		return errTenure
	}
	s.run("gtid 6\nq BEGIN\nrows events 1\nrows other 1\nincident\nxid")
	if !errors.Is(s.ended, errTenure) || s.a.position() != startGTID(t).position() {
		t.Errorf("%v, at %s", s.ended, s.a.position())
	}
}

// A transaction that is too large to be held is read to its end first, and again only if that is a commit.
func TestTooLargeToHold(t *testing.T) {
	const begin = "gtid 6\nq BEGIN\nrows events 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25\nrows events 26\n"
	undone := newScript(t, startGTID(t)).run(begin + "q ROLLBACK\ngtid 7\nq BEGIN\nrows events 99\nxid")
	if got := strings.Join(undone.out, "\n"); got != "[99] @:1-7" || undone.ended != nil || undone.again != 0 {
		t.Errorf("rolled back: %q, %v, read again %d times", got, undone.ended, undone.again)
	}
	done := newScript(t, startGTID(t)).run(begin + "xid\ngtid 7\nq BEGIN\nrows events 99\nxid")
	if n := len(done.out); n != 10 || done.ended != nil || done.out[0] != "[1 2 3] partial" || done.out[8] != "[25 26] @:1-6" || done.again != 1 {
		t.Errorf("%d parts: %v, %v, read again %d times", n, done.out, done.ended, done.again)
	}
}

// GTIDs that are switched off while the stream runs end it.
func TestM14_AnonymousInGTIDMode(t *testing.T) {
	if s := newScript(t, startGTID(t)).run("anonymous"); !errors.Is(s.ended, errSettings) {
		t.Errorf("%v, want errSettings", s.ended)
	}
}

// A catalog that fails ends the connection and skips nothing; one that differs leaves the
// rows to the poller.
func TestM33_TheCatalogFails(t *testing.T) {
	s := newScript(t, startGTID(t))
	failure := errors.New("lost connection")
	s.a.lookUp = func(Table) (definition, error) { return nil, failure }
	s.run("gtid 6\nq BEGIN\nrows events 1\nxid")
	if !errors.Is(s.ended, failure) || len(s.out) != 0 || s.a.position() != startGTID(t).position() {
		t.Errorf("%v, %v, position %s", s.ended, s.out, s.a.position())
	}
}

func TestCountsAndMoves(t *testing.T) {
	for script, want := range map[string]counts{
		"gtid 6\nq BEGIN\nrows eventlog.event_notifications 1\nupdate events\nrows deliveries 1\nxid": {own: 3},
		"gtid 6\nq BEGIN\nrows other 1\nrows deliveries 1\nxid":                                       {own: 1, foreign: 1, moved: true},
		"gtid 6\nq BEGIN\nrows events 1\nxid":                                                         {},
		"gtid 6\nq CREATE TABLE x (a int)":                                                            {moved: true},
		"gtid 6\nq BEGIN\nxid":                                                                        {moved: true},
		"xid":                                                                                         {unknown: 1},
	} {
		s := newScript(t, startGTID(t)).run(script)
		if s.a.counts != want {
			t.Errorf("%q: %+v, want %+v", script, s.a.counts, want)
		}
	}
}

// Crash at every event of a stream, resume at the last position that was handed over:
// the union is complete, and what came whole before is not torn (tests 4 and 5).
func TestM4_CrashAtEveryEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var groups [][]string
		var want []string
		id := 0
		for n := range rapid.IntRange(1, 6).Draw(t, "transactions") {
			group := []string{fmt.Sprintf("gtid %d", 6+n), "q BEGIN"}
			for range rapid.IntRange(0, 4).Draw(t, "statements") {
				if rapid.Bool().Draw(t, "ours") {
					line := "rows events"
					for range rapid.IntRange(1, 5).Draw(t, "rows") {
						id++
						line += fmt.Sprintf(" %d", id)
						want = append(want, fmt.Sprint(id))
					}
					group = append(group, line)
				} else {
					group = append(group, "rows other 1")
				}
			}
			groups = append(groups, append(group, "xid"))
		}
		all := slices.Concat(groups...)
		crash := rapid.IntRange(0, len(all)).Draw(t, "crash")
		seen := map[string]bool{}
		at := startGTID(t)
		keep := func(s *script) {
			emit := s.a.emit
			s.a.emit = func(tx cdc.Transaction) error {
				for _, r := range tx.Records {
					seen[cdctest.Text(r, "id")] = true
				}
				if tx.Position != "" {
					at = parsed(t, string(tx.Position))
				}
				return emit(tx)
			}
		}
		s := newScript(t, at)
		keep(s)
		s.run(strings.Join(all[:crash], "\n"))
		resumed := newScript(t, at.clone())
		keep(resumed)
		for i, group := range groups {
			if done := parsed(t, fmt.Sprintf("mysql-gtid:%s:%d", sid, 6+i)); !resumed.a.end.contains(done) {
				resumed.run(strings.Join(group, "\n"))
			}
		}
		for _, id := range want {
			if !seen[id] {
				t.Fatalf("row %s is lost after a crash at event %d", id, crash)
			}
		}
	})
}
