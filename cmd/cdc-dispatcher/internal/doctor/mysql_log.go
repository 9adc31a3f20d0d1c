package doctor

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

func (s *mySession) binlog(context.Context) (Finding, error) {
	if s.on("log_bin") {
		return Finding{Status: OK, Message: "the server writes a binlog", Value: s.vars["log_bin_basename"]}, nil
	}
	f := Finding{Status: Fail, Message: "the server writes no binlog: the poller delivers alone", Value: "log_bin = OFF",
		Hint: s.startWith("log_bin = binlog", "binlog_format = ROW", "server_id = 1")}
	f.Hint += "; or set mode: poll for this source"
	return f, nil
}

func (s *mySession) format(context.Context) (Finding, error) {
	format := s.vars["binlog_format"]
	if format == "" || strings.EqualFold(format, "ROW") { // a version without the variable knows rows only
		return Finding{Status: OK, Message: "the binlog has rows", Value: format}, nil
	}
	f := Finding{Status: Fail, Message: "the binlog has statements and not rows: the poller delivers alone", Value: "binlog_format = " + format}
	if strings.EqualFold(format, "STATEMENT") {
		f.Message = "the binlog has only statements, so the server refuses what is written at READ COMMITTED, as all of ours is: nothing is delivered"
	}
	f.Fix, f.Hint = s.set("binlog_format", "'ROW'")
	f.Hint = strings.TrimPrefix(f.Hint+"; sessions that are open keep the old format until they reconnect", "; ")
	return f, nil
}

// replicationRight tries what the reader will do, as far as SQL can.
func (s *mySession) replicationRight(ctx context.Context) (Finding, error) {
	granted, err := s.granted(ctx)
	if err != nil {
		return Finding{}, err
	}
	has := func(names ...string) bool {
		for _, name := range names {
			if granted[name] {
				return true
			}
		}
		return false
	}
	var missing []string
	if !has("REPLICATION SLAVE", "REPLICATION REPLICA", "SUPER", "ALL PRIVILEGES") {
		missing = append(missing, "REPLICATION SLAVE")
	}
	// Reading files and positions: named differently by MariaDB since 10.5.
	if !has("REPLICATION CLIENT", "BINLOG MONITOR", "SUPER", "ALL PRIVILEGES") {
		missing = append(missing, "REPLICATION CLIENT")
	}
	if len(missing) == 0 {
		return Finding{Status: OK, Message: "the user may read the binlog"}, nil
	}
	return Finding{Status: Fail, Message: "user " + strings.ReplaceAll(s.user, "'", "") + " may not read the binlog",
		Fix: []string{fmt.Sprintf("GRANT %s ON *.* TO %s", strings.Join(missing, ", "), s.user)}}, nil
}

// granted are the user's global privileges, those of its active roles included.
func (s *mySession) granted(ctx context.Context) (_ map[string]bool, err error) {
	query := "SHOW GRANTS"
	granted := map[string]bool{}
	rows, err := s.conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		list, global := strings.CutPrefix(line, "GRANT ")
		list, on, ok := strings.Cut(list, " ON *.* TO ")
		if !global || !ok || on == "" {
			continue
		}
		for name := range strings.SplitSeq(list, ",") {
			granted[strings.ToUpper(strings.TrimSpace(name))] = true
		}
	}
	return granted, rows.Err()
}

// identityQuery names a server as well as every version can.
const identityQuery = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_id', 'hostname', 'port', 'server_uid')"

// logServer makes sure that the binlog is read from the server that has the tables.
func (s *mySession) logServer(ctx context.Context) (Finding, error) {
	if s.cfg.Log == nil {
		return Finding{Status: OK, Message: "statements and the binlog have one address"}, nil
	}
	conn, err := s.cfg.Log.Conn(ctx)
	if err != nil {
		f := myConnectFinding(err, "the address of mysql.dsn")
		return f, nil
	}
	defer conn.Close() //nolint:errcheck // only read from
	theirs, err := identities(ctx, conn)
	if err != nil {
		return Finding{}, err
	}
	ours, err := identities(ctx, s.conn)
	if err != nil {
		return Finding{}, err
	}
	if ours != theirs {
		return Finding{Status: Fail, Message: "mysql.dsn leads to another server than the dsn of the source",
			Hint: "let both lead to the same primary: the position in the binlog is kept beside the deliveries"}, nil
	}
	return Finding{Status: OK, Message: "the binlog is read from the server that has the tables"}, nil
}

func identities(ctx context.Context, conn *stdsql.Conn) (_ string, err error) {
	rows, err := conn.QueryContext(ctx, identityQuery)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var all strings.Builder
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return "", err
		}
		all.WriteString(name + "=" + value + "\n")
	}
	return all.String(), rows.Err()
}

