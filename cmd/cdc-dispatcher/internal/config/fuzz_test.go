package config

import (
	"errors"
	"os"
	"testing"
)

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
	seeds := []string{"", "a", "${A}", "${A:-b}", "$${A}", "${", "${file:x}", "é${A}", "${A${A}}", "$$$${A}"}
	for _, s := range seeds {
		f.Add(s)
	}
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
