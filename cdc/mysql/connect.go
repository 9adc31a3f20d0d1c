package mysql

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	driver "github.com/go-sql-driver/mysql"
)

// queryTimeout bounds one statement beside the stream.
const queryTimeout = 10 * time.Second

// writePatience is how long the server waits, in seconds, while the consumer is busy and
// nothing is read. Its default of a minute would cut the stream and make it read again what
// is being worked on.
const writePatience = 3600

// endpoint is the configuration of the next connections. It is made anew for each, so
// that a fresh token or password counts.
func (s *Source) endpoint(ctx context.Context) (*driver.Config, error) {
	cfg, err := s.cfg.parseDSN()
	if err != nil {
		return nil, permanent(reasonConfig, err, "write the DSN as user:password@tcp(host:port)/database")
	}
	if s.cfg.BeforeConnect != nil {
		if err := s.cfg.BeforeConnect(ctx, cfg); err != nil {
			return nil, retryable(reasonAuth, fmt.Errorf("prepare the connection: %w", err), "")
		}
	}
	return cfg, nil
}

// openSide opens the plain SQL connection beside the stream, and checks that it works.
func (s *Source) openSide(ctx context.Context, cfg *driver.Config) (*sql.DB, error) {
	side := cfg.Clone()
	side.ParseTime, side.MultiStatements, side.InterpolateParams = false, false, true
	side.Loc = time.UTC
	side.Timeout, side.ReadTimeout, side.WriteTimeout = s.cfg.ConnectTimeout, queryTimeout, queryTimeout
	side.ConnectionAttributes = "program_name:cdc-dispatcher " + s.cfg.Instance
	side.Logger = &driver.NopLogger{}
	connector, err := driver.NewConnector(side)
	if err != nil {
		return nil, permanent(reasonConfig, errDSN, "check the parameters of the DSN")
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(2) // one for the watcher, one for the stream
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close() // it never worked
		return nil, classifySQL("connect", err, cfg)
	}
	return db, nil
}

// logConn is one connection that the binlog comes from. One goroutine uses it; the
// library's own goroutine parses events and waits, for each batch, until it is taken.
type logConn struct {
	syncer *replication.BinlogSyncer
	filter rowsFilter
	// filling is the batch that the library's goroutine adds to, taken the one before.
	filling, taken *logBatch

	events chan *logBatch
	failed chan error
	done   chan struct{}
	ended  sync.WaitGroup
	dialer *cutDialer
}

var errCut = errors.New("the connection was closed by this side")

// newLog makes a connection that does nothing yet. The library's own reconnecting is off:
// it would go on from where it read, and not from what is durable.
func (s *Source) newLog(cfg *driver.Config, f facts) *logConn {
	c := &logConn{
		filling: new(logBatch), taken: new(logBatch),
		events: make(chan *logBatch),
		failed: make(chan error, 1),
		done:   make(chan struct{}),
		filter: rowsFilter{tables: newTableSet(s.cfg.Tables), fold: f.fold},
		dialer: &cutDialer{lastByte: &s.status.lastByte, timeout: s.cfg.ConnectTimeout, patience: s.cfg.ReadTimeout},
	}
	c.filter.kept = &c.filling.rows
	host, port := cfg.Addr, 0
	if cfg.Net == "tcp" {
		name, number, err := net.SplitHostPort(cfg.Addr)
		if n, err2 := strconv.ParseUint(number, 10, 16); err == nil && err2 == nil {
			host, port = name, int(n)
		}
	}
	var secure *tls.Config
	if f.tls && cfg.TLS != nil {
		secure = cfg.TLS.Clone()
	}
	flavor := gomysql.MySQLFlavor
	if f.mariaDB {
		flavor = gomysql.MariaDBFlavor
	}
	c.syncer = replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: s.cfg.ServerID, Flavor: flavor,
		Host: host, Port: uint16(port), User: cfg.User, Password: cfg.Passwd,
		Localhost: s.cfg.Instance, TLSConfig: secure, Dialer: c.dialer.dial,
		HeartbeatPeriod:  s.cfg.Heartbeat, // and no ReadTimeout, which it would renew several times for each event
		DisableRetrySync: true, DiscardGTIDSet: true, EventCacheCount: 1,
		PayloadDecoderConcurrency: 1,
		RowsEventDecodeFunc:       c.filter.filter,
		SynchronousEventHandler:   c,
		// What the library logs may quote rows.
		Logger: slog.New(slog.DiscardHandler),
		Option: func(conn *client.Conn) error {
			_, err := conn.Execute("SET SESSION net_write_timeout = " + strconv.Itoa(writePatience))
			return err
		},
	})
	return c
}

