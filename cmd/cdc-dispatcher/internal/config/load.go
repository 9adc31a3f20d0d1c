package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// OS is the environment of the process. Relative paths of ${file:…} begin at dir.
func OS(dir string) Environment {
	return Environment{
		Lookup: os.LookupEnv,
		ReadFile: func(path string) ([]byte, error) {
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			return os.ReadFile(path)
		},
	}
}

// Load reads a file. The error is [Problems], everything that is wrong with it.
func Load(path string, env Environment) (*Config, error) {
	return load(path, env, func(Problem) bool { return true })
}

// LoadSources reads a file for its sources; what is wrong with the rest does not matter, and the rest
// of the configuration is not to be used.
func LoadSources(path string, env Environment) (*Config, error) {
	return load(path, env, func(p Problem) bool {
		whole := p.Path == "" || p.Path == "version"
		return whole || strings.HasPrefix(p.Path, "sources") && !strings.Contains(p.Path, ".handlers[")
	})
}

func load(path string, env Environment, matters func(Problem) bool) (*Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		try := "name the file with --config, or write one with: cdc-dispatcher init"
		if !errors.Is(err, fs.ErrNotExist) {
			try = "check the file's permissions"
		}
		return nil, Problems{{Code: CodeFile, File: path, Pos: Pos{1, 1}, Message: "the file " + fileReason(err), Try: try, caret: 1}}
	}
	return read(path, src, env, matters)
}

// Parse reads a file's content; name is what problems call it. The error is
// [Problems].
func Parse(name string, src []byte, env Environment) (*Config, error) {
	return read(name, src, env, func(Problem) bool { return true })
}

func read(name string, src []byte, env Environment, matters func(Problem) bool) (*Config, error) {
	doc := parse(name, src)
	d := &decoder{doc: doc, env: env, at: map[string]*node{}, hidden: map[string]bool{}, problems: doc.found}
	c := &Config{}
	if doc.root != nil {
		c = d.file(doc.root)
		d.check(c)
	}
	sum := sha256.Sum256(src)
	c.File, c.Sum, c.places = name, hex.EncodeToString(sum[:])[:6], d
	d.problems = slices.DeleteFunc(d.problems, func(p Problem) bool { return !matters(p) })
	if problems := d.finish(); len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// Problem makes a problem of a setting that turned out to be wrong later, when
// what it describes was built.
func (c *Config) Problem(code Code, path, message, try string) Problem {
	p := Problem{Code: code, Path: path, Pos: c.places.posOf(path), Message: message, Try: try}
	return c.places.quote(p)
}

// Path is where the handler stands in the file, such as "handlers[2]".
func (h Handler) Path() string { return h.path }

// finish sorts the problems and adds the quoted lines. It comes last because the
// masks must be complete.
func (d *decoder) finish() Problems {
	problems := sortProblems(d.problems)
	for i, p := range problems {
		problems[i] = d.quote(p)
	}
	return problems
}

// quote adds the lines around a problem, secrets masked.
func (d *decoder) quote(p Problem) Problem {
	p.File = d.doc.name
	for n := max(p.Pos.Line-1, 1); n <= min(p.Pos.Line+1, len(d.doc.lines)); n++ {
		if n == len(d.doc.lines) && n > p.Pos.Line && d.doc.lines[n-1] == "" {
			break // the nothing behind the last line end
		}
		text, caret := d.doc.masks.show(n, d.doc.lines[n-1], p.Pos.Column)
		if n == p.Pos.Line {
			p.caret = caret
		}
		p.Excerpt = append(p.Excerpt, Line{Number: n, Text: text})
	}
	return p
}

// fileReason says why a file cannot be read, without naming it again.
func fileReason(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "may not be read by this user"
	case errors.Is(err, syscall.EISDIR):
		return "is a directory"
	}
	return "cannot be read"
}
