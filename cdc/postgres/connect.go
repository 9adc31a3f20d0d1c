package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Bounds on single steps of a connection's life.
const (
	queryTimeout   = 30 * time.Second // one statement or command of the set-up
	writeTimeout   = 10 * time.Second // one status update
	goodbyeTimeout = 2 * time.Second  // telling the server that we go
)

// session is one connection to the server. It is used by one goroutine; only
// interrupt may be called by another.
type session struct {
	conn *pgconn.PgConn
	// release ends the dials that a dying connection may still make in order to
	// cancel what it was running.
	release context.CancelFunc
	// limit bounds one statement or command of the set-up.
	limit time.Duration
}

// purpose says what a session is for.
type purpose int

const (
	forStream purpose = iota // logical replication, and the set-up before it
	forWatch                 // plain SQL
)

// wire notes when the connection last brought a byte. Liveness is judged by
// this, not by how often a loop turns (B18).
type wire struct {
	net.Conn
	lastByte *atomic.Int64 // Unix nanoseconds
}

func (w wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.lastByte.Store(time.Now().UnixNano())
	}
	return n, err
}

var errDSN = errors.New("DSN is neither a URL nor key=value text that can be read")

// parseDSN reads the DSN. It is read anew for each connection, so that a changed
// password file or certificate is picked up. The parser's error is not passed on:
// it may quote a password that it did not recognise as one.
func (c Config) parseDSN() (*pgconn.Config, error) {
	cfg, err := pgconn.ParseConfig(c.DSN)
	if err != nil {
		return nil, permanent(reasonConfig, errDSN,
			"percent-encode special characters of the password in a URL, or give the password apart")
	}
	if c.Password != "" {
		cfg.Password = c.Password
	}
	return cfg, nil
}

// dial makes a connection and sets its session up.
func (s *Source) dial(ctx context.Context, use purpose) (*session, error) {
	cfg, err := s.cfg.parseDSN()
	if err != nil {
		return nil, err
	}
	name := "cdc-dispatcher " + s.cfg.Instance
	lastByte := new(atomic.Int64)
	if use == forStream {
		cfg.RuntimeParams["replication"] = "database"
		lastByte = &s.status.lastByte
	} else {
		delete(cfg.RuntimeParams, "replication")
		name += " watch"
	}
	cfg.RuntimeParams["application_name"] = name[:min(len(name), 63)]
	// Rows arrive in the client's encoding, so it must not depend on a role's default.
	cfg.RuntimeParams["client_encoding"] = "UTF8"
	connectCtx, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
	defer cancel()
	if s.cfg.BeforeConnect != nil {
		if err := s.cfg.BeforeConnect(connectCtx, cfg); err != nil {
			return nil, retryable(reasonAuth, fmt.Errorf("prepare the connection: %w", err), "")
		}
	}
	lifetime, release := context.WithCancel(context.Background())
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(lifetime, cancel)()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return wire{Conn: conn, lastByte: lastByte}, nil
	}
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		// Closing the socket would leave the server asleep in a lock, holding a
		// half-made slot (B28), so that the end of a context cancels the statement.
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 5 * time.Second}
	}
	conn, err := pgconn.ConnectConfig(connectCtx, cfg)
	if err != nil {
		release()
		return nil, classifyConnect(err, cfg)
	}
	c := &session{conn: conn, release: release, limit: s.queryLimit}
	if _, err := c.query(ctx, sessionSettings); err != nil {
		c.close()
		return nil, fmt.Errorf("set up the session: %w", err)
	}
	return c, nil
}

// sessionSettings makes a session independent of the defaults of its role and
// database: no limit may end an idle stream (B21), values print the same
// everywhere, warnings are sent, and no function of the user's is called by accident.
const sessionSettings = `
SET search_path = pg_catalog;
SET default_transaction_read_only = off;
SET client_min_messages = warning;
SET DateStyle = 'ISO, YMD';
SET IntervalStyle = postgres;
SET TimeZone = 'UTC';
SET bytea_output = hex;
SET extra_float_digits = 1;
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout',
	'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout')`

// query runs SQL by the simple protocol, the only one that a replication
// connection speaks, and returns the rows of the last statement. A null reads as "".
func (c *session) query(ctx context.Context, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	return c.queryUntil(ctx, sql)
}

// queryUntil is query without a limit of its own.
func (c *session) queryUntil(ctx context.Context, sql string) ([][]string, error) {
	results, err := c.conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) == 0 {
		return nil, nil
	}
	last := results[len(results)-1]
	rows := make([][]string, len(last.Rows))
	for i, row := range last.Rows {
		rows[i] = make([]string, len(row))
		for j, field := range row {
			rows[i][j] = string(field)
		}
	}
	return rows, nil
}

// row is query for exactly one row of n columns.
func (c *session) row(ctx context.Context, sql string, n int) ([]string, error) {
	rows, err := c.query(ctx, sql)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) != n {
		return nil, fmt.Errorf("the server answered with %d rows, want one of %d columns", len(rows), n)
	}
	return rows[0], nil
}

// interrupt makes a blocked read return at once. It may be called from any
// goroutine.
func (c *session) interrupt() {
	_ = c.conn.Conn().SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
}

// leave tells the server that this is the end and waits until it has read
// everything that was sent before. Closing at once could make the kernel throw
// away a last status update.
func (c *session) leave() {
	conn := c.conn.Conn()
	if conn.SetDeadline(time.Now().Add(goodbyeTimeout)) != nil {
		return
	}
	c.conn.Frontend().Send(&pgproto3.Terminate{})
	if c.conn.Frontend().Flush() == nil {
		_, _ = io.Copy(io.Discard, conn) // ends with the server's close or the deadline
	}
}

// close ends the connection and waits for what the driver still does with it.
func (c *session) close() {
	c.release()
	conn := c.conn.Conn()
	_ = conn.SetDeadline(time.Now().Add(goodbyeTimeout))
	_ = c.conn.Close(context.Background()) // nobody needs this connection to have closed well
	_ = conn.Close()
	<-c.conn.CleanupDone()
}

// quoteIdent quotes an identifier.
func quoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// quoteLiteral quotes a text so that it reads the same whatever
// standard_conforming_strings says.
func quoteLiteral(text string) string {
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
