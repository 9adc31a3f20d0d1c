package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// facts are what the probe found out about a server (mysql-cdc.md section 8). All of it
// may change while the server runs, so it is asked for again on each connection.
type facts struct {
	version  string
	comment  string
	mariaDB  bool
	identity string
	tls      bool // the SQL connection is encrypted
	vars     map[string]string
	mode     mode
	// fold: the server does not tell capitals in names of tables apart, and may log others than are configured.
	fold    bool
	current place // the end of the log
	// floor: everything before it is no longer in the log. Known where floorKnown.
	floor      place
	floorKnown bool
	// files are the files of the log and their sizes (file mode).
	files map[string]uint64
	// clock is what the server's clock is ahead of this process's.
	clock time.Duration
	// warnings make the stream slower or weaker, but not impossible.
	warnings []string
}

// settings are the variables that the probe reads.
var settings = [...]string{
	"log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "gtid_mode",
	"server_uuid", "server_uid", "server_id", "hostname", "port",
	"binlog_expire_logs_seconds", "expire_logs_days", "sync_binlog", "max_allowed_packet",
	"binlog_do_db", "binlog_ignore_db", "read_only", "log_replica_updates", "log_slave_updates", "lower_case_table_names",
}

// probe asks the server about itself with plain statements that every version has.
func probe(ctx context.Context, db *sql.DB, cfg *driver.Config, tables []Table) (facts, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var f facts
	if err := f.greet(ctx, db); err != nil {
		return f, classifySQL("ask the server who it is", err, cfg)
	}
	if err := f.trusted(cfg); err != nil {
		return f, err
	}
	if err := f.readSettings(ctx, db); err != nil {
		return f, classifySQL("read the server's settings", err, cfg)
	}
	if err := f.judge(); err != nil {
		return f, err
	}
	for _, t := range tables {
		if err := checkTable(ctx, db, t, cfg); err != nil {
			return f, err
		}
	}
	if err := f.locate(ctx, db); err != nil {
		return f, classifySQL("read the end of the binlog", err, cfg)
	}
	return f, nil
}

func (f *facts) greet(ctx context.Context, db *sql.DB) error {
	var now string
	before := time.Now()
	row := db.QueryRowContext(ctx, "SELECT VERSION(), @@version_comment, UTC_TIMESTAMP(6)")
	if err := row.Scan(&f.version, &f.comment, &now); err != nil {
		return err
	}
	f.mariaDB = strings.Contains(strings.ToLower(f.version), "mariadb")
	if server, err := time.Parse("2006-01-02 15:04:05.999999", now); err == nil {
		f.clock = server.Sub(before.Add(time.Since(before) / 2))
	}
	var name, cipher string
	err := db.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	f.tls = cipher != ""
	return nil
}

// trusted refuses to send a password under a key that the server is asked for, where the DSN says which key is
// the server's: the log's library knows no such key.
func (f *facts) trusted(cfg *driver.Config) error {
	if cfg.ServerPubKey == "" || f.tls || cfg.Net != "tcp" {
		return nil
	}
	return permanent(reasonTLS, errors.New("the log cannot be read with a known key of the server and without TLS"),
		"choose tls=true, or leave serverPubKey out of the DSN where the network is trusted")
}

func (f *facts) readSettings(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(settings[:], "', '")+"')")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // Err says what went wrong
	f.vars = map[string]string{}
	for rows.Next() {
		var name string
		var value sql.NullString
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		f.vars[strings.ToLower(name)] = value.String
	}
	return rows.Err()
}

// judge decides how the log can be read, or why it cannot. It does no I/O.
func (f *facts) judge() error {
	about := f.version + " " + f.comment
	for _, other := range []string{"TiDB", "Vitess", "PlanetScale", "ProxySQL", "MaxScale"} {
		if strings.Contains(strings.ToLower(about), strings.ToLower(other)) {
			return permanent(reasonProxy, fmt.Errorf("%s has no binlog to read here", other),
				"set the source to poll mode, or point the DSN at a MySQL or MariaDB server itself")
		}
	}
	major, minor := versionNumbers(f.version)
	if f.mariaDB && (major < 10 || major == 10 && minor < 6) || !f.mariaDB && major < 8 {
		return permanent(reasonVersion, fmt.Errorf("server version %s is too old", f.version), "use MySQL 8.0 or MariaDB 10.6, or later")
	}
	if !on(f.vars["log_bin"]) {
		return permanent(reasonBinlog, errors.New("the server writes no binlog (log_bin is off)"),
			"start the server with log_bin and binlog_format=ROW")
	}
	if format := f.vars["binlog_format"]; format != "" && format != "ROW" {
		return permanent(reasonFormat, fmt.Errorf("binlog_format is %s, so the binlog has statements and not rows", format),
			"SET GLOBAL binlog_format = 'ROW', set it in the server's configuration too, and reconnect the applications")
	}
	f.judgeMode()
	return nil
}

