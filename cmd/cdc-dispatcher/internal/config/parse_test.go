package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// environment is one with these variables and files.
func environment(vars, files map[string]string) Environment {
	return Environment{
		Lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		ReadFile: func(name string) ([]byte, error) {
			if text, ok := files[name]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		},
	}
}

func mustParse(t *testing.T, src string, env Environment) *Config {
	t.Helper()
	c, err := Parse("cdc-dispatcher.yaml", []byte(src), env)
	if err != nil {
		t.Fatalf("unexpected problems:\n%v", err)
	}
	return c
}

var ignorePlaces = cmp.Options{cmpopts.IgnoreUnexported(Config{}, Handler{}), cmpopts.IgnoreFields(Config{}, "Sum")}

// TestEverySetting reads a file that uses every key.
func TestEverySetting(t *testing.T) {
	src, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := mustParse(t, string(src), environment(
		map[string]string{"DATABASE_URL": "postgres://app@db/shop", "LEVEL": "debug", "WORKERS": "3", "EMPTY": ""},
		map[string]string{
			"/run/secrets/password": "p@ss/wörd: [x] ${LEVEL}\n",
			"mysql":                 "s3/cr@et:",
			"whsec":                 "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\r\n",
		}))
	retry := pipeline.RetryPolicy{Base: 2 * time.Second, Cap: time.Minute, Jitter: true, Window: 72 * time.Hour, MaxAttempts: 12}
	want := &Config{
		File: "cdc-dispatcher.yaml",
		Sources: []Source{
			{
				Name: "orders", Database: DatabasePostgres, DSN: "postgres://app@db/shop", Password: "p@ss/wörd: [x] ${LEVEL}",
				Schema: "events_own", Table: schema.Eventlog("events_own"), Mode: ModeLog, MaxConnections: 20,
				Postgres: Postgres{DSN: "postgres://app@db-direct/shop", Slot: "orders_slot", Publication: "orders pub", Create: false, Failover: true},
				Poller: pipeline.PollerConfig{Interval: 30 * time.Second, ActiveInterval: 250 * time.Millisecond,
					Grace: 2 * time.Second, Batch: 500, SweepAgain: time.Minute},
				FanOut: pipeline.FanOutConfig{BatchEvents: 1000, BatchBytes: 4 << 20, MarkUnsubscribed: true},
			},
			{
				Name: "legacy", Database: DatabasePostgres, DSN: "host=db2 user=app dbname=shop", Schema: "eventlog", Mode: ModePoll, MaxConnections: 10,
				Table: schema.Table{
					Preset: "custom", Schema: "shop", Name: "out.box",
					Columns:  schema.Columns{ID: "id", Type: "kind", Payload: "body", Date: "created_at"},
					Mark:     schema.Mark{Kind: schema.MarkStatus, Column: "state", Pending: "NEW", Done: "SENT", None: "NOBODY", At: "sent_at"},
					LookBack: 7 * 24 * time.Hour,
				},
				Postgres: Postgres{Slot: "cdc_dispatcher", Publication: "cdc_dispatcher", Create: true},
			},
			{
				Name: "store", Database: DatabaseMySQL, DSN: "app:s3/cr@et:@tcp(db3)/store?parseTime=true", Schema: "events_own",
				Table: schema.Debezium("store", ""), Mode: ModeAuto, MaxConnections: 10,
				MySQL: MySQL{DSN: "mariadb://app@db3-direct:3307/", ServerID: 4711, Heartbeat: 5 * time.Second,
					TLS: TLS{Mode: TLSVerifyCA, CA: "ca.pem", Cert: "me.pem", Key: "me.key"}},
			},
		},
		Handlers: []Handler{
			{
				Name: "audit", On: []string{"*"}, Sources: []string{"legacy"}, Concurrency: 3, Timeout: 10 * time.Second, Retry: retry,
				Logger: &Logger{Level: LevelInfo},
			},
			{
				Name: "billing", Aliases: []string{"invoices"}, On: []string{"order.placed", "order.*"},
				When: "has(event.payload.total) && event.payload.total > 0", Concurrency: 4, Timeout: 5 * time.Second,
				Retry: pipeline.RetryPolicy{Base: time.Second, Cap: 5 * time.Minute, Window: -1, MaxAttempts: 0},
				Webhook: &webhook.Config{
					URL: "https://billing.example/hooks", Format: webhook.CloudEvents, Source: "/orders", Timeout: 5 * time.Second,
					Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, Headers: map[string]string{"X-Team": "orders"},
					PermanentOn: []int{400, 410}, MaxRetryAfter: time.Hour, MaxResponse: 4 << 10, MaxConns: 8,
					AllowNetworks: []string{"10.0.0.0/8"}, DenyNetworks: []string{"10.1.0.0/16"}, PublicOnly: true,
				},
			},
			{
				Name: "console", On: []string{"*"}, Sources: []string{"orders"}, Concurrency: 3, Timeout: 10 * time.Second, Retry: retry,
				Logger: &Logger{Level: LevelWarn, Payload: true},
			},
		},
		Server: Server{Listen: "127.0.0.1:0"}, Log: Log{Level: LevelDebug, Format: FormatJSON},
		Lease: 90 * time.Second, OrphanGrace: time.Hour, MaxPayload: 1 << 20, ShutdownTimeout: 30 * time.Second, StoreErrorMessages: true,
	}
	if diff := cmp.Diff(want, got, ignorePlaces); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	var names []string
	for _, h := range got.HandlersOf("orders") {
		names = append(names, h.Name+" "+h.Kind()+" "+h.Path())
	}
	if diff := cmp.Diff([]string{"billing webhook handlers[0]", "console logger handlers[1]"}, names); diff != "" {
		t.Errorf("handlers of orders (-want +got):\n%s", diff)
	}
}

