package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
)

// Database is the kind of a source's database, as its connection string tells.
type Database string

// The kinds of database.
const (
	DatabasePostgres Database = "postgres"
	// DatabaseMySQL is a server that speaks MySQL's protocol; it may turn out to be MariaDB.
	DatabaseMySQL   Database = "mysql"
	DatabaseMariaDB Database = "mariadb"
)

// String is the word for it, as flags and connection strings have it.
func (d Database) String() string { return string(d) }

// Set and Type make it the value of a flag.
func (d *Database) Set(s string) error {
	switch Database(s) {
	case DatabasePostgres, DatabaseMySQL, DatabaseMariaDB:
		*d = Database(s)
		return nil
	}
	return errors.New("want postgres, mysql or mariadb")
}

// Type is what help shows.
func (*Database) Type() string { return "database" }

// Title is the name for people.
func (d Database) Title() string {
	switch d {
	case DatabaseMySQL:
		return "MySQL"
	case DatabaseMariaDB:
		return "MariaDB"
	}
	return "PostgreSQL"
}

// IsMySQL says that the database speaks MySQL's protocol: MySQL or MariaDB.
func (d Database) IsMySQL() bool { return d == DatabaseMySQL || d == DatabaseMariaDB }

// MySQL is how a MySQL or MariaDB server is reached and its binlog read.
type MySQL struct {
	// DSN is where the binlog is read, when Source.DSN leads through a proxy. Empty
	// means Source.DSN; the password of the source is for both.
	DSN string
	// ServerID names the reader among the replicas of the server; 0 means [Source.ServerID]'s
	// default.
	ServerID uint32
	// Heartbeat is how often an idle server is to send a sign of life.
	Heartbeat time.Duration
	TLS       TLS
}

// TLSMode says how a connection is encrypted and whom it trusts.
type TLSMode string

// The modes of TLS, as MySQL's own programs name them, in lower case.
const (
	TLSDisable TLSMode = "disable"
	// TLSPreferred encrypts where the server can, and trusts anybody.
	TLSPreferred TLSMode = "preferred"
	// TLSRequire encrypts, and trusts anybody.
	TLSRequire TLSMode = "require"
	// TLSVerifyCA wants a certificate of a known authority, for any host.
	TLSVerifyCA TLSMode = "verify-ca"
	// TLSVerifyFull wants a certificate of a known authority for this host.
	TLSVerifyFull TLSMode = "verify-full"
)

// TLS is how connections to MySQL and MariaDB are encrypted.
type TLS struct {
	// Mode is empty when the file does not say; then the DSN decides, and else preferred.
	Mode TLSMode
	// CA is a file of authorities; empty means those of the system. Cert and Key are files too.
	CA, Cert, Key string
}

// ServerID is the source's id as a replica: as configured, or the same in every process that
// works on the same tables under the same name, of which one reads at a time.
func (s Source) ServerID() uint32 {
	if s.MySQL.ServerID != 0 {
		return s.MySQL.ServerID
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte("cdc-dispatcher " + s.Schema + "." + s.Name))
	return h.Sum32() | 1<<31 // away from the small numbers that people give
}

// MySQLConfig is how the pool of a source on MySQL or MariaDB connects, certificates
// loaded. Its errors hold no part of the DSN.
func (s Source) MySQLConfig() (*driver.Config, error) { return s.mysqlConfig(s.DSN) }

// MySQLLogConfig is how the binlog is read.
func (s Source) MySQLLogConfig() (*driver.Config, error) { return s.mysqlConfig(s.LogDSN()) }

func (s Source) mysqlConfig(dsn string) (*driver.Config, error) {
	cfg, err := parseMySQL(dsn)
	if err != nil {
		return nil, err
	}
	if s.Password != "" {
		cfg.Passwd = s.Password
	}
	if s.MySQL.TLS.Mode == "" {
		if cfg.TLSConfig == "" && cfg.Net != "unix" {
			cfg.TLSConfig = "preferred"
		}
		return cfg, nil
	}
	cfg.TLSConfig = ""
	switch {
	case s.MySQL.TLS.Mode == TLSDisable || cfg.Net == "unix":
	case s.MySQL.TLS.Mode == TLSPreferred && s.MySQL.TLS.Cert == "":
		cfg.TLSConfig = "preferred"
	default:
		host, _, _ := net.SplitHostPort(cfg.Addr)
		cfg.TLS, err = s.MySQL.TLS.client(host)
		cfg.AllowFallbackToPlaintext = s.MySQL.TLS.Mode == TLSPreferred
	}
	return cfg, err
}

// client makes what crypto/tls wants. Errors name the file and the reason.
func (t TLS) client(host string) (*tls.Config, error) {
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %s %s", t.CA, fileReason(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: %s holds no certificate in PEM form", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert and tls.key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	switch t.Mode {
	case TLSVerifyFull:
	case TLSVerifyCA:
		c.InsecureSkipVerify = true //nolint:gosec // VerifyConnection does it, for any host
		c.VerifyConnection = anyHost(c.RootCAs)
	default:
		c.InsecureSkipVerify = true //nolint:gosec // it is what the mode says
	}
	return c, nil
}

