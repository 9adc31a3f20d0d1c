package doctor

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

// myPatient is a server set up as its administrator would: the user app owns nothing.
type myPatient struct {
	*testing.T
	kind   testdb.Kind
	server *localserver.MySQL
	root   *stdsql.DB
	cfg    MySQLConfig
}

// mySettings leave nothing to find.
var mySettings = map[string]string{
	"binlog_row_metadata": "FULL",
	"max_allowed_packet":  "64M",
	"max_connections":     "60",
}

func eachMyPatient(t *testing.T, fn func(p *myPatient)) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		server := testdb.DedicatedMySQL(t, kind, mySettings)
		p := &myPatient{T: t, kind: kind, server: server}
		p.root = p.pool("root", "", "")
		p.exec("SET GLOBAL sync_binlog = 1", "CREATE USER app@'%' IDENTIFIED BY 'hunter2'",
			"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO app@'%'")
		if kind.IsMariaDB() {
			p.exec("SET GLOBAL gtid_strict_mode = ON")
		}
		p.cfg = MySQLConfig{
			Config:  Config{Table: schema.Eventlog("")},
			Address: fmt.Sprintf("%s:%d", server.Host(), server.Port()), ServerID: 4711,
		}
		p.migrate()
		p.exec("GRANT SELECT, INSERT, UPDATE ON eventlog.* TO app@'%'")
		p.cfg.Pool = p.pool("app", "hunter2", "")
		fn(p)
	})
}

func (p *myPatient) pool(user, password, database string) *stdsql.DB {
	p.Helper()
	cfg := p.server.Config(database)
	cfg.User, cfg.Passwd = user, password
	mysql.PoolConfig(cfg)
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		p.Fatal(err)
	}
	pool := stdsql.OpenDB(connector)
	pool.SetMaxIdleConns(0) // settings of a server reach new sessions only
	p.Cleanup(func() { _ = pool.Close() })
	return pool
}

func (p *myPatient) exec(statements ...string) {
	p.Helper()
	for _, s := range statements {
		if _, err := p.root.ExecContext(context.WithoutCancel(p.Context()), s); err != nil {
			p.Fatalf("%v\nin: %s", err, s)
		}
	}
}

func (p *myPatient) migrate() {
	p.Helper()
	m, err := migrate.MySQL(p.root, migrate.Options{})
	if err != nil {
		p.Fatal(err)
	}
	if _, err := m.Up(p.Context()); err != nil {
		p.Fatal(err)
	}
}

const myInsert = `INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
	event_type, payload, event_date, delivered)
	VALUES (uuid(), 'n', uuid(), 'a', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'order.placed', '{}', UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, false)`

// myIllness is one finding: how it comes about, and whether its own statements cure it.
type myIllness struct {
	code   string
	status Status
	// only is "mysql" or "mariadb", empty for both.
	only  string
	cause []string
	// cfg changes the configuration.
	cfg func(*MySQLConfig)
	// cured says that the printed statements mend it; cure is what does when they do not.
	cured bool
	cure  []string
	// says is a part of the finding.
	says string
}

