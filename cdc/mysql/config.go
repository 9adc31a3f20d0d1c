package mysql

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	driver "github.com/go-sql-driver/mysql"
)

// Config describes one reader. DSN, Tables and Keeper are required; the zero value
// of every other field is its default. Which kind of server it is, and whether it
// has GTIDs, is found out on each connection.
type Config struct {
	// DSN reaches the server itself in the form of github.com/go-sql-driver/mysql:
	// "user:password@tcp(host:3306)/database?tls=true", or "unix(/path/to.sock)". No proxy
	// stands between, because proxies do not carry the binlog. Of its parameters tls counts for both connections of the
	// reader, the plain one and that of the log; serverPubKey, allowNativePasswords, allowCleartextPasswords and compress
	// count for the plain one. The log's would ask the server for its key, so with a serverPubKey Run refuses to read over
	// tcp without TLS. Timeouts, connection attributes, and what is about values and time zones are set by the reader.
	DSN string
	// Password, when not empty, replaces the one in DSN. It needs no encoding.
	Password string
	// TLS, when not nil, replaces the tls parameter of DSN. An empty ServerName becomes
	// the host of DSN.
	TLS *tls.Config
	// TLSOptional says that TLS is for servers that have it, and that others are read without encryption.
	TLSOptional bool
	// BeforeConnect, when not nil, may change the configuration of each connection
	// just before it is made: a fresh IAM token, for example. It runs once per connection
	// attempt, on the goroutine that connects.
	BeforeConnect func(ctx context.Context, cfg *driver.Config) error

	// ServerID names this reader among the replicas of the server: it must differ from
	// that of every server and every other reader there. Default: random above 2^31,
	// chosen once per Source.
	ServerID uint32
	// Tables are the tables whose inserted rows are handed over.
	Tables []Table
	// Own are the tables that the dispatcher writes itself, such as the deliveries. A
	// transaction that touched nothing else moves the saved position every ten minutes at most, so that
	// saving a position is no reason to save another. A Table with an empty Name is every table of
	// its schema that is not in Tables. Default: every table of the schema "eventlog".
	Own []Table
	// Keeper decides which process reads and keeps the position.
	Keeper Keeper

	// Heartbeat is how often an idle server sends a sign of life: 100 ms to 1 min,
	// default 10 s.
	Heartbeat time.Duration
	// ReadTimeout is the silence after which the server counts as gone: at least two
	// heartbeats, default three.
	ReadTimeout time.Duration
	// SaveInterval is how often the position is saved because of transactions that held
	// nothing for the consumer, or of acknowledgements. Default 10 s.
	SaveInterval time.Duration
	// CheckInterval is how often the reader makes sure that it still is the reader: at most
	// 10 s, because keepers end a tenure that is not heard of. Default 2 s.
	CheckInterval time.Duration
	// ProbeInterval is how often the settings of the server are looked at while the
	// stream runs, and its end for Status. Default 10 s.
	ProbeInterval time.Duration
	// StandbyPoll is how often a standby looks whether the other reader is gone.
	// Default 1 s.
	StandbyPoll time.Duration
	// BackoffMin and BackoffMax bound the pause between connections; it doubles
	// with every failure that follows another. Defaults 100 ms and 10 s.
	BackoffMin, BackoffMax time.Duration
	// ConnectTimeout bounds making one connection. Default 10 s.
	ConnectTimeout time.Duration
	// StopTimeout bounds how long Run waits, once its context ended, for the server: to
	// save the position, and to close. Default 3 s.
	StopTimeout time.Duration

	// MaxRecords and MaxBytes bound one part of a large transaction. A part ends
	// with the record that reaches a bound. Defaults 1000 and 4 MiB.
	MaxRecords, MaxBytes int

	// Instance tells this process's sessions from another's. It is the program_name of its
	// sessions, and the host that the server lists for this replica. Default: host name and
	// a random part.
	Instance string
	// Logger may be nil, which is silent.
	Logger *slog.Logger
}

// Table names a table exactly as the server does, unquoted.
type Table struct{ Schema, Name string }

// String returns "schema.name".
func (t Table) String() string { return t.Schema + "." + t.Name }

// Bounds on what can be configured.
const (
	leastHeartbeat = 100 * time.Millisecond
	mostHeartbeat  = time.Minute
	mostCheck      = 10 * time.Second
	mostInstance   = 60 // older servers cut the host of a replica here
)

