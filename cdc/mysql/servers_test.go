package mysql

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// eachMySQL runs fn in parallel on each kind of server, with a fresh database that has
// the events table.
func eachMySQL(t *testing.T, fn func(t *testing.T, db *testdb.MyDB)) {
	t.Helper()
	t.Parallel()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		fn(t, newDB(t, kind))
	})
}

// onKind runs fn in parallel on one kind.
func onKind(t *testing.T, kind testdb.Kind, fn func(t *testing.T, db *testdb.MyDB)) {
	t.Helper()
	t.Parallel()
	fn(t, newDB(t, kind))
}

// ownServer is a server of its own with a database "app" that has the events table.
type ownServer struct {
	*localserver.MySQL
	t    testing.TB
	kind testdb.Kind
	pool *sql.DB
}

func newServer(t *testing.T, kind testdb.Kind, settings map[string]string) *ownServer {
	t.Helper()
	all := map[string]string{"binlog_row_metadata": "FULL", "innodb_buffer_pool_size": "32M"}
	for name, value := range settings {
		all[name] = value
	}
	s := &ownServer{MySQL: testdb.DedicatedMySQL(t, kind, all), t: t, kind: kind}
	pool, err := sql.Open("mysql", s.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	s.pool = pool
	t.Cleanup(func() { _ = pool.Close() })
	return s
}

// setUp makes the database without a trace in the log: a fresh server stays fresh.
func (s *ownServer) setUp() {
	s.t.Helper()
	conn := newSession(s.t, s.pool)
	conn.exec("SET sql_log_bin = 0", "CREATE DATABASE app", "USE app", eventsTable, "SET sql_log_bin = 1")
	_ = conn.conn.Close()
}

func (s *ownServer) exec(statements ...string) {
	s.t.Helper()
	for _, q := range statements {
		if _, err := s.pool.ExecContext(context.Background(), q); err != nil {
			s.t.Fatalf("%v\nin: %.200s", err, q)
		}
	}
}

func (s *ownServer) insert(from, until int) {
	s.t.Helper()
	conn := newSession(s.t, s.pool)
	conn.exec("USE app", insert(from, until))
	_ = conn.conn.Close()
}

func (s *ownServer) config() Config { return testConfig(s.DSN("app"), "app") }

// purge moves the server to a new file and removes all others.
func (s *ownServer) purge() {
	s.t.Helper()
	s.exec("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
	var last string
	err := eachRow(context.Background(), s.pool, "SHOW BINARY LOGS", func(row map[string]string) { last = row["Log_name"] })
	if err != nil {
		s.t.Fatal(err)
	}
	// MariaDB keeps what a dump that has just ended still looks at.
	testdb.WaitFor(s.t, "the old files to go", func() bool {
		s.exec("PURGE BINARY LOGS TO '" + last + "'")
		files, _, err := binaryLogs(context.Background(), s.pool)
		return err == nil && len(files) == 1
	})
}

// damageLast writes an impossible length into the head of the last transaction of the log.
func (s *ownServer) damageLast() {
	s.t.Helper()
	name, _, err := binlogStatus(context.Background(), s.pool)
	if err != nil {
		s.t.Fatal(err)
	}
	var at int64
	err = eachRow(context.Background(), s.pool, "SHOW BINLOG EVENTS IN '"+name+"'", func(row map[string]string) {
		if row["Event_type"] == "Gtid" {
			at, _ = strconv.ParseInt(row["Pos"], 10, 64)
		}
	})
	if err != nil || at == 0 {
		s.t.Fatalf("no transaction in %s: %v", name, err)
	}
	file, err := os.OpenFile(filepath.Join(filepath.Dir(s.LogFile()), "data", name), os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	const length = 9 // where it is in the head of an event
	if _, err := file.WriteAt([]byte{5, 0, 0, 0}, at+length); err != nil {
		s.t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		s.t.Fatal(err)
	}
}
