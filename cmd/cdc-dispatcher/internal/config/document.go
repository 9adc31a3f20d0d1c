package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	// maxFile bounds the file, and maxDepth its nesting: the parser recurses, and its
	// time grows faster than its input.
	maxFile  = 256 << 10
	maxDepth = 64
)

// document is a parsed file.
type document struct {
	name  string
	lines []string
	root  *node // nil when the file could not be parsed
	masks masks
	// found are the problems of the file as YAML.
	found []Problem
}

// report adds a problem of the file as YAML.
func (doc *document) report(code Code, pos Pos, try, format string, args ...any) {
	doc.found = append(doc.found, Problem{Code: code, Pos: pos, Message: fmt.Sprintf(format, args...), Try: try})
}

// parse turns bytes into a tree. What is no valid YAML, or YAML that this file
// does not use, is in found.
func parse(name string, src []byte) *document {
	doc := &document{name: name, lines: splitLines(src)}
	if !doc.checkBytes(src) || !doc.checkNesting() {
		doc.masks = maskText(doc.lines)
		return doc
	}
	file, err := parseYAML(src)
	if err != nil {
		doc.syntax(err)
		doc.masks = maskText(doc.lines)
		return doc
	}
	doc.root = doc.single(file)
	if doc.root == nil {
		doc.masks = maskText(doc.lines)
		return doc
	}
	doc.masks.tree(doc.root, false)
	doc.masks.comments(doc.lines)
	return doc
}

// splitLines cuts the source into lines without their ends.
func splitLines(src []byte) []string {
	text := strings.ToValidUTF8(string(src), "\uFFFD")
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.Map(func(r rune) rune {
			if r != '\t' && !unicode.IsPrint(r) {
				return '\uFFFD' // never let a file steer the terminal, or hide what it says
			}
			return r
		}, line)
	}
	return lines
}

// checkBytes refuses what is not text.
func (doc *document) checkBytes(src []byte) bool {
	at := func(offset int) Pos {
		line := bytes.Count(src[:offset], []byte("\n")) + 1
		begin := bytes.LastIndexByte(src[:offset], '\n') + 1
		return Pos{line, utf8.RuneCount(src[begin:offset]) + 1}
	}
	switch {
	case len(src) > maxFile:
		doc.report(CodeFile, Pos{1, 1}, "check that this is the configuration of cdc-dispatcher",
			"the file is larger than %d KiB", maxFile>>10)
	case bytes.HasPrefix(src, []byte("\xff\xfe")), bytes.HasPrefix(src, []byte("\xfe\xff")):
		doc.report(CodeEncoding, Pos{1, 1}, "save the file as UTF-8", "the file is UTF-16")
	case bytes.HasPrefix(src, []byte("\xef\xbb\xbf")):
		doc.report(CodeEncoding, Pos{1, 1}, `save the file as "UTF-8 without BOM"`, "the file begins with a byte order mark")
	case !utf8.Valid(src):
		offset := 0
		for offset < len(src) {
			r, size := utf8.DecodeRune(src[offset:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			offset += size
		}
		doc.report(CodeEncoding, at(offset), "save the file as UTF-8", "the file is not UTF-8: byte 0x%02x", src[offset])
	default:
		i := bytes.IndexFunc(src, func(r rune) bool {
			return unicode.IsControl(r) && !strings.ContainsRune("\t\r\n", r)
		})
		if i < 0 {
			return true
		}
		doc.report(CodeEncoding, at(i), "remove the character", "the file contains the control character 0x%02x", src[i])
	}
	return false
}

// checkNesting refuses nesting that no configuration has. It counts brackets
// wherever they stand, so it is only an upper bound.
func (doc *document) checkNesting() bool {
	depth := 0
	for i, line := range doc.lines {
		for rest := strings.TrimLeft(line, " "); strings.HasPrefix(rest, "- ") || strings.HasPrefix(rest, "? "); {
			rest = strings.TrimLeft(rest[2:], " ")
			depth++
		}
		dashes := depth
		for _, r := range line {
			switch r {
			case '[', '{':
				depth++
			case ']', '}':
				depth = max(depth-1, 0)
			}
			if depth > maxDepth {
				doc.report(CodeSyntax, Pos{i + 1, 1}, "check that this is the configuration of cdc-dispatcher",
					"more than %d levels are nested here", maxDepth)
				return false
			}
		}
		depth = max(depth-dashes, 0)
	}
	return true
}

// parseYAML calls the library. A panic there, on input that it did not foresee,
// is a syntax error for our user.
func parseYAML(src []byte) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			file, err = nil, errors.New("the YAML parser cannot read this file")
		}
	}()
	return parser.ParseBytes(src, 0, parser.AllowDuplicateMapKey())
}