// validate fills defaults and reports every problem at once. None quotes the DSN.
func (c Config) validate() (Config, error) {
	var problems []error
	if c.DSN == "" {
		problems = append(problems, errors.New("DSN is missing"))
	} else if _, err := c.parseDSN(); err != nil {
		problems = append(problems, err)
	}
	if c.Keeper == nil {
		problems = append(problems, errors.New("Keeper is missing"))
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
	if c.Own == nil {
		c.Own = []Table{{Schema: "eventlog"}}
	}
	for _, t := range c.Own {
		if t.Schema == "" {
			problems = append(problems, fmt.Errorf("own table %q: want a schema", t))
		}
	}
	problems = append(problems, c.times()...)
	orDefault(&c.MaxRecords, 1000)
	orDefault(&c.MaxBytes, 4<<20)
	if c.MaxRecords < 0 || c.MaxBytes < 0 {
		problems = append(problems, errors.New("MaxRecords and MaxBytes must be positive"))
	}
	if c.ServerID == 0 {
		c.ServerID = randomServerID()
	}
	if c.Instance == "" {
		c.Instance = instanceName()
	}
	c.Instance = c.Instance[:min(len(c.Instance), mostInstance)]
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Tables, c.Own = slices.Clone(c.Tables), slices.Clone(c.Own)
	return c, errors.Join(problems...)
}

// times fills the durations and reports what is out of range.
func (c *Config) times() []error {
	var problems []error
	orDefault(&c.Heartbeat, 10*time.Second)
	orDefault(&c.ReadTimeout, 3*c.Heartbeat)
	if c.Heartbeat < leastHeartbeat || c.Heartbeat > mostHeartbeat {
		problems = append(problems, fmt.Errorf("heartbeat %s: want %s to %s", c.Heartbeat, leastHeartbeat, mostHeartbeat))
	}
	if c.ReadTimeout < 2*c.Heartbeat {
		// A limit below the heartbeat takes every idle moment for a dead server (canal #951).
		problems = append(problems, fmt.Errorf("ReadTimeout %s: want at least two heartbeats of %s", c.ReadTimeout, c.Heartbeat))
	}
	for _, d := range []struct {
		name    string
		field   *time.Duration
		initial time.Duration
	}{
		{"SaveInterval", &c.SaveInterval, 10 * time.Second},
		{"CheckInterval", &c.CheckInterval, 2 * time.Second},
		{"ProbeInterval", &c.ProbeInterval, 10 * time.Second},
		{"StandbyPoll", &c.StandbyPoll, time.Second},
		{"BackoffMin", &c.BackoffMin, 100 * time.Millisecond},
		{"BackoffMax", &c.BackoffMax, 10 * time.Second},
		{"ConnectTimeout", &c.ConnectTimeout, 10 * time.Second},
		{"StopTimeout", &c.StopTimeout, 3 * time.Second},
	} {
		orDefault(d.field, d.initial)
		if *d.field < 0 {
			problems = append(problems, fmt.Errorf("%s is out of range", d.name))
		}
	}
	if c.CheckInterval > mostCheck {
		problems = append(problems, fmt.Errorf("CheckInterval %s: want at most %s", c.CheckInterval, mostCheck))
	}
	if c.BackoffMax < c.BackoffMin {
		problems = append(problems, errors.New("BackoffMax is below BackoffMin"))
	}
	return problems
}

var (
	errDSN     = errors.New("DSN is not of the form user:password@tcp(host:port)/database")
	errNetwork = errors.New("DSN: want tcp or unix as its network, after user:password@")
)

// parseDSN reads the DSN. Neither the parser's error nor the network is passed on: each may quote a
// password that was not recognised as one.
func (c Config) parseDSN() (*driver.Config, error) {
	cfg, err := driver.ParseDSN(c.DSN)
	if err != nil {
		return nil, errDSN
	}
	if cfg.Net != "tcp" && cfg.Net != "unix" {
		return nil, errNetwork
	}
	if c.Password != "" {
		cfg.Passwd = c.Password
	}
	if c.TLS != nil {
		cfg.TLS, cfg.AllowFallbackToPlaintext = c.TLS.Clone(), c.TLSOptional
		if host, _, err := net.SplitHostPort(cfg.Addr); err == nil && cfg.TLS.ServerName == "" {
			cfg.TLS.ServerName = host
		}
	}
	return cfg, nil
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// randomServerID is above 2^31, away from the small numbers that people give.
func randomServerID() uint32 {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails, by its contract
	return binary.BigEndian.Uint32(random[:]) | 1<<31
}

func instanceName() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails, by its contract
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	return host[:min(len(host), 24)] + "-" + hex.EncodeToString(random[:])
}