// anyHost verifies the chain and not the name.
func anyHost(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, c := range state.PeerCertificates[1:] {
			opts.Intermediates.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(opts)
		return err
	}
}

// DatabaseOf tells the kind of a connection string; ok is false when it is none.
func DatabaseOf(dsn string) (kind Database, ok bool) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	switch strings.ToLower(scheme) {
	case "mysql":
		return DatabaseMySQL, isURL
	case "mariadb":
		return DatabaseMariaDB, isURL
	case "postgres", "postgresql":
		return DatabasePostgres, isURL
	}
	switch {
	case isURL && !strings.Contains(scheme, "@"):
		return "", false
	case keywordDSN(dsn):
		return DatabasePostgres, true
	case strings.Contains(dsn, "@tcp"), strings.Contains(dsn, "@unix"), strings.HasPrefix(dsn, "tcp("), strings.HasPrefix(dsn, "unix("):
		return DatabaseMySQL, true
	}
	return "", false
}

// keywordDSN says whether a text begins with "word =", as PostgreSQL's other form does.
func keywordDSN(dsn string) bool {
	word, _, found := strings.Cut(dsn, "=")
	return found && word != "" && strings.Trim(strings.ToLower(word), "abcdefghijklmnopqrstuvwxyz_ ") == ""
}

// What a MySQL connection string may say: used names count, ours are set by the program, so
// that a string of an application can be used as it is.
var (
	usedParameters = []string{"tls", "timeout", "allowNativePasswords", "allowCleartextPasswords", "connectionAttributes", "compress"}
	ourParameters  = []string{
		"parseTime", "loc", "charset", "collation", "interpolateParams", "multiStatements", "maxAllowedPacket", "clientFoundRows",
		"columnsWithAlias", "checkConnLiveness", "rejectReadOnly", "timeTruncate", "strict",
	}
)

// dsnError is a mistake in a connection string. It repeats nothing of it.
type dsnError struct{ problem, try string }

func (e *dsnError) Error() string { return e.problem }

const mysqlForms = "write mysql://user@host:3306/database, or user@tcp(host:3306)/database"

// parseMySQL reads a connection string of either form. Its errors are *dsnError.
func parseMySQL(dsn string) (*driver.Config, error) {
	if _, _, isURL := strings.Cut(dsn, "://"); isURL && !strings.Contains(dsn, "@tcp(") && !strings.Contains(dsn, "@unix(") {
		return parseMySQLURL(dsn)
	}
	return parseDriverDSN(dsn)
}

func parseMySQLURL(dsn string) (*driver.Config, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, &dsnError{"the address cannot be read; a password with special characters must be percent-encoded in it",
			"put the password into the key password: of the source, where it needs no encoding"}
	}
	query := u.Query()
	socket := query.Get("socket")
	query.Del("socket")
	cfg, err := parseDriverDSN("/" + url.PathEscape(strings.Trim(u.Path, "/")) + "?" + query.Encode())
	if err != nil {
		return nil, err
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	if socket != "" {
		cfg.Net, cfg.Addr = "unix", socket
		return cfg, nil
	}
	port := u.Port()
	if port == "" {
		port = "3306"
	}
	host := u.Hostname()
	if host == "" {
		host = "127.0.0.1"
	}
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(host, port)
	return cfg, nil
}

// parseDriverDSN reads user:password@tcp(host:port)/database?parameters.
func parseDriverDSN(dsn string) (*driver.Config, error) {
	body, params, _ := strings.Cut(dsn[strings.LastIndex(dsn, "/")+1:], "?")
	kept := url.Values{}
	values, err := url.ParseQuery(params)
	if err != nil {
		return nil, &dsnError{"the parameters of the connection string cannot be read", mysqlForms}
	}
	for name, v := range values {
		switch {
		case slices.Contains(usedParameters, name):
			kept[name] = v
		case slices.Contains(ourParameters, name):
		default:
			return nil, &dsnError{"a parameter of the connection string is not known here",
				"use only " + strings.Join(usedParameters, ", ") + "; certificates are set with mysql: {tls: {…}}"}
		}
	}
	if mode := kept.Get("tls"); mode != "" && !slices.Contains([]string{"true", "false", "skip-verify", "preferred"}, mode) {
		return nil, &dsnError{"the parameter tls of the connection string has a value that is not known here", "use true, false, skip-verify or preferred, or mysql: {tls: {mode: …}}"}
	}
	base := dsn[:strings.LastIndex(dsn, "/")+1] + body
	if len(kept) > 0 {
		base += "?" + kept.Encode()
	}
	cfg, err := driver.ParseDSN(base)
	if err != nil {
		return nil, &dsnError{"the connection string cannot be read", mysqlForms}
	}
	if cfg.Net != "tcp" && cfg.Net != "unix" {
		return nil, &dsnError{"the network of the connection string is neither tcp nor unix", mysqlForms}
	}
	// ParseDSN has made a TLS configuration out of the parameter. It is made again when a
	// connector is, with the host of the final address.
	cfg.TLS = nil
	if cfg.TLSConfig == "preferred" {
		cfg.AllowFallbackToPlaintext = false
	}
	return cfg, nil
}

