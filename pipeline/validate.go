package pipeline

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Defaults of a [Config].
const (
	defaultLease           = 60 * time.Second
	defaultShutdownTimeout = 20 * time.Second
	defaultOrphanGrace     = 10 * time.Minute
	defaultMaxPayload      = 16 << 20
	defaultBatchEvents     = 2000
	defaultBatchBytes      = 8 << 20
	defaultPollInterval    = 10 * time.Second
	defaultActiveInterval  = 500 * time.Millisecond
	defaultPollGrace       = 5 * time.Second
	defaultPollBatch       = 1000
	defaultSweepAgain      = 30 * time.Second
	// minLease keeps room for a renewal at a third of the lease and one retry of it.
	minLease = time.Second
	// fanOutName is the name of the pipeline's own trigger.
	fanOutName = "fan-out"
)

// Validate reports everything that is wrong with the configuration at once, as a
// [ConfigError]; nil means that [New] accepts it. It opens no connection.
func (c Config) Validate() error {
	_, err := c.prepare()
	return err
}

// plan is a checked configuration with its defaults applied and its conditions
// compiled.
type plan struct {
	Config
	registry *registry
	triggers []*recordCreatedTrigger
}

// prepare checks the configuration and applies the defaults.
func (c Config) prepare() (*plan, error) {
	c.setDefaults()
	var ps problems
	c.checkSource(&ps)
	c.checkDurations(&ps)
	p := &plan{Config: c}
	p.registry = newRegistry(c.Handlers, c.Lease, &ps)
	p.triggers = newTriggers(&c, &ps)
	return p, ps.err()
}

func (c *Config) setDefaults() {
	setDefault(&c.Lease, defaultLease)
	setDefault(&c.ShutdownTimeout, defaultShutdownTimeout)
	setDefault(&c.OrphanGrace, defaultOrphanGrace)
	setDefault(&c.MaxPayload, defaultMaxPayload)
	setDefault(&c.FanOut.BatchEvents, defaultBatchEvents)
	setDefault(&c.FanOut.BatchBytes, defaultBatchBytes)
	setDefault(&c.Poller.Interval, defaultPollInterval)
	setDefault(&c.Poller.ActiveInterval, defaultActiveInterval)
	setDefault(&c.Poller.Grace, defaultPollGrace)
	setDefault(&c.Poller.Batch, defaultPollBatch)
	setDefault(&c.Poller.SweepAgain, defaultSweepAgain)
	if c.Owner == "" {
		c.Owner = newOwner()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observer == nil {
		c.Observer = NopObserver{}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// newOwner names this process for people: "host/pid/random".
func newOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails, by its documentation
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), hex.EncodeToString(id[:]))
}

func (c *Config) checkSource(ps *problems) {
	if strings.TrimSpace(c.Source) == "" {
		ps.add("source", "is blank; it names the database in logs, metrics and tables")
	}
	if c.Store == nil {
		ps.add("store", "is nil")
	}
	if c.Log == nil {
		return
	}
	checkTable(ps, "table", c.Table)
	if c.Decode == nil {
		ps.add("decode", "is nil, but the log is read; it turns a row image into an event")
	}
}

func checkTable(ps *problems, path, table string) {
	if schema, name, ok := strings.Cut(table, "."); !ok || schema == "" || name == "" {
		ps.add(path, `is %q; write it as "schema.table"`, table)
	}
}

func (c *Config) checkDurations(ps *problems) {
	if c.Lease < minLease {
		ps.add("lease", "is %s; it must be at least %s", c.Lease, minLease)
	}
	if c.Lease > delivery.LongestLease {
		ps.add("lease", "is %s; it may be at most %s: a lease is renewed while its handler runs", c.Lease, delivery.LongestLease)
	}
	if c.OrphanGrace < delivery.HandlerLive {
		ps.add("orphan_grace", "is %s; it must be at least %s, for which a handler counts as served after a sign of life",
			c.OrphanGrace, delivery.HandlerLive)
	}
	for _, f := range []struct {
		path  string
		value time.Duration
	}{
		{"shutdown_timeout", c.ShutdownTimeout},
		{"poller.interval", c.Poller.Interval}, {"poller.active_interval", c.Poller.ActiveInterval},
		{"poller.grace", c.Poller.Grace}, {"poller.sweep_again", c.Poller.SweepAgain},
	} {
		if f.value < 0 {
			ps.add(f.path, "is %s; it must be positive", f.value)
		}
	}
	for _, f := range []struct {
		path  string
		value int
	}{
		{"max_payload", c.MaxPayload}, {"fan_out.batch_events", c.FanOut.BatchEvents},
		{"fan_out.batch_bytes", c.FanOut.BatchBytes}, {"poller.batch", c.Poller.Batch},
	} {
		if f.value < 0 {
			ps.add(f.path, "is %d; it must be positive", f.value)
		}
	}
}

// newTriggers checks the further triggers and compiles their conditions.
func newTriggers(c *Config, ps *problems) []*recordCreatedTrigger {
	names := map[string]string{fanOutName: "the pipeline itself"}
	var made []*recordCreatedTrigger
	for i, t := range c.Triggers {
		path := fmt.Sprintf("triggers[%d]", i)
		switch taken, ok := names[t.Name]; {
		case strings.TrimSpace(t.Name) == "":
			ps.add(path+".name", "is blank")
		case ok:
			ps.add(path+".name", "%q is already taken by %s", t.Name, taken)
		default:
			names[t.Name] = path + ".name"
		}
		checkTable(ps, path+".table", t.Table)
		if t.OnRecordCreated == nil {
			ps.add(path+".on_record_created", "is nil")
		}
		if c.Log == nil {
			ps.add(path, "never fires without a log: in poll-only mode only the event table is looked at")
		}
		made = append(made, newTrigger(t, c, path, ps))
	}
	return made
}