func (f *facts) judgeMode() {
	f.fold = f.vars["lower_case_table_names"] != "" && f.vars["lower_case_table_names"] != "0"
	switch {
	case f.mariaDB:
		f.mode = modeMariaDB
	case strings.EqualFold(f.vars["gtid_mode"], "ON"):
		f.mode = modeGTID
	default:
		f.mode = modeFile
		f.warn("gtid_mode is not ON: positions are those of one server, and a failover becomes a gap")
	}
	f.identity = f.vars["server_uuid"]
	if f.mariaDB {
		// MariaDB has no UUID of a server; server_uid exists on newer ones.
		f.identity = fmt.Sprintf("%s/%s@%s", f.vars["server_uid"], f.vars["server_id"], net.JoinHostPort(f.vars["hostname"], f.vars["port"]))
	}
	if image := f.vars["binlog_row_image"]; image != "" && !strings.HasPrefix(image, "FULL") {
		f.warn("binlog_row_image is " + image + ": rows without all columns are left to the poller; SET GLOBAL binlog_row_image = 'FULL'")
	}
	if metadata := f.vars["binlog_row_metadata"]; metadata != "FULL" {
		f.warn("binlog_row_metadata is not FULL: names of columns come from the catalog, and around an ALTER TABLE rows may be left to the poller; SET GLOBAL binlog_row_metadata = 'FULL'")
	}
	if seconds, err := strconv.ParseFloat(f.vars["binlog_expire_logs_seconds"], 64); err == nil && seconds > 0 && seconds < 86400 {
		f.warn("binlog_expire_logs_seconds is below a day: a longer outage of the dispatcher becomes a gap")
	}
	for _, name := range []string{"binlog_do_db", "binlog_ignore_db"} {
		if f.vars[name] != "" {
			f.warn(name + " is set: databases that are not logged are left to the poller")
		}
	}
}

func (f *facts) warn(text string) { f.warnings = append(f.warnings, text) }

func on(value string) bool { return strings.EqualFold(value, "ON") || value == "1" }

func versionNumbers(version string) (major, minor int) {
	parts := strings.SplitN(version, ".", 3)
	major, _ = strconv.Atoi(parts[0]) // 0 when there is none, which is too old
	if len(parts) > 1 {
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}

// locate reads the end of the log, and how far back it goes.
func (f *facts) locate(ctx context.Context, db *sql.DB) error {
	switch f.mode {
	case modeGTID:
		var executed, purged string
		if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged").Scan(&executed, &purged); err != nil {
			return err
		}
		var err, err2 error
		f.current, err = parseGTIDSet(executed)
		f.floor, err2 = parseGTIDSet(purged)
		f.floorKnown = true
		return errors.Join(err, err2)
	case modeMariaDB:
		var at sql.NullString
		if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_binlog_pos").Scan(&at); err != nil {
			return err
		}
		var err error
		if f.current, err = parseDomains(at.String); err != nil {
			return err
		}
		f.floorMariaDB(ctx, db)
		return nil
	}
	return f.locateFile(ctx, db)
}

// floorMariaDB reads where the oldest file begins. It needs a privilege that streaming
// does not need, and without which only the server's refusal tells that log was purged.
func (f *facts) floorMariaDB(ctx context.Context, db *sql.DB) {
	files, first, err := binaryLogs(ctx, db)
	if err != nil || len(files) == 0 {
		return
	}
	var at sql.NullString
	if err := db.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS(?, 4)", first).Scan(&at); err != nil || !at.Valid {
		return
	}
	if floor, err := parseDomains(at.String); err == nil {
		f.floor, f.floorKnown = floor, true
	}
}

func (f *facts) locateFile(ctx context.Context, db *sql.DB) error {
	file, offset, err := binlogStatus(ctx, db)
	if err != nil {
		return err
	}
	f.current = place{mode: modeFile, server: f.identity, file: file, offset: offset}
	f.files, _, err = binaryLogs(ctx, db)
	return err
}

// statusStatements ask for the current file: the newer name first, which MySQL 8.4 made
// the only one.
var statusStatements = [...]string{"SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"}

// binlogStatus returns the file that is being written and its size.
func binlogStatus(ctx context.Context, db *sql.DB) (file string, offset uint32, err error) {
	for _, statement := range statusStatements {
		var row map[string]string
		if row, err = firstRow(ctx, db, statement); err == nil {
			size, err := strconv.ParseUint(row["Position"], 10, 64)
			if err != nil || row["File"] == "" {
				return "", 0, errors.New("the server does not say where its binlog ends")
			}
			return row["File"], uint32(min(size, 1<<32-1)), nil
		}
		if number, _ := serverError(err); number != errParse {
			return "", 0, err
		}
	}
	return "", 0, err
}

// binaryLogs lists the files of the log; first is the oldest.
func binaryLogs(ctx context.Context, db *sql.DB) (files map[string]uint64, first string, err error) {
	files = map[string]uint64{}
	err = eachRow(ctx, db, "SHOW BINARY LOGS", func(row map[string]string) {
		size, _ := strconv.ParseUint(row["File_size"], 10, 64) // 0 makes every offset too large
		if first == "" {
			first = row["Log_name"]
		}
		files[row["Log_name"]] = size
	})
	return files, first, err
}

