package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
)

// faults is a driver that counts the statements of our transactions, and fails one of them. The statement before which
// it fails, counted from 1, is at; 0 means none. A lost connection is lost for the server too.
type faults struct {
	driver.Connector
	at    atomic.Int64
	count atomic.Int64
	err   error
	// before runs before each statement, and is told its first word.
	before func(word string)
	// connects counts the connections.
	connects atomic.Int64
	// seen are the statements, by their first word.
	mu   sync.Mutex
	seen []string
}

type faultyConn struct {
	driver.Conn
	f *faults
}

func (f *faults) Connect(ctx context.Context) (driver.Conn, error) {
	f.connects.Add(1)
	c, err := f.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyConn{Conn: c, f: f}, nil
}

func (c *faultyConn) next(what string) error {
	word, _, _ := strings.Cut(what, " ")
	if c.f.before != nil {
		c.f.before(word)
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.f.seen = append(c.f.seen, word)
	if n := c.f.count.Add(1); n != c.f.at.Load() {
		return nil
	}
	if errors.Is(c.f.err, mysqldriver.ErrInvalidConn) {
		_ = c.Close()
	}
	return c.f.err
}

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.next(query); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *faultyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.next(query); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *faultyConn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

func (c *faultyConn) ResetSession(ctx context.Context) error {
	return c.Conn.(driver.SessionResetter).ResetSession(ctx)
}

func (c *faultyConn) IsValid() bool { return c.Conn.(driver.Validator).IsValid() }

// newFaulty returns a store whose driver can fail, and what was learned about the tables already.
func newFaulty(t *testing.T, w world) (*Store, *faults) {
	t.Helper()
	cfg, err := mysqldriver.ParseDSN(w.db.DSN())
	if err != nil {
		t.Fatal(err)
	}
	PoolConfig(cfg)
	connector, err := mysqldriver.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &faults{Connector: connector}
	pool := sql.OpenDB(f)
	t.Cleanup(func() { _ = pool.Close() })
	s := newStore(t, w.db, pool, Config{Table: w.table})
	if err := s.CheckSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, f
}

// fail makes the n-th statement from now on fail.
func (f *faults) fail(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen, f.err = nil, err
	f.count.Store(0)
	f.at.Store(int64(n))
}
