package admin

import (
	"errors"
	"strconv"
	"time"
)

// Config bounds what questions may cost. The zero value of each field is its default.
type Config struct {
	// Timeout of one statement of a question. Default 5 s.
	Timeout time.Duration
	// CountLimit is where counting stops. Default 10,000.
	CountLimit int
}

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if c.CountLimit <= 0 {
		c.CountLimit = 10_000
	}
	return c
}

// Errors that an operator can act on.
var (
	// ErrNotFound: there is no such event, delivery or handler.
	ErrNotFound = errors.New("not found")
	// ErrSlow: the answer took longer than the time limit; a narrower filter may not.
	ErrSlow = errors.New("took longer than the time limit")
	// ErrStates: the filter names only states that the order never touches, such as SUCCEEDED
	// without [Retry.Succeeded].
	ErrStates = errors.New("the order does not concern deliveries in this state")
	// ErrNoActor: nobody is named who gives the order.
	ErrNoActor = errors.New("an order needs an actor, for the audit log")
	// ErrNoType: an event to insert has no type.
	ErrNoType = errors.New("an event needs a type; a row without one is a sentinel that nobody gets")
)

// Count is a number that was counted up to a limit.
type Count struct {
	N int64 `json:"n"`
	// More says that counting stopped at N; there may be more.
	More bool `json:"more,omitempty"`
}

// String returns "12" or "10000+".
func (c Count) String() string {
	if c.More {
		return strconv.FormatInt(c.N, 10) + "+"
	}
	return strconv.FormatInt(c.N, 10)
}

// Page bounds a list.
type Page struct {
	// Limit of the rows. Default 50, at most 1000.
	Limit int
	// After is the Next of the page before; empty for the first.
	After string
}

// Size is the number of rows that the page has at most.
func (p Page) Size() int {
	if p.Limit <= 0 {
		return 50
	}
	return min(p.Limit, 1000)
}
