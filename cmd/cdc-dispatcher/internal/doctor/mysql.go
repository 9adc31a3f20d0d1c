package doctor

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/mysql"
)

// MySQLConfig says what to check of a MySQL or MariaDB source. Of Config, the connection strings, slot and
// publication are not looked at.
type MySQLConfig struct {
	Config
	// Pool is where statements go, Log where the binlog is read; nil means Pool. Both stay the caller's.
	Pool, Log *stdsql.DB
	// Address is where Pool leads, for messages: "host:port", or the path of a socket.
	Address string
	// ServerID is what the reader calls itself among the replicas.
	ServerID uint32
}

// CodeConnect is the check of the connection.
const CodeConnect = codeConnect

// Codes of the checks that only these servers have.
const (
	codeBinlog      = "CD2401"
	codeFormat      = "CD2402"
	codeReplicaRole = "CD2403"
	codeLogServer   = "CD2404"
	codeServerID    = "CD2405"
	codeGTID        = "CD2406"
	codeRowImage    = "CD2407"
	codeMetadata    = "CD2408"
	codeFilters     = "CD2409"
	codeRetention   = "CD2410"
	codeDurable     = "CD2411"
	codePacket      = "CD2412"
)

func myChecks(cfg MySQLConfig) []check[*mySession] {
	list := []check[*mySession]{
		{codeConnect, "connection", nil, step((*mySession).connect)},
		{codeTLS, "encryption", []string{codeConnect}, step((*mySession).encryption)},
		{codeVersion, "server version", []string{codeConnect}, step((*mySession).supported)},
		{codePrimary, "primary", []string{codeVersion}, step((*mySession).primary)},
		{codeClock, "clock", []string{codeConnect}, step((*mySession).clock)},
		{codeConnections, "free connections", []string{codeConnect}, step((*mySession).connections)},

		{codeTable, "event table", []string{codePrimary}, step((*mySession).eventTable)},
		{codePrivileges, "privileges", []string{codeTable}, step((*mySession).tableRights)},
		{codeMigrations, "migrations", []string{codePrivileges}, step((*mySession).migrations)},
		{codeColumns, "columns", []string{codeMigrations}, step((*mySession).columns)},
		{codePollIndex, "poller's index", []string{codeMigrations, codeColumns}, step((*mySession).pollIndex)},
		{codePacket, "packet size", []string{codeVersion}, step((*mySession).packet)},
	}
	if !cfg.Poll {
		list = append(list, []check[*mySession]{
			{codeBinlog, "binlog", []string{codeVersion}, step((*mySession).binlog)},
			{codeFormat, "binlog format", []string{codeBinlog}, step((*mySession).format)},
			{codeReplicaRole, "replication right", []string{codeBinlog}, step((*mySession).replicationRight)},
			{codeLogServer, "log connection", []string{codeBinlog}, step((*mySession).logServer)},
			{codeServerID, "server id", []string{codeBinlog}, step((*mySession).serverID)},
			{codeGTID, "GTIDs", []string{codeBinlog}, step((*mySession).gtid)},
			{codeRowImage, "row image", []string{codeFormat}, step((*mySession).rowImage)},
			{codeMetadata, "row metadata", []string{codeFormat}, step((*mySession).metadata)},
			{codeFilters, "log filters", []string{codeBinlog}, step((*mySession).filters)},
			{codeRetention, "binlog retention", []string{codeBinlog}, step((*mySession).retention)},
			{codeDurable, "durable binlog", []string{codeBinlog}, step((*mySession).durable)},
			{codeTransactions, "long transactions", []string{codePrimary}, step((*mySession).transactions)},
		}...)
	}
	return append(list, []check[*mySession]{
		{codeNullIDs, "rows without id", []string{codePrivileges, codeColumns}, step((*mySession).nullIDs)},
		{codeUndelivered, "oldest undelivered", []string{codeMigrations, codeColumns}, step((*mySession).undelivered)},
		{codeGaps, "gaps", []string{codeMigrations, codeColumns}, step((*mySession).gaps)},
	}...)
}

