package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
)

// options are the sizes of a run.
type options struct {
	events, rounds, perTx int
	history               int
	backlog               int
	bigTx, large          int
	seconds, impact       time.Duration
	major                 int
	only                  *regexp.Regexp
	out, profile          string
	plans                 bool
}

// experiment makes one or more figures of the report.
type experiment struct {
	name string
	// what says in one line what is measured.
	what string
	run  func(ctx context.Context, b *bench) error
	// ownServer says that it starts a server of another kind itself.
	ownServer bool
}

func experiments() []experiment {
	return []experiment{
		{name: "drain", what: "committed events to SUCCEEDED, beside jobs worked by River", run: drainAll},
		{name: "payload", what: "WAL of a delivery, beside a job of River with a payload of the same size", run: payloadAll},
		{name: "latency", what: "commit to handler start, beside River's insert to work", run: latencyAll},
		{name: "reader", what: "events read from the log, without a fan-out, beside a bare loop and pg_recvlogical", run: readAll},
		{name: "held", what: "drain while an old transaction is open", run: heldAll},
		{name: "history", what: "drain with millions of finished rows", run: historyAll},
		{name: "backlog", what: "a large backlog: does it slow down, what does it hold in memory", run: backlogAll},
		{name: "bigtx", what: "one huge transaction, and huge events: what does the dispatcher hold in memory", run: bigTxAll},
		{name: "replicas", what: "1, 2 and 4 processes on a handler that takes 20 ms", run: replicasAll},
		{name: "impact", what: "the application's own transactions with the dispatcher running, over without", run: impactAll},
		{name: "mysql", what: "drain and latency on MySQL, the drain beside bare SQL", run: onMySQL("mysql", localserver.MySQLServer), ownServer: true},
		{name: "mariadb", what: "drain and latency on MariaDB, the drain beside bare SQL", run: onMySQL("mariadb", localserver.MariaDBServer), ownServer: true},
	}
}

func main() {
	if err := realMain(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func realMain() error {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		return childMain(os.Stdin, os.Stdout)
	}
	o, err := parse()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{options: o, report: newReport(o)}
	var failed []error
	for _, e := range experiments() {
		if ctx.Err() != nil || !o.only.MatchString(e.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "== %s: %s\n", e.name, e.what)
		b.report.Load[e.name] = load()
		if err := b.on(ctx, e); err != nil {
			// The other figures do not depend on it.
			failed = append(failed, fmt.Errorf("%s: %w", e.name, err))
			fmt.Fprintln(os.Stderr, "bench:", failed[len(failed)-1])
		}
		// After each of them, so that two hours are not lost with the last one.
		if o.out == "" {
			continue
		}
		if err := b.report.write(o.out); err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
	fmt.Print(b.report.table())
	return errors.Join(failed...)
}

func parse() (options, error) {
	var names []string
	for _, e := range experiments() {
		names = append(names, e.name)
	}
	o := options{}
	var only string
	flag.IntVar(&o.events, "events", 200_000, "events of a drain")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds of each figure")
	flag.IntVar(&o.perTx, "per-tx", 1, "events in one transaction of the application")
	flag.IntVar(&o.history, "history", 5_000_000, "finished deliveries of the history figure")
	flag.IntVar(&o.backlog, "backlog", 1_000_000, "undelivered events of the backlog figure")
	flag.IntVar(&o.bigTx, "bigtx", 500_000, "events of the one huge transaction")
	flag.IntVar(&o.large, "large", 2000, "events of 2 MB")
	flag.DurationVar(&o.seconds, "for", 20*time.Second, "how long a rate is offered for a latency")
	flag.DurationVar(&o.impact, "impact", time.Minute, "how long the application inserts with the dispatcher running, and without, for the impact")
	flag.IntVar(&o.major, "postgres", 0, "major version of PostgreSQL; 0 is the newest that is installed")
	flag.StringVar(&only, "only", "", "regular expression of the figures to make: "+strings.Join(names, ", "))
	flag.StringVar(&o.out, "out", "", "file for the results as JSON")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU profiles and for the statements of the server")
	flag.BoolVar(&o.plans, "plans", false, "with -profile: copy the server's log there, with the plans of statements over 20 ms; falsifies the figures")
	flag.Parse()
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return o, fmt.Errorf("-only: %w", err)
	}
	if !slices.ContainsFunc(names, o.only.MatchString) {
		return o, fmt.Errorf("-only %s matches none of %s", only, strings.Join(names, ", "))
	}
	if min(o.events, o.rounds, o.perTx, o.history, o.backlog, o.bigTx, o.large) < 1 || min(o.seconds, o.impact) < time.Second {
		return o, errors.New("sizes must be positive, and durations a second at least")
	}
	if o.plans && o.profile == "" {
		return o, errors.New("-plans needs -profile")
	}
	return o, nil
}
