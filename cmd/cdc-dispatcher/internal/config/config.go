package config

import (
	"log/slog"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// Version is the version of the file format that this program reads.
const Version = 1

// Config is a whole file, checked, with its defaults applied. What only the
// library has a default for is left zero.
type Config struct {
	// File is the name it was read from, Sum the first six hex digits of its SHA-256.
	File, Sum string

	Sources []Source
	// Handlers are all handlers, those of one source included, in the order of the file.
	Handlers []Handler
	// Server is the HTTP listener for health and metrics.
	Server Server
	Log    Log

	// Lease, OrphanGrace and MaxPayload are those of pipeline.Config.
	Lease, OrphanGrace time.Duration
	MaxPayload         int
	ShutdownTimeout    time.Duration
	StoreErrorMessages bool

	// places remembers where each setting stands.
	places *decoder
}

// Mode says how events are found.
type Mode string

// The modes of a source.
const (
	// ModeAuto reads the log, and polls whenever it cannot be read.
	ModeAuto Mode = "auto"
	// ModeLog reads the log; a server that cannot give it is reported as not ready.
	ModeLog Mode = "log"
	// ModePoll never touches the log.
	ModePoll Mode = "poll"
)

// Source is one database.
type Source struct {
	Name string
	// Database is the kind of DSN.
	Database Database
	// DSN reaches the database; Password, when not empty, replaces the one in it.
	// Neither is ever shown.
	DSN, Password string
	// Schema is where our tables are: a schema, or a database of MySQL and MariaDB.
	Schema string
	// Table is the event table.
	Table schema.Table
	Mode  Mode
	// MaxConnections bounds the connection pool.
	MaxConnections int
	// Postgres is empty on MySQL and MariaDB, MySQL on PostgreSQL.
	Postgres Postgres
	MySQL    MySQL
	Poller   pipeline.PollerConfig
	FanOut   pipeline.FanOutConfig
}

// LogDSN is where the log is read.
func (s Source) LogDSN() string {
	if s.MySQL.DSN != "" {
		return s.MySQL.DSN
	}
	if s.Postgres.DSN != "" {
		return s.Postgres.DSN
	}
	return s.DSN
}

// String and LogValue keep the connection strings out of what is printed.
func (s Source) String() string { return "source " + s.Name }

// LogValue implements [slog.LogValuer].
func (s Source) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Postgres is how the log of a PostgreSQL server is read.
type Postgres struct {
	// DSN is where the log is read, when Source.DSN leads through a pooler. Empty
	// means Source.DSN; the password of the source is for both.
	DSN               string
	Slot, Publication string
	// Create lets the reader create both when they are missing.
	Create bool
	// Failover asks for a slot that is synchronised to standbys (PostgreSQL 17).
	Failover bool
}

// Handler is one subscription. Exactly one kind is set.
type Handler struct {
	Name    string
	Aliases []string
	On      []string
	When    string
	// Sources names the sources it listens to; empty means all.
	Sources     []string
	Concurrency int
	Timeout     time.Duration
	Retry       pipeline.RetryPolicy

	Webhook *webhook.Config
	Logger  *Logger

	// path is where it stands in the file.
	path string
}

// Kind names what the handler is.
func (h Handler) Kind() string {
	if h.Webhook != nil {
		return KindWebhook
	}
	return KindLogger
}

// The kinds of handler.
const (
	KindWebhook = "webhook"
	KindLogger  = "logger"
)

// Logger writes each event to the log of the process.
type Logger struct {
	// Level is debug, info, warn or error.
	Level Level
	// Payload says that the payload is written too.
	Payload bool
}

// Server is the HTTP listener.
type Server struct {
	// Listen is "host:port"; "none" means no listener.
	Listen string
}

// Log is the log of the process.
type Log struct {
	Level  Level
	Format Format
}

// Level is a log level.
type Level string

// The log levels.
const (
	LevelDebug Level = "debug"
	LevelInfo  Level = "info"
	LevelWarn  Level = "warn"
	LevelError Level = "error"
)

// Format is the form of the log.
type Format string

// The log formats.
const (
	// FormatAuto is text on a terminal and JSON otherwise.
	FormatAuto Format = "auto"
	FormatText Format = "text"
	FormatJSON Format = "json"
)

// Defaults.
const (
	DefaultFile   = "cdc-dispatcher.yaml"
	DefaultListen = "127.0.0.1:7788"
	DefaultSlot   = "cdc_dispatcher"

	defaultLease           = 60 * time.Second
	defaultShutdownTimeout = 20 * time.Second
	defaultMaxConnections  = 10
	defaultHeartbeat       = 10 * time.Second
)

// HandlersOf returns the handlers that listen to a source, in the order of the file.
func (c *Config) HandlersOf(source string) []Handler {
	var out []Handler
	for _, h := range c.Handlers {
		if len(h.Sources) == 0 {
			out = append(out, h)
			continue
		}
		for _, s := range h.Sources {
			if s == source {
				out = append(out, h)
				break
			}
		}
	}
	return out
}

// Source returns the named source, or the only one when name is empty. ok is
// false when there is no such source, or more than one to choose from.
func (c *Config) Source(name string) (s Source, ok bool) {
	if name == "" && len(c.Sources) == 1 {
		return c.Sources[0], true
	}
	for _, s := range c.Sources {
		if s.Name == name {
			return s, true
		}
	}
	return Source{}, false
}

// SourceNames lists the names of the sources in the order of the file.
func (c *Config) SourceNames() []string {
	names := make([]string, len(c.Sources))
	for i, s := range c.Sources {
		names[i] = s.Name
	}
	return names
}
