package testdb

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
)

// Kind is a server under test that speaks MySQL's protocol.
type Kind string

// The kinds that every promise is tested on.
const (
	MariaDB1011 Kind = "mariadb10.11"
	MariaDB118  Kind = "mariadb11.8"
	MySQL97     Kind = "mysql9.7"
)

// kinds in the order in which EachMySQL runs them.
var kinds = [...]Kind{MariaDB1011, MariaDB118, MySQL97}

// String is the name of a subtest, for example "mariadb10.11".
func (k Kind) String() string { return string(k) }

// IsMariaDB is false for MySQL.
func (k Kind) IsMariaDB() bool { return strings.HasPrefix(string(k), "mariadb") }

// family and series are the two parts of the name.
func (k Kind) family() localserver.Family {
	if k.IsMariaDB() {
		return localserver.MariaDBServer
	}
	return localserver.MySQLServer
}

func (k Kind) series() string { return strings.TrimLeft(string(k), "abcdefghijklmnopqrstuvwxyz") }

// title is the name in the matrix of a run, for example "MariaDB 10.11".
func (k Kind) title() string { return string(k.family()) + " " + k.series() }

// EachMySQL runs fn as one subtest per MariaDB and MySQL version, one after the
// other.
func EachMySQL(t *testing.T, fn func(t *testing.T, kind Kind)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			requireKind(t, kind)
			fn(t, kind)
		})
	}
}

// DedicatedMySQL starts a server for this test alone, closed by cleanup. Settings go
// on top of those of localserver.MySQLOptions; durability stays on unless set.
func DedicatedMySQL(t testing.TB, kind Kind, settings map[string]string) *localserver.MySQL {
	t.Helper()
	requireKind(t, kind)
	server, err := startMySQL(kind, settings)
	if err != nil {
		t.Fatal(err)
	}
	announceMySQL(t, kind, "own", server)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close %s: %v", kind.title(), err)
		}
	})
	return server
}

func announceMySQL(t testing.TB, kind Kind, whose string, server *localserver.MySQL) {
	t.Helper()
	t.Logf("%s %s: %s server from %s", server.Family(), server.Version(), whose, server.Origin())
	report(t, "server", kind.title(), server.Version()+", "+server.Origin())
}

// requireKind ends the test when the machine has no such server.
func requireKind(t testing.TB, kind Kind) {
	t.Helper()
	for _, in := range mysqlInstalls() {
		if in.Family == kind.family() && in.Series() == kind.series() {
			report(t, "test", kind.title(), t.Name())
			return
		}
	}
	missing(t, kind.title())
}

// mysqlInstalls looks once for what the machine has.
var mysqlInstalls = sync.OnceValue(func() []localserver.MySQLInstall {
	return localserver.FindMySQL(context.Background())
})

func startMySQL(kind Kind, settings map[string]string) (*localserver.MySQL, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return localserver.StartMySQL(ctx, localserver.MySQLOptions{
		Family: kind.family(), Series: kind.series(), Settings: settings,
	})
}

// sharedMySQL belongs to the test binary, as shared does.
var sharedMySQL = servers[Kind, *localserver.MySQL]{by: map[Kind]*localserver.MySQL{}}

// sharedMySQLSettings make room for many tests at once and trade durability,
// which a shared server never has to show, for speed. Metadata is full, as the reader
// recommends: without it rows around an ALTER TABLE may be left to the poller.
var sharedMySQLSettings = map[string]string{
	"innodb_flush_log_at_trx_commit": "0",
	"binlog_row_metadata":            "FULL",
	"sync_binlog":                    "0",
	"innodb_doublewrite":             "OFF",
	"innodb_buffer_pool_size":        "64M",
	"performance_schema":             "OFF",
	"max_connections":                "300",
}

func sharedMySQLServer(t testing.TB, kind Kind) *localserver.MySQL {
	t.Helper()
	requireKind(t, kind)
	server, err := sharedMySQL.get(kind, func() (*localserver.MySQL, error) {
		server, err := startMySQL(kind, sharedMySQLSettings)
		if err == nil {
			announceMySQL(t, kind, "shared", server)
		}
		return server, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return server
}
