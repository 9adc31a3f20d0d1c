package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

const day = 24 * time.Hour

// defaults are what handlers inherit.
type defaults struct {
	timeout     time.Duration
	concurrency int
	retry       pipeline.RetryPolicy
}

// file decodes the top level.
func (d *decoder) file(root *node) *Config {
	c := &Config{
		Server:          Server{Listen: DefaultListen},
		Log:             Log{Level: LevelInfo, Format: FormatAuto},
		Lease:           defaultLease,
		ShutdownTimeout: defaultShutdownTimeout,
	}
	def := defaults{retry: pipeline.RetryDefault()}
	// Handlers inherit, so they are decoded after "defaults", wherever that stands.
	var later []func()
	d.object(root, "",
		required("version", d.version),
		required("sources", func(n *node, path string) {
			later = append(later, func() { d.sources(c, n, path, &def) })
		}).aka("source", "databases", "database"),
		optional("handlers", func(n *node, path string) {
			later = append(later, func() { d.handlers(c, n, path, &def, "") })
		}).aka("subscriptions", "sinks", "destinations"),
		optional("defaults", func(n *node, path string) { d.defaults(c, n, path, &def) }),
		optional("server", func(n *node, path string) {
			d.object(n, path, optional("listen", d.text(&c.Server.Listen, checkListen)).aka("address", "addr", "port"))
		}),
		optional("log", func(n *node, path string) {
			d.object(n, path,
				optional("level", oneOf(d, &c.Log.Level, LevelDebug, LevelInfo, LevelWarn, LevelError)),
				optional("format", oneOf(d, &c.Log.Format, FormatAuto, FormatText, FormatJSON)))
		}).aka("logging", "logs"),
		optional("store_error_messages", d.yesNo(&c.StoreErrorMessages)),
		optional("shutdown_timeout", d.duration(&c.ShutdownTimeout, 0, time.Hour, 0)),
	)
	for _, decode := range later {
		decode()
	}
	return c
}

// version accepts the one version there is. It is checked first by people who
// upgrade, so its message says what this program reads.
func (d *decoder) version(n *node, path string) {
	text, ok := d.scalar(n, path, "a number")
	if ok && text != strconv.Itoa(Version) {
		d.report(CodeVersion, path, n.pos, fmt.Sprintf("write version: %d", Version),
			"version: %s is not a version that this program reads", d.echo(path, text))
	}
}

func (d *decoder) defaults(c *Config, n *node, path string, def *defaults) {
	d.object(n, path,
		optional("timeout", d.duration(&def.timeout, 100*time.Millisecond, day, 0)),
		optional("concurrency", d.whole(&def.concurrency, 1, 10_000)).aka("workers", "parallelism"),
		optional("retry", d.retry(&def.retry)).aka("retries", "backoff"),
		optional("lease", d.duration(&c.Lease, time.Second, delivery.LongestLease, 0)),
		optional("orphan_grace", d.duration(&c.OrphanGrace, delivery.HandlerLive, 365*day, 0)),
		optional("max_payload", d.size(&c.MaxPayload, 1<<10, 1<<30)),
	)
}

// retry decodes a policy on top of the one that is inherited. A preset starts anew.
func (d *decoder) retry(dst *pipeline.RetryPolicy) func(*node, string) {
	return func(n *node, path string) {
		own := *dst
		jitter := onOff("full")
		if n.kind == kindMap {
			for _, e := range n.entries {
				if e.key == "preset" {
					d.preset(&own, e.value, join(path, e.key))
				}
			}
		}
		if !own.Jitter {
			jitter = "none"
		}
		d.object(n, path,
			optional("preset", func(*node, string) {}), // read above: it is where the others start from
			optional("base", d.duration(&own.Base, time.Millisecond, 30*day, 0)).aka("min", "initial", "delay", "initial_interval"),
			optional("cap", d.duration(&own.Cap, time.Millisecond, 365*day, 0)).aka("max", "max_delay", "max_interval"),
			optional("jitter", oneOf(d, &jitter, "full", "none")),
			optional("window", d.duration(&own.Window, time.Second, 3650*day, -1)).aka("expire_after", "expires", "max_age", "ttl"),
			optional("max_attempts", d.attempts(&own.MaxAttempts)).aka("retries", "attempts", "max_retries", "limit"),
		)
		own.Jitter = jitter == "full"
		*dst = own
	}
}

type onOff string

// presetName is the name of a retry preset.
type presetName string

func (d *decoder) preset(dst *pipeline.RetryPolicy, n *node, path string) {
	name := presetName("")
	oneOf(d, &name, "default", "ekbatan", "vernac")(n, path)
	switch name {
	case "default":
		*dst = pipeline.RetryDefault()
	case "ekbatan":
		*dst = pipeline.RetryEkbatan()
	case "vernac":
		*dst = pipeline.RetryVernac()
	}
}

// attempts decodes a count or the word "none".
func (d *decoder) attempts(dst *int) func(*node, string) {
	return func(n *node, path string) {
		if n.kind == kindScalar && n.text == "none" {
			*dst = 0
			return
		}
		if n.kind == kindScalar && n.style == styleNumber && n.text == "0" {
			d.report(CodeRange, path, n.pos, "write none for no limit, or a whole number from 1", "%s: 0 attempts is no policy", path).Suggestion = "none"
			return
		}
		d.whole(dst, 1, 1_000_000)(n, path)
	}
}

