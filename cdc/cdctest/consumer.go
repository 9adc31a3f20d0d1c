package cdctest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// patience bounds every wait. It is there for a broken reader, not for a slow
// machine.
const patience = 60 * time.Second

// consumer runs a reader and keeps account of what it hands over.
type consumer struct {
	t      *testing.T
	src    cdc.Source
	out    chan cdc.Transaction
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	ack     bool
	limit   int // stop receiving after so many records; 0 means never
	txs     []cdc.Transaction
	ids     []string
	err     error
	ended   bool
	outShut bool
}

// consume starts the reader and waits until it streams.
func consume(t *testing.T, src cdc.Source, ack bool) *consumer {
	t.Helper()
	return consumeUpTo(t, src, ack, 0)
}

func consumeUpTo(t *testing.T, src cdc.Source, ack bool, limit int) *consumer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &consumer{t: t, src: src, out: make(chan cdc.Transaction), cancel: cancel, ack: ack, limit: limit}
	c.group.Go(func() {
		err := src.Run(ctx, c.out)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err, c.ended = err, true
	})
	c.group.Go(func() { c.receive(ctx) })
	t.Cleanup(c.kill)
	reporter, ok := src.(cdc.Reporter)
	if !ok {
		t.Fatalf("%T does not implement cdc.Reporter", src)
	}
	c.wait("the reader to stream", func() bool {
		mode := reporter.Status().Mode
		return c.ended || mode == cdc.ModeStreaming || mode == cdc.ModeCatchingUp
	})
	return c
}

func (c *consumer) receive(ctx context.Context) {
	for {
		c.mu.Lock()
		full := c.limit > 0 && len(c.ids) >= c.limit
		c.mu.Unlock()
		if full {
			<-ctx.Done()
			return
		}
		select {
		case tx, open := <-c.out:
			if !open {
				c.mu.Lock()
				c.outShut = true
				c.mu.Unlock()
				return
			}
			c.take(tx)
		case <-ctx.Done():
			return
		}
	}
}

func (c *consumer) take(tx cdc.Transaction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.txs = append(c.txs, tx)
	for _, r := range tx.Records {
		c.ids = append(c.ids, id(r))
	}
	if c.ack {
		c.src.Ack(tx.Position)
	}
}

// id is the text of a record's id column.
func id(r cdc.Record) string {
	v, ok := r.Value("id")
	if !ok {
		return "absent"
	}
	return string(v.Data)
}

// kill stops the reader and the consumer, whatever they do.
func (c *consumer) kill() {
	c.cancel()
	c.group.Wait()
}

// stop ends the reader as a process does that shuts down, and checks how it ends.
func (c *consumer) stop() {
	c.t.Helper()
	c.kill()
	if c.err != nil {
		c.t.Errorf("Run returned %v after its context ended, want nil", c.err)
	}
	select {
	case _, open := <-c.out:
		if !open {
			c.t.Error("Run closed the channel it writes to")
		}
	default:
	}
	if c.outShut {
		c.t.Error("Run closed the channel it writes to")
	}
}

// wait waits for a condition that is asked under the consumer's lock.
func (c *consumer) wait(what string, condition func() bool) {
	c.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		c.mu.Lock()
		holds, ended, err := condition(), c.ended, c.err
		c.mu.Unlock()
		switch {
		case holds && (!ended || err == nil):
			return
		case ended:
			c.t.Fatalf("Run ended with %v while waiting for %s", err, what)
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			c.t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// waitFor waits for a row.
func (c *consumer) waitFor(id string) {
	c.t.Helper()
	c.wait("row "+id, func() bool { return slices.Contains(c.ids, id) })
}

// waitForAll waits for the rows from to until, exclusive.
func (c *consumer) waitForAll(from, until int) {
	c.t.Helper()
	c.wait(fmt.Sprintf("rows %d to %d", from, until-1), func() bool {
		seen := make(map[string]bool, len(c.ids))
		for _, id := range c.ids {
			seen[id] = true
		}
		for i := from; i < until; i++ {
			if !seen[fmt.Sprint(i)] {
				return false
			}
		}
		return true
	})
}

func (c *consumer) arrived() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ids)
}

func (c *consumer) transactions() []cdc.Transaction {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.txs)
}

// last is the last position that came.
func (c *consumer) last() cdc.Position {
	for _, tx := range slices.Backward(c.transactions()) {
		if tx.Position != "" {
			return tx.Position
		}
	}
	return ""
}

// record finds a row that arrived.
func (c *consumer) record(want string) cdc.Record {
	c.t.Helper()
	for _, tx := range c.transactions() {
		for _, r := range tx.Records {
			if id(r) == want {
				return r
			}
		}
	}
	c.t.Fatalf("row %s did not arrive", want)
	return cdc.Record{}
}
