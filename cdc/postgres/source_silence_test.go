package postgres

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// TestB18_SilenceWhileConnectingIsBounded: a peer that stops answering, or credentials that never come, hold the
// reader up for one attempt only.
func TestB18_SilenceWhileConnectingIsBounded(t *testing.T) {
	swallowOnce := func(what string) func(context.Context, *pgconn.Config, *atomic.Bool) error {
		return func(_ context.Context, cfg *pgconn.Config, done *atomic.Bool) error {
			dial := cfg.DialFunc
			cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return swallower{Conn: conn, what: []byte(what), done: done}, err
			}
			return nil
		}
	}
	for _, tc := range []struct {
		name   string
		before func(context.Context, *pgconn.Config, *atomic.Bool) error
	}{
		{"identify", swallowOnce("IDENTIFY_SYSTEM")},
		{"start", swallowOnce("START_REPLICATION")},
		{"credentials", func(ctx context.Context, _ *pgconn.Config, done *atomic.Bool) error {
			if done.Swap(true) {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachPostgres(t, func(t *testing.T, db *testdb.DB) {
				var done atomic.Bool
				cfg := testConfig(db)
				cfg.ConnectTimeout = 3 * time.Second
				cfg.BeforeConnect = func(ctx context.Context, c *pgconn.Config) error {
					if c.RuntimeParams["replication"] == "" {
						return nil
					}
					return tc.before(ctx, c, &done)
				}
				r := start(t, cfg, func(r *reader) { r.src.queryLimit = 3 * time.Second })
				r.WaitMode(cdc.ModeStreaming)
				if !done.Load() || r.src.Status().Reconnects == 0 {
					t.Error("nothing was silent")
				}
			})
		})
	}
}

// swallower keeps the first write with a certain text from the server.
type swallower struct {
	net.Conn
	what []byte
	done *atomic.Bool
}

func (s swallower) Write(p []byte) (int, error) {
	if bytes.Contains(p, s.what) && !s.done.Swap(true) {
		return len(p), nil
	}
	return s.Conn.Write(p)
}
