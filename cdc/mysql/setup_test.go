package mysql

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	driver "github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
)

func TestJudge(t *testing.T) {
	good := map[string]string{"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL", "gtid_mode": "ON"}
	for name, c := range map[string]struct {
		version, comment string
		change           map[string]string
		mode             mode
		reason           string
		warning          string
	}{
		"MySQL":               {"9.7.0", "MySQL Community Server", nil, modeGTID, "", ""},
		"MySQL 8.0":           {"8.0.43", "MySQL Community Server", nil, modeGTID, "", ""},
		"MySQL 8.4":           {"8.4.8", "MySQL Community Server", nil, modeGTID, "", ""},
		"no GTIDs":            {"8.0.43", "", map[string]string{"gtid_mode": "ON_PERMISSIVE"}, modeFile, "", "gtid_mode"},
		"MariaDB":             {"11.8.2-MariaDB-log", "", map[string]string{"gtid_mode": ""}, modeMariaDB, "", ""},
		"MariaDB 10.6":        {"10.6.20-MariaDB", "", nil, modeMariaDB, "", ""},
		"MariaDB 10.5":        {"10.5.20-MariaDB", "", nil, "", reasonVersion, ""},
		"MySQL 5.7":           {"5.7.44", "", nil, "", reasonVersion, ""},
		"TiDB":                {"8.0.11-TiDB-v8.5.0", "", nil, "", reasonProxy, ""},
		"Vitess":              {"8.0.40-Vitess", "", nil, "", reasonProxy, ""},
		"ProxySQL":            {"8.0.40", "(ProxySQL)", nil, "", reasonProxy, ""},
		"no log":              {"9.7.0", "", map[string]string{"log_bin": "OFF"}, "", reasonBinlog, ""},
		"mixed":               {"11.8.2-MariaDB", "", map[string]string{"binlog_format": "MIXED"}, "", reasonFormat, ""},
		"format is not there": {"10.1.0", "", map[string]string{"binlog_format": ""}, modeGTID, "", ""},
		"minimal image":       {"9.7.0", "", map[string]string{"binlog_row_image": "MINIMAL"}, modeGTID, "", "binlog_row_image"},
		"no metadata":         {"11.8.2-MariaDB", "", map[string]string{"binlog_row_metadata": "NO_LOG"}, modeMariaDB, "", "binlog_row_metadata"},
		"filtered":            {"9.7.0", "", map[string]string{"binlog_do_db": "x"}, modeGTID, "", "binlog_do_db"},
		"short retention":     {"9.7.0", "", map[string]string{"binlog_expire_logs_seconds": "3600"}, modeGTID, "", "binlog_expire"},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts{version: c.version, comment: c.comment, mariaDB: strings.Contains(c.version, "MariaDB"), vars: map[string]string{}}
			for k, v := range good {
				f.vars[k] = v
			}
			for k, v := range c.change {
				f.vars[k] = v
			}
			err := f.judge()
			if c.reason != "" {
				var s *cdc.SourceError
				if !cdc.IsPermanent(err) || reasonOf(err) != c.reason || !errors.As(err, &s) || s.Hint == "" {
					t.Errorf("%v (%s), want a permanent error %s with a hint", err, reasonOf(err), c.reason)
				}
				return
			}
			if err != nil || f.mode != c.mode {
				t.Errorf("mode %s, %v", f.mode, err)
			}
			if got := strings.Join(f.warnings, ";"); (c.warning == "") != (got == "") || !strings.Contains(got, c.warning) {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
		})
	}
}

// A log that is damaged further on is sent up to there each time: what comes before the refusal does not make it
// one that passes, unless the place moved.
func TestRefusalsAfterProgress(t *testing.T) {
	at := startGTID(t)
	f := facts{mode: modeGTID, identity: "s", current: parsed(t, "mysql-gtid:"+sid+":1-100"), floor: parsed(t, "mysql-gtid:"+sid+":1"), floorKnown: true}
	s := &Source{memory: memory{resume: at.position()}}
	end := func(at place, err error) (gap *cdc.Gap) {
		s.begin(at.position())
		st := &stream{s: s, asm: newAssembler(scriptConfig(), at.clone(), 1), progress: true}
		st.learn(err)
		_, gap = decide(s.memory.resume, f, s.memory.refusal)
		return gap
	}
	damaged := &gomysql.MyError{Code: errBinlogFatal, Message: "binlog truncated in the middle of event"}
	for n := 1; n < refusalsUntilGap; n++ {
		if gap := end(at, damaged); gap != nil {
			t.Fatalf("a gap after %d refusals", n)
		}
	}
	if gap := end(at, io.EOF); gap != nil || s.memory.refusal.times != 0 {
		t.Errorf("after a connection that only was lost: %+v", s.memory.refusal)
	}
	for range refusalsUntilGap - 1 {
		end(at, damaged)
	}
	if gap := end(parsed(t, "mysql-gtid:"+sid+":1-6"), damaged); gap != nil {
		t.Error("a gap although the place moved")
	}
	for range refusalsUntilGap - 1 {
		end(at, damaged)
	}
	if gap := end(at, damaged); gap == nil || gap.Reason != gapRefused {
		t.Errorf("got %+v", gap)
	}
}

