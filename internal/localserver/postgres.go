package localserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
)

// PostgresOptions say which server to start and how. The zero value is the
// newest server found, with logical decoding on.
type PostgresOptions struct {
	// Major is the wanted major version; 0 takes the newest found.
	Major int
	// Settings go into the server's configuration file, on top of
	// wal_level=logical. They can be changed later with ALTER SYSTEM. fsync
	// stays on unless set here.
	Settings map[string]string
	// Dir is the parent of the server's folder; empty means the system's
	// folder for temporary files. A server from a tree ignores it.
	Dir string
	// HBA is the content of pg_hba.conf. Empty trusts every connection, which
	// can come only from this machine.
	HBA string
	// Install is the server to run; nil looks for one of the wanted major.
	Install *Install
	// StandbyOf makes the new server a physical standby of a running one of the same
	// install, which primary_conninfo leads to unless Settings say otherwise. SQL
	// promotes it.
	StandbyOf *Postgres
}

// StopMode is one of PostgreSQL's three ways to shut down.
type StopMode int

const (
	// StopFast ends all sessions, then writes a shutdown checkpoint.
	StopFast StopMode = iota
	// StopImmediate ends every process without a checkpoint; the next start
	// recovers from the log.
	StopImmediate
	// StopSmart waits until every client has left.
	StopSmart
)

// backend is a way to run one server: as processes here or in a container.
// Postgres serialises the calls.
type backend interface {
	start(ctx context.Context) error
	stop(ctx context.Context, mode StopMode) error
	kill() error
	freeze() error
	thaw() error
	logFile() string
	port() int
	writeFile(name string, content []byte) (string, error)
	close() error
}

// Postgres is one throw-away server.
type Postgres struct {
	install Install
	// origin is where an attached server comes from.
	origin string
	guard  guard
	server backend
}

// StartPostgres makes a new cluster (UTF8, C locale, superuser "postgres"),
// starts it and returns when it accepts connections. The context bounds the
// start only. Errors wrap ErrNotFound when there is no such server here; any
// other error ends with the last lines of the server's log.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	var install Install
	switch {
	case o.StandbyOf != nil:
		install = o.StandbyOf.install
	case o.Install != nil:
		install = *o.Install
	default:
		var err error
		if install, err = findMajor(ctx, o.Major); err != nil {
			return nil, err
		}
	}
	var server backend
	var err error
	if install.Image != "" && o.StandbyOf != nil {
		err = errors.New("a standby needs local binaries")
	} else if install.Image != "" {
		server, err = newContainer(ctx, &install, o)
	} else {
		server, err = newProcess(ctx, install, o)
	}
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL from %s: %w", install, err)
	}
	return &Postgres{install: install, server: server}, nil
}

// DSN is the URL of a database on this server for the superuser.
func (p *Postgres) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     net.JoinHostPort(p.Host(), strconv.Itoa(p.Port())),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Host is the address the server listens on, always 127.0.0.1.
func (p *Postgres) Host() string { return "127.0.0.1" }

// Port is the TCP port. It stays the same over Stop, Kill and Start.
func (p *Postgres) Port() int { return p.server.port() }

// Major is the server's major version.
func (p *Postgres) Major() int { return p.install.Major }

// Version is the server's full version, for example "15.18".
func (p *Postgres) Version() string { return p.install.Version }

// Origin says where the server comes from, for a line in a test's output.
func (p *Postgres) Origin() string { return cmp.Or(p.origin, p.install.String()) }

// LogFile is the path of the server's log. Close removes it.
func (p *Postgres) LogFile() string { return p.server.logFile() }

// WriteFile puts a file that only the server's user may read next to the data,
// for example a TLS key, and returns its path as the server sees it.
func (p *Postgres) WriteFile(name string, content []byte) (path string, err error) {
	err = p.guard.do(func() error {
		path, err = p.server.writeFile(name, content)
		return err
	})
	return path, err
}

// Start starts the server again after Stop or Kill, on the same data and port,
// and returns when it accepts connections.
func (p *Postgres) Start(ctx context.Context) error {
	return p.guard.do(func() error { return p.server.start(ctx) })
}

// Stop shuts the server down and waits until it is gone. When the context ends
// first the server is still shutting down; Kill and Close remain possible.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	return p.guard.do(func() error { return p.server.stop(ctx, mode) })
}

// Kill ends every process of the server with SIGKILL and waits until they are
// gone: a crash. Start recovers from it.
func (p *Postgres) Kill() error { return p.guard.do(p.server.kill) }

// Freeze stops every process of the server where it is: connections stay open
// and nothing answers.
func (p *Postgres) Freeze() error { return p.guard.do(p.server.freeze) }

// Thaw undoes Freeze.
func (p *Postgres) Thaw() error { return p.guard.do(p.server.thaw) }

// Close ends the server, whatever its state, and removes all its files. Calls
// after the first do nothing.
func (p *Postgres) Close() error { return p.guard.close(p.server.close) }
