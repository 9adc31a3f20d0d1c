package localserver

import (
	"errors"
	"sync"
	"time"
)

// guard lets the operations on one server run one after the other, and none
// after it has been closed.
type guard struct {
	mu     sync.Mutex
	closed bool
}

var errClosed = errors.New("the server has been closed")

// closeTimeout bounds the polite part of Close; after it the server is killed.
const closeTimeout = 10 * time.Second

func (g *guard) do(op func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosed
	}
	return op()
}

// close runs op on the first call.
func (g *guard) close(op func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	return op()
}