// step turns a method around, so that checks of both kinds of server read alike.
func step(m func(*mySession, context.Context) (Finding, error)) func(context.Context, *mySession) (Finding, error) {
	return func(ctx context.Context, s *mySession) (Finding, error) { return m(s, ctx) }
}

// RunMySQL is [Run] for a MySQL or MariaDB source.
func RunMySQL(ctx context.Context, cfg MySQLConfig) Report {
	return runMySQL(ctx, cfg, myChecks(cfg))
}

// OnlyMySQL is [Only] for a MySQL or MariaDB source.
func OnlyMySQL(ctx context.Context, cfg MySQLConfig, code string) Result {
	report := runMySQL(ctx, cfg, upTo(myChecks(cfg), code))
	return report.Results[len(report.Results)-1]
}

func runMySQL(ctx context.Context, cfg MySQLConfig, list []check[*mySession]) Report {
	cfg.Config = cfg.withDefaults()
	s := &mySession{cfg: cfg}
	defer s.close()
	return report(ctx, s, list, cfg.Timeout, describeMySQL)
}

// mySession is the connection and what the first checks learned through it.
type mySession struct {
	cfg  MySQLConfig
	conn *stdsql.Conn

	version string
	mariaDB bool
	// user is the account as GRANT names it: 'app'@'%'.
	user string
	// vars are the global variables, by name.
	vars map[string]string
	// overview is asked for once.
	overview *admin.Overview
}

func (s *mySession) close() {
	if s.conn != nil {
		_ = s.conn.Close() // nothing is left in it
	}
}

// row runs a query for exactly one row.
func (s *mySession) row(ctx context.Context, query string, args []any, into ...any) error {
	return s.conn.QueryRowContext(ctx, query, args...).Scan(into...)
}

// number is the server's error number, 0 for every other error.
func number(err error) uint16 {
	if answer, ok := errors.AsType[*driver.MySQLError](err); ok {
		return answer.Number
	}
	return 0
}

// describeMySQL keeps what an operator can use of an error.
func describeMySQL(err error) string {
	if answer, ok := errors.AsType[*driver.MySQLError](err); ok {
		return fmt.Sprintf("%s (error %d)", answer.Message, answer.Number)
	}
	return describe(err)
}

// The server's error numbers that tell an operator what to do.
const (
	numTooMany       = 1040
	numNoDBRight     = 1044
	numAccessDenied  = 1045
	numUnknownDB     = 1049
	numNoTableRight  = 1142
	numNoColumnRight = 1143
	numNoTable       = 1146
	numNoRight       = 1227
	numNeedsTLS      = 3159
)

func (s *mySession) connect(ctx context.Context) (Finding, error) {
	conn, err := s.cfg.Pool.Conn(ctx)
	if err != nil {
		return myConnectFinding(err, s.cfg.Address), nil
	}
	s.conn = conn
	var database stdsql.NullString
	if err := s.row(ctx, "SELECT VERSION(), CURRENT_USER(), DATABASE()", nil, &s.version, &s.user, &database); err != nil {
		return Finding{}, err
	}
	s.mariaDB = strings.Contains(strings.ToLower(s.version), "mariadb")
	if at := strings.LastIndex(s.user, "@"); at >= 0 {
		s.user = myLiteral(s.user[:at]) + "@" + myLiteral(s.user[at+1:])
	}
	if err := s.readVariables(ctx); err != nil {
		return Finding{}, err
	}
	product := "MySQL "
	if s.mariaDB {
		product = "MariaDB "
	}
	return Finding{Status: OK, Message: fmt.Sprintf("connected as %s to %s", s.user, s.cfg.Address), Value: product + s.version}, nil
}

