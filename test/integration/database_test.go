package integration

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// slotName is the slot and publication of every dispatcher under test.
const slotName = testbed.SlotName

// postgres and mysql are the kinds of database.
type (
	postgres = testbed.Postgres
	mysql    = testbed.MySQL
)

// eachDatabase runs fn as one subtest per kind and version of server, each with a
// fresh database on a shared server. The servers are tested at the same time, because most of a
// test is waiting, but never two tests on one server.
func eachDatabase(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	eachPostgres(t, fn)
	eachMySQL(t, fn)
}

// eachServer is eachDatabase with a server of the test's own.
func eachServer(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	eachPostgresServer(t, nil, fn)
	eachMySQLServer(t, nil, fn)
}

// eachPostgres runs fn with a fresh database on the shared server of each version.
func eachPostgres(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		db := testdb.Postgres(t, major)
		fn(t, newWorld(t, &postgres{Server: db.Server(), URL: db.DSN(), Pool: db.Pool()}))
	})
}

// eachPostgresServer does the same on servers of the test's own.
func eachPostgresServer(t *testing.T, settings map[string]string, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		fn(t, newWorld(t, testbed.OwnPostgres(t, major, settings)))
	})
}

// eachMySQL runs fn with a fresh database on the shared server of each kind.
func eachMySQL(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		db := testdb.MySQL(t, kind)
		fn(t, newWorld(t, &mysql{Kind: kind, Server: db.Server(), Name: db.Name(), Pool: db.Pool()}))
	})
}

// eachMySQLServer does the same on servers of the test's own.
func eachMySQLServer(t *testing.T, settings map[string]string, fn func(t *testing.T, w *world)) {
	t.Helper()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		fn(t, newWorld(t, testbed.OwnMySQL(t, kind, settings)))
	})
}

// senderTimeout sets wal_sender_timeout for every later replication session of this
// database; the reader answers twice in that time.
func (w *world) senderTimeout(d time.Duration) {
	w.t.Helper()
	w.alterDatabase(fmt.Sprintf("wal_sender_timeout = %d", d.Milliseconds()))
}

// alterDatabase changes a setting for every later session of the database.
func (w *world) alterDatabase(setting string) {
	w.t.Helper()
	w.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET ` + setting + `', current_database()); END $$`)
}

// throughPostgres is the database's DSN through a new proxy.
func (w *world) throughPostgres() (*faultproxy.Proxy, string) {
	w.t.Helper()
	server := w.postgres().Server
	proxy := faultproxy.New(w.t, net.JoinHostPort(server.Host(), strconv.Itoa(server.Port())))
	u, err := url.Parse(w.db.DSN())
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = proxy.Addr()
	return proxy, u.String()
}

// reachedBy is a database that dispatchers reach in another way.
type reachedBy struct {
	testbed.Database
	dsn string
}

// DSN implements testbed.Database.
func (r reachedBy) DSN() string { return r.dsn }
