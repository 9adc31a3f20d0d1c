package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/server"
)

// opening is what the first lines of a run show.
type opening struct {
	build   build
	file    string
	sum     string
	address string // of the HTTP server, empty when there is none
	sources []sourceOpening
}

type sourceOpening struct {
	config config.Source
	report server.Report
	counts []server.HandlerCounts // nil when unknown
}

// banner shows where everything is, once the sources have found their mode or three
// seconds have passed: five lines on a terminal, else one line of the log.
func (d *dispatcher) banner(ctx context.Context) {
	d.settled(ctx)
	if ctx.Err() != nil {
		return
	}
	o := opening{build: thisBuild(), file: d.cfg.File, sum: d.cfg.Sum}
	if d.http != nil {
		o.address = d.http.Addr()
	}
	terminal := isTerminal(d.app.err)
	for _, s := range d.supervisors {
		one := sourceOpening{config: s.source, report: s.report()}
		if terminal && one.report.Waiting == "" {
			one.counts = d.countNow(ctx, s)
		}
		o.sources = append(o.sources, one)
	}
	if terminal {
		if !d.app.quiet {
			d.app.words(o.text())
		}
		return
	}
	o.log(d.log)
}

// settled waits until every source has found what it does.
func (d *dispatcher) settled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, bannerAfter)
	defer cancel()
	for ctx.Err() == nil {
		undecided := false
		for _, s := range d.supervisors {
			r := s.report()
			undecided = undecided || r.Waiting != "" || r.Mode() == cdc.ModeConnecting || r.Mode() == cdc.ModeStopped
		}
		if !undecided {
			return
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// log is the banner for machines.
func (o opening) log(log *slog.Logger) {
	modes := make([]string, len(o.sources))
	for i, s := range o.sources {
		modes[i] = s.config.Name + "=" + s.mode()
	}
	log.Info("started", slog.String("version", o.build.Version), slog.String("config", o.file), slog.String("config_sha", o.sum),
		slog.String("listen", o.address), slog.String("sources", strings.Join(modes, " ")))
}

func (s sourceOpening) mode() string {
	if s.report.Waiting != "" {
		return "waiting"
	}
	return strings.ReplaceAll(string(s.report.Mode()), "_", " ")
}

// text is the banner for people, its words aligned in columns.
func (o opening) text() string {
	var p paper
	p.add("\ncdc-dispatcher %s   config %s (sha %s)\n", o.build.Version, o.file, o.sum)
	for _, s := range o.sources {
		p.line("Source", "%s", s.sourceLine())
		p.line(guardTitle(s.config.Database), "%s", s.guardLine())
		p.line("Handlers", "%s", s.handlerLine())
	}
	if o.address == "" {
		p.line("Health", "no HTTP listener (server.listen: none)")
	} else {
		p.line("Health", "http://%s/healthz   /readyz   Metrics /metrics", o.address)
	}
	return p.String() + "\n"
}

func (s sourceOpening) sourceLine() string {
	parts := []string{s.config.Database.String() + " " + s.config.Name + "@" + address(s.config)}
	switch {
	case s.config.Mode == config.ModePoll:
	case s.config.Database.IsMySQL():
		parts = append(parts, fmt.Sprintf("server id %d", s.config.ServerID()))
	default:
		parts = append(parts, "slot "+s.config.Postgres.Slot)
	}
	mode := s.mode()
	switch log := s.report.Health.Log; {
	case s.report.Waiting != "":
		mode += ": " + s.report.Waiting
	case s.report.Health.LogTrouble.Present() && s.report.Mode() == cdc.ModePolling:
		mode += " because the log cannot be read: " + s.report.Health.LogTrouble.Err.Error()
	case log != nil && log.Confirmed != "":
		mode += fmt.Sprintf(" from %s", short(string(log.Confirmed)))
		if log.LagBytes >= 0 {
			mode += fmt.Sprintf(" (lag %s)", bytesOf(log.LagBytes))
		}
	}
	return strings.Join(append(parts, mode), "   ")
}

func (s sourceOpening) guardLine() string {
	interval := s.config.Poller.Interval
	if interval == 0 {
		interval = 10 * time.Second
	}
	fallback := "poller every " + span(interval) + " as fallback"
	if s.config.Mode == config.ModePoll {
		return "no log is read, so none is retained"
	}
	log := s.report.Health.Log
	switch {
	case s.config.Database.IsMySQL():
		return "the server keeps its binlog for as long as it is set to, whoever reads it   " + fallback
	case s.report.Waiting != "" || log == nil || log.RetainedBytes < 0:
		return "retained WAL not known yet   " + fallback
	case log.RetainLimitBytes < 0:
		return fmt.Sprintf("retained %s, without a limit: set max_slot_wal_keep_size   %s", bytesOf(log.RetainedBytes), fallback)
	}
	return fmt.Sprintf("retained %s of %s allowed (max_slot_wal_keep_size)   %s", bytesOf(log.RetainedBytes), bytesOf(log.RetainLimitBytes), fallback)
}

func (s sourceOpening) handlerLine() string {
	if s.report.Waiting != "" {
		return "not running yet"
	}
	var paused []string
	for _, h := range s.report.Health.Handlers {
		if h.Paused != nil {
			paused = append(paused, fmt.Sprintf("%s: paused by %s %s ago", h.Name, h.Paused.By, span(time.Since(h.Paused.At))))
		}
	}
	line := fmt.Sprintf("%d active", len(s.report.Health.Handlers)-len(paused))
	if len(paused) > 0 {
		line += fmt.Sprintf(", %d paused (%s)", len(paused), strings.Join(paused, "; "))
	}
	if s.counts == nil {
		return line
	}
	var backlog, dead int64
	var oldest time.Duration
	for _, c := range s.counts {
		backlog += c.Pending + c.Retrying
		dead += c.Dead
		oldest = max(oldest, c.OldestAge)
	}
	line += fmt.Sprintf("   backlog %d", backlog)
	if backlog > 0 {
		line += ", oldest " + span(oldest)
	}
	return line + fmt.Sprintf(", dead %d", dead)
}

// guardTitle names what keeps the log until it is read.
func guardTitle(d config.Database) string {
	if d.IsMySQL() {
		return "Binlog"
	}
	return "WAL guard"
}

// address is where a DSN leads, never who with.
func address(s config.Source) string {
	if s.Database.IsMySQL() {
		cfg, err := s.MySQLConfig()
		if err != nil {
			return "?"
		}
		return cfg.Addr + "/" + cfg.DBName
	}
	cfg, err := pgconn.ParseConfig(s.DSN)
	if err != nil {
		return "?"
	}
	if strings.HasPrefix(cfg.Host, "/") {
		return cfg.Host + "/" + cfg.Database
	}
	return net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port)) + "/" + cfg.Database
}

// short cuts the middle out of a position: a set of GTIDs can be as long as a page.
func short(position string) string {
	const most = 80
	if len(position) <= most {
		return position
	}
	return position[:most/2] + "…" + position[len(position)-most/2:]
}