// syntax reports an error of the library in our words.
func (doc *document) syntax(err error) {
	pos, message := Pos{1, 1}, "this is not valid YAML"
	var at yaml.Error
	if errors.As(err, &at) {
		message = at.GetMessage()
		if tk := at.GetToken(); tk != nil && tk.Position != nil {
			pos = doc.clamp(Pos{tk.Position.Line, tk.Position.Column})
		}
	}
	line := ""
	if pos.Line <= len(doc.lines) {
		line = doc.lines[pos.Line-1]
	}
	switch blank := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; {
	case strings.Contains(blank, "\t"):
		doc.report(CodeTab, Pos{pos.Line, len([]rune(blank[:strings.Index(blank, "\t")])) + 1},
			"indent with spaces", "the line is indented with a tab")
	case strings.Contains(message, "must be specified") && strings.Contains(line, "${"):
		doc.report(CodeSyntax, pos, `quote references inside { } and [ ]: "${NAME}"`, "this is not valid YAML: the brace of ${…} ends the { }")
	case strings.Contains(message, "reserved character"):
		doc.report(CodeSyntax, pos, "put the value in quotes", "this is not valid YAML: %s", message)
	case strings.Contains(message, "mapping value is not allowed"):
		doc.report(CodeSyntax, pos, `check the indentation, and quote a value that contains ": "`, "this is not valid YAML: a second key on the line, or a line that is indented too far")
	case strings.Contains(message, "end character of"):
		doc.report(CodeSyntax, pos, "close the quotes", "this is not valid YAML: the quotes are not closed")
	case strings.Contains(message, "end token"):
		doc.report(CodeSyntax, pos, "close the bracket", "this is not valid YAML: %s", quoteEcho(message))
	default:
		doc.report(CodeSyntax, pos, "check the indentation and the quotes around this line", "this is not valid YAML: %s", quoteEcho(message))
	}
}

// quoteEcho keeps a message of the library to one line and to a sane length.
func quoteEcho(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	if r := []rune(message); len(r) > 120 {
		message = string(r[:120]) + "…"
	}
	return message
}

// clamp moves a place that the library made up into the file.
func (doc *document) clamp(p Pos) Pos {
	p.Line = min(max(p.Line, 1), len(doc.lines))
	p.Column = min(max(p.Column, 1), len([]rune(doc.lines[p.Line-1]))+1)
	return p
}

// single returns the tree of the only document, or nil after reporting why there is none.
func (doc *document) single(file *ast.File) *node {
	bodies := make([]ast.Node, 0, len(file.Docs))
	for _, d := range file.Docs {
		if d.Body == nil {
			continue
		}
		if _, ok := d.Body.(*ast.DirectiveNode); ok {
			doc.report(CodeFeature, doc.place(d.Body), `remove the line that begins with "%"`, "YAML directives are not used here")
			continue
		}
		bodies = append(bodies, d.Body)
	}
	switch {
	case len(bodies) == 0 && len(doc.found) > 0:
		return nil
	case len(bodies) == 0:
		doc.report(CodeDocument, Pos{1, 1}, "write one with: cdc-dispatcher init", "the file is empty")
		return nil
	case len(bodies) > 1:
		doc.report(CodeDocument, doc.place(bodies[1]), `remove the line "---" and what follows, or merge both into one`,
			"the file has more than one YAML document")
		doc.masks = maskText(doc.lines) // nobody looks into the others
	}
	return doc.convert(bodies[0], doc.endPos())
}

// beforeComma steps back from an item of a list in brackets, or of a mapping in
// braces, over the comma that separates it from the one before.
func (doc *document) beforeComma(p Pos) Pos {
	runes := []rune(doc.lines[p.Line-1])
	i := min(p.Column-1, len(runes))
	for i > 0 && runes[i-1] == ' ' {
		i--
	}
	if i > 0 && runes[i-1] == ',' {
		return Pos{p.Line, i}
	}
	return p
}

// endPos is the place after the last character.
func (doc *document) endPos() Pos { return Pos{len(doc.lines) + 1, 1} }

// place is where a node of the library begins.
func (doc *document) place(n ast.Node) Pos {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return doc.place(m.Values[0])
	}
	if v, ok := n.(*ast.MappingValueNode); ok {
		return doc.place(v.Key)
	}
	tk := n.GetToken()
	if tk == nil || tk.Position == nil {
		return Pos{1, 1}
	}
	return doc.clamp(Pos{tk.Position.Line, tk.Position.Column})
}