var myIllnesses = []myIllness{
	{code: codeConnect, status: Fail, cause: []string{"ALTER USER app@'%' IDENTIFIED BY 'other'"}, cure: []string{"ALTER USER app@'%' IDENTIFIED BY 'hunter2'"}, says: "check user, password"},
	{code: codePrimary, status: Fail, cause: []string{"SET GLOBAL read_only = ON"}, cured: true, says: "read_only = ON"},
	{code: codeConnections, status: Warn, cause: []string{"SET GLOBAL max_connections = 15"}, cured: true, says: "few connections"},
	{code: codeTable, status: Fail, cause: []string{"RENAME TABLE eventlog.events TO eventlog.away"}, cure: []string{"RENAME TABLE eventlog.away TO eventlog.events"}, says: "migrate up"},
	{code: codeTable, status: Fail, cause: []string{"DROP INDEX events_pending_fanout ON eventlog.events", "ALTER TABLE eventlog.events ENGINE = MyISAM"}, cured: true,
		cure: []string{"CREATE INDEX events_pending_fanout ON eventlog.events (delivered, event_type, event_date)"}, says: "not transactional"},
	{code: codeTable, status: Warn, only: "mariadb", cause: []string{"ALTER TABLE eventlog.events MODIFY traceparent TEXT COMPRESSED"}, cured: true, says: "traceparent"},
	{code: codePrivileges, status: Fail, cause: []string{"REVOKE INSERT, UPDATE ON eventlog.* FROM app@'%'"}, cured: true, says: "GRANT UPDATE (`delivered`) ON `eventlog`.`events` TO 'app'@'%'"},
	{code: codeMigrations, status: Fail, cause: []string{"DELETE FROM eventlog.cdc_dispatcher_migrations WHERE version = 3"},
		cure: []string{"INSERT INTO eventlog.cdc_dispatcher_migrations VALUES (3, UTC_TIMESTAMP(6))"}, says: "0003_indexes.sql"},
	{code: codeColumns, status: Fail, cause: []string{"ALTER TABLE eventlog.event_notifications DROP COLUMN lease_owner, DROP INDEX event_notifications_claim"}, cured: true, says: "event_notifications.lease_owner"},
	{code: codeColumns, status: Warn, cause: []string{"ALTER TABLE eventlog.event_notifications MODIFY handler_name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"},
		cured: true, says: "utf8mb4_general_ci"},
	{code: codeColumns, status: Fail, cfg: func(c *MySQLConfig) { c.Table.Columns.Payload = "no_such_column" }, says: "no_such_column"},
	{code: codePollIndex, status: Warn, cause: []string{"DROP INDEX events_pending_fanout ON eventlog.events"}, cured: true, says: "reads the whole event table"},
	{code: codePacket, status: Warn, cause: []string{"SET GLOBAL max_allowed_packet = 1048576"}, cured: true, says: "max_allowed_packet = 1048576"},
	{code: codeFormat, status: Fail, cause: []string{"SET GLOBAL binlog_format = 'STATEMENT'"}, cured: true, says: "nothing is delivered"},
	{code: codeReplicaRole, status: Fail, cause: []string{"REVOKE REPLICATION SLAVE, REPLICATION CLIENT ON *.* FROM app@'%'"}, cured: true, says: "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'app'@'%'"},
	{code: codeServerID, status: Fail, cause: []string{"SET GLOBAL server_id = 4711"}, cure: []string{"SET GLOBAL server_id = 1"}, says: "mysql.server_id"},
	{code: codeGTID, status: Warn, only: "mariadb", cause: []string{"SET GLOBAL gtid_strict_mode = OFF"}, cured: true, says: "gtid_strict_mode = OFF"},
	{code: codeGTID, status: Warn, only: "mysql", cause: []string{"SET GLOBAL gtid_mode = ON_PERMISSIVE", "SET GLOBAL gtid_mode = OFF_PERMISSIVE", "SET GLOBAL gtid_mode = OFF", "SET GLOBAL enforce_gtid_consistency = OFF"}, cured: true, says: "gtid_mode = OFF"},
	{code: codeRowImage, status: Warn, cause: []string{"SET GLOBAL binlog_row_image = 'MINIMAL'"}, cured: true, says: "MINIMAL"},
	{code: codeMetadata, status: Warn, cause: []string{"SET GLOBAL binlog_row_metadata = 'MINIMAL'"}, cured: true, says: "MINIMAL"},
	{code: codeRetention, status: Warn, cause: []string{"SET GLOBAL binlog_expire_logs_seconds = 3600"}, cured: true, says: "less than a day"},
	{code: codeDurable, status: Warn, cause: []string{"SET GLOBAL sync_binlog = 0"}, cured: true, says: "sync_binlog = 0"},
	{code: codeUndelivered, status: Warn, cause: []string{myInsert,
		"INSERT INTO eventlog.handlers (name, aliases, types, generation, last_owner, last_seen, created_date) VALUES ('h', '[]', '[\"*\"]', 1, 'o', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"},
		cure: []string{"DELETE FROM eventlog.events", "DELETE FROM eventlog.handlers"}, says: "start the dispatcher"},
	{code: codeGaps, status: Warn, cause: []string{"INSERT INTO eventlog.gaps (source, reason, detail, from_position, to_position, detected_date) VALUES ('shop', 'purged', 'd', '', '', UTC_TIMESTAMP(6))"},
		cure: []string{"DELETE FROM eventlog.gaps"}, says: "shop: purged"},
}

// TestMySQLFindings: a healthy server has none; each illness is found, and cured by the statements
// that the finding prints, run as they are.
func TestMySQLFindings(t *testing.T) {
	eachMyPatient(t, func(p *myPatient) {
		if found := findings(RunMySQL(p.Context(), p.cfg)); len(found) != 0 {
			p.Fatalf("a healthy server has %+v", found)
		}
		for _, ill := range myIllnesses {
			if ill.only != "" && (ill.only == "mariadb") != p.kind.IsMariaDB() {
				continue
			}
			p.catch(ill)
		}
		p.longTransaction()
		p.filtered()
	})
}

