package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema/postgres"
)

// session is the SQL connection and what the first checks learned through it.
type session struct {
	cfg  Config
	conn *pgx.Conn
	// pool is for packages that want one: a single further connection, nil until then.
	pool *pgxpool.Pool

	// pooled says that something between here and the server hands its connections from client to
	// client.
	pooled bool

	version  int // server_version_num
	user     string
	database string
	// provider is the managed service, "" for none that is known.
	provider string
}

func (s *session) close() {
	if s.pool != nil {
		s.pool.Close()
	}
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // nothing is left in it
}

// connections returns the pool.
func (s *session) connections(ctx context.Context) (*pgxpool.Pool, error) {
	if s.pool != nil {
		return s.pool, nil
	}
	cfg, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig, _ = s.config(s.cfg.DSN) // it was read before
	// Poolers refuse such parameters. What uses the pool only reads, and the context ends it.
	if !s.pooled {
		cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		cfg.ConnConfig.RuntimeParams["statement_timeout"] = fmt.Sprint(s.limit().Milliseconds())
	}
	cfg.MaxConns = 1
	s.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	return s.pool, err
}

// store returns the SQL store on the pool.
func (s *session) store(ctx context.Context) (*postgres.Store, error) {
	pool, err := s.connections(ctx)
	if err != nil {
		return nil, err
	}
	return postgres.New(pool, postgres.Config{Schema: s.cfg.Schema, Table: s.cfg.Table})
}

// limit is what the server may take for one statement: less than the check has, so that the server
// says that it took too long, and the connection stays.
func (s *session) limit() time.Duration { return s.cfg.Timeout * 9 / 10 }

// row runs a query for exactly one row, in a read-only transaction that bounds it. Nothing is set
// for the session: behind a pooler the next one to use it may be the application.
func (s *session) row(ctx context.Context, sql string, args []any, into ...any) error {
	begin := fmt.Sprintf("BEGIN READ ONLY; SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = 1000; SET LOCAL search_path = pg_catalog; SET LOCAL timezone = 'UTC'",
		s.limit().Milliseconds())
	return pgx.BeginTxFunc(ctx, s.conn, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, args...).Scan(into...)
	})
}

// SQLSTATEs that tell an operator what to do.
const (
	stateInvalidAuth        = "28000"
	stateInvalidPassword    = "28P01"
	stateNoDatabase         = "3D000"
	statePrivilege          = "42501"
	stateProtocolViolation  = "08P01"
	stateTooManyConnections = "53300"
	stateQueryCanceled      = "57014"
)

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// describe keeps what an operator can use of an error. The driver's own text around it
// repeats the connection's settings.
func describe(err error) string {
	var pg *pgconn.PgError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &pg):
		return fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	case errors.As(err, &dns):
		return dns.Error()
	case errors.As(err, &op):
		return op.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	inner := err
	for next := errors.Unwrap(inner); next != nil; next = errors.Unwrap(inner) {
		inner = next
	}
	return inner.Error()
}

const hintDSN = "percent-encode special characters of the password in a URL, or give the password apart"

// config reads a DSN. The parser's error is not passed on: it may quote what it did not
// recognise as a password.
func (s *session) config(dsn string) (*pgx.ConnConfig, bool) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, false
	}
	if s.cfg.Password != "" {
		c.Password = s.cfg.Password
	}
	c.RuntimeParams["application_name"] = "cdc-dispatcher doctor"
	c.RuntimeParams["client_encoding"] = "UTF8"
	return c, true
}