func (s *mySession) serverID(context.Context) (Finding, error) {
	own, err := strconv.ParseUint(s.vars["server_id"], 10, 32)
	if err != nil {
		return Finding{}, fmt.Errorf("read server_id: %w", err)
	}
	f := Finding{Status: Fail, Value: fmt.Sprintf("the server has %d, the reader %d", own, s.cfg.ServerID)}
	switch {
	case own == 0:
		f.Message = "the server has no server_id and refuses replicas"
		f.Fix, f.Hint = s.set("server_id", "1")
	case uint32(own) == s.cfg.ServerID: //nolint:gosec // 32 bits, by ParseUint
		f.Message, f.Hint = "the reader has the id of the server itself, which then sends nothing", "leave mysql.server_id out of the configuration, or give another one"
	default:
		f.Status, f.Message = OK, "the reader has an id of its own"
	}
	return f, nil
}

func (s *mySession) gtid(context.Context) (Finding, error) {
	if s.mariaDB {
		f := Finding{Status: OK, Message: "positions are GTIDs", Value: "gtid_strict_mode = " + s.vars["gtid_strict_mode"]}
		if !s.on("gtid_strict_mode") {
			f.Status, f.Message = Warn, "a replica may write GTIDs out of order, so that a failover to it can become a gap and a sweep"
			f.Fix, f.Hint = s.set("gtid_strict_mode", "ON")
		}
		return f, nil
	}
	mode := s.vars["gtid_mode"]
	if mode == "ON" {
		return Finding{Status: OK, Message: "positions are GTIDs", Value: "gtid_mode = ON"}, nil
	}
	f := Finding{Status: Warn, Message: "positions are those of this one server: a failover becomes a gap and a sweep", Value: "gtid_mode = " + mode}
	steps := []string{"OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"}
	if s.vars["enforce_gtid_consistency"] != "ON" {
		f.Fix = append(f.Fix, "SET PERSIST enforce_gtid_consistency = ON")
	}
	for i, step := range steps {
		if step == mode {
			for _, next := range steps[i+1:] {
				f.Fix = append(f.Fix, "SET PERSIST gtid_mode = "+next)
			}
		}
	}
	f.Hint = "before the last one, wait until Ongoing_anonymous_transaction_count is 0, on replicas too"
	return f, nil
}

func (s *mySession) rowImage(context.Context) (Finding, error) {
	image := s.vars["binlog_row_image"]
	if image == "" || strings.HasPrefix(image, "FULL") {
		return Finding{Status: OK, Message: "rows are logged with all their columns", Value: image}, nil
	}
	f := Finding{Status: Warn, Message: "rows may be logged without all their columns; those are left to the poller", Value: "binlog_row_image = " + image}
	f.Fix, f.Hint = s.set("binlog_row_image", "'FULL'")
	return f, nil
}

func (s *mySession) metadata(context.Context) (Finding, error) {
	value := s.vars["binlog_row_metadata"]
	if value == "FULL" {
		return Finding{Status: OK, Message: "the binlog names the columns", Value: value}, nil
	}
	f := Finding{Status: Warn, Message: "the binlog does not name the columns: around an ALTER TABLE of the event table rows may be left to the poller",
		Value: "binlog_row_metadata = " + value}
	f.Fix, f.Hint = s.set("binlog_row_metadata", "'FULL'")
	return f, nil
}

// filters looks whether the server leaves databases out of its binlog. The variables do not exist
// everywhere; the status of the binlog shows them too.
func (s *mySession) filters(ctx context.Context) (Finding, error) {
	does, ignores, err := s.filtered(ctx)
	if err != nil {
		return Finding{}, err
	}
	of := func(list string) bool {
		for name := range strings.SplitSeq(list, ",") {
			if strings.TrimSpace(name) == s.cfg.Table.Schema {
				return true
			}
		}
		return false
	}
	if does != "" && !of(does) || of(ignores) {
		return Finding{Status: Fail, Message: "the server leaves the event table's database out of its binlog: the poller delivers alone",
			Value: strings.TrimSpace("binlog_do_db = " + does + " binlog_ignore_db = " + ignores), Hint: s.startWith("no such filter, or binlog_do_db = " + s.cfg.Table.Schema + " too")}, nil
	}
	return Finding{Status: OK, Message: "the binlog has the event table's database"}, nil
}

func (s *mySession) filtered(ctx context.Context) (does, ignores string, err error) {
	for _, statement := range []string{"SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"} {
		does, ignores, err = s.status(ctx, statement)
		if number(err) != 1064 { // the other name
			break
		}
	}
	if number(err) == numNoRight {
		return s.vars["binlog_do_db"], s.vars["binlog_ignore_db"], nil
	}
	return does, ignores, err
}