// checkMySQLDSN says what is wrong with a connection string, without repeating it.
func checkMySQLDSN(dsn string) (problem, try string) {
	cfg, err := parseMySQL(dsn)
	var bad *dsnError
	switch {
	case errors.As(err, &bad):
		return bad.problem, bad.try
	case err != nil:
		return "the connection string cannot be read", mysqlForms
	case cfg.User == "":
		return "the connection string names no user", mysqlForms
	case cfg.Net == "tcp":
		_, port, err := net.SplitHostPort(cfg.Addr)
		if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 1 || n > 65535 {
			return "the connection string has no usable port", mysqlForms
		}
	}
	return "", ""
}

// mysql decodes the block of a MySQL or MariaDB source.
func (d *decoder) mysql(m *MySQL, n *node, path string) {
	id := 0
	d.object(n, path,
		optional("dsn", d.dsn(&m.DSN)),
		optional("server_id", d.whole(&id, 1, 1<<32-1)).aka("replica_id", "id"),
		optional("heartbeat", d.duration(&m.Heartbeat, 100*time.Millisecond, time.Minute, 0)),
		optional("tls", func(n *node, path string) { d.tls(&m.TLS, n, path) }).aka("ssl", "ssl_mode", "sslmode"),
	)
	m.ServerID = uint32(id) //nolint:gosec // in range, or 0
}

func (d *decoder) tls(t *TLS, n *node, path string) {
	t.Mode = TLSPreferred
	if !d.object(n, path,
		optional("mode", oneOf(d, &t.Mode, TLSDisable, TLSPreferred, TLSRequire, TLSVerifyCA, TLSVerifyFull)),
		optional("ca", d.text(&t.CA, nil)).aka("ca_file", "root_cert", "sslrootcert", "ssl_ca"),
		optional("cert", d.text(&t.Cert, nil)).aka("cert_file", "certificate", "ssl_cert"),
		optional("key", d.text(&t.Key, nil)).aka("key_file", "ssl_key"),
	) {
		return
	}
	switch {
	case (t.Cert == "") != (t.Key == ""):
		d.report(CodeConflict, path, n.pos, "set cert and key, or neither", "%s: a certificate and its key belong together", path)
	case t.CA != "" && t.Mode != TLSVerifyCA && t.Mode != TLSVerifyFull && !d.reported(join(path, "mode")):
		at := join(path, "ca")
		d.report(CodeConflict, at, d.posOf(at), "set mode: verify-full, or verify-ca for a certificate of another host name",
			"%s: mode %s does not look at the certificate", at, t.Mode)
	case t.Cert != "" && t.Mode == TLSDisable:
		at := join(path, "cert")
		d.report(CodeConflict, at, d.posOf(at), "set mode: require, verify-ca or verify-full", "%s: mode disable sends no certificate", at)
	}
}

// checkKind reports what belongs to another kind of database than the source's.
func (d *decoder) checkKind(s *Source, path string) {
	kind, ok := DatabaseOf(s.DSN)
	if !ok {
		return // reported, or missing
	}
	s.Database = kind
	for _, block := range []struct {
		key     string
		foreign bool
		is      string
	}{
		{"postgres", kind.IsMySQL(), "PostgreSQL"},
		{"mysql", !kind.IsMySQL(), "MySQL and MariaDB"},
	} {
		at := join(path, block.key)
		if block.foreign && d.has(at) {
			d.report(CodeConflict, at, d.posOf(at), "remove the block, or correct the dsn of the source",
				"%s is for %s, and the dsn leads to %s", at, block.is, kind.Title())
			continue
		}
		if log := join(at, "dsn"); d.has(log) && !d.reported(log) {
			logDSN := s.MySQL.DSN
			if block.key == "postgres" {
				logDSN = s.Postgres.DSN
			}
			if other, ok := DatabaseOf(logDSN); ok && other.IsMySQL() != kind.IsMySQL() {
				d.report(CodeConflict, log, d.posOf(log), "give both the same kind of address",
					"%s leads to %s, and the dsn of the source to %s", log, other.Title(), kind.Title())
			}
		}
	}
	if !kind.IsMySQL() {
		s.MySQL = MySQL{}
		return
	}
	s.Postgres = Postgres{}
	if s.MySQL.TLS.Mode == "" {
		return
	}
	if cfg, err := parseMySQL(s.DSN); err == nil && cfg.TLSConfig != "" {
		at := join(path, "mysql.tls")
		d.report(CodeConflict, at, d.posOf(at), "remove the parameter tls from the dsn", "%s: the dsn says how to encrypt too", at)
	}
}