func checkConnect(ctx context.Context, s *session) (Finding, error) {
	c, ok := s.config(s.cfg.DSN)
	if !ok {
		return Finding{Status: Fail, Message: "the DSN is neither a URL nor key=value text that can be read", Hint: hintDSN}, nil
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return connectFinding(err, c), nil
	}
	s.conn = conn
	var text string
	var backend uint32
	if err := s.row(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_user, current_database(), pg_backend_pid()`,
		nil, &s.version, &text, &s.user, &s.database, &backend); err != nil {
		return Finding{}, err
	}
	// The process that the connection was told to cancel is not the one that runs its statements:
	// only something between the two makes them differ.
	s.pooled = backend != conn.PgConn().PID()
	if s.provider, err = s.detectProvider(ctx); err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: fmt.Sprintf("connected as %s to %s at %s", s.user, s.database, address(c)), Value: "PostgreSQL " + text}
	if s.provider != "" {
		f.Value += " on " + s.provider
	}
	return f, nil
}

func address(c *pgx.ConnConfig) string {
	if strings.HasPrefix(c.Host, "/") {
		return c.Host
	}
	return net.JoinHostPort(c.Host, fmt.Sprint(c.Port))
}

// connectFinding says what a failed connection asks for.
func connectFinding(err error, c *pgx.ConnConfig) Finding {
	f := Finding{Status: Fail, Message: fmt.Sprintf("no connection to %s: %s", address(c), describe(err))}
	var certificate *tls.CertificateVerificationError
	switch state := sqlState(err); {
	case state == stateInvalidPassword, state == stateInvalidAuth:
		f.Hint = fmt.Sprintf("check user %q and its password, and that pg_hba.conf lets it reach database %q", c.User, c.Database)
	case state == stateNoDatabase:
		f.Fix = []string{"CREATE DATABASE " + ident(c.Database)}
	case state == stateTooManyConnections:
		f.Hint = "all connections are taken: end some, or raise max_connections and restart the server"
	case errors.As(err, &certificate):
		f.Hint = "set sslrootcert to the authority that signed the server's certificate, or choose another sslmode"
	case state == "":
		f.Hint = "check host, port and firewall, and that the server runs"
	}
	return f
}

// detectProvider tells managed services by the roles that they create: their settings
// are changed elsewhere.
func (s *session) detectProvider(ctx context.Context) (string, error) {
	var provider string
	err := s.row(ctx, `SELECT coalesce(max(name), '')
		FROM (VALUES ('rds_superuser', 'Amazon RDS'), ('cloudsqlsuperuser', 'Cloud SQL'), ('azure_pg_admin', 'Azure'),
		             ('neon_superuser', 'Neon'), ('supabase_admin', 'Supabase')) v(role, name)
		JOIN pg_roles ON rolname = role`, nil, &provider)
	return provider, err
}

func checkTLS(_ context.Context, s *session) (Finding, error) {
	conn := s.conn.PgConn().Conn()
	if c, ok := conn.(*tls.Conn); ok {
		return Finding{Status: OK, Message: "the connection is encrypted", Value: tls.VersionName(c.ConnectionState().Version)}, nil
	}
	return plainConnection(conn.RemoteAddr()), nil
}

// plainConnection judges a connection without TLS by where it leads.
func plainConnection(remote net.Addr) Finding {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return Finding{Status: OK, Message: "the connection is not encrypted and does not leave this machine"}
	}
	return Finding{
		Status: Warn, Message: "the connection is not encrypted", Value: tcp.IP.String(),
		Hint: "add sslmode=verify-full to the DSN, and sslrootcert if the server's certificate is signed by your own authority",
	}
}

func checkPooler(_ context.Context, s *session) (Finding, error) {
	if !s.pooled {
		return Finding{Status: OK, Message: "the connection leads to the server itself"}, nil
	}
	f := Finding{Status: Fail, Message: "a connection pooler stands between, and poolers do not carry replication connections",
		Hint: "point the DSN at the server itself, or give the log a DSN of its own that leads there"}
	if s.cfg.Poll || s.cfg.ReplicationDSN != s.cfg.DSN {
		f.Status, f.Message = Warn, "a connection pooler stands between"
		f.Hint = "migrations hold a session lock: run them through the server itself if the pooler shares connections between transactions"
	}
	return f, nil
}

const oldestVersion = 15

func checkVersion(_ context.Context, s *session) (Finding, error) {
	f := Finding{Status: OK, Message: "the version is supported", Value: fmt.Sprint(s.version / 10000)}
	if s.version < oldestVersion*10000 {
		f.Status = Fail
		f.Message = fmt.Sprintf("the version is older than %d", oldestVersion)
		f.Hint = fmt.Sprintf("upgrade the server to PostgreSQL %d or later", oldestVersion)
	}
	return f, nil
}

func checkPrimary(ctx context.Context, s *session) (Finding, error) {
	var recovery, readOnly bool
	if err := s.row(ctx, "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool", nil, &recovery, &readOnly); err != nil {
		return Finding{}, err
	}
	switch {
	case recovery:
		return Finding{Status: Fail, Message: "this server is a standby; deliveries can be written to the primary only",
			Hint: "point the DSN at the primary, or list all hosts in it with target_session_attrs=read-write"}, nil
	case readOnly:
		fix, hint, err := s.settingFix(ctx, "default_transaction_read_only", "off")
		if len(fix) > 0 { // the administrator's own session is likely to be read-only, too
			fix = append([]string{"SET default_transaction_read_only = off"}, fix...)
		}
		return Finding{Status: Fail, Message: "transactions of this role are read-only", Fix: fix, Hint: hint}, err
	}
	return Finding{Status: OK, Message: "the server takes writes"}, nil
}

func checkClock(ctx context.Context, s *session) (Finding, error) {
	var db time.Time
	before := s.cfg.now()
	if err := s.row(ctx, "SELECT clock_timestamp()", nil, &db); err != nil {
		return Finding{}, err
	}
	after := s.cfg.now()
	// The database looked at its clock somewhere between before and after; what lies
	// outside of that is certain.
	skew := max(before.Sub(db), db.Sub(after), 0)
	f := Finding{Status: OK, Message: "this machine and the database agree on the time"}
	if skew > s.cfg.MaxSkew {
		f = Finding{Status: Warn, Message: "the clocks of this machine and the database differ", Value: skew.Round(time.Millisecond).String(),
			Hint: "run a time service on both; retries and leases go by the database's clock, but latencies that are shown mix the two"}
	}
	return f, nil
}

// fewConnections is what one process uses with room to spare: its pool and the reader's two.
const fewConnections = 20

func checkConnections(ctx context.Context, s *session) (Finding, error) {
	var limit, used int
	if err := s.row(ctx, `SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
		       - coalesce(current_setting('reserved_connections', true)::int, 0),
		       (SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL OR usename IS NOT NULL)`, nil, &limit, &used); err != nil {
		return Finding{}, err
	}
	f := Finding{Status: OK, Message: "connections are free", Value: fmt.Sprintf("%d of %d in use", used, limit)}
	if limit-used < fewConnections {
		f.Status, f.Message = Warn, "few connections are free"
		var err error
		if f.Fix, f.Hint, err = s.settingFix(ctx, "max_connections", fmt.Sprint(max(100, 2*limit))); err != nil {
			return Finding{}, err
		}
	}
	return f, nil
}