func firstRow(ctx context.Context, db *sql.DB, statement string) (map[string]string, error) {
	var first map[string]string
	err := eachRow(ctx, db, statement, func(row map[string]string) {
		if first == nil {
			first = row
		}
	})
	return first, err
}

// eachRow runs a statement whose columns differ between versions.
func eachRow(ctx context.Context, db *sql.DB, statement string, fn func(map[string]string)) error {
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // Err says what went wrong
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	for rows.Next() {
		values := make([]sql.NullString, len(names))
		targets := make([]any, len(names))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return err
		}
		row := make(map[string]string, len(names))
		for i, name := range names {
			row[name] = values[i].String
		}
		fn(row)
	}
	return rows.Err()
}

// describe reads a table's columns from the catalog; nil when there is no such table.
func describe(ctx context.Context, db *sql.DB, t Table) (definition, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := db.QueryContext(ctx, `SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION`, t.Schema, t.Name)
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", t, err)
	}
	defer func() { _ = rows.Close() }() // Err says what went wrong
	var d definition
	for rows.Next() {
		var c definedColumn
		var nullable string
		var charset sql.NullString
		if err := rows.Scan(&c.name, &c.dataType, &c.fullType, &nullable, &charset); err != nil {
			return nil, fmt.Errorf("describe %s: %w", t, err)
		}
		c.dataType, c.fullType = strings.ToLower(c.dataType), strings.TrimSpace(c.fullType)
		c.nullable, c.charset = nullable == "YES", charset.String
		d = append(d, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("describe %s: %w", t, err)
	}
	return d, nil
}

// checkTable refuses a table whose rows cannot be read from the log.
func checkTable(ctx context.Context, db *sql.DB, t Table, cfg *driver.Config) error {
	d, err := describe(ctx, db, t)
	if err != nil {
		return classifySQL("look at the event table", err, cfg)
	}
	if d == nil {
		return permanent(reasonTable, fmt.Errorf("table %s does not exist, or %s may not read it", t, account(cfg)),
			fmt.Sprintf("create the table, or GRANT SELECT ON %s TO %s", quoteTable(t), account(cfg)))
	}
	if reason, hint, err := d.problems(t); err != nil {
		return permanent(reason, err, hint)
	}
	return nil
}

// refusal is what a server said when it would not stream from a place.
type refusal struct {
	at    cdc.Position
	text  string
	times int
}

// refusalsUntilGap is how often a refusal that the probe does not explain is believed to
// pass: the reasons may lie in a moment between probe and stream.
const refusalsUntilGap = 2

// decide says where to start. A gap means that a stretch of log cannot be read, and that
// the start is the end of the log as it was before the decision. It does no I/O.
func decide(saved cdc.Position, f facts, r refusal) (start place, gap *cdc.Gap) {
	lost := func(reason, detail string) (place, *cdc.Gap) {
		return f.current, &cdc.Gap{Reason: reason, Detail: detail, From: saved, To: f.current.position()}
	}
	if saved == "" {
		return f.current, nil
	}
	at, err := parsePlace(saved)
	switch {
	case err != nil:
		return lost(gapPosition, "the saved position is not one that this reader knows")
	case at.mode != f.mode:
		return lost(gapModeChanged, fmt.Sprintf("the saved position is of the form %s, and the server now keeps %s", at.mode, f.mode))
	case at.mode == modeFile && at.server != f.identity:
		return lost(gapServerChanged, fmt.Sprintf("the server is %s and was %s; without GTIDs its files are others", f.identity, at.server))
	case !f.current.contains(at):
		return lost(gapAhead, "the server does not have transactions that were already read; it lost data, was restored or reset, or is another server")
	case f.purged(at):
		return lost(gapPurged, "the server purged log that was not read yet; keep it for longer with binlog_expire_logs_seconds")
	case r.at == saved && r.times >= refusalsUntilGap:
		return lost(refusalReason(r.text))
	}
	return at, nil
}

// purged says whether log after the place is gone.
func (f *facts) purged(at place) bool {
	if at.mode == modeFile {
		size, ok := f.files[at.file]
		return !ok || uint64(at.offset) > size
	}
	return f.floorKnown && !at.contains(f.floor)
}

// refusalReason reads a refusal for which the probe found no cause. Only the text is left
// to go by, so it decides about the name of the gap and about nothing else.
func refusalReason(text string) (reason, detail string) {
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "purged"), strings.Contains(lower, "could not find"):
		return gapPurged, "the server refuses the position: it no longer has the log"
	case strings.Contains(lower, "more gtids"), strings.Contains(lower, "not in the master's binlog"),
		strings.Contains(lower, "impossible position"), strings.Contains(lower, "> file size"):
		return gapAhead, "the server refuses the position: it does not have it"
	}
	return gapRefused, "the server refuses to send its log from the position"
}
