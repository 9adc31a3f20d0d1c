package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Config describes one reader. DSN and Tables are required; the zero value of
// every other field is its default.
type Config struct {
	// DSN reaches the primary directly, in any form that libpq knows (URL or
	// key=value); no pooler stands between, because poolers do not carry
	// replication. TLS follows its sslmode.
	DSN string
	// Password, when not empty, replaces the one in DSN. It needs no encoding.
	Password string
	// BeforeConnect, when not nil, may change the configuration of each connection
	// just before it is made: a fresh IAM token, for example. It runs once per
	// connection, on the goroutine that connects, and its time counts towards ConnectTimeout.
	BeforeConnect func(ctx context.Context, cfg *pgconn.Config) error

	// Slot is the replication slot: 1 to 63 of a-z, 0-9 and _. Default "cdc_dispatcher".
	Slot string
	// Publication is its publication. Default "cdc_dispatcher".
	Publication string
	// Tables are the tables whose rows are handed over, for a partitioned table its root.
	Tables []Table
	// Create lets the reader create the publication and the slot when they are
	// missing, add a missing table to the publication, and replace a slot that the
	// server has invalidated. When it is false somebody else does all that; the
	// reader then says which statement to run.
	Create bool
	// Failover asks, when the slot is created on PostgreSQL 17 or later, that it be
	// synchronised to standbys. Ignored on older servers.
	Failover bool

	// Recall returns the last position that a reader of this source is known to have confirmed, in whatever process, and
	// an empty one when there was none. It is asked when the slot is missing and this process has not seen it: if
	// somebody has read from it, its absence is a loss (gap slot_missing), otherwise this is a first start. It has
	// as long as a connection, ConnectTimeout. An error is tried again. Nil means that nobody remembers.
	Recall func(ctx context.Context) (cdc.Position, error)

	// StandbyPoll is how often a standby looks whether the slot is free. Default 1 s.
	StandbyPoll time.Duration
	// BackoffMin and BackoffMax bound the pause between connections; it doubles
	// with every failure that follows another. Defaults 100 ms and 10 s.
	BackoffMin, BackoffMax time.Duration
	// ConnectTimeout bounds making one connection, BeforeConnect included. Default 15 s.
	ConnectTimeout time.Duration
	// WatchInterval is how often the side connection asks how much log the server
	// retains and whether the publication still has the tables. Default 10 s.
	WatchInterval time.Duration
	// StopGrace is how long a stream goes on once the server has begun to shut down,
	// so that it can end in order. After it the connection is dropped. Default 3 s.
	StopGrace time.Duration

	// MaxRecords and MaxBytes bound one part of a large transaction. A part ends
	// with the record that reaches a bound. Defaults 1000 and 4 MiB.
	MaxRecords, MaxBytes int

	// Instance tells this process's sessions from another's in pg_stat_activity.
	// Default: host name and a random part.
	Instance string
	// Logger may be nil, which is silent.
	Logger *slog.Logger
}

// Table names a table exactly as the catalog does: case-sensitive, unquoted.
type Table struct{ Schema, Name string }

// String returns "schema.name".
func (t Table) String() string { return t.Schema + "." + t.Name }

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// validate fills defaults and reports every problem at once.
func (c Config) validate() (Config, error) {
	var problems []error
	if c.DSN == "" {
		problems = append(problems, errors.New("DSN is missing"))
	}
	orDefault(&c.Slot, "cdc_dispatcher")
	orDefault(&c.Publication, "cdc_dispatcher")
	if !slotName.MatchString(c.Slot) {
		problems = append(problems, fmt.Errorf("slot name %q: want 1 to 63 of a-z, 0-9 and _", c.Slot))
	}
	if len(c.Publication) > 63 {
		problems = append(problems, fmt.Errorf("publication name %q is longer than 63 bytes", c.Publication))
	}
	if len(c.Tables) == 0 {
		problems = append(problems, errors.New("no tables"))
	}
	for i, t := range c.Tables {
		if t.Schema == "" || t.Name == "" {
			problems = append(problems, fmt.Errorf("table %q: want a schema and a name", t))
		}
		if slices.Contains(c.Tables[:i], t) {
			problems = append(problems, fmt.Errorf("table %q is listed twice", t))
		}
	}
	orDefault(&c.StandbyPoll, time.Second)
	orDefault(&c.BackoffMin, 100*time.Millisecond)
	orDefault(&c.BackoffMax, 10*time.Second)
	orDefault(&c.ConnectTimeout, 15*time.Second)
	orDefault(&c.WatchInterval, 10*time.Second)
	orDefault(&c.StopGrace, 3*time.Second)
	orDefault(&c.MaxRecords, 1000)
	orDefault(&c.MaxBytes, 4<<20)
	for name, negative := range map[string]bool{
		"StandbyPoll":    c.StandbyPoll < 0,
		"BackoffMin":     c.BackoffMin < 0,
		"BackoffMax":     c.BackoffMax < c.BackoffMin,
		"ConnectTimeout": c.ConnectTimeout < 0,
		"WatchInterval":  c.WatchInterval < 0,
		"StopGrace":      c.StopGrace < 0,
		"MaxRecords":     c.MaxRecords < 0,
		"MaxBytes":       c.MaxBytes < 0,
	} {
		if negative {
			problems = append(problems, fmt.Errorf("%s is out of range", name))
		}
	}
	if c.Instance == "" {
		c.Instance = instanceName()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Tables = slices.Clone(c.Tables)
	return c, errors.Join(problems...)
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// instanceName is short, because application_name is cut at 63 bytes.
func instanceName() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails, by its contract
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	return host[:min(len(host), 24)] + "-" + hex.EncodeToString(random[:])
}
