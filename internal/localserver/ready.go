package localserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// cannotConnectNow is the SQLSTATE of a server that is starting, stopping or
// recovering.
const cannotConnectNow = "57P03"

// waitReady returns nil when the server on the port accepts sessions, or an
// error when died is closed or the context ends first. listening says whether
// the port is this server's yet, so that a stranger on the port is not taken
// for it.
func waitReady(ctx context.Context, port int, listening func() bool, died <-chan struct{}) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := errNotListening
		if listening() {
			if err = tryConnect(ctx, port); err == nil {
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
	cfg, err := pgconn.ParseConfig("postgres://postgres@" +
		net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/postgres?sslmode=disable")
	if err != nil {
		return err
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code != cannotConnectNow {
			return nil
		}
		return err
	}
	return conn.Close(ctx)
}
