package localserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// cannotConnectNow is the SQLSTATE of a server that is starting, stopping or
// recovering.
const cannotConnectNow = "57P03"

// waitReady returns nil when try, which opens and closes a session, succeeds, or
// an error when died is closed or the context ends first. listening says whether
// the port is this server's yet, so that a stranger on the port is not taken
// for it.
func waitReady(ctx context.Context, try func() error, listening func() bool, died <-chan struct{}) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := errNotListening
		if listening() {
			if err = try(); err == nil {
				return nil
			}
		}
		select {
		case <-died:
			return errDied
		case <-ctx.Done():
			return fmt.Errorf("not ready when the wait ended (%w): %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

var (
	errDied         = errors.New("the server process ended")
	errNotListening = errors.New("the server does not listen yet")
)

// tryConnect opens and closes one session. A server that answers with any
// refusal other than "not now" is up: a pg_hba.conf of the caller may well keep
// this probe out.
func tryConnect(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, probeDSN(port))
	if err != nil {
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code != cannotConnectNow {
			return nil
		}
		return err
	}
	return conn.Close(ctx)
}

// shuttingDown is MySQL's number for "Server shutdown in progress".
const shuttingDown = 1053

// tryMySQL is tryConnect for MySQL and MariaDB.
func tryMySQL(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	connector, err := mysql.NewConnector(rootConfig(port, ""))
	if err != nil {
		return err
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		if refusal, ok := errors.AsType[*mysql.MySQLError](err); ok && refusal.Number != shuttingDown {
			return nil
		}
		return err
	}
	return conn.Close()
}

func probeDSN(port int) string {
	return "postgres://postgres@127.0.0.1:" + strconv.Itoa(port) + "/postgres?sslmode=disable"
}

// FreePort picks a TCP port that nobody listens on. It stays below the range
// from which kernels take the ports of outgoing connections: otherwise any
// client on the machine could take the port while the server is down.
func FreePort() (int, error) {
	var last error
	for range 200 {
		port := 10000 + rand.IntN(22000)
		l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port found: %w", last)
}

// withLog adds the end of a server's log to an error.
func withLog(err error, logFile string) error {
	if err == nil {
		return nil
	}
	text, readErr := os.ReadFile(logFile)
	if readErr != nil {
		return err // there is no log yet
	}
	return fmt.Errorf("%w\nlast lines of its log:\n%s", err, lastLines(text, 15))
}

func lastLines(text []byte, n int) []byte {
	text = bytes.TrimRight(text, "\n")
	at := len(text)
	for range n {
		if at = bytes.LastIndexByte(text[:at], '\n'); at < 0 {
			return text
		}
	}
	return text[at+1:]
}