// start asks the server for everything after a place. The server's refusal comes later.
func (c *logConn) start(ctx context.Context, at place) error {
	defer context.AfterFunc(ctx, c.dialer.cut)()
	var streamer *replication.BinlogStreamer
	var err error
	switch at.mode {
	case modeFile:
		streamer, err = c.syncer.StartSync(gomysql.Position{Name: at.file, Pos: at.offset})
	case modeGTID:
		streamer, err = c.syncer.StartSyncGTID(at.set.Clone())
	default:
		set, parseErr := gomysql.ParseMariadbGTIDSet(at.detail())
		if parseErr != nil {
			return errPosition
		}
		streamer, err = c.syncer.StartSyncGTID(set)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	c.ended.Go(func() {
		// Events go to HandleEvent, on the same goroutine that fails, and has ended by then. All that came
		// before the failure is taken before it is told.
		_, err := streamer.GetEvent(context.Background())
		_ = c.hand() // fails only if nobody waits for either
		c.failed <- err
	})
	return nil
}

// close ends the connection and the library's goroutine. It waits for nothing on the
// network: reads and writes end at once, and no connection is made to kill the old one, whose
// number may be another's by now.
func (c *logConn) close() {
	close(c.done)
	c.dialer.cut()
	c.syncer.Close()
	c.ended.Wait()
	c.dialer.hangUp()
}

// silent says that a read ran into its deadline, which the library's error hides.
func (c *logConn) silent() bool { return c.dialer.timedOut.Load() }

// cutDialer makes the library's connections, and can end them at any time.
type cutDialer struct {
	lastByte *atomic.Int64 // Unix nanoseconds
	timeout  time.Duration // of dialing
	patience time.Duration // of each read; up to a tenth more
	timedOut atomic.Bool

	mu     sync.Mutex
	closed bool
	giveUp context.CancelFunc // ends the dialing
	conn   net.Conn           // the socket itself
}

func (d *cutDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	d.mu.Lock()
	closed := d.closed
	d.giveUp = cancel
	d.mu.Unlock()
	if closed {
		return nil, errCut
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = conn.Close() // nobody used it
		return nil, errCut
	}
	d.conn = conn
	return &wire{Conn: conn, d: d}, nil
}

// cut makes every read and write fail at once. It does not close the socket: the library,
// told to close, would answer that by closing its connection under its own reader, which is a
// data race.
func (d *cutDialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.giveUp != nil {
		d.giveUp()
	}
	if d.conn != nil {
		_ = d.conn.SetDeadline(longAgo) // fails only on a closed socket
	}
}

// hangUp closes the socket.
func (d *cutDialer) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = d.conn.Close() // the library may have done so
	}
}

// deadline is when the library wants reads or writes to fail, or long ago once the
// connection is cut.
func (d *cutDialer) deadline(set func(time.Time) error, at time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		at = longAgo
	}
	return set(at)
}

var longAgo = time.Unix(1, 0)

// wire gives each read its time, and notes when the connection last brought a byte, and whether it
// was waited for in vain.
type wire struct {
	net.Conn
	d     *cutDialer
	until time.Time // when a read fails. Only reads use it.
}

func (w *wire) SetDeadline(at time.Time) error      { return w.d.deadline(w.Conn.SetDeadline, at) }
func (w *wire) SetReadDeadline(at time.Time) error  { return w.d.deadline(w.Conn.SetReadDeadline, at) }
func (w *wire) SetWriteDeadline(at time.Time) error { return w.d.deadline(w.Conn.SetWriteDeadline, at) }

func (w *wire) Read(p []byte) (int, error) {
	// Timers are dear: one that has enough time left is kept.
	if now := time.Now(); w.d.patience > 0 && w.until.Sub(now) < w.d.patience {
		w.until = now.Add(w.d.patience + w.d.patience/10)
		if err := w.SetReadDeadline(w.until); err != nil {
			return 0, err
		}
	}
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.d.lastByte.Store(time.Now().UnixNano())
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		w.d.timedOut.Store(true)
	}
	return n, err
}