func (d *decoder) sources(c *Config, n *node, path string, def *defaults) {
	if n.kind == kindList && len(n.items) == 0 {
		d.report(CodeMissing, path, n.pos, "describe a database: - name: NAME, dsn: ${DATABASE_URL}", "%s has no items", path)
	}
	d.list(n, path, func(n *node, path string) { d.source(c, n, path, def) })
}

func (d *decoder) source(c *Config, n *node, path string, def *defaults) {
	s := Source{
		Schema: schema.DefaultSchema, Mode: ModeAuto, MaxConnections: defaultMaxConnections,
		Postgres: Postgres{Slot: DefaultSlot, Publication: DefaultSlot, Create: true},
		MySQL:    MySQL{Heartbeat: defaultHeartbeat},
	}
	var table, handlers func()
	ok := d.object(n, path,
		required("name", d.text(&s.Name, checkName)),
		required("dsn", d.dsn(&s.DSN)).aka("url", "database", "database_url", "connection", "uri"),
		optional("password", d.secret(&s.Password)),
		optional("schema", d.text(&s.Schema, checkIdentifier)),
		optional("table", func(n *node, path string) {
			table = func() { s.Table = d.table(n, path, s) } // its default is in s.Schema
		}),
		optional("mode", oneOf(d, &s.Mode, ModeAuto, ModeLog, ModePoll)),
		optional("max_connections", d.whole(&s.MaxConnections, 2, 1000)).aka("pool", "pool_size", "max_conns"),
		optional("postgres", func(n *node, path string) { d.postgres(&s.Postgres, n, path) }).aka("postgresql"),
		optional("mysql", func(n *node, path string) { d.mysql(&s.MySQL, n, path) }).aka("mariadb", "binlog"),
		optional("poller", func(n *node, path string) { d.poller(&s.Poller, n, path) }).aka("poll", "polling"),
		optional("fan_out", func(n *node, path string) { d.fanOut(&s.FanOut, n, path) }),
		optional("handlers", func(n *node, path string) {
			handlers = func() { d.handlers(c, n, path, def, s.Name) }
		}),
	)
	d.checkKind(&s, path)
	s.Table = schema.Eventlog(s.Schema)
	if table != nil {
		table()
	}
	if handlers != nil {
		handlers()
	}
	if !ok {
		return
	}
	for i, other := range c.Sources {
		if other.Name == s.Name && s.Name != "" {
			at := join(path, "name")
			d.report(CodeDuplicateName, at, d.posOf(at), "give each source a name of its own",
				"%s: source %s is already described by sources[%d]", at, d.echo(at, s.Name), i)
		}
	}
	c.Sources = append(c.Sources, s)
}

func (d *decoder) postgres(p *Postgres, n *node, path string) {
	d.object(n, path,
		optional("dsn", d.dsn(&p.DSN)),
		optional("slot", d.text(&p.Slot, checkSlot)),
		optional("publication", d.text(&p.Publication, checkIdentifier)),
		optional("create", d.yesNo(&p.Create)),
		optional("failover", d.yesNo(&p.Failover)),
	)
}

func (d *decoder) poller(p *pipeline.PollerConfig, n *node, path string) {
	d.object(n, path,
		optional("interval", d.duration(&p.Interval, 10*time.Millisecond, day, 0)),
		optional("active_interval", d.duration(&p.ActiveInterval, 10*time.Millisecond, day, 0)),
		optional("grace", d.duration(&p.Grace, time.Millisecond, day, 0)),
		optional("batch", d.whole(&p.Batch, 1, 100_000)),
		optional("sweep_again", d.duration(&p.SweepAgain, 10*time.Millisecond, day, 0)),
	)
}

func (d *decoder) fanOut(f *pipeline.FanOutConfig, n *node, path string) {
	d.object(n, path,
		optional("batch", d.whole(&f.BatchEvents, 1, 100_000)),
		optional("batch_size", d.size(&f.BatchBytes, 64<<10, 256<<20)),
		optional("mark_unsubscribed", d.yesNo(&f.MarkUnsubscribed)),
	)
}

// checkName accepts what can stand in logs, metrics and on a command line.
func checkName(name string) (Code, string, string) {
	for _, r := range name {
		if r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return CodeName, "is not a name", "use letters, digits, '-', '_' and '.'"
		}
	}
	if len(name) > 63 {
		return CodeName, "is longer than 63 characters", "use a shorter name"
	}
	return "", "", ""
}

// checkIdentifier accepts what PostgreSQL keeps whole as a name.
func checkIdentifier(name string) (Code, string, string) {
	switch {
	case len(name) > 63:
		return CodeName, "is longer than 63 bytes", "use the name as the database stores it"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return CodeName, "has a control character", "use the name as the database stores it"
	case strings.HasPrefix(name, `"`):
		return CodeName, "is quoted for SQL", "write the name without the inner quotes"
	}
	return "", "", ""
}

func checkSlot(name string) (Code, string, string) {
	const try = "use 1 to 63 of a-z, 0-9 and _"
	if len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return CodeName, "is not a name for a replication slot", try
	}
	return "", "", ""
}

// checkListen accepts "host:port". "none" turns the listener off.
func checkListen(address string) (Code, string, string) {
	if address == "none" {
		return "", "", ""
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return CodeValue, "is not an address", `write host:port, such as "127.0.0.1:7788", or none`
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return CodeValue, "has no valid port", `write host:port, such as "127.0.0.1:7788"`
	}
	return "", "", ""
}
