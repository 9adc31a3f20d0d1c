package pipeline

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is one thing wrong with a [Config].
type Problem struct {
	// Path names the field the way a configuration file would: "handlers[2].when".
	Path string
	// Message says what is wrong and what to write instead.
	Message string
	// Line and Column are the place inside the field's value, from 1, when the value
	// is an expression; 0 otherwise. Snippet is then the line with a caret.
	Line, Column int
	Snippet      string
}

func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Path)
	b.WriteString(": ")
	b.WriteString(p.Message)
	for line := range strings.Lines(p.Snippet) {
		b.WriteString("\n    ")
		b.WriteString(strings.TrimRight(line, "\n"))
	}
	return b.String()
}

// ConfigError lists everything that is wrong with a [Config], so that one look
// mends all of it.
type ConfigError struct{ Problems []Problem }

func (e *ConfigError) Error() string {
	if len(e.Problems) == 1 {
		return "pipeline configuration: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "pipeline configuration has %d problems:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		b.WriteString(strings.ReplaceAll(p.String(), "\n", "\n  "))
	}
	return b.String()
}

// problems collects what is wrong, in the order of the fields.
type problems []Problem

func (ps *problems) add(path, format string, args ...any) {
	*ps = append(*ps, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// condition adds a condition that does not compile.
func (ps *problems) condition(path string, err error) {
	var bad *ConditionError
	if errors.As(err, &bad) {
		*ps = append(*ps, Problem{Path: path, Message: bad.Message, Line: bad.Line, Column: bad.Column, Snippet: bad.Snippet()})
		return
	}
	ps.add(path, "%v", err)
}

// err is nil when there are none.
func (ps *problems) err() error {
	if len(*ps) == 0 {
		return nil
	}
	return &ConfigError{Problems: *ps}
}
