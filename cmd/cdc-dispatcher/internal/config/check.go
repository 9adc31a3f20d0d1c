package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// check finds what is wrong between settings that are right one by one.
func (d *decoder) check(c *Config) {
	d.checkSources(c)
	d.checkSlots(c)
	d.checkServerIDs(c)
	d.checkPipelines(c)
}

// checkSources reports handlers that listen to a source that does not exist.
func (d *decoder) checkSources(c *Config) {
	names := c.SourceNames()
	if len(names) == 0 {
		return // which has been reported
	}
	for _, h := range c.Handlers {
		for i, s := range h.Sources {
			at := fmt.Sprintf("%s.sources[%d]", h.path, i)
			if slices.Contains(names, s) || !d.has(at) {
				continue
			}
			p := d.report(CodeUnknownSource, at, d.posOf(at), "use one of: "+strings.Join(names, ", "), "%s: there is no source %s", at, d.echo(at, s))
			if !d.hidden[at] {
				p.Suggestion = nearest(s, names)
			}
		}
	}
}

// driverParameters are parameters of a DSN that set up a pool behind a pooler and
// mean nothing to a server.
var driverParameters = []string{"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity"}

// checkSlots reports two sources that would fight over one slot. Slots belong to
// the server, so the sources need not share a database.
func (d *decoder) checkSlots(c *Config) {
	type slot struct {
		host string
		port uint16
		name string
	}
	taken := map[slot]string{}
	for i, s := range c.Sources {
		if s.Database.IsMySQL() {
			continue
		}
		server, err := pgconn.ParseConfig(s.LogDSN())
		if s.Mode == ModePoll || s.LogDSN() == "" || err != nil {
			continue
		}
		for _, name := range driverParameters {
			if _, has := server.RuntimeParams[name]; has {
				at := fmt.Sprintf("sources[%d].dsn", i)
				d.report(CodeDSN, at, d.posOf(at), "give the log a DSN of its own, without it and past any pooler: postgres: {dsn: …}; or set mode: poll",
					"%s: %s cannot be used where the log is read", at, name)
			}
		}
		key := slot{server.Host, server.Port, s.Postgres.Slot}
		if first, twice := taken[key]; twice {
			at := fmt.Sprintf("sources[%d].postgres.slot", i)
			d.report(CodeConflict, at, d.posOf(at), "give the sources of one server slots of their own: postgres: {slot: NAME}",
				"sources %q and %q use one slot of one server", first, s.Name)
			continue
		}
		taken[key] = s.Name
	}
}

// checkServerIDs reports two readers of one server under one id, which cut each other off.
func (d *decoder) checkServerIDs(c *Config) {
	type replica struct {
		address string
		id      uint32
	}
	taken := map[replica]string{}
	for i, s := range c.Sources {
		if !s.Database.IsMySQL() || s.Mode == ModePoll {
			continue
		}
		cfg, err := parseMySQL(s.LogDSN())
		if err != nil {
			continue
		}
		key := replica{cfg.Addr, s.ServerID()}
		if first, twice := taken[key]; twice {
			at := fmt.Sprintf("sources[%d].mysql.server_id", i)
			d.report(CodeConflict, at, d.posOf(at), "give the sources of one server ids of their own, or leave them out",
				"sources %q and %q read one server under one id", first, s.Name)
			continue
		}
		taken[key] = s.Name
	}
}

// checkPipelines asks the pipeline about each source's handlers: the code that
// will refuse them at start is the code that refuses them here.
func (d *decoder) checkPipelines(c *Config) {
	seen := map[string]bool{}
	groups := make([][]Handler, 0, len(c.Sources))
	for _, s := range c.Sources {
		groups = append(groups, c.HandlersOf(s.Name))
	}
	if len(groups) == 0 {
		groups = append(groups, c.Handlers)
	}
	for _, handlers := range groups {
		cfg := pipeline.Config{Source: "check", Lease: c.Lease, Handlers: make([]pipeline.Handler, len(handlers))}
		for i, h := range handlers {
			cfg.Handlers[i] = h.Pipeline(event.HandlerFunc(func(context.Context, event.Envelope) error { return nil }))
		}
		var bad *pipeline.ConfigError
		if !errors.As(cfg.Validate(), &bad) {
			continue
		}
		for _, p := range bad.Problems {
			d.pipelineProblem(handlers, p, seen)
		}
	}
}

// Pipeline is the subscription as the pipeline takes it.
func (h Handler) Pipeline(to event.Handler) pipeline.Handler {
	return pipeline.Handler{
		Name: h.Name, Aliases: h.Aliases, On: h.On, When: h.When,
		Concurrency: h.Concurrency, Timeout: h.Timeout, Retry: h.Retry, Handler: to,
	}
}

// pipelineProblem translates one objection of the pipeline into a place in the file.
func (d *decoder) pipelineProblem(handlers []Handler, p pipeline.Problem, seen map[string]bool) {
	index, setting, ok := handlerPath(p.Path)
	if !ok || index >= len(handlers) {
		return // the store, which is not there yet, and what is checked elsewhere
	}
	at := handlers[index].path + "." + setting
	// Paths inside a message are those of the pipeline's own list.
	message := p.Message
	for i, h := range handlers {
		message = strings.ReplaceAll(message, fmt.Sprintf("handlers[%d]", i), "\x00"+h.path)
	}
	message, _, _ = strings.Cut(strings.ReplaceAll(message, "\x00", ""), " expecting {") // a grammar helps nobody
	if n, ok := d.at[at]; ok && n.kind == kindBroken {
		return
	}
	if seen[at+message] || d.reported(at) || !d.has(at) && d.reported(handlers[index].path+"."+root(setting)) {
		return
	}
	seen[at+message] = true
	if d.hidden[at] {
		message = "the value of the reference is not accepted"
	}
	code, try := CodeConflict, "change one of the two"
	switch root(setting) {
	case "name", "aliases":
		code, try = CodeHandlerName, "give every handler a name and aliases of its own; names are stored with deliveries, so rename with aliases"
	case "on":
		code, try = CodeEventType, `write event types: order.placed, "order.*" or "*"`
	case "when":
		code, try = CodeCondition, "a condition is CEL over event: event.type, event.payload.total > 100, has(event.payload.total)"
	case "timeout":
		try = "lower the timeout, or raise defaults.lease"
	}
	pos := d.posOf(at)
	if n, ok := d.at[at]; ok && p.Line > 0 && !d.hidden[at] {
		pos = n.inner(d.doc.lines, p.Line, p.Column)
	}
	d.report(code, at, pos, try, "%s", about(at, message))
}

// about makes one sentence of a setting and what is said about it.
func about(setting, message string) string {
	for _, verb := range []string{"is ", "has ", "lists ", "needs ", "holds "} {
		if strings.HasPrefix(message, verb) {
			return setting + " " + message
		}
	}
	return setting + ": " + message
}

// handlerPath cuts "handlers[2].retry.base" into 2 and "retry.base".
func handlerPath(path string) (index int, setting string, ok bool) {
	if _, err := fmt.Sscanf(path, "handlers[%d].", &index); err != nil {
		return 0, "", false
	}
	_, setting, ok = strings.Cut(path, "].")
	return index, setting, ok
}

// root is the first key of a setting: "retry" of "retry.base", "on" of "on[1]".
func root(setting string) string {
	if i := strings.IndexAny(setting, ".["); i >= 0 {
		return setting[:i]
	}
	return setting
}
