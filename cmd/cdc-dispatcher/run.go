package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/server"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

const (
	// bannerAfter is how long the banner waits for the sources to show their mode.
	bannerAfter = 3 * time.Second
	// answerTime is how long a source that is ready waits, at the start, for others to answer.
	answerTime = 2 * time.Second
)

func (a *app) runCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Deliver events until stopped",
		Long: `Deliver events until stopped. It does not start on an invalid configuration or on a database
without our tables; a database that cannot be reached is waited for, and slows no other.

The first SIGINT or SIGTERM stops softly: nothing new is taken, what runs is finished within
shutdown_timeout. The second one ends the process at once; what was running is delivered again
after its lease.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(a.configPath())
			if err != nil {
				return err
			}
			if listen != "" {
				cfg.Server.Listen = listen
			}
			return a.run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address for health and metrics, instead of server.listen; port 0 takes a free one, none turns it off")
	return cmd
}

// dispatcher is a running process: the sources and what is shown about them.
type dispatcher struct {
	app         *app
	cfg         *config.Config
	log         *slog.Logger
	metrics     *server.Metrics
	supervisors []*supervisor
	http        *server.Server
}

func (a *app) run(parent context.Context, cfg *config.Config) error {
	d := &dispatcher{app: a, cfg: cfg, log: a.logger(cfg.Log)}
	b := thisBuild()
	d.metrics = server.NewMetrics(b.Version, b.Go)
	ws, err := wire(cfg, d.log, func(s config.Source, hs []config.Handler) pipeline.Observer {
		return d.metrics.Observer(s.Name, kinds(hs))
	})
	if err != nil {
		return err
	}
	for _, w := range ws {
		if len(w.handlers) == 0 {
			d.log.Warn("no handler listens to this source, so its events wait", slog.String("source", w.source.Name))
		}
		d.supervisors = append(d.supervisors, newSupervisor(w, d.log))
	}
	ctx, stop := a.untilSignalled(parent, d.log)
	defer stop()
	return errors.Join(d.serve(ctx), closeAll(ws))
}

// serve refuses what must not start: an address that cannot be used, and a database that answers
// and lacks our tables. Else it works until ctx ends. The HTTP server and the counting of tables
// stop last, so that a stop can be watched.
func (d *dispatcher) serve(ctx context.Context) error {
	if err := d.listen(ctx); err != nil {
		if ctx.Err() != nil { // told to stop already, which is what the listener says
			return nil
		}
		return err
	}
	rest, stopRest := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRest()
	var watching sync.WaitGroup
	if d.http != nil {
		watching.Go(func() {
			if err := d.http.Run(rest); err != nil {
				d.log.Error("health and metrics are not served any more", slog.Any("err", err))
			}
		})
	}
	checks := make([]func(context.Context) error, len(d.supervisors))
	for i, s := range d.supervisors {
		checks[i] = s.check
	}
	err := firstLook(ctx, checks)
	if err == nil {
		for _, s := range d.supervisors {
			watching.Go(func() { d.refresh(rest, s) })
		}
		watching.Go(func() { d.banner(ctx) })
		err = d.work(ctx)
	}
	stopRest()
	watching.Wait()
	if err == nil {
		d.log.Info("stopped")
	}
	return err
}

// firstLook runs the checks of all sources at once and returns what they refuse. As soon as one source
// is ready, the others have only answerTime left to say no: one that hangs holds up nobody. It is
// waited for later.
func firstLook(ctx context.Context, checks []func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks {
		wg.Go(func() {
			err := check(ctx)
			errs[i] = refusal(err)
			if err == nil {
				time.AfterFunc(answerTime, cancel)
			}
		})
	}
	wg.Wait()
	return joined(errs)
}

// refusal keeps the errors that a restart of the database does not mend.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	switch f := classify(err); f.code {
	case codeNotMigrated, codeTable, codePrivilege:
		return f
	}
	return nil // waited for; the supervisor says so
}

func (d *dispatcher) sources() []server.Source {
	out := make([]server.Source, len(d.supervisors))
	for i, s := range d.supervisors {
		out[i] = server.Source{Name: s.source.Name, Report: s.report}
	}
	return out
}

func (d *dispatcher) listen(ctx context.Context) error {
	d.metrics.Sources(d.sources())
	address := d.cfg.Server.Listen
	if address == "none" {
		return nil
	}
	http, err := server.Listen(ctx, server.Config{Listen: address, Sources: d.sources(), Metrics: d.metrics.Gatherer(), Logger: d.log})
	if err != nil {
		return failed(codeListen, "free the port, or set server.listen to another one (or none)", "%s", innermostWith(err, "cannot listen on "+address))
	}
	d.http = http
	if !loopback(http.Addr()) {
		d.log.Info("health and metrics can be read from other machines; they show no event, and names of handlers and hosts", slog.String("listen", http.Addr()))
	}
	return nil
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

func innermostWith(err error, what string) string { return what + ": " + innermost(err) }

// work runs the sources until ctx ends.
func (d *dispatcher) work(ctx context.Context) error {
	var working sync.WaitGroup
	errs := make([]error, len(d.supervisors))
	for i, s := range d.supervisors {
		working.Go(func() { errs[i] = s.run(ctx) })
	}
	working.Wait()
	if err := errors.Join(errs...); err != nil {
		return failed(codeUnclean, "nothing is lost: it is done again by another process, or at the next start", "the stop was not clean: %v", err)
	}
	return nil
}

func kinds(hs []config.Handler) map[string]string {
	m := make(map[string]string, len(hs))
	for _, h := range hs {
		m[h.Name] = h.Kind()
	}
	return m
}

// untilSignalled returns a context that ends with the first SIGINT or SIGTERM. The
// second one ends the process: leases and positions cover what is cut off.
func (a *app) untilSignalled(parent context.Context, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			log.Info("stopping; once more to stop at once", slog.String("signal", s.String()))
			cancel()
		case <-done:
			return
		}
		select {
		case <-signals:
			os.Exit(a.explain(failed(codeHurried, "nothing is lost: what was running is delivered again after its lease", "stopped at once by a second signal")))
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