// TestSmallestFile: two settings are enough, and everything else has a default.
func TestSmallestFile(t *testing.T) {
	got := mustParse(t, "version: 1\nsources:\n  - {name: orders, dsn: \"${DATABASE_URL}\"}\n",
		environment(map[string]string{"DATABASE_URL": "postgres://app@db/shop"}, nil))
	want := &Config{
		File: "cdc-dispatcher.yaml",
		Sources: []Source{{
			Name: "orders", Database: DatabasePostgres, DSN: "postgres://app@db/shop", Schema: "eventlog", Table: schema.Eventlog(""), Mode: ModeAuto, MaxConnections: 10,
			Postgres: Postgres{Slot: "cdc_dispatcher", Publication: "cdc_dispatcher", Create: true},
		}},
		Server: Server{Listen: "127.0.0.1:7788"}, Log: Log{Level: LevelInfo, Format: FormatAuto},
		Lease: time.Minute, ShutdownTimeout: 20 * time.Second,
	}
	if diff := cmp.Diff(want, got, ignorePlaces); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if len(got.Sum) != 6 {
		t.Errorf("sum %q", got.Sum)
	}
}

// TestHandlersOfSeveralSources: two sources may each have a handler of one name.
func TestHandlersOfSeveralSources(t *testing.T) {
	got := mustParse(t, `version: 1
sources:
  - name: a
    dsn: postgres://app@a/shop
    handlers: [{name: billing, on: ["*"], logger: }]
  - name: b
    dsn: postgres://app@b/shop
    handlers: [{name: billing, on: ["*"], logger: {}}]
`, Environment{})
	for _, s := range got.SourceNames() {
		if hs := got.HandlersOf(s); len(hs) != 1 || hs[0].Name != "billing" {
			t.Errorf("handlers of %s: %+v", s, hs)
		}
	}
	if _, ok := got.Source(""); ok {
		t.Error("a source was chosen although there are two")
	}
	if s, ok := got.Source("b"); !ok || s.Name != "b" {
		t.Errorf("source b: %v %v", s.Name, ok)
	}
}

// TestRetryInheritance: a handler's policy is the defaults' with its own
// settings on top, unless it names a preset.
func TestRetryInheritance(t *testing.T) {
	got := mustParse(t, `version: 1
sources: [{name: a, dsn: "postgres://app@a/shop"}]
handlers:
  - {name: plain, on: ["*"], logger: }
  - {name: cap, on: ["*"], logger: , retry: {cap: 10m}}
  - {name: vernac, on: ["*"], logger: , retry: {preset: vernac, jitter: full}}
defaults:
  retry: {preset: ekbatan, max_attempts: 9}
`, Environment{})
	ekbatan := pipeline.RetryEkbatan()
	ekbatan.MaxAttempts = 9
	raised := ekbatan
	raised.Cap = 10 * time.Minute
	vernac := pipeline.RetryVernac()
	vernac.Jitter = true
	for i, want := range []pipeline.RetryPolicy{ekbatan, raised, vernac} {
		if diff := cmp.Diff(want, got.Handlers[i].Retry); diff != "" {
			t.Errorf("%s (-want +got):\n%s", got.Handlers[i].Name, diff)
		}
	}
}

// TestReferencesAreNotYAML: what a reference expands to is a value, whatever
// it looks like (and no reference in it is followed).
func TestReferencesAreNotYAML(t *testing.T) {
	const wild = "x\nlog: {level: nonsense}\n- ${HOME}: 'y' # z"
	got := mustParse(t, "version: 1\nsources: [{name: a, dsn: \"postgres://app@a/shop\", password: \"${WILD}\"}]\n",
		environment(map[string]string{"WILD": wild}, nil))
	if got.Sources[0].Password != wild {
		t.Errorf("password %q", got.Sources[0].Password)
	}
}

