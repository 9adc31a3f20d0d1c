package config

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata/wrong; read the diff")

// wrongCase is one file of testdata/wrong: what the environment has, a
// configuration, and everything that is reported about it.
type wrongCase struct {
	file    string
	archive *txtar.Archive
	env     Environment
	secrets []string
	src     []byte
	want    string
}

// readCase reads a case. Lines before the first file are: "env NAME=VALUE",
// "file PATH=CONTENT" (CONTENT quoted as in Go), "secret TEXT" (must never be shown) and
// "unquote" (the configuration is quoted as in Go, because it is not text).
func readCase(t testing.TB, path string) wrongCase {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := wrongCase{file: path, archive: archive}
	vars, files := map[string]string{}, map[string]string{}
	unquote := false
	for line := range strings.Lines(string(archive.Comment)) {
		word, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		name, value, _ := strings.Cut(rest, "=")
		switch word {
		case "env":
			vars[name] = value
		case "file":
			text, err := strconv.Unquote(value)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			files[name] = text
		case "secret":
			c.secrets = append(c.secrets, rest)
		case "unquote":
			unquote = true
		}
	}
	c.env = Environment{
		Lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		ReadFile: func(name string) ([]byte, error) {
			if text, ok := files[name]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		},
	}
	for _, f := range archive.Files {
		switch f.Name {
		case "cdc-dispatcher.yaml":
			c.src = f.Data
		case "want":
			c.want = string(f.Data)
		}
	}
	if unquote {
		text, err := strconv.Unquote(strings.TrimSpace(string(c.src)))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		c.src = []byte(text)
	}
	return c
}

func wrongFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/wrong/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 60 {
		t.Fatalf("found %d wrong files, want at least 60", len(files))
	}
	return files
}

// TestWrongFiles pins what is said about each wrong file: everything at once,
// each with its place, and no secret.
func TestWrongFiles(t *testing.T) {
	for _, path := range wrongFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			c := readCase(t, path)
			_, err := Parse("cdc-dispatcher.yaml", c.src, c.env)
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want problems", err)
			}
			got := problems.Error()
			for _, secret := range c.secrets {
				if strings.Contains(got, secret) {
					t.Errorf("the secret %q is shown:\n%s", secret, got)
				}
			}
			checkPositions(t, problems)
			if *update {
				writeWant(t, c, got)
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// checkPositions checks what is promised of every problem.
func checkPositions(t testing.TB, problems Problems) {
	t.Helper()
	if len(problems) == 0 {
		t.Error("an error without problems")
	}
	for _, p := range problems {
		if p.Pos.Line < 1 || p.Pos.Column < 1 {
			t.Errorf("%s %q has no place: %v", p.Code, p.Message, p.Pos)
		}
		if p.Try == "" || p.Message == "" || strings.Contains(p.Message, "\n") {
			t.Errorf("%s %q lacks a line or an advice", p.Code, p.Message)
		}
		if !strings.HasPrefix(string(p.Code), "CD1") || len(p.Code) != 6 {
			t.Errorf("code %q", p.Code)
		}
		if len(p.Excerpt) == 0 {
			t.Errorf("%s %q quotes no line", p.Code, p.Message)
		}
	}
}

func writeWant(t *testing.T, c wrongCase, got string) {
	t.Helper()
	files := c.archive.Files[:0]
	for _, f := range c.archive.Files {
		if f.Name != "want" {
			files = append(files, f)
		}
	}
	c.archive.Files = append(files, txtar.File{Name: "want", Data: []byte(got)})
	if err := os.WriteFile(c.file, txtar.Format(c.archive), 0o644); err != nil {
		t.Fatal(err)
	}
}