func (p *myPatient) catch(ill myIllness) {
	cfg := p.cfg
	if ill.cfg != nil {
		ill.cfg(&cfg)
	}
	p.exec(ill.cause...)
	report := RunMySQL(p.Context(), cfg)
	found := result(report, ill.code)
	text := found.Message + " " + found.Value + " " + strings.Join(found.Fix, "; ") + " " + found.Hint
	if found.Status != ill.status || !strings.Contains(text, ill.says) {
		p.Errorf("%s after %q: %+v", ill.code, ill.cause, found)
	}
	for _, other := range findings(report) {
		if other.Code != ill.code {
			p.Errorf("after %q there is another finding: %+v", ill.cause, other)
		}
		if strings.Contains(fmt.Sprint(other), "hunter2") {
			p.Errorf("a secret is shown: %+v", other)
		}
	}
	if ill.cured {
		p.exec(found.Fix...)
	}
	p.exec(ill.cure...)
	if found := findings(RunMySQL(p.Context(), p.cfg)); len(found) != 0 {
		p.Fatalf("%s is not cured by %q: %+v", ill.code, found[0].Fix, found)
	}
}

func result(r Report, code string) Result {
	for _, res := range r.Results {
		if res.Code == code {
			return res
		}
	}
	return Result{}
}

// filtered restarts the server with a filter.
func (p *myPatient) filtered() {
	if err := p.server.Stop(p.Context()); err != nil {
		p.Fatal(err)
	}
	if err := p.server.Configure(map[string]string{"binlog_ignore_db": "eventlog"}); err != nil {
		p.Fatal(err)
	}
	if err := p.server.Start(p.Context()); err != nil {
		p.Fatal(err)
	}
	if found := OnlyMySQL(p.Context(), p.cfg, codeFilters); found.Status != Fail {
		p.Errorf("an ignored database: %+v", found)
	}
}

// TestMySQLWithoutABinlog: what is said when log_bin is off, which only a server that was
// started so shows.
func TestMySQLWithoutABinlog(t *testing.T) {
	s := &mySession{vars: map[string]string{"log_bin": "OFF"}}
	if found, err := s.binlog(t.Context()); err != nil || found.Status != Fail || !strings.Contains(found.Hint, "log_bin = binlog") {
		t.Errorf("%+v, %v", found, err)
	}
}

// longTransaction needs a right that the user does not have by itself.
func (p *myPatient) longTransaction() {
	tx, err := p.root.BeginTx(p.Context(), nil)
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(p.Context(), myInsert); err != nil {
		p.Fatal(err)
	}
	cfg := p.cfg
	cfg.LongTransaction = time.Second
	if found := OnlyMySQL(p.Context(), cfg, codeTransactions); found.Status != OK || !strings.Contains(found.Value, "PROCESS") {
		p.Errorf("without the right: %+v", found)
	}
	p.exec("GRANT PROCESS ON *.* TO app@'%'")
	var found Result
	testdb.WaitFor(p, "the transaction to be old", func() bool {
		found = OnlyMySQL(p.Context(), cfg, codeTransactions)
		return found.Status == Warn
	})
	if len(found.Fix) != 1 || !strings.HasPrefix(found.Fix[0], "KILL ") {
		p.Errorf("found %+v", found)
	}
	p.exec(found.Fix...)
}

// TestMySQLLogElsewhere: the binlog of another server is none of this source's.
func TestMySQLLogElsewhere(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := testdb.MySQL(t, kind)
		other := testdb.MariaDB118
		if kind == other {
			other = testdb.MySQL97
		}
		elsewhere := testdb.MySQL(t, other)
		cfg := MySQLConfig{Config: Config{Table: schema.Eventlog(db.Name()), Schema: db.Name()}, Pool: db.Pool(), Log: elsewhere.Pool(), Address: "db:3306", ServerID: 4711}
		if found := OnlyMySQL(t.Context(), cfg, codeLogServer); found.Status != Fail || !strings.Contains(found.Message, "another server") {
			t.Errorf("found %+v", found)
		}
		cfg.Log = db.Pool()
		if found := OnlyMySQL(t.Context(), cfg, codeLogServer); found.Status != OK {
			t.Errorf("found %+v", found)
		}
	})
}

// What took too long to look at is not in order for that.
func TestMySQL_AnIncompleteOverviewIsNoGoodNews(t *testing.T) {
	s := &mySession{overview: &admin.Overview{Incomplete: []string{"undelivered", "gaps"}}}
	if f, err := s.undelivered(t.Context()); err != nil || f.Status != Warn {
		t.Errorf("undelivered: %+v, %v", f, err)
	}
	if f, err := s.gaps(t.Context()); !errors.Is(err, admin.ErrSlow) {
		t.Errorf("gaps: %+v, %v", f, err)
	}
}