// readVariables asks with SHOW, which every version understands whatever variables it lacks.
func (s *mySession) readVariables(ctx context.Context) (err error) {
	rows, err := s.conn.QueryContext(ctx, "SHOW GLOBAL VARIABLES")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	s.vars = map[string]string{}
	for rows.Next() {
		var name string
		var value stdsql.NullString
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		s.vars[strings.ToLower(name)] = value.String
	}
	return rows.Err()
}

// on says whether a variable is switched on.
func (s *mySession) on(name string) bool {
	v := strings.ToUpper(s.vars[name])
	return v != "" && v != "OFF" && v != "0" && v != "NO"
}

func myConnectFinding(err error, address string) Finding {
	f := Finding{Status: Fail, Message: fmt.Sprintf("no connection to %s: %s", address, describeMySQL(err))}
	switch {
	case number(err) == numAccessDenied:
		f.Hint = "check user, password and the host of the account: SELECT user, host, plugin FROM mysql.user"
	case number(err) == numUnknownDB, number(err) == numNoDBRight:
		f.Hint = "check the database's name in the DSN, or leave it out"
	case number(err) == numTooMany:
		f.Hint = "end sessions, or raise max_connections"
	case number(err) == numNeedsTLS:
		f.Hint = "set mysql: {tls: {mode: require}} in the configuration"
	case errors.Is(err, driver.ErrNoTLS):
		f.Hint = "the server has no certificate: set mysql: {tls: {mode: preferred}}, or let it have one"
	case strings.Contains(f.Message, "x509"), strings.Contains(f.Message, "certificate"):
		f.Hint = "check tls.ca, and that the name in the DSN is the one of the certificate"
	default:
		f.Hint = "check host, port and firewall, and that the server runs"
	}
	return f
}

func (s *mySession) encryption(ctx context.Context) (Finding, error) {
	var name, cipher string
	if err := s.row(ctx, "SHOW SESSION STATUS LIKE 'Ssl_version'", nil, &name, &cipher); err != nil && !errors.Is(err, stdsql.ErrNoRows) {
		return Finding{}, err
	}
	if cipher != "" {
		return Finding{Status: OK, Message: "the connection is encrypted", Value: cipher}, nil
	}
	if staysHere(s.cfg.Address) {
		return Finding{Status: OK, Message: "the connection is not encrypted, and does not leave this machine"}, nil
	}
	return Finding{Status: Warn, Message: "the connection is not encrypted: events and the password's proof cross the network as they are",
		Hint: "set mysql: {tls: {mode: verify-full, ca: FILE}} in the configuration"}, nil
}

// staysHere says that an address is a socket's path, or of this machine.
func staysHere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err != nil || host == "localhost" || ip != nil && ip.IsLoopback()
}

func (s *mySession) supported(context.Context) (Finding, error) {
	about := strings.ToLower(s.version + " " + s.vars["version_comment"])
	for _, other := range []string{"TiDB", "Vitess", "PlanetScale"} {
		if strings.Contains(about, strings.ToLower(other)) && !s.cfg.Poll {
			return Finding{Status: Fail, Message: other + " gives no binlog to read", Hint: "set mode: poll for this source"}, nil
		}
	}
	major, minor := 0, 0
	_, _ = fmt.Sscanf(s.version, "%d.%d", &major, &minor) // zeros are too old
	f := Finding{Status: OK, Message: "the version is supported", Value: fmt.Sprintf("%d.%d", major, minor)}
	switch {
	case s.mariaDB && (major < 10 || major == 10 && minor < 6):
		f.Status, f.Message, f.Hint = Fail, "the version is older than 10.6", "upgrade the server to MariaDB 10.6 or later"
	case !s.mariaDB && major < 8:
		f.Status, f.Message, f.Hint = Fail, "the version is older than 8.0", "upgrade the server to MySQL 8.0 or later"
	}
	return f, nil
}

