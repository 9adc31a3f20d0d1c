package localserver

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/go-sql-driver/mysql"
)

// Family says which of the two servers that speak MySQL's protocol is meant.
type Family string

// The families.
const (
	MySQLServer   Family = "MySQL"
	MariaDBServer Family = "MariaDB"
)

// MySQLOptions say which server to start and how. The zero value is the newest
// MySQL found.
type MySQLOptions struct {
	// Family is the wanted family; empty means MySQLServer.
	Family Family
	// Series is the wanted series of versions, for example "9.7" or "10.11";
	// empty takes the newest found.
	Series string
	// Settings are given to the server at every start, on top of: binary log on
	// in ROW format, a server id of its own (the port), GTIDs on for MySQL (MariaDB
	// always has them), utf8mb4. A key is written as in an option file.
	Settings map[string]string
	// Dir is the parent of the server's folder; empty means the system's
	// folder for temporary files. A server from a tree ignores it.
	Dir string
	// Install is the server to run; nil looks for one of the wanted series.
	Install *MySQLInstall
}

// mysqlBackend is a way to run one server. MySQL serialises the calls.
type mysqlBackend interface {
	start(ctx context.Context) error
	stop(ctx context.Context) error
	kill() error
	freeze() error
	thaw() error
	configure(settings map[string]string)
	logFile() string
	port() int
	writeFile(name string, content []byte) (string, error)
	close() error
}

// MySQL is one throw-away server: MySQL or MariaDB.
type MySQL struct {
	install MySQLInstall
	guard   guard
	server  mysqlBackend
}

// StartMySQL makes a new server with an empty data folder, starts it and returns
// when it accepts connections. Its superuser is root, without a password, over
// TCP on 127.0.0.1. The context bounds the start only. Errors wrap ErrNotFound
// when there is no such server here; any other error ends with the last lines
// of the server's log.
func StartMySQL(ctx context.Context, o MySQLOptions) (*MySQL, error) {
	var install MySQLInstall
	if o.Install != nil {
		install = *o.Install
	} else {
		var err error
		if install, err = findSeries(ctx, o.Family, o.Series); err != nil {
			return nil, err
		}
	}
	server, err := newMySQLProcess(ctx, install, o)
	if err != nil {
		return nil, fmt.Errorf("start %s from %s: %w", install.Family, install, err)
	}
	return &MySQL{install: install, server: server}, nil
}

// DSN is the data source name of a database on this server for the superuser, as
// github.com/go-sql-driver/mysql reads it. An empty database selects none.
func (m *MySQL) DSN(database string) string { return m.Config(database).FormatDSN() }

// Config is DSN before it is put into words.
func (m *MySQL) Config(database string) *mysql.Config { return rootConfig(m.Port(), database) }

// Host is the address the server listens on, always 127.0.0.1.
func (m *MySQL) Host() string { return "127.0.0.1" }

// Port is the TCP port. It stays the same over Stop, Kill and Start.
func (m *MySQL) Port() int { return m.server.port() }

// Family says whether the server is MySQL or MariaDB.
func (m *MySQL) Family() Family { return m.install.Family }

// Version is the server's version without suffixes, for example "10.11.19".
func (m *MySQL) Version() string { return m.install.Version }

// Origin says where the server comes from, for a line in a test's output.
func (m *MySQL) Origin() string { return m.install.String() }

// LogFile is the path of the server's error log. Close removes it.
func (m *MySQL) LogFile() string { return m.server.logFile() }

// WriteFile puts a file that only the server's user may read next to the data,
// for example a TLS key, and returns its path as the server sees it.
func (m *MySQL) WriteFile(name string, content []byte) (path string, err error) {
	err = m.guard.do(func() error {
		path, err = m.server.writeFile(name, content)
		return err
	})
	return path, err
}

// Configure changes settings from the next Start on; others stay.
func (m *MySQL) Configure(settings map[string]string) error {
	return m.guard.do(func() error {
		m.server.configure(settings)
		return nil
	})
}

// Start starts the server again after Stop or Kill, on the same data and port,
// and returns when it accepts connections.
func (m *MySQL) Start(ctx context.Context) error {
	return m.guard.do(func() error { return m.server.start(ctx) })
}

// Stop ends all sessions, shuts the server down cleanly and waits until it is gone.
// When the context ends first the server is still shutting down; Kill and Close
// remain possible.
func (m *MySQL) Stop(ctx context.Context) error {
	return m.guard.do(func() error { return m.server.stop(ctx) })
}

// Kill ends the server with SIGKILL and waits until it is gone: a crash. Start
// recovers from it.
func (m *MySQL) Kill() error { return m.guard.do(m.server.kill) }

// Freeze stops the server where it is: connections stay open and nothing answers.
func (m *MySQL) Freeze() error { return m.guard.do(m.server.freeze) }

// Thaw undoes Freeze.
func (m *MySQL) Thaw() error { return m.guard.do(m.server.thaw) }

// Close ends the server, whatever its state, and removes all its files. Calls
// after the first do nothing.
func (m *MySQL) Close() error { return m.guard.close(m.server.close) }

// rootConfig connects the superuser. The driver's own log is silenced: what it says
// there, it also returns.
func rootConfig(port int, database string) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.User = "root"
	cfg.Net = "tcp"
	cfg.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	cfg.DBName = database
	cfg.Logger = &mysql.NopLogger{}
	return cfg
}