// 47: nothing that is asked of a server was removed from any version.
func TestM47_NoRemovedStatements(t *testing.T) {
	// SHOW MASTER STATUS is there for 8.0 only: it is asked after its successor was refused.
	if got := statusStatements; got[0] != "SHOW BINARY LOG STATUS" || len(got) != 2 {
		t.Errorf("statements %v", got)
	}
}

func TestDecide(t *testing.T) {
	gtid := facts{mode: modeGTID, identity: "s", current: parsed(t, "mysql-gtid:"+sid+":1-100"), floor: parsed(t, "mysql-gtid:"+sid+":1-10"), floorKnown: true}
	mariadb := facts{mode: modeMariaDB, current: parsed(t, "mariadb-gtid:0-1-100,1-1-5"), floor: parsed(t, "mariadb-gtid:0-1-10,1-1-1"), floorKnown: true}
	file := facts{mode: modeFile, identity: "s", current: parsed(t, "mysql-file:s/b.000009:500"), files: map[string]uint64{"b.000008": 1000, "b.000009": 500}}
	unknown := mariadb
	unknown.floorKnown = false
	for name, c := range map[string]struct {
		facts facts
		saved string
		refusal
		start  string
		reason string
	}{
		"first":                     {facts: gtid, start: "mysql-gtid:" + sid + ":1-100"},
		"resumed":                   {facts: gtid, saved: "mysql-gtid:" + sid + ":1-50", start: "mysql-gtid:" + sid + ":1-50"},
		"at the floor":              {facts: gtid, saved: "mysql-gtid:" + sid + ":1-10", start: "mysql-gtid:" + sid + ":1-10"},
		"purged":                    {facts: gtid, saved: "mysql-gtid:" + sid + ":1-9", reason: gapPurged},
		"purged, with a later hole": {facts: gtid, saved: "mysql-gtid:" + sid + ":1-4:6-50", reason: gapPurged},
		"ahead":                     {facts: gtid, saved: "mysql-gtid:" + sid + ":1-101", reason: gapAhead},
		"another server's":          {facts: gtid, saved: "mysql-gtid:11111111-2222-3333-4444-555555555555:1", reason: gapAhead},
		"empty":                     {facts: gtid, saved: "mysql-gtid:", reason: gapPurged},
		"of files":                  {facts: gtid, saved: "mysql-file:s/b.000009:4", reason: gapModeChanged},
		"garbage":                   {facts: gtid, saved: "0/16B3748", reason: gapPosition},
		"refused once":              {facts: gtid, saved: "mysql-gtid:" + sid + ":1-50", refusal: refusal{times: 1}, start: "mysql-gtid:" + sid + ":1-50"},
		"refused":                   {facts: gtid, saved: "mysql-gtid:" + sid + ":1-50", refusal: refusal{times: 2, text: "?"}, reason: gapRefused},
		"refused elsewhere":         {facts: gtid, saved: "mysql-gtid:" + sid + ":1-50", refusal: refusal{at: "x", times: 2}, start: "mysql-gtid:" + sid + ":1-50"},
		"MariaDB":                   {facts: mariadb, saved: "mariadb-gtid:0-1-50,1-1-5", start: "mariadb-gtid:0-1-50,1-1-5"},
		"MariaDB, other server id":  {facts: mariadb, saved: "mariadb-gtid:0-7-50,1-1-5", start: "mariadb-gtid:0-7-50,1-1-5"},
		"MariaDB, purged":           {facts: mariadb, saved: "mariadb-gtid:0-1-9,1-1-5", reason: gapPurged},
		"MariaDB, missing domain":   {facts: mariadb, saved: "mariadb-gtid:0-1-50", reason: gapPurged},
		"MariaDB, new domain":       {facts: unknown, saved: "mariadb-gtid:0-1-50", start: "mariadb-gtid:0-1-50"},
		"MariaDB, ahead":            {facts: mariadb, saved: "mariadb-gtid:0-1-101,1-1-5", reason: gapAhead},
		"MariaDB, unknown domain":   {facts: mariadb, saved: "mariadb-gtid:0-1-50,1-1-5,9-1-1", reason: gapAhead},
		"MariaDB, refused as purged": {facts: unknown, saved: "mariadb-gtid:0-1-9", refusal: refusal{times: 2,
			text: "Could not find GTID state requested by slave in any binlog files"}, reason: gapPurged},
		"MariaDB, refused as unknown": {facts: unknown, saved: "mariadb-gtid:0-1-9", refusal: refusal{times: 2,
			text: "The binlog on the master is missing the GTID 0-1-9 requested by the slave, which is not in the master's binlog"}, reason: gapAhead},
		"file":                {facts: file, saved: "mysql-file:s/b.000008:900", start: "mysql-file:s/b.000008:900"},
		"file, purged":        {facts: file, saved: "mysql-file:s/b.000007:4", reason: gapPurged},
		"file, too long":      {facts: file, saved: "mysql-file:s/b.000008:1001", reason: gapPurged},
		"file, ahead":         {facts: file, saved: "mysql-file:s/b.000009:501", reason: gapAhead},
		"file, longer number": {facts: file, saved: "mysql-file:s/b.1000000:4", reason: gapAhead},
		"file, other server":  {facts: file, saved: "mysql-file:z/b.000009:4", reason: gapServerChanged},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.refusal
			if r.at == "" && r.times > 0 {
				r.at = cdc.Position(c.saved)
			}
			start, gap := decide(cdc.Position(c.saved), c.facts, r)
			if c.reason == "" {
				if gap != nil || string(start.position()) != c.start {
					t.Errorf("start %s, gap %+v; want %s", start.position(), gap, c.start)
				}
				return
			}
			if gap == nil || gap.Reason != c.reason || gap.Detail == "" {
				t.Fatalf("gap %+v, want %s", gap, c.reason)
			}
			if end := c.facts.current.position(); gap.From != cdc.Position(c.saved) || gap.To != end || start.position() != end {
				t.Errorf("gap %+v, start %s", gap, start.position())
			}
		})
	}
}

