package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
)

// app is what every command needs: where data and words go, the environment,
// and the flags that all commands have.
type app struct {
	in       io.Reader
	out, err io.Writer
	lookup   func(string) (string, bool)

	configFile string
	format     outputFormat
	noColor    bool
	quiet      bool
	yes        bool
}

// main runs one command line and returns the exit code.
func (a *app) main(args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	if err := root.ExecuteContext(context.Background()); err != nil {
		return a.explain(err)
	}
	return exitOK
}

// outputFormat is the value of --output.
type outputFormat string

const (
	outputText outputFormat = "text"
	outputJSON outputFormat = "json"
)

// Set, String and Type make it a flag.
func (f *outputFormat) Set(s string) error {
	switch outputFormat(s) {
	case outputText, outputJSON:
		*f = outputFormat(s)
		return nil
	}
	return errors.New("want text or json")
}

func (f *outputFormat) String() string { return string(*f) }

// Type is what help shows.
func (f *outputFormat) Type() string { return "format" }

// json writes data.
func (a *app) json(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// isTerminal says whether a stream is a terminal, as far as the standard library
// can tell: a character device that is not the null device.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// color says whether words may be coloured.
func (a *app) color() bool {
	_, noColor := a.lookup("NO_COLOR")
	term, _ := a.lookup("TERM")
	return !a.noColor && !noColor && term != "dumb" && isTerminal(a.err)
}

// paint colours the first words of errors, on terminals.
func (a *app) paint(text string) string {
	if !a.color() {
		return text
	}
	text = errorWord.ReplaceAllString(text, "\x1b[1;31m$1\x1b[0m")
	return tryWord.ReplaceAllString(text, "\x1b[1;32m$1\x1b[0m")
}

var (
	errorWord = regexp.MustCompile(`(?m)^(error CD\d{4}:)`)
	tryWord   = regexp.MustCompile(`(?m)^(Try:)`)
)

// configPath is the configuration file that commands read.
func (a *app) configPath() string {
	if a.configFile != "" {
		return a.configFile
	}
	if path, ok := a.lookup("CDC_DISPATCHER_CONFIG"); ok && path != "" {
		return path
	}
	return config.DefaultFile
}

// load reads the configuration. Its error is config.Problems.
func (a *app) load(path string) (*config.Config, error) {
	env := config.OS(filepath.Dir(path))
	env.Lookup = a.lookup
	return config.Load(path, env)
}

// loadUnconnected reads the sources of a configuration for a command that connects to nothing:
// variables that are not set, and files that are not there, do not matter then, and handlers neither.
func (a *app) loadUnconnected(path string) (*config.Config, error) {
	for _, kind := range []config.Database{config.DatabasePostgres, config.DatabaseMySQL} {
		if cfg, err := a.loadWith(path, kind); err == nil {
			return cfg, nil
		}
	}
	return a.load(path)
}

// loadWith takes what is not set for connection strings of a kind of database.
func (a *app) loadWith(path string, kind config.Database) (*config.Config, error) {
	// Another one each time, or sources would seem to share a server.
	n := 0
	placeholder := func() string {
		n++
		return fmt.Sprintf("%s://user@placeholder-%d/unknown", kind, n)
	}
	env := config.OS(filepath.Dir(path))
	read := env.ReadFile
	env.Lookup = func(name string) (string, bool) {
		if v, ok := a.lookup(name); ok && v != "" {
			return v, true
		}
		return placeholder(), true
	}
	env.ReadFile = func(path string) ([]byte, error) {
		if data, err := read(path); err == nil {
			return data, nil
		}
		return []byte(placeholder()), nil
	}
	return config.LoadSources(path, env)
}

// confirm asks before a change, unless --yes was given. also is what else can be done where nobody
// can be asked, such as ", or with --dry-run …"; it may be empty.
func (a *app) confirm(question, also string) error {
	if a.yes {
		return nil
	}
	if !isTerminal(a.in) {
		return failed(codeConfirm, "repeat the command with --yes"+also, "%s Nobody is here to confirm it", question)
	}
	a.words(question + " [y/N] ")
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return failed(codeConfirm, "repeat the command with --yes", "the answer could not be read: %v", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return failed(codeConfirm, "repeat the command and answer y, or give --yes", "nothing was changed: it was not confirmed")
}
