package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/server"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// TestBanner pins the first lines that people see: aligned, and without a secret.
func TestBanner(t *testing.T) {
	source := config.Source{Name: "orders", Database: config.DatabasePostgres, DSN: "postgres://app:hunter2@db:5432/shop", Mode: config.ModeAuto, Postgres: config.Postgres{Slot: "cdc_dispatcher"}}
	working := pipeline.Health{
		Mode: cdc.ModeStreaming,
		Log:  &cdc.Status{Confirmed: "0/16B3748", LagBytes: 0, RetainedBytes: 12 << 20, RetainLimitBytes: 10 << 30},
		Handlers: []pipeline.HandlerHealth{
			{Name: "billing"}, {Name: "crm-sync", Paused: &delivery.Pause{By: "maria", At: time.Now().Add(-2*time.Hour - time.Second)}},
		},
	}
	polling := source
	polling.Mode = config.ModePoll
	unbounded := working
	unbounded.Log = &cdc.Status{Confirmed: "0/1", LagBytes: 2048, RetainedBytes: 1 << 30, RetainLimitBytes: -1}
	for _, tt := range []struct {
		name    string
		address string
		source  sourceOpening
		want    string
	}{
		{"working", "127.0.0.1:7788", sourceOpening{source, server.Report{Health: working},
			[]server.HandlerCounts{{Pending: 10, Retrying: 7, Dead: 2, OldestAge: 3 * time.Second}}}, `
cdc-dispatcher 0.1.0   config cdc-dispatcher.yaml (sha 3f9c1a)
Source      postgres orders@db:5432/shop   slot cdc_dispatcher   streaming from 0/16B3748 (lag 0 B)
WAL guard   retained 12.0 MiB of 10.0 GiB allowed (max_slot_wal_keep_size)   poller every 10s as fallback
Handlers    1 active, 1 paused (crm-sync: paused by maria 2h ago)   backlog 17, oldest 3s, dead 2
Health      http://127.0.0.1:7788/healthz   /readyz   Metrics /metrics

`},
		{"no limit, nothing known of the tables", "", sourceOpening{source, server.Report{Health: unbounded}, nil}, `
cdc-dispatcher 0.1.0   config cdc-dispatcher.yaml (sha 3f9c1a)
Source      postgres orders@db:5432/shop   slot cdc_dispatcher   streaming from 0/1 (lag 2.0 KiB)
WAL guard   retained 1.0 GiB, without a limit: set max_slot_wal_keep_size   poller every 10s as fallback
Handlers    1 active, 1 paused (crm-sync: paused by maria 2h ago)
Health      no HTTP listener (server.listen: none)

`},
		{"waiting", "127.0.0.1:7788", sourceOpening{source, server.Report{Waiting: "the database at db:5432 cannot be reached"}, nil}, `
cdc-dispatcher 0.1.0   config cdc-dispatcher.yaml (sha 3f9c1a)
Source      postgres orders@db:5432/shop   slot cdc_dispatcher   waiting: the database at db:5432 cannot be reached
WAL guard   retained WAL not known yet   poller every 10s as fallback
Handlers    not running yet
Health      http://127.0.0.1:7788/healthz   /readyz   Metrics /metrics

`},
		{"polling", "127.0.0.1:7788", sourceOpening{polling, server.Report{Health: pipeline.Health{Mode: cdc.ModePolling}}, []server.HandlerCounts{}}, `
cdc-dispatcher 0.1.0   config cdc-dispatcher.yaml (sha 3f9c1a)
Source      postgres orders@db:5432/shop   polling
WAL guard   no log is read, so none is retained
Handlers    0 active   backlog 0, dead 0
Health      http://127.0.0.1:7788/healthz   /readyz   Metrics /metrics

`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := opening{build: build{Version: "0.1.0"}, file: "cdc-dispatcher.yaml", sum: "3f9c1a", address: tt.address, sources: []sourceOpening{tt.source}}
			if diff := cmp.Diff(tt.want, o.text()); diff != "" {
				t.Errorf("banner (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 20 * time.Millisecond: "20ms", 3400 * time.Millisecond: "3s", 90 * time.Second: "1m30s",
		10 * time.Minute: "10m", 2 * time.Hour: "2h", 2*time.Hour + 20*time.Minute: "2h20m", 2*time.Hour + 20*time.Second: "2h",
		20*time.Hour + 10*time.Minute: "20h10m", 50 * time.Hour: "2d2h", 240 * time.Hour: "10d0h",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 347 << 10: "347 KiB", 10 << 30: "10.0 GiB", 3 << 50: "3072 TiB"} {
		if got := bytesOf(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}

// TestTerminalIsNotSteered: what a database holds is text, not commands.
func TestTerminalIsNotSteered(t *testing.T) {
	var p paper
	p.table([][]string{{"A", "B"}, {"x\x1b[2Jy", "line\nbreak\tand tab"}})
	p.fields([][2]string{{"Payload", "\x1b]0;title\x07"}, {"Empty", ""}, {"None", "-"}})
	if strings.ContainsAny(p.String(), "\x1b\x07\t") || strings.Count(p.String(), "\n") != 3 {
		t.Errorf("%q", p.String())
	}
}

// TestOneSourcePerLogLine: the name of the source is in every line, once.
func TestOneSourcePerLogLine(t *testing.T) {
	var out bytes.Buffer
	log := ofSource(slog.New(slog.NewJSONHandler(&out, nil)), "orders")
	log.Info("a", "source", "orders", "n", 1)
	log.With("source", "orders", "x", 2).Info("b")
	log.Info("c")
	for line := range strings.Lines(out.String()) {
		if strings.Count(line, `"source"`) != 1 {
			t.Errorf("line %s", line)
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil || v["source"] != "orders" {
			t.Errorf("%v in %s", err, line)
		}
	}
}

func TestSourceNames(t *testing.T) {
	for database, want := range map[string]string{"shop": "shop", "my shop/1": "my-shop-1", "": "", "ünï": "n", strings.Repeat("x", 60): strings.Repeat("x", 40)} {
		if got := sourceName(database); got != want {
			t.Errorf("sourceName(%q) = %q, want %q", database, got, want)
		}
	}
}

// TestInitQuotesNames: whatever the database's names are, the file that init writes
// is read back with them.
func TestInitQuotesNames(t *testing.T) {
	for _, table := range []string{"public.outbox", `s."x`, "a b.c d", "s.${X}", "s.#1", "ä.ö", "s.null", "s.'q'"} {
		for _, preset := range []string{"debezium", "custom"} {
			p := plan{Source: "main", DSN: reference, Preset: preset, Table: table, DateColumn: "created at"}
			c, err := config.Parse("x", []byte(p.yaml()), config.Environment{Lookup: func(string) (string, bool) { return "postgres://localhost/x", true }})
			if err != nil {
				t.Errorf("%s %q: %v", preset, table, err)
				continue
			}
			if got := c.Sources[0].Table.QualifiedName(); got != table {
				t.Errorf("%s %q is read back as %q", preset, table, got)
			}
		}
	}
}

// TestEveryFailureHasAdvice: an error that nobody foresaw still has a code and a
// second line.
func TestEveryFailureHasAdvice(t *testing.T) {
	f := classify(errors.New("unforeseen"))
	if f.code != codeUnclassified || f.try == "" || f.exit != exitFailed || f.message != "unforeseen" {
		t.Errorf("%+v", f)
	}
	var out bytes.Buffer
	a := &app{err: &out, lookup: func(string) (string, bool) { return "", false }}
	if exit := a.explain(errors.New("several\nlines")); exit != exitFailed || !strings.HasPrefix(out.String(), "error CD5000: several lines\nTry: ") {
		t.Errorf("exit %d: %s", exit, out.String())
	}
}
