package mysql

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
)

// replay parses packets, each after its length in four bytes, the way a connection does,
// and feeds them to an assembler. The library may fail or panic on what is no binlog; its own
// connection recovers from that, and so does this. Our code may not.
func replay(t testing.TB, data []byte, mariaDB bool) (out []cdc.Transaction, end place, err error) {
	parser := replication.NewBinlogParser()
	var at place
	if mariaDB {
		parser.SetFlavor(gomysql.MariaDBFlavor)
		at = parsed(t, "mariadb-gtid:")
	} else {
		at = parsed(t, "mysql-gtid:")
	}
	parser.SetPayloadDecoderConcurrency(1)
	kept := new(keptRows)
	filter := rowsFilter{tables: newTableSet([]Table{{"app", "events"}}), kept: kept}
	parser.SetRowsEventDecodeFunc(filter.filter)
	a := newAssembler(scriptConfig(), at, 1)
	a.lookUp = func(Table) (definition, error) {
		return definition{{name: "id", dataType: "bigint", fullType: "bigint"}, {name: "payload", dataType: "longtext", nullable: true, charset: "utf8mb4"}}, nil
	}
	a.emit = func(tx cdc.Transaction) error {
		out = append(out, tx)
		return nil
	}
	for len(data) >= 4 {
		size := int(binary.LittleEndian.Uint32(data))
		data = data[4:]
		if size > len(data) {
			break
		}
		event := parse(parser, data[:size:size])
		data = data[size:]
		if event == nil {
			continue
		}
		if err := a.take(logEvent{event, kept}); err != nil {
			return out, a.end, err
		}
	}
	return out, a.end, nil
}

func parse(parser *replication.BinlogParser, data []byte) (event *replication.BinlogEvent) {
	defer func() {
		if recover() != nil {
			event = nil
		}
	}()
	event, err := parser.Parse(data)
	if err != nil {
		return nil
	}
	return event
}

// Whatever comes as a binlog: no panic of ours, whole records, and errors without data.
func FuzzStream(f *testing.F) {
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, data []byte, mariaDB bool) {
		if len(data) > 1<<16 {
			return
		}
		out, _, err := replay(t, data, mariaDB)
		for _, tx := range out {
			for _, r := range tx.Records {
				if len(r.Values) != len(r.Relation.Columns) {
					t.Fatalf("%d values for %d columns", len(r.Values), len(r.Relation.Columns))
				}
			}
			if tx.Position != "" {
				if _, err := parsePlace(tx.Position); err != nil {
					t.Fatalf("position %s: %v", tx.Position, err)
				}
			}
		}
		if err != nil && strings.Contains(err.Error(), "payload") {
			t.Fatalf("the error quotes a row: %v", err)
		}
	})
}

// The corpus is recorded from each kind of server, and must not silently go away.
func TestRecordedStreams(t *testing.T) {
	for _, name := range []string{"mariadb10.11", "mariadb11.8", "mysql9.7", "mysql9.7-compressed"} {
		data, mariaDB := corpus(t, name)
		out, end, err := replay(t, data, mariaDB)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var ids, payloads []string
		for _, tx := range out {
			for _, r := range tx.Records {
				ids, payloads = append(ids, cdctest.Text(r, "id")), append(payloads, cdctest.Text(r, "payload"))
			}
		}
		if got := strings.Join(ids, " ") + "|" + strings.Join(payloads, " "); got != "1 2 3|payload 1 payload 2 payload 3" {
			t.Errorf("%s: %s", name, got)
		}
		if len(out) == 0 || out[len(out)-1].Position == "" || end.detail() == "" {
			t.Errorf("%s: no position at the end", name)
		}
	}
}

// MariaDB's compressed rows whose data is cut off: the library panics, in our goroutine.
func TestCompressedRowsThatAreCutOff(t *testing.T) {
	data, _ := corpus(t, "mariadb11.8")
	const (
		prefix      = 4              // the size before each event
		typ, length = 4, 9           // where they are in the head of an event
		head        = 19 + 8 + 1 + 1 // with the table, and the bitmap of two columns
		checksum    = 4
	)
	var cut []byte
	for len(data) > prefix {
		n := int(binary.LittleEndian.Uint32(data))
		event := slices.Clone(data[prefix : prefix+n])
		data = data[prefix+n:]
		if replication.EventType(event[typ]) == replication.WRITE_ROWS_EVENTv1 {
			event = event[:head+checksum]
			event[typ] = byte(replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1)
			binary.LittleEndian.PutUint32(event[length:], uint32(len(event)))
		}
		cut = append(binary.LittleEndian.AppendUint32(cut, uint32(len(event))), event...)
	}
	_, _, err := replay(t, cut, true)
	if bad := new(undecodable); !errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
}

// While nothing but our own writes is logged the saved position follows slowly, and does not stand still: the server
// purges up to where nothing else is.
func TestOwnWritesMoveTheSavedPositionSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bank{}
		tenure, _, err := b.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at := startGTID(t)
		s := &Source{cfg: Config{SaveInterval: time.Second, CheckInterval: time.Second}, saved: at.position()}
		s.begin(at.position())
		st := newStream(s, nil, nil, facts{}, tenure, nil)
		st.asm = newScript(t, at).run("gtid 6\nq BEGIN\nrows deliveries 1\nxid").a
		st.nextOwn = time.Now().Add(ownInterval)
		for _, saves := range []int{0, 1, 1, 1} {
			if err := st.tick(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := b.countSaves(); got != saves {
				t.Errorf("%d saves, want %d", got, saves)
			}
			<-time.After(ownInterval)
		}
		if kept := b.kept(); kept != parsed(t, "mysql-gtid:"+sid+":1-6").position() {
			t.Errorf("kept %s", kept)
		}
	})
}

// corpus reads an entry of FuzzStream's corpus.
func corpus(t testing.TB, name string) (data []byte, mariaDB bool) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "fuzz", "FuzzStream", name))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%s has %d lines", name, len(lines))
	}
	quoted := strings.TrimSuffix(strings.TrimPrefix(lines[1], "[]byte("), ")")
	unquoted, err := strconv.Unquote(quoted)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(unquoted), lines[2] == "bool(true)"
}