func (s *mySession) status(ctx context.Context, statement string) (does, ignores string, err error) {
	rows, err := s.conn.QueryContext(ctx, statement)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	names, err := rows.Columns()
	if err != nil {
		return "", "", err
	}
	values := make([]stdsql.NullString, len(names))
	into := make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	if rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return "", "", err
		}
	}
	for i, name := range names {
		switch name {
		case "Binlog_Do_DB":
			does = values[i].String
		case "Binlog_Ignore_DB":
			ignores = values[i].String
		}
	}
	return does, ignores, rows.Err()
}

const leastRetention = 24 * time.Hour

func (s *mySession) retention(context.Context) (Finding, error) {
	// A server that does not have the variable keeps its log for ever, like one where it is 0.
	seconds, _ := strconv.ParseFloat(s.vars["binlog_expire_logs_seconds"], 64)
	if seconds == 0 || time.Duration(seconds)*time.Second >= leastRetention {
		return Finding{Status: OK, Message: "the binlog is kept for a day or longer", Value: "binlog_expire_logs_seconds = " + s.vars["binlog_expire_logs_seconds"]}, nil
	}
	f := Finding{Status: Warn, Message: "the binlog is kept for less than a day: a longer stop of the dispatcher ends in a gap and a sweep of the table",
		Value: "binlog_expire_logs_seconds = " + s.vars["binlog_expire_logs_seconds"]}
	f.Fix, f.Hint = s.set("binlog_expire_logs_seconds", "604800")
	return f, nil
}

func (s *mySession) durable(context.Context) (Finding, error) {
	if s.vars["sync_binlog"] == "1" {
		return Finding{Status: OK, Message: "the binlog survives a crash", Value: "sync_binlog = 1"}, nil
	}
	f := Finding{Status: Warn, Message: "a crash of the server's machine may cut off the end of the binlog: the poller finds the events, late",
		Value: "sync_binlog = " + s.vars["sync_binlog"]}
	f.Fix, f.Hint = s.set("sync_binlog", "1")
	return f, nil
}

const leastPacket = 16 << 20

func (s *mySession) packet(context.Context) (Finding, error) {
	size64, err := strconv.ParseInt(s.vars["max_allowed_packet"], 10, 64)
	if err != nil {
		return Finding{}, fmt.Errorf("read max_allowed_packet: %w", err)
	}
	f := Finding{Status: OK, Message: "statements may be large", Value: "max_allowed_packet = " + s.vars["max_allowed_packet"]}
	if size64 < leastPacket {
		f.Status, f.Message = Warn, "a large event may not fit into what the server accepts or sends at once"
		f.Fix, f.Hint = s.set("max_allowed_packet", fmt.Sprint(64<<20))
		f.Hint = strings.TrimPrefix(f.Hint+"; sessions that are open keep the old size", "; ")
	}
	return f, nil
}

// transactions looks for what keeps rows invisible, and old versions of them alive.
func (s *mySession) transactions(ctx context.Context) (Finding, error) {
	var id, age int64
	var state string
	err := s.row(ctx, `SELECT trx_mysql_thread_id, trx_state, TIMESTAMPDIFF(SECOND, trx_started, NOW()) FROM information_schema.innodb_trx
		WHERE trx_mysql_thread_id <> CONNECTION_ID() AND TIMESTAMPDIFF(SECOND, trx_started, NOW()) >= ?
		ORDER BY trx_started LIMIT 1`, []any{int64(s.cfg.LongTransaction.Seconds())}, &id, &state, &age)
	switch {
	case errors.Is(err, stdsql.ErrNoRows):
		return Finding{Status: OK, Message: "no transaction is open for long"}, nil
	case number(err) == numNoRight:
		return Finding{Status: OK, Message: "whether transactions are open for long is not shown to this user", Value: "the PROCESS right shows it"}, nil
	case err != nil:
		return Finding{}, err
	}
	f := Finding{Status: Warn, Message: "a transaction is open for long: deleted rows stay, and the look for due deliveries becomes slow",
		Value: fmt.Sprintf("session %d, %s, for %s", id, strings.ToLower(state), time.Duration(age)*time.Second), Hint: "ask its owner first"}
	if id != 0 {
		f.Fix = []string{fmt.Sprintf("KILL %d", id)}
	} else {
		f.Fix, f.Hint = []string{"XA RECOVER"}, "it is prepared; end it with XA COMMIT or XA ROLLBACK, as its owner decides"
	}
	return f, nil
}
