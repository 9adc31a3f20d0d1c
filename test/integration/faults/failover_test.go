package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// The servers of this file replicate synchronously, because what a server loses that has
// answered a COMMIT is lost before it could be anybody's event.

// The primary dies under load and its physical standby is promoted. With failover slots (17
// and later) the log is read on; without, a new slot is made, and the table is swept. Then
// the new primary waits for a standby that never comes: the log stands still, and the poller
// delivers (B29, B30).
func TestFailover_Postgres(t *testing.T) {
	binary := testbed.Build(t)
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		slots := major >= 17
		primary := testdb.Dedicated(t, major, postgresSettings())
		app := faultproxy.New(t, fmt.Sprintf("%s:%d", primary.Host(), primary.Port()))
		db := postgres{testbed.NewPostgres(t, primary, elsewhere(primary.DSN("postgres"), app.Addr())), slots}
		a := newArena(t, db, binary, seedOf(t))

		a.exec(`SELECT pg_create_physical_replication_slot('standby', true)`)
		settings := map[string]string{
			"primary_conninfo":  primary.DSN("postgres") + "&application_name=standby",
			"primary_slot_name": "standby",
		}
		if slots {
			settings["hot_standby_feedback"], settings["sync_replication_slots"] = "on", "on"
		}
		standby := testdb.Standby(t, primary, settings)
		a.alterSystem("synchronous_standby_names", "standby")
		if slots {
			a.alterSystem("synchronized_standby_slots", "standby")
		}
		a.populate(2)
		end := a.write()
		a.pass(100)
		if slots {
			testdb.WaitFor(t, "the slot to reach the standby", func() bool {
				return ask(t, standby, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary`, testbed.SlotName) == 1
			})
		}
		a.pass(100)

		began := time.Now()
		if err := primary.Kill(); err != nil {
			t.Fatal(err)
		}
		if ask(t, standby, `SELECT pg_promote()::int`) != 1 {
			t.Fatal("the standby was not promoted")
		}
		db.Server = standby
		a.db = db
		a.moved(app)
		db.Pool.Reset()
		a.outage(began, reconnect)
		a.injected = append(a.injected, "primary lost, standby promoted")
		a.pass(50)
		testdb.WaitFor(t, "the log of the new primary to be read", func() bool { return db.Streaming(t.Context()) })

		if slots {
			a.alterSystem("synchronized_standby_slots", "dead")
			a.injected = append(a.injected, "waits for a dead standby")
			a.pass(100)
			a.ended(a.lastCommitted())
			a.alterSystem("synchronized_standby_slots", "")
		}
		a.pass(50)
		end()
		a.finish(time.Now())
	})
}

// A server that replicates semi-synchronously dies under load and its replica is promoted,
// with a UUID, a server id and, on MariaDB, a domain of its own; the old ones are idle from
// then on (M16). The position is in the database: the log is read on from there, without a gap.
func TestFailover_MySQL(t *testing.T) {
	binary := testbed.Build(t)
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		settings := map[string]string{"max-connections": connections, "log-slave-updates": "ON"}
		primary := testdb.DedicatedMySQL(t, kind, settings)
		if kind.IsMariaDB() {
			settings["gtid-domain-id"] = "7"
		}
		replica := testdb.DedicatedMySQL(t, kind, settings)
		app := faultproxy.New(t, primary.Config("").Addr)
		old, next := rootOf(t, primary), rootOf(t, replica)
		for _, statement := range semiSync(kind) {
			old.exec(statement) // before the replica comes and says that it can
		}
		for _, statement := range replicate(kind, primary) {
			next.exec(statement)
		}
		db := mysql{testbed.NewMySQL(t, kind, primary, app.Addr())}
		a := newArena(t, db, binary, seedOf(t))
		a.populate(2)
		end := a.write()
		a.pass(200)
		testdb.WaitFor(t, "the log to be read", func() bool { return db.Streaming(t.Context()) })
		a.pass(50)

		if kind.IsMariaDB() {
			old.isOn("rpl_semi_sync_master_status")
		} else {
			old.isOn("Rpl_semi_sync_source_status")
		}
		began := time.Now()
		if err := primary.Kill(); err != nil {
			t.Fatal(err)
		}
		next.promote(kind)
		db.Server = replica
		a.moved(app)
		a.outage(began, reconnect)
		a.injected = append(a.injected, "primary lost, replica promoted")
		a.pass(100)
		testdb.WaitFor(t, "the log of the new primary to be read", func() bool { return db.Streaming(t.Context()) })
		a.pass(50)
		end()
		a.finish(time.Now())
		if n := a.number(countGaps); n != 0 {
			t.Errorf("%d gaps are recorded, want none: the replica has the whole log", n)
		}
	})
}

// replicate makes a new server a replica.
func replicate(kind testdb.Kind, primary *localserver.MySQL) []string {
	if kind.IsMariaDB() {
		return []string{
			"SET GLOBAL rpl_semi_sync_slave_enabled = ON",
			fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %d, MASTER_USER = 'root', MASTER_USE_GTID = slave_pos", primary.Host(), primary.Port()),
			"START SLAVE",
		}
	}
	return []string{
		"INSTALL PLUGIN rpl_semi_sync_replica SONAME 'semisync_replica.so'",
		"SET GLOBAL rpl_semi_sync_replica_enabled = ON",
		fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '%s', SOURCE_PORT = %d, SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
			primary.Host(), primary.Port()),
		"START REPLICA",
	}
}

// semiSync makes a primary answer a COMMIT only after its replica has it, and show it to nobody before.
func semiSync(kind testdb.Kind) []string {
	if kind.IsMariaDB() {
		return []string{
			"SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'",
			"SET GLOBAL rpl_semi_sync_master_timeout = 60000",
			"SET GLOBAL rpl_semi_sync_master_enabled = ON",
		}
	}
	return []string{
		"INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'",
		"SET GLOBAL rpl_semi_sync_source_timeout = 60000",
		"SET GLOBAL rpl_semi_sync_source_enabled = ON",
	}
}

// root is a superuser's way straight to one server.
type root struct {
	t  testing.TB
	db *sql.DB
}

func rootOf(t testing.TB, server *localserver.MySQL) root {
	t.Helper()
	db, err := sql.Open("mysql", server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the server may be gone
	return root{t, db}
}

func (r root) exec(statement string) {
	r.t.Helper()
	if _, err := r.db.ExecContext(r.t.Context(), statement); err != nil {
		r.t.Fatalf("%v\nin: %s", err, statement)
	}
}

// isOn fails the test when a status is not ON: a primary that waited in vain for its replica
// goes on without it.
func (r root) isOn(status string) {
	r.t.Helper()
	var name, value string
	if err := r.db.QueryRowContext(r.t.Context(), "SHOW GLOBAL STATUS LIKE '"+status+"'").Scan(&name, &value); err != nil || value != "ON" {
		r.t.Fatalf("%s is %q, want ON: %v", status, value, err)
	}
}

// promote lets a replica apply what it has received, and makes it a primary.
func (r root) promote(kind testdb.Kind) {
	r.t.Helper()
	if !kind.IsMariaDB() {
		r.exec("STOP REPLICA IO_THREAD")
		var ok sql.NullInt64
		if err := r.db.QueryRowContext(r.t.Context(), `SELECT WAIT_FOR_EXECUTED_GTID_SET(received_transaction_set)
			FROM performance_schema.replication_connection_status`).Scan(&ok); err != nil || ok.Int64 != 0 {
			r.t.Fatalf("the replica does not apply what it has received: %v, %v", ok, err)
		}
		r.exec("STOP REPLICA")
		r.exec("RESET REPLICA ALL")
		return
	}
	r.exec("STOP SLAVE IO_THREAD")
	received, err := r.slaveStatus("Gtid_IO_Pos")
	if err != nil {
		r.t.Fatal(err)
	}
	var done int
	if err := r.db.QueryRowContext(r.t.Context(), `SELECT MASTER_GTID_WAIT(?)`, received).Scan(&done); err != nil || done != 0 {
		r.t.Fatalf("the replica does not apply what it has received: %d, %v", done, err)
	}
	r.exec("STOP SLAVE")
	r.exec("RESET SLAVE ALL")
}

// slaveStatus reads one field of MariaDB's only way to ask.
func (r root) slaveStatus(field string) (value string, err error) {
	rows, err := r.db.QueryContext(r.t.Context(), "SHOW SLAVE STATUS")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	into := make([]any, len(columns))
	for i, name := range columns {
		if into[i] = new(sql.RawBytes); name == field {
			into[i] = &value
		}
	}
	if rows.Next() {
		err = rows.Scan(into...)
	}
	return value, errors.Join(err, rows.Err())
}

// ask reads a number straight from a server.
func ask(t testing.TB, server *localserver.Postgres, query string, args ...any) (n int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }() // nothing is left in it
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
	return n
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed, _ := settings(t)
	t.Logf("seed %d", seed)
	return seed
}

func (a *arena) exec(statement string) {
	a.t.Helper()
	if err := a.db.Exec(a.t.Context(), statement); err != nil {
		a.t.Fatalf("%v\nin: %s", err, statement)
	}
}

// alterSystem changes a setting of a PostgreSQL server.
func (a *arena) alterSystem(name, value string) {
	a.t.Helper()
	a.exec(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value))
	a.exec("SELECT pg_reload_conf()")
}

// moved leads everybody to where the server is now.
func (a *arena) moved(app *faultproxy.Proxy) {
	a.primaryLost = true
	ways := []*faultproxy.Proxy{app}
	for _, p := range a.processes {
		ways = append(ways, p.pool, p.log)
	}
	for _, way := range ways {
		way.Redirect(a.db.target())
		way.Cut()
	}
}

// lastCommitted is one of the latest events.
func (a *arena) lastCommitted() (id string) {
	var at time.Time
	for _, e := range a.writers.Snapshot().Committed {
		if e.At.After(at) {
			id, at = e.ID, e.At
		}
	}
	return id
}

// ended waits until both deliveries of an event have succeeded.
func (a *arena) ended(id string) {
	a.t.Helper()
	testdb.WaitFor(a.t, "the deliveries of "+id, func() bool {
		return a.number(`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED' AND event_id = '`+id+`'`) == 2
	})
}
