package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin/admintest"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/migrate"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

func TestAdmin(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		server := admintest.Server{Open: func(t *testing.T, l admintest.Layout) admintest.Backend {
			o := open(t, kind, l, mysql.PoolConfig)
			return admintest.Backend{
				Store: o.store, Table: o.table, Hooks: o,
				NewAdmin: func(cfg admin.Config) admintest.Admin { return mysql.NewAdmin(o.store, cfg) },
			}
		}}
		columns := schema.Columns{ID: "id", Type: "kind", Payload: "body", Date: "at", ModelID: "ref"}
		plain := schema.Columns{ID: "id", Type: "kind", Payload: "body"}
		server.Layouts = []admintest.Layout{
			{Name: "eventlog", Payload: `{"total": 1}`},
			{Name: "debezium", Payload: `{"total": 1}`, Table: schema.Debezium("-", "outboxevent")},
			{Name: "counted, status and zone", Payload: `{"b":1,  "a":2}`,
				Table: schema.Custom("-", "Out `Box`", columns, schema.Mark{Kind: schema.MarkStatus, Column: "status", At: "status_at"})},
			{Name: "text key and bytes", Payload: `<a>é</a>`, NullDates: true,
				Table: schema.Custom("-", "outbox", columns, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"})},
			{Name: "binary key, enum type, no date, no mark", Payload: `{"total":1}`, Table: schema.Custom("-", "outbox", plain, schema.Mark{})},
			{Name: "counted, no mark", Payload: `{"total": 1}`, Table: schema.Custom("-", "outbox", columns, schema.Mark{})},
		}
		server.Loose = admintest.Layout{Name: "loose", Payload: `{}`,
			Table: schema.Custom("-", "outbox", plain, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"})}
		admintest.Run(t, server)
	})
}

// ddl makes the event table of a layout.
func ddl(layout string) string {
	switch layout {
	case "debezium":
		return `CREATE TABLE outboxevent (id CHAR(36) PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL DEFAULT '',
			aggregateid VARCHAR(255) NOT NULL DEFAULT '', type VARCHAR(255) NOT NULL, payload JSON)`
	case "counted, status and zone":
		return "CREATE TABLE `Out ``Box``` (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, kind VARCHAR(40) NOT NULL, body LONGTEXT, " +
			"at TIMESTAMP(6) NOT NULL, ref TEXT, status VARCHAR(20) NOT NULL, status_at TIMESTAMP NULL) CHARACTER SET utf8mb4"
	case "text key and bytes":
		return `CREATE TABLE outbox (id VARCHAR(60) CHARACTER SET latin1 PRIMARY KEY, kind VARCHAR(255) CHARACTER SET latin1 NOT NULL, body BLOB, at DATETIME, ref TEXT, sent BOOLEAN NOT NULL)`
	case "binary key, enum type, no date, no mark":
		return `CREATE TABLE outbox (id BINARY(16) PRIMARY KEY, kind ENUM ('order.placed', 'order.cancelled') NOT NULL, body TEXT)`
	case "counted, no mark":
		return `CREATE TABLE outbox (id INT AUTO_INCREMENT PRIMARY KEY, kind TEXT NOT NULL, body JSON, at DATETIME(6) NOT NULL, ref TEXT)`
	case "loose":
		return `CREATE TABLE outbox (id INT, kind TEXT, body JSON, sent BOOLEAN)`
	default:
		return ""
	}
}

// office is a migrated database with a store. It implements admintest.Hooks.
type office struct {
	*testdb.MyDB
	store *mysql.Store
	table schema.Table
}

// open makes a database with our tables and the layout's event table, in one schema.
func open(t *testing.T, kind testdb.Kind, l admintest.Layout, configure func(*driver.Config)) *office {
	t.Helper()
	db := testdb.MySQL(t, kind)
	if sql := ddl(l.Name); sql != "" {
		db.Exec(sql)
	}
	if l.Table.Name == "" {
		l.Table = schema.Eventlog("")
	}
	l.Table.Schema = db.Name()
	m, err := migrate.MySQL(db.Pool(), migrate.Options{Schema: db.Name(), Table: l.Table})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	store, err := mysql.New(newPool(t, db, 4, configure), mysql.Config{Schema: db.Name(), Table: l.Table})
	if err != nil {
		t.Fatal(err)
	}
	return &office{db, store, l.Table}
}

// newPool opens another pool on the database.
func newPool(t *testing.T, db *testdb.MyDB, most int, configure func(*driver.Config)) *sql.DB {
	t.Helper()
	cfg, err := driver.ParseDSN(db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	configure(cfg)
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { _ = pool.Close() }) // its sessions are ended by the database's cleanup anyway
	pool.SetMaxOpenConns(most)
	return pool
}

func (o *office) Reset(testing.TB) {
	for _, table := range []string{"event_notifications", "event_notification_attempts", "handlers", "sources", "gaps", "audit_log", o.events()} {
		o.exec("DELETE FROM " + table)
	}
}

// exec runs a statement on the shared pool, which costs less than a connection for each.
func (o *office) exec(query string, args ...any) {
	if _, err := o.Pool().Exec(query, args...); err != nil {
		panic(fmt.Sprintf("%v\nin: %s", err, query))
	}
}

func (o *office) Now(t testing.TB) time.Time {
	now, err := time.Parse("2006-01-02 15:04:05.999999", value[string](t, o, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)"))
	if err != nil {
		t.Fatal(err)
	}
	return now
}

func (o *office) PutDelivery(_ testing.TB, id uuid.UUID, r admintest.Row) {
	claims := &r.Claims
	if r.Foreign {
		claims = nil
	}
	o.exec(`INSERT INTO event_notifications (id, event_id, handler_name, namespace, action_id, action_name, action_params,
			started_date, completion_date, model_id, model_type, event_type, payload, event_date, state, attempts, next_retry_at,
			created_date, updated_date, claim_count, reason, last_error, lease_token, lease_until, lease_owner, finished_date)
		SELECT ?, ?, ?, 'n', ?, 'a', '{"x": 1}', t.now, t.now, 'o-7', 'Order', ?, '{"total": 1}',
			t.now - INTERVAL ? MICROSECOND, ?, ?, t.now + INTERVAL ? MICROSECOND, t.now - INTERVAL ? MICROSECOND, t.now, ?, NULLIF(?, ''), NULLIF(?, ''),
			IF(? <> 0, ?, NULL), IF(? <> 0, t.now + INTERVAL ? MICROSECOND, NULL), IF(? <> 0, 'worker', NULL),
			IF(? IN ('SUCCEEDED', 'DEAD', 'EXPIRED', 'DISCARDED'), t.now, NULL)
		FROM (SELECT UTC_TIMESTAMP(6) AS now) t`,
		id.String(), r.Event.String(), r.Handler, r.Event.String(), r.Type,
		r.Age.Microseconds(), string(r.State), r.Attempts, r.Due.Microseconds(), r.Age.Microseconds(), claims, r.Reason, r.LastError,
		r.Leased.Microseconds(), uuid.NewString(), r.Leased.Microseconds(), r.Leased.Microseconds(), r.Leased.Microseconds(), string(r.State))
}

func (o *office) PutAttempt(_ testing.TB, id uuid.UUID, a admin.Attempt) {
	o.exec(`INSERT INTO event_notification_attempts (delivery_id, attempt, outcome, reason, error, message, started_date, duration_us)
		VALUES (?, ?, ?, NULLIF(?, ''), NULLIF(?, ''), NULLIF(?, ''), ?, ?)`,
		id.String(), a.Attempt, a.Outcome, a.Reason, a.Error, a.Message, a.Started.Format("2006-01-02 15:04:05.999999"), a.Took.Microseconds())
}

func (o *office) SetRawPayload(_ testing.TB, id uuid.UUID, payload []byte) {
	o.exec("UPDATE event_notifications SET payload = NULL, payload_raw = ? WHERE id = ?", payload, id.String())
}

func (o *office) KillDeliveries(testing.TB) {
	o.exec("UPDATE event_notifications SET state = 'DEAD', claim_count = 1")
}

// session runs a statement on a connection of its own, which end gives back after another.
func (o *office) session(t testing.TB, last string, statements ...string) (end func()) {
	conn, err := o.Pool().Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		if _, err := conn.ExecContext(context.Background(), last); err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	for _, s := range statements {
		if _, err := conn.ExecContext(context.Background(), s); err != nil {
			t.Fatal(err)
		}
	}
	return end
}

func (o *office) LeaseUncommitted(t testing.TB, id uuid.UUID) (commit func()) {
	return o.session(t, "COMMIT", "BEGIN", fmt.Sprintf(`UPDATE event_notifications SET lease_token = '%s', lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR
		WHERE id = '%s'`, uuid.NewString(), id))
}

func (o *office) Waiting(t testing.TB) bool {
	// information_schema.innodb_trx would show an old picture to who asks often.
	var name string
	var waits int
	if err := o.Pool().QueryRow("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'").Scan(&name, &waits); err != nil {
		t.Fatal(err)
	}
	return waits > 0
}

func (o *office) LockDeliveries(t testing.TB) (unlock func()) {
	return o.session(t, "UNLOCK TABLES", "LOCK TABLES event_notifications WRITE")
}

func (o *office) PutEvents(_ testing.TB, e admintest.EventRow) {
	for range e.Rows {
		o.exec(`INSERT INTO events (id, namespace, action_id, action_name, action_params, started_date, completion_date,
				event_type, payload, event_date, delivered)
			SELECT ?, 'n', ?, 'a', '{}', t.now, t.now, NULLIF(?, ''), '{}', t.now - INTERVAL ? MICROSECOND, ? FROM (SELECT UTC_TIMESTAMP(6) AS now) t`,
			uuid.NewString(), uuid.NewString(), e.Type, e.Age.Microseconds(), e.Delivered)
	}
}

func (o *office) PutLoose(_ testing.TB, key *int, typ *string, delivered bool) {
	o.exec("INSERT INTO outbox VALUES (?, ?, '{}', ?)", key, typ, delivered)
}

// events is the quoted name of the event table.
func (o *office) events() string { return "`" + strings.ReplaceAll(o.table.Name, "`", "``") + "`" }

func (o *office) DateEvents(t testing.TB, at time.Time) {
	// In a zone of its own: a TIMESTAMP follows the session's.
	date := "NULL"
	if !at.IsZero() {
		date = at.Format("'2006-01-02 15:04:05.999999'")
	}
	o.session(t, "SET time_zone = DEFAULT", "SET time_zone = '+00:00'",
		fmt.Sprintf("UPDATE %s SET %s = %s", o.events(), o.table.Columns.Date, date))()
}

func (o *office) DeleteEvents(testing.TB) { o.exec("DELETE FROM " + o.events()) }

func (o *office) AuditLog(t testing.TB) (lines []admintest.AuditLine) {
	rows, err := o.Pool().Query("SELECT actor, action, target, COALESCE(reason, ''), affected, detail FROM audit_log ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var l admintest.AuditLine
		var detail []byte
		if err := rows.Scan(&l.Actor, &l.Action, &l.Target, &l.Reason, &l.Affected, &detail); err != nil {
			t.Fatal(err)
		}
		l.Detail = detail
		lines = append(lines, l)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func (o *office) RefuseAudit(_ testing.TB, actor string) (allow func()) {
	o.exec("ALTER TABLE audit_log ADD CONSTRAINT refused CHECK (actor <> '" + actor + "')")
	return func() { o.exec("ALTER TABLE audit_log DROP CONSTRAINT refused") }
}

// value reads one value.
func value[T any](t testing.TB, o *office, query string, args ...any) (v T) {
	t.Helper()
	if err := o.Pool().QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
	return v
}
