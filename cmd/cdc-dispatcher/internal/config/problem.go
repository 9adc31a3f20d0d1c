package config

import (
	"fmt"
	"slices"
	"strings"
)

// Code identifies a kind of problem; it does not change between versions.
type Code string

// The codes of configuration problems.
const (
	CodeFile          Code = "CD1001" // the file cannot be read
	CodeEncoding      Code = "CD1002" // not UTF-8, a byte order mark, a control character
	CodeSyntax        Code = "CD1003" // not YAML
	CodeDocument      Code = "CD1004" // empty, or more than one document
	CodeFeature       Code = "CD1005" // anchors, aliases, merge keys, tags, directives
	CodeTab           Code = "CD1006" // indented with tabs
	CodeDuplicateKey  Code = "CD1007" // the same key twice
	CodeVersion       Code = "CD1010" // a version this program does not read
	CodeMissing       Code = "CD1011" // a required key is absent
	CodeUnknownKey    Code = "CD1012"
	CodeType          Code = "CD1013" // a list where text is wanted, and the like
	CodeValue         Code = "CD1014" // not one of the accepted values
	CodeDuration      Code = "CD1015"
	CodeSize          Code = "CD1016"
	CodeRange         Code = "CD1017" // a number out of bounds
	CodeUnset         Code = "CD1020" // ${VAR} is not set
	CodeReference     Code = "CD1021" // not a well-formed reference
	CodeReferenceFile Code = "CD1022" // ${file:…} cannot be read
	CodeDuplicateName Code = "CD1030" // two sources with one name
	CodeHandlerName   Code = "CD1031" // handler names and aliases that collide
	CodeName          Code = "CD1032" // not a valid name
	CodeHandlerKind   Code = "CD1033" // no kind, or more than one
	CodeUnknownSource Code = "CD1034" // handlers[].sources names no source
	CodeCondition     Code = "CD1040" // a CEL condition that does not compile
	CodeEventType     Code = "CD1041" // not an event type pattern
	CodeDSN           Code = "CD1050"
	CodeTable         Code = "CD1051" // an event table that is not fully described
	CodeHandler       Code = "CD1052" // settings that the handler's constructor refuses
	CodeConflict      Code = "CD1060" // settings that contradict each other
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	Code Code `json:"code"`
	// Path names the setting, such as "handlers[1].retry.base"; empty for the file as a whole.
	Path string `json:"path,omitempty"`
	File string `json:"file"`
	Pos  Pos    `json:"-"`
	// Message says what is wrong, in one line.
	Message string `json:"message"`
	// Suggestion is what was probably meant; may be empty.
	Suggestion string `json:"suggestion,omitempty"`
	// Try is what to do.
	Try string `json:"try"`
	// Excerpt is the source around Pos, secrets masked.
	Excerpt []Line `json:"-"`
	// caret is Pos.Column after masking.
	caret int
}

// Line is one quoted line of the file.
type Line struct {
	Number int
	Text   string
}

// String renders the problem as a compiler would:
//
//	error CD1012: unknown key "retires" in handlers[1].retry (did you mean "retries"?)
//	  cdc-dispatcher.yaml:31:7
//	   30 |     retry:
//	 > 31 |       retires: 8
//	      |       ^
//	   32 |       base: 1s
//	Try: …
func (p Problem) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "error %s: %s", p.Code, p.Message)
	if p.Suggestion != "" {
		fmt.Fprintf(&b, " (did you mean %q?)", p.Suggestion)
	}
	fmt.Fprintf(&b, "\n  %s:%d:%d\n", p.File, p.Pos.Line, p.Pos.Column)
	width := 3
	for _, l := range p.Excerpt {
		width = max(width, len(fmt.Sprint(l.Number)))
	}
	for _, l := range p.Excerpt {
		mark := " "
		if l.Number == p.Pos.Line {
			mark = ">"
		}
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf(" %s%*d | %s", mark, width, l.Number, l.Text), " "))
		if l.Number == p.Pos.Line {
			fmt.Fprintf(&b, "  %*s | %s^\n", width, "", caretIndent(l.Text, p.caret))
		}
	}
	if p.Try != "" {
		fmt.Fprintf(&b, "Try: %s\n", p.Try)
	}
	return b.String()
}

// caretIndent is the blank space before the caret. Tabs stay tabs, so that the
// caret stands where the terminal shows the character.
func caretIndent(text string, column int) string {
	runes := []rune(text)
	var b strings.Builder
	for i := range column - 1 {
		if i < len(runes) && runes[i] == '\t' {
			b.WriteByte('\t')
		} else {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// Problems is the error that [Load] returns: everything that is wrong, in the
// order of the file.
type Problems []Problem

// Error renders every problem, a blank line between two.
func (ps Problems) Error() string {
	parts := make([]string, len(ps))
	for i, p := range ps {
		parts[i] = p.String()
	}
	return strings.Join(parts, "\n")
}

// Summary is one line such as `3 problems in cdc-dispatcher.yaml`.
func (ps Problems) Summary() string {
	if len(ps) == 0 {
		return "no problems"
	}
	noun := "problems"
	if len(ps) == 1 {
		noun = "problem"
	}
	return fmt.Sprintf("%d %s in %s", len(ps), noun, ps[0].File)
}

// sortProblems puts problems into the order of the file and drops repetitions.
func sortProblems(ps []Problem) []Problem {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		switch {
		case a.Pos.before(b.Pos):
			return -1
		case b.Pos.before(a.Pos):
			return 1
		}
		return strings.Compare(string(a.Code), string(b.Code))
	})
	return slices.CompactFunc(ps, func(a, b Problem) bool {
		return a.Pos == b.Pos && a.Code == b.Code && a.Message == b.Message
	})
}