func TestExpand(t *testing.T) {
	env := environment(map[string]string{"A": "1", "EMPTY": "", "_x9": "2"}, map[string]string{"f": "text\n\n", "crlf": "text\r\n"})
	for _, tt := range []struct {
		in, want string
		codes    []Code
	}{
		{in: "", want: ""},
		{in: "plain $ text $A", want: "plain $ text $A"},
		{in: "${A}${_x9}-${A}", want: "12-1"},
		{in: "${A:-x}${B:-y}${EMPTY:-z}${EMPTY}", want: "1yz"},
		{in: "${B:-}", want: ""},
		{in: "${B:-a:-b}", want: "a:-b"},
		{in: "$${A} and $${", want: "${A} and ${"},
		{in: "${A}$${A}${A}", want: "1${A}1"},
		{in: "${file:f}|${file:crlf}|", want: "text\n|text|"},
		{in: "${B}${C}", codes: []Code{CodeUnset, CodeUnset}},
		{in: "${A", codes: []Code{CodeReference}},
		{in: "${}", codes: []Code{CodeReference}},
		{in: "${1A}", codes: []Code{CodeReference}},
		{in: "${A-b}", codes: []Code{CodeReference}},
		{in: "${B:-${A}}", codes: []Code{CodeReference}},
		{in: "${file:gone}", codes: []Code{CodeReferenceFile}},
		{in: "${file:}", codes: []Code{CodeReference}},
	} {
		got, errs := expand(tt.in, env)
		var codes []Code
		for _, e := range errs {
			codes = append(codes, e.code)
		}
		if diff := cmp.Diff(tt.codes, codes); diff != "" {
			t.Errorf("expand(%q) codes (-want +got):\n%s", tt.in, diff)
		}
		if len(codes) == 0 && got.text != tt.want {
			t.Errorf("expand(%q) = %q, want %q", tt.in, got.text, tt.want)
		}
	}
}

func TestReferenceFileTooLarge(t *testing.T) {
	_, errs := expand("${file:big}", environment(nil, map[string]string{"big": strings.Repeat("x", maxReferenceFile+1)}))
	if len(errs) != 1 || errs[0].code != CodeReferenceFile {
		t.Errorf("errors %+v", errs)
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10s": 10 * time.Second, "7d": 7 * 24 * time.Hour, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond,
		"500ms": 500 * time.Millisecond, "0s": 0, "1d12h": 36 * time.Hour,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
		if back, err := parseDuration(formatDuration(want)); err != nil || back != want {
			t.Errorf("%v is written %q, read back as %v, %v", want, formatDuration(want), back, err)
		}
	}
	for _, text := range []string{"", "10", "s", "10 s", "-1s", "1y", "10S", "1..5s", ".", "1e3s", "999999999d", "10sfoo"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v", text, got)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"16MiB": 16 << 20, "1kB": 1000, "64KiB": 64 << 10, "10B": 10, "1.5GiB": 3 << 29, "2 MB": 2_000_000,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("parseSize(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "MiB", "1Mib", "-1MiB", "1e9B", "99999999GiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("parseSize(%q) = %v", text, got)
		}
	}
	if got := []string{formatSize(1 << 20), formatSize(1500), formatSize(3 << 29)}; !cmp.Equal(got, []string{"1MiB", "1500B", "1536MiB"}) {
		t.Errorf("sizes %v", got)
	}
}

func TestNearest(t *testing.T) {
	words := []string{"retries", "timeout", "look_back", "on", "max_attempts"}
	for got, want := range map[string]string{
		"retires": "retries", "timout": "timeout", "time-out": "timeout", "lookBack": "look_back", "no": "on",
		"MAX_ATTEMPT": "max_attempts", "frobnicate": "", "": "", "x": "",
	} {
		if s := nearest(got, words); s != want {
			t.Errorf("nearest(%q) = %q, want %q", got, s, want)
		}
	}
}

func TestLoadReportsAFileThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "gone.yaml"), dir} {
		_, err := Load(path, Environment{})
		var problems Problems
		if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Code != CodeFile || problems[0].Try == "" {
			t.Errorf("Load(%s): %v", path, err)
		}
	}
}

// TestRelativeReferenceFiles: ${file:…} looks beside the configuration.
func TestRelativeReferenceFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("dsn", "postgres://app@db/shop\n")
	path := write("c.yaml", "version: 1\nsources: [{name: a, dsn: \"${file:dsn}\"}]\n")
	c, err := Load(path, OS(dir))
	if err != nil {
		t.Fatal(err)
	}
	if c.Sources[0].DSN != "postgres://app@db/shop" {
		t.Error("the file was not read")
	}
}
