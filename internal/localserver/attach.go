package localserver

import (
	"context"
	"errors"
	"fmt"
)

// Attach returns a server that somebody else started and will end, for example in a
// container: it listens on 127.0.0.1 and has a superuser "postgres" who needs no password. origin
// says where it comes from. Close leaves it alone, and every method that would stop,
// freeze or change it returns an error.
func Attach(ctx context.Context, port int, origin string) (*Postgres, error) {
	major, version, err := askVersion(ctx, port)
	if err != nil {
		return nil, fmt.Errorf("attach to PostgreSQL on port %d: %w", port, err)
	}
	return &Postgres{install: Install{Major: major, Version: version}, origin: origin, server: attached(port)}, nil
}

// errAttached is what an attached server answers to orders.
var errAttached = errors.New("this server was started by somebody else and is left alone")

// attached is the port of a server that is not ours.
type attached int

func (attached) start(context.Context) error              { return errAttached }
func (attached) stop(context.Context, StopMode) error     { return errAttached }
func (attached) kill() error                              { return errAttached }
func (attached) freeze() error                            { return errAttached }
func (attached) thaw() error                              { return errAttached }
func (attached) logFile() string                          { return "" }
func (a attached) port() int                              { return int(a) }
func (attached) writeFile(string, []byte) (string, error) { return "", errAttached }
func (attached) close() error                             { return nil }
