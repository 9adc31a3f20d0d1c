package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// benchPrefix begins the name of every scratch schema. Nothing else of ours is called so.
const benchPrefix = "cdc_dispatcher_bench_"

// The most that may be asked for: this is for databases that others use too.
const (
	benchMostEvents = 1_000_000
	benchMostRate   = 10_000
	benchLongest    = 10 * time.Minute
)

// benchOptions say what is measured, and on which database.
type benchOptions struct {
	dsn, source string
	// events are drained; rate events per second are inserted for length, for the latency.
	events, rate int
	length       time.Duration
	limits       benchLimits
}

// benchLimits bound the waits of a run.
type benchLimits struct {
	// slot is how long the creation of one thing may wait for other transactions, ready how
	// long the reader may take to begin; after it the poller does the work.
	slot, ready time.Duration
	// backlogAge is how old the youngest event is when the drain begins: a log that is behind
	// by less does not count as such (see docs/performance.md).
	backlogAge time.Duration
	// stall ends a wait for deliveries of which none ends any more.
	stall time.Duration
	// clean bounds the removal of everything that was made.
	clean time.Duration
}

func defaultBenchLimits() benchLimits {
	return benchLimits{slot: 10 * time.Second, ready: 15 * time.Second, backlogAge: 6 * time.Second, stall: time.Minute, clean: 30 * time.Second}
}

