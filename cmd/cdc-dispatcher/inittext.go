package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// yaml is the file that init writes: short enough to be read, with the choices that
// people make first as comments.
func (p plan) yaml() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# cdc-dispatcher: which database, which events, and who receives them.")
	line("# Check it with: cdc-dispatcher validate")
	line("version: 1")
	line("")
	line("sources:")
	line("  - name: %-25s # in logs, metrics and tables", quoted(p.Source))
	line("    dsn: %-26s # also ${NAME:-default} and ${file:/run/secrets/dsn}", quoted(p.DSN))
	line("    # password: ${file:/run/secrets/password}   # apart, it needs no encoding")
	line("    mode: auto                      # auto, log or poll")
	if p.Database.IsMySQL() {
		line("    # mysql: {server_id: 4711, tls: {mode: verify-full, ca: ca.pem}}   # the id is chosen by itself")
	}
	p.tableYAML(line)
	line("")
	line("defaults:")
	line("  timeout: 10s                      # of one attempt")
	line("  concurrency: 16                   # attempts of one handler at once, per process")
	line("  retry: {base: 1s, cap: 5m, jitter: full, window: 7d}")
	line("")
	line("handlers:")
	line("  - name: event-log                 # stored with every delivery: rename only with aliases")
	line("    on: [\"*\"]                       # exact types, \"order.*\" for a prefix, or all")
	line("    logger: {payload: true}")
	line("  # - name: billing")
	line("  #   on: [order.placed]")
	line("  #   when: event.payload.total > 0")
	line("  #   webhook:")
	line("  #     url: https://billing.example/hooks")
	line("  #     secrets: [\"${BILLING_SECRET}\"]   # whsec_…, Standard Webhooks")
	line("")
	line("server:")
	line("  listen: 127.0.0.1:7788            # /healthz, /readyz, /metrics")
	return b.String()
}

func (p plan) tableYAML(line func(string, ...any)) {
	switch p.Preset {
	case schema.PresetEventlog:
		line("    # table: {preset: eventlog}     # eventlog.events, made by \"migrate up\"; also debezium, custom")
		if p.Table != "" {
			line("    table: {preset: eventlog, name: %s}", quoted(p.Table))
		}
	case schema.PresetDebezium:
		line("    table:")
		line("      preset: debezium              # id, aggregatetype, aggregateid, type, payload")
		line("      name: %s", quoted(p.Table))
		if p.DateColumn != "" {
			line("      columns: {date: %s}", quoted(p.DateColumn))
			line("      # look_back: 1d               # rows older than this were handled before")
		}
	default:
		line("    table:")
		line("      preset: custom")
		line("      name: %s", quoted(p.Table))
		line("      columns: {id: id, type: type, payload: payload}   # also date, model_id, model_type, headers …")
		line("      mark: none                    # or {boolean: COLUMN}, {status: COLUMN}")
	}
}

// noText matches plain scalars that YAML takes for a number, a truth value or nothing.
var noText = regexp.MustCompile(`(?i)^([-+]?\.?[0-9].*|[-+]?\.(inf|nan)|true|false|yes|no|on|off|y|n|null|~)?$`)

// quoted writes a scalar, in quotes where YAML or our references need them.
func quoted(s string) string {
	if (strings.ContainsAny(s, " :#{}[],&*!|>'\"%@`\\") || noText.MatchString(s)) && s != reference {
		s = strings.ReplaceAll(s, "${", "$${")
		return strconv.Quote(s)
	}
	return s
}