func TestConfirm(t *testing.T) {
	end := func() cdc.Position { return "end" }
	c := startConfirm("start")
	if got := c.answer(true, end); got != "start" {
		t.Errorf("open: %s", got)
	}
	if got := c.answer(false, end); got != "end" {
		t.Errorf("settled: %s", got)
	}
	for _, p := range []cdc.Position{"a", "b", "c"} {
		c.handOver(p)
	}
	if got := c.answer(false, end); got != "start" {
		t.Errorf("pending: %s", got)
	}
	if c.ack("nothing") || c.ack("") {
		t.Error("a position that does not wait was taken")
	}
	if !c.ack("b") || c.answer(false, end) != "b" || c.waiting() != 1 {
		t.Errorf("after b: %+v", c)
	}
	if c.ack("a") {
		t.Error("an acknowledgement went backwards")
	}
	if !c.ack("c") || c.answer(false, end) != "end" || c.answer(true, end) != "c" {
		t.Errorf("after all: %+v", c)
	}
}

func TestConfigProblems(t *testing.T) {
	good := func() Config {
		return Config{DSN: "u:se-cret@tcp(h:3306)/d", Tables: []Table{{"d", "events"}}, Keeper: &bank{}}
	}
	if cfg, err := good().validate(); err != nil || cfg.ReadTimeout != 3*cfg.Heartbeat || cfg.ServerID>>31 != 1 ||
		!slices.Equal(cfg.Own, []Table{{Schema: "eventlog"}}) {
		t.Errorf("%+v, %v", cfg, err)
	}
	for want, change := range map[string]func(*Config){
		"DSN is missing":      func(c *Config) { c.DSN = "" },
		"DSN is not":          func(c *Config) { c.DSN = "mysql://u:se-cret@h/d" },
		"want tcp or unix":    func(c *Config) { c.DSN = "u:se-cret@pipe(h)/d" },
		"unix as its network": func(c *Config) { c.DSN = "u:se-cret:tcp(h:3306)/d" },
		"Keeper is missing":   func(c *Config) { c.Keeper = nil },
		"no tables":           func(c *Config) { c.Tables = nil },
		"listed twice":        func(c *Config) { c.Tables = append(c.Tables, c.Tables[0]) },
		"schema and a name":   func(c *Config) { c.Tables = []Table{{"", "x"}} },
		"want a schema":       func(c *Config) { c.Own = []Table{{}} },
		"two heartbeats":      func(c *Config) { c.ReadTimeout = c.Heartbeat + 1; c.Heartbeat = 1e9 },
		"heartbeat 1ms":       func(c *Config) { c.Heartbeat = 1e6 },
		"want at most 10s":    func(c *Config) { c.CheckInterval = 1e11 },
		"BackoffMax is below": func(c *Config) { c.BackoffMax = 1 },
		"StopTimeout is out":  func(c *Config) { c.StopTimeout = -1 },
		"must be positive":    func(c *Config) { c.MaxBytes = -1 },
	} {
		cfg := good()
		change(&cfg)
		_, err := New(cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "se-cret") {
			t.Errorf("%v, want %q and no password", err, want)
		}
	}
}

