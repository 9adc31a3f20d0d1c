package config

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

// FuzzParse: whatever the file holds, there is a configuration or there are
// problems, each with a place, and no panic.
func FuzzParse(f *testing.F) {
	seeds := 0
	for _, path := range wrongFiles(f) {
		f.Add(readCase(f, path).src)
		seeds++
	}
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	if seeds < 60 {
		f.Fatalf("only %d seeds", seeds)
	}
	env := environment(map[string]string{"DATABASE_URL": "postgres://app@db/shop", "LEVEL": "info", "T": "hunter5"}, map[string]string{"/run/secrets/dsn": "x"})
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := Parse("fuzz.yaml", src, env)
		if err == nil {
			if c == nil || len(c.Sources) == 0 {
				t.Error("a configuration without a source")
			}
			return
		}
		var problems Problems
		if !errors.As(err, &problems) {
			t.Fatalf("got %T", err)
		}
		checkPositions(t, problems)
	})
}

// FuzzExpand: a reference is resolved or reported, at a place inside the text.
func FuzzExpand(f *testing.F) {
	env := environment(map[string]string{"A": "1"}, nil)
	f.Fuzz(func(t *testing.T, text string) {
		out, errs := expand(text, env)
		if out.failed != (len(errs) > 0) {
			t.Errorf("failed %v with %d errors", out.failed, len(errs))
		}
		for _, e := range errs {
			if e.offset < 0 || e.offset >= len([]rune(text)) || e.message == "" || e.try == "" {
				t.Errorf("error %+v for %q", e, text)
			}
		}
	})
}

// FuzzDuration reads durations. One that is read is not negative, and is written so that it
// reads as itself; an error does not repeat the text.
func FuzzDuration(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseDuration(text)
		if err != nil {
			if len(text) > 8 && strings.Contains(err.Error(), text) {
				t.Errorf("%v repeats the text", err)
			}
			return
		}
		if d < 0 {
			t.Errorf("%q reads as %s", text, d)
		}
		if whole := d.Truncate(time.Millisecond); whole > 0 {
			if again, err := parseDuration(formatDuration(whole)); err != nil || again != whole {
				t.Errorf("%s is written as %s, which reads as %s (%v)", whole, formatDuration(whole), again, err)
			}
		}
	})
}

// FuzzSize reads sizes, likewise.
func FuzzSize(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSize(text)
		if err != nil {
			if len(text) > 8 && strings.Contains(err.Error(), text) {
				t.Errorf("%v repeats the text", err)
			}
			return
		}
		if again, err := parseSize(formatSize(n)); n < 0 || n > 1<<50 || err != nil || again != n {
			t.Errorf("%q reads as %d, is written as %s and reads as %d (%v)", text, n, formatSize(n), again, err)
		}
	})
}

// FuzzMySQLAddress reads connection strings of both forms. One that is read leads to a network
// that is used here, with the password that was given; an error repeats nothing of it.
func FuzzMySQLAddress(f *testing.F) {
	f.Fuzz(func(t *testing.T, dsn string) {
		cfg, err := parseMySQL(dsn)
		if err != nil {
			var bad *dsnError
			if !errors.As(err, &bad) || bad.problem == "" || bad.try == "" {
				t.Fatalf("%q: %T %v", dsn, err, err)
			}
			if len(dsn) > 20 && strings.Contains(bad.problem+bad.try, dsn) {
				t.Errorf("%q repeats the connection string", bad.problem)
			}
			return
		}
		if cfg.Net != "tcp" && cfg.Net != "unix" || cfg.TLS != nil || cfg.AllowAllFiles || cfg.MultiStatements {
			t.Errorf("%q: %+v", dsn, cfg)
		}
		again, err := parseMySQL(cfg.FormatDSN())
		if err != nil || again.User != cfg.User || again.Passwd != cfg.Passwd || again.Addr != cfg.Addr || again.DBName != cfg.DBName {
			t.Errorf("%q reads as %s, which reads as %+v (%v)", dsn, cfg.FormatDSN(), again, err)
		}
	})
}