func (s *mySession) primary(context.Context) (Finding, error) {
	for _, name := range []string{"super_read_only", "read_only"} {
		if s.on(name) {
			fix := []string{"SET GLOBAL " + name + " = OFF"}
			if name == "super_read_only" {
				fix = append(fix, "SET GLOBAL read_only = OFF")
			}
			return Finding{Status: Fail, Message: "the server takes no writes", Value: name + " = ON", Fix: fix,
				Hint: "if it is a replica, point the DSN at the primary instead: deliveries can be written there only"}, nil
		}
	}
	return Finding{Status: OK, Message: "the server takes writes"}, nil
}

func (s *mySession) clock(ctx context.Context) (Finding, error) {
	var text string
	before := s.cfg.now()
	if err := s.row(ctx, "SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%d %H:%i:%s.%f')", nil, &text); err != nil {
		return Finding{}, err
	}
	after := s.cfg.now()
	db, err := time.ParseInLocation("2006-01-02 15:04:05.000000", text, time.UTC)
	if err != nil {
		return Finding{}, err
	}
	// The database looked at its clock somewhere between before and after; what lies
	// outside of that is certain.
	skew := max(before.Sub(db), db.Sub(after), 0)
	if skew > s.cfg.MaxSkew {
		return Finding{Status: Warn, Message: "the clocks of this machine and the database differ", Value: skew.Round(time.Millisecond).String(),
			Hint: "run a time service on both; retries and leases go by the database's clock, but latencies that are shown mix the two"}, nil
	}
	return Finding{Status: OK, Message: "this machine and the database agree on the time"}, nil
}

func (s *mySession) connections(ctx context.Context) (Finding, error) {
	var limit, used int
	var name string
	if err := s.row(ctx, "SELECT @@GLOBAL.max_connections", nil, &limit); err != nil {
		return Finding{}, err
	}
	if err := s.row(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'", nil, &name, &used); err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: "connections are free", Value: fmt.Sprintf("%d of %d in use", used, limit)}
	if limit-used < fewConnections {
		f.Status, f.Message = Warn, "few connections are free"
		f.Fix, f.Hint = s.set("max_connections", fmt.Sprint(max(151, 2*limit)))
	}
	return f, nil
}

// set is how a dynamic setting is changed so that it stays.
func (s *mySession) set(name, value string) (fix []string, hint string) {
	if s.mariaDB {
		return []string{fmt.Sprintf("SET GLOBAL %s = %s", name, value)},
			fmt.Sprintf("and write %s = %s under [mariadb] in the server's configuration, or it is gone after a restart", name, strings.Trim(value, "'"))
	}
	return []string{fmt.Sprintf("SET PERSIST %s = %s", name, value)}, ""
}

// startWith is how a setting is changed that needs a restart.
func (s *mySession) startWith(lines ...string) string {
	section := "[mysqld]"
	if s.mariaDB {
		section = "[mariadb]"
	}
	return fmt.Sprintf("write %s under %s in the server's configuration and restart it; a managed service has it among its parameters",
		strings.Join(lines, ", "), section)
}

func myIdent(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func myLiteral(text string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(text, `\`, `\\`), "'", "''") + "'"
}

func (s *mySession) quotedTable() string {
	return myIdent(s.cfg.Table.Schema) + "." + myIdent(s.cfg.Table.Name)
}

func (s *mySession) store() (*mysql.Store, error) {
	return mysql.New(s.cfg.Pool, mysql.Config{Schema: s.cfg.Schema, Table: s.cfg.Table})
}

// ask returns the operator's overview, which counts within bounds.
func (s *mySession) ask(ctx context.Context) (*admin.Overview, error) {
	if s.overview != nil {
		return s.overview, nil
	}
	st, err := s.store()
	if err != nil {
		return nil, err
	}
	o, err := mysql.NewAdmin(st, admin.Config{}).Overview(ctx)
	if err == nil {
		s.overview = &o
	}
	return s.overview, err
}