// Errors of the log's library quote packets; nothing of it is shown.
func TestErrorsShowNoData(t *testing.T) {
	for name, err := range map[string]error{
		"event":   &replication.EventError{Header: &replication.EventHeader{}, Err: "x", Data: []byte("se-cret")},
		"panic":   errors.New(`parse rows event panic, data "se-cret"`),
		"wrapped": fmt.Errorf("a: %w", errors.New("se-cret")),
		"bad":     fmt.Errorf("%w: se-cret", gomysql.ErrBadConn),
		"eof":     fmt.Errorf("se-cret: %w", io.EOF),
	} {
		if got := classifyStream(err); strings.Contains(got.Error(), "se-cret") || cdc.IsPermanent(got) {
			t.Errorf("%s: %v", name, got)
		}
	}
	cfg := &driver.Config{User: "u"}
	for reason, err := range map[string]error{
		reasonReplication: &gomysql.MyError{Code: errSpecificDenied},
		reasonProxy:       &gomysql.MyError{Code: errUnknownCommand},
		reasonServerID:    &gomysql.MyError{Code: errSameID},
		reasonRefused:     &gomysql.MyError{Code: errBinlogFatal, Message: "x"},
		reasonServerDown:  &gomysql.MyError{Code: errServerShutdown},
		reasonStalled:     errStalled,
		reasonTenure:      fmt.Errorf("%w: x", errTenure),
		reasonConnection:  &net.OpError{Op: "dial", Err: io.EOF},
	} {
		if got := reasonOf(classifyStart(err, cfg)); got != reason {
			t.Errorf("%v is %s, want %s", err, got, reason)
		}
	}
}

// Without names in the log the catalog is believed only if everything agrees.
func TestM36_LayoutFromTheCatalog(t *testing.T) {
	m := &replication.TableMapEvent{
		ColumnCount: 3, ColumnType: []byte{8, 254, 252}, ColumnMeta: []uint16{0, 0xfe10, 4}, NullBitmap: []byte{0b100},
	}
	good := definition{
		{name: "id", dataType: "bigint", fullType: "bigint unsigned"},
		{name: "key", dataType: "uuid", fullType: "uuid"},
		{name: "payload", dataType: "longtext", nullable: true, charset: "utf8mb4"},
	}
	l, err := newLayout(Table{"app", "events"}, m, good)
	if err != nil {
		t.Fatal(err)
	}
	row := "\x00" + strings.Repeat("\xff", 8) + "\x01\x01" + "\x01\x00\x00\x00p"
	record, size, n := new(rowReader).record(l, []byte(row))
	if n != len(row) || size != 20+36+1 {
		t.Fatalf("%d bytes of %d were read, the values have %d", n, len(row), size)
	}
	got := []string{cdctest.Text(record, "id"), cdctest.Text(record, "key"), cdctest.Text(record, "payload")}
	if diff := cmp.Diff([]string{"18446744073709551615", "01000000-0000-0000-0000-000000000000", "p"}, got); diff != "" {
		t.Error(diff)
	}
	for short := range row {
		if _, _, n := new(rowReader).record(l, []byte(row[:short])); n != 0 {
			t.Errorf("a row was read that is cut off after %d bytes", short)
		}
	}
	for name, d := range map[string]definition{
		"missing":  nil,
		"fewer":    good[:2],
		"type":     {good[0], {name: "key", dataType: "int"}, good[2]},
		"nullable": {good[0], good[1], {name: "payload", dataType: "longtext"}},
	} {
		var columns *errColumns
		if _, err := newLayout(Table{"app", "events"}, m, d); !errors.As(err, &columns) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBackoffStaysWithinItsBounds: also where doubling would overflow.
func TestBackoffStaysWithinItsBounds(t *testing.T) {
	for _, b := range []struct{ least, most time.Duration }{
		{100 * time.Millisecond, 10 * time.Second}, {20 * time.Second, time.Minute}, {time.Hour, time.Hour}, {1, 1<<63 - 1},
	} {
		last := time.Duration(0)
		for n := 1; n <= 100; n++ {
			d := backoff(n, b.least, b.most)
			if d > b.most || d < b.least-b.least/5 || d < last-last/5 {
				t.Errorf("attempt %d of %s to %s: %s after %s", n, b.least, b.most, d, last)
			}
			last = max(last, d)
		}
	}
}
