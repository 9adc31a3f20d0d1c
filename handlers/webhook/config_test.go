package webhook

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNew_Refusals(t *testing.T) {
	const ok = "https://hooks.example/in"
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no URL", Config{}, "url is missing"},
		{"no scheme", Config{URL: "hooks.example/in"}, "http://"},
		{"other scheme", Config{URL: "ftp://hooks.example"}, "http://"},
		{"no host", Config{URL: "https:///in"}, "no host"},
		{"broken escape", Config{URL: "https://h/%zz?token=hunter2"}, "cannot be parsed"},
		{"control character", Config{URL: "https://h/\n?token=hunter2"}, "cannot be parsed"},
		{"metadata address", Config{URL: "http://169.254.169.254/latest"}, "one by one"},
		{"metadata address, mapped", Config{URL: "http://[::ffff:169.254.169.254]/latest"}, "one by one"},
		{"loopback with public only", Config{URL: "http://127.0.0.1/", PublicOnly: true}, "not a public"},
		{"format", Config{URL: ok, Format: "xml"}, `"xml"`},
		{"content type", Config{URL: ok, ContentType: "text/plain\r\nX: y"}, "content type"},
		{"source", Config{URL: ok, Source: "%zz"}, "URI reference"},
		{"secret", Config{URL: ok, Secrets: []string{vectorSecret, "hunter2"}}, "secret 2"},
		{"header name", Config{URL: ok, Headers: map[string]string{"a b": "c"}}, `"a b"`},
		{"header value", Config{URL: ok, Headers: map[string]string{"X-A": "hunter2\r\nX-B: c"}}, "X-A"},
		{"reserved header", Config{URL: ok, Headers: map[string]string{"Webhook-Id": "c"}}, "Webhook-Id"},
		{"reserved header of CloudEvents", Config{URL: ok, Headers: map[string]string{"ce-id": "c"}}, "ce-id"},
		{"header of the connection", Config{URL: ok, Headers: map[string]string{"host": "c"}}, "host"},
		{"header twice", Config{URL: ok, Headers: map[string]string{"x-a": "1", "X-A": "2"}}, "X-A is listed twice"},
		{"permanent 2xx", Config{URL: ok, PermanentOn: []int{204}}, "204"},
		{"permanent nonsense", Config{URL: ok, PermanentOn: []int{4040}}, "4040"},
		{"negative timeout", Config{URL: ok, Timeout: -time.Second}, "-1s"},
		{"negative retry-after", Config{URL: ok, MaxRetryAfter: -time.Second}, "retry-after"},
		{"negative response", Config{URL: ok, MaxResponse: -1}, "max response"},
		{"negative connections", Config{URL: ok, MaxConns: -1}, "max connections"},
		{"network", Config{URL: ok, AllowNetworks: []string{"10.0.0.0/99"}}, "10.0.0.0/99"},
		{"network of mapped addresses", Config{URL: ok, DenyNetworks: []string{"::ffff:10.0.0.0/104"}}, "neither"},
		{"proxy", Config{URL: ok, ProxyURL: "socks://u:hunter2@p"}, "proxy"},
		{"public only through a proxy", Config{URL: ok, ProxyURL: "http://p:1", PublicOnly: true}, "proxy"},
		{"no CA file", Config{URL: ok, CAFile: filepath.Join(t.TempDir(), "none.pem")}, "none.pem"},
		{"CA file without certificate", Config{URL: ok, CAFile: junk}, "no PEM certificate"},
		{"client certificate without key", Config{URL: ok, CertFile: junk}, "client certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := New(c.cfg)
			if err == nil {
				w.Close()
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not contain %q", err, c.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %q shows a secret", err)
			}
		})
	}
}

func TestNew_NamesEverythingWrongAtOnce(t *testing.T) {
	_, err := New(Config{URL: "x", Format: "xml", Secrets: []string{"x"}, PermanentOn: []int{1}, AllowNetworks: []string{"x"}})
	for _, want := range []string{"http://", `"xml"`, "secret 1", "status 1", `"x" is neither`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	cfg := Config{
		URL:     "https://user:hunter2@hooks.example/services/hunter2?token=hunter2",
		Secrets: []string{vectorSecret},
		Headers: map[string]string{"Authorization": "Bearer hunter2"},
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "config", cfg, "webhook", w)
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "config", cfg, "webhook", w)
	for _, out := range []string{fmt.Sprint(cfg), fmt.Sprintf("%+v", cfg), fmt.Sprint(w), fmt.Sprintf("%+v", w), log.String()} {
		if strings.Contains(out, "hunter2") || strings.Contains(out, vectorSecret[6:]) {
			t.Errorf("secret in %s", out)
		}
	}
	if got, want := w.String(), "webhook hooks.example:443"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	if got, want := (Config{}).String(), "webhook"; got != want {
		t.Errorf("String() of nothing = %q, want %q", got, want)
	}
}

func TestDefaults(t *testing.T) {
	got := Config{}.withDefaults()
	if got.Format != Envelope || got.Timeout != 15*time.Second || got.MaxRetryAfter != 24*time.Hour ||
		got.MaxResponse != 20<<10 || got.MaxConns != 64 || fmt.Sprint(got.PermanentOn) != "[410]" || got.ContentType != "application/json" {
		t.Errorf("defaults differ from the documented ones: %#v", got)
	}
	if none := (Config{PermanentOn: []int{}}).withDefaults(); len(none.PermanentOn) != 0 {
		t.Error("an empty list of permanent statuses must mean none")
	}
}