func (a *app) benchCommand() *cobra.Command {
	o := benchOptions{limits: defaultBenchLimits()}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what it costs on your own database, in a scratch schema",
		Long: `Measure on your own database what a delivery costs: how long an event takes from its commit to its
handler, and how fast a backlog is drained. It works in a schema (MySQL and MariaDB: a database) with a
fresh name, ` + benchPrefix + ` and eight hex digits, and touches no other. Everything is removed at
the end, also after Ctrl-C or an error; what could not be removed is listed as statements.

The database is that of --dsn, else of the configuration file, else of $DATABASE_URL; the last two keep
a password out of the list of processes. The user must be allowed to create a schema. Where the log can
be read, it is read as "run" would; where it cannot, the poller does the work, and the result says why.

What the server has to bear, with the defaults for about half a minute:
  22,000 event rows and as many deliveries, every event a transaction of its own or with nine others;
  3 to 4 kB of WAL or binlog for each event, 70 to 90 MB in all, which replicas receive too;
  up to 20 connections (with a configuration file: max_connections and 10);
  PostgreSQL: one replication slot and one publication. The slot keeps all WAL of the server meanwhile.

The figures are counted from the tables and from what the handler received. The exit code is not 0 when
an event was lost or delivered twice.`,
		Example: `  cdc-dispatcher bench --dsn postgres://app@db:5432/shop
  cdc-dispatcher bench --dsn mysql://app@db:3306/shop --events 5000 --rate 50 --for 30s -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.CommandPath()); err != nil {
				return err
			}
			// A terminal that goes away, and a pipe that nobody reads any more, must not leave a slot behind either.
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
			defer stop()
			return a.bench(ctx, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.dsn, "dsn", "", "the database (default: the configuration file's, else $DATABASE_URL)")
	flags.StringVar(&o.source, "source", "", "the source, when the configuration has several")
	flags.IntVar(&o.events, "events", 20_000, "events of the backlog that is drained")
	flags.IntVar(&o.rate, "rate", 200, "events per second while the latency is measured")
	flags.DurationVar(&o.length, "for", 10*time.Second, "how long the latency is measured")
	return cmd
}

// check refuses what makes no sense, and what is too much for a database that others use.
func (o benchOptions) check(command string) error {
	switch {
	case o.dsn != "" && o.source != "":
		return usage("give one of the two", "--dsn and --source exclude each other")
	case o.events < 1 || o.events > benchMostEvents:
		return usage(command+" --events 20000", "--events must be from 1 to %s, not %s", thousands(benchMostEvents), thousands(o.events))
	case o.rate < 1 || o.rate > benchMostRate:
		return usage(command+" --rate 200", "--rate must be from 1 to %s events per second, not %s", thousands(benchMostRate), thousands(o.rate))
	case o.length < time.Second || o.length > benchLongest:
		return usage(command+" --for 10s", "--for must be from 1s to %s, not %s", span(benchLongest), o.length)
	case o.offered() > benchMostEvents:
		return usage("lower one of the two", "--rate %s --for %s are %s events, more than %s", thousands(o.rate), span(o.length), thousands(o.offered()), thousands(benchMostEvents))
	}
	return nil
}

// offered is how many events the latency is measured with.
func (o benchOptions) offered() int { return max(1, int(float64(o.rate)*o.length.Seconds())) }

// bench runs the whole command until it has a result or ctx ends.
func (a *app) bench(ctx context.Context, o benchOptions) error {
	cfg, err := a.benchConfig(o)
	if err != nil {
		return err
	}
	b := &benchmark{app: a, benchOptions: o, cfg: cfg, source: cfg.Sources[0]}
	result, err := b.run(ctx)
	if err != nil {
		return err
	}
	if a.format == outputJSON {
		err = a.json(result)
	} else {
		err = a.print(result.paper())
	}
	if err != nil {
		return err
	}
	return result.err()
}

// benchConfig is a configuration of one source: the database that was named, and a scratch
// schema in it that nothing has used before. Nothing of ours is shared with a dispatcher that
// runs beside it: neither slot nor publication, nor the id of the reader, nor the name under which it is locked.
func (a *app) benchConfig(o benchOptions) (*config.Config, error) {
	cfg, s, err := a.benchSource(o)
	if err != nil {
		return nil, err
	}
	var tail [4]byte
	_, _ = rand.Read(tail[:]) // never fails, by its documentation
	name := benchPrefix + hex.EncodeToString(tail[:])
	s.Name, s.Schema, s.Table = name, name, schema.Eventlog(name).WithDefaults()
	if s.Database.IsMySQL() {
		s.MySQL.ServerID = 0
	} else {
		s.Postgres.Slot, s.Postgres.Publication = name, name
		s.Postgres.Create, s.Postgres.Failover = true, false
	}
	cfg.Sources, cfg.Handlers = []config.Source{s}, nil
	return cfg, nil
}

// benchSource finds the database.
func (a *app) benchSource(o benchOptions) (*config.Config, config.Source, error) {
	if o.dsn != "" {
		return dsnConfig("--dsn", o.dsn)
	}
	if o.source != "" || a.configFile != "" || a.configExists() {
		cfg, err := a.load(a.configPath())
		if err != nil {
			return nil, config.Source{}, err
		}
		s, err := a.source(cfg, o.source)
		return cfg, s, err
	}
	if dsn, ok := a.lookup("DATABASE_URL"); ok && dsn != "" {
		return dsnConfig("DATABASE_URL", dsn)
	}
	return nil, config.Source{}, usage("cdc-dispatcher bench --dsn "+example(config.DatabasePostgres),
		"no database is named: there is neither --dsn nor %s nor $DATABASE_URL", filepath.Base(a.configPath()))
}

// dsnConfig is what a configuration file would be that has one source with this connection
// string, checked and with its defaults. from says where the string comes from.
func dsnConfig(from, dsn string) (*config.Config, config.Source, error) {
	const path = "sources[0].dsn"
	env := config.Environment{Lookup: func(string) (string, bool) { return dsn, true }}
	cfg, err := config.Parse(from, []byte(`{version: 1, sources: [{name: bench, dsn: "${DSN}"}]}`), env)
	var problems config.Problems
	switch {
	case errors.As(err, &problems):
		p := problems[0]
		return nil, config.Source{}, usage(p.Try, "%s: %s", from, strings.TrimPrefix(p.Message, path+": "))
	case err != nil:
		return nil, config.Source{}, err
	}
	return cfg, cfg.Sources[0], nil
}
