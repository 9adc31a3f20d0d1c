package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// decoder turns the tree into typed values and collects what is wrong. It is
// used once, by one goroutine.
type decoder struct {
	doc *document
	env Environment
	// problems in the order found.
	problems []Problem
	// at remembers where each setting stands, by path.
	at map[string]*node
	// hidden are the settings whose text is never shown, because it came from outside
	// of the file or is a secret.
	hidden map[string]bool
}

// field describes one key of a mapping.
type field struct {
	name     string
	required bool
	// also are other words that people write for it.
	also   []string
	decode func(n *node, path string)
}

func optional(name string, decode func(*node, string)) field {
	return field{name: name, decode: decode}
}

func required(name string, decode func(*node, string)) field {
	return field{name: name, required: true, decode: decode}
}

// aka adds words that people write instead of the field's name.
func (f field) aka(words ...string) field {
	f.also = words
	return f
}

// report adds a problem at a place.
func (d *decoder) report(code Code, path string, pos Pos, try, format string, args ...any) *Problem {
	d.problems = append(d.problems, Problem{
		Code: code, Path: oneLine(path), Pos: d.doc.clamp(pos), Try: oneLine(try), Message: oneLine(fmt.Sprintf(format, args...)),
	})
	return &d.problems[len(d.problems)-1]
}

// oneLine takes line ends and whatever else steers a terminal out of a message
// that repeats a part of the file.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// posOf is where a setting stands: its value, or the nearest enclosing one.
func (d *decoder) posOf(path string) Pos {
	for path != "" {
		if n, ok := d.at[path]; ok {
			return n.pos
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	if d.doc.root != nil {
		return d.doc.root.pos
	}
	return Pos{1, 1}
}

// join makes the path of a key.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// in names the place of a key, for messages.
func in(path string) string {
	if path == "" {
		return "at the top level"
	}
	return "in " + path
}

// object decodes a mapping, and returns false when n is none.
func (d *decoder) object(n *node, path string, fields ...field) bool {
	d.at[path] = n
	switch n.kind {
	case kindBroken:
		return false
	case kindMap:
	default:
		names := make([]string, 0, len(fields))
		for _, f := range fields {
			names = append(names, f.name)
		}
		d.report(CodeType, path, n.pos, "write the keys below it, indented by two spaces: "+strings.Join(names, ", "),
			"%s must be a mapping, got %s", orFile(path), n.describe())
		return false
	}
	for _, e := range n.entries {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == e.key })
		if i < 0 {
			d.unknown(e, path, fields)
			continue
		}
		at := join(path, e.key)
		d.at[at] = e.value
		if e.value.kind == kindNull && fields[i].required {
			d.report(CodeMissing, at, e.pos, "write a value after the colon", "%s has no value", at)
			continue
		}
		fields[i].decode(e.value, at)
	}
	for _, f := range fields {
		if f.required && !slices.ContainsFunc(n.entries, func(e entry) bool { return e.key == f.name }) {
			d.report(CodeMissing, join(path, f.name), n.pos, fmt.Sprintf("add %q here", f.name+":"),
				"%s is missing %s", strconv.Quote(f.name), in(path))
		}
	}
	return true
}

func orFile(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

// unknown reports a key that no field has.
func (d *decoder) unknown(e entry, path string, fields []field) {
	names := make([]string, 0, len(fields))
	words := map[string]string{}
	for _, f := range fields {
		names = append(names, f.name)
		for _, w := range f.also {
			words[w] = f.name
		}
	}
	meant := nearest(e.key, names)
	if meant == "" {
		meant = words[nearest(e.key, slices.Sorted(maps.Keys(words)))]
	}
	// Its value is in no field, so nobody knows whether it is a secret. Short
	// words are shown.
	d.maskLong(e.value)
	try := "use one of: " + strings.Join(names, ", ")
	if meant != "" {
		try = fmt.Sprintf("write %q instead", meant+":")
	}
	p := d.report(CodeUnknownKey, join(path, e.key), e.pos, try, "unknown key %s %s", strconv.Quote(e.key), in(path))
	p.Suggestion = meant
}

// maskLong hides the longer scalars of a value that no field describes.
func (d *decoder) maskLong(n *node) {
	switch n.kind {
	case kindMap:
		for _, e := range n.entries {
			d.maskLong(e.value)
		}
	case kindList:
		for _, item := range n.items {
			d.maskLong(item)
		}
	case kindScalar, kindBroken:
		if len(n.text) > 16 && !onlyReference.MatchString(n.text) {
			d.doc.masks.add(n.pos, n.end)
		}
	}
}

// list decodes each item of a list with decode.
func (d *decoder) list(n *node, path string, decode func(n *node, path string)) {
	switch n.kind {
	case kindBroken:
	case kindList:
		for i, item := range n.items {
			at := fmt.Sprintf("%s[%d]", path, i)
			d.at[at] = item
			decode(item, at)
		}
	case kindNull:
		d.report(CodeMissing, path, n.pos, "write the items below it, each after a dash", "%s has no items", path)
	default:
		d.report(CodeType, path, n.pos, "write the items below it, each after a dash", "%s must be a list, got %s", path, n.describe())
	}
}

// scalar returns the text of a scalar with its references replaced. ok is false
// when there is none; the reason has then been reported.
func (d *decoder) scalar(n *node, path, want string) (text string, ok bool) {
	switch n.kind {
	case kindBroken:
		return "", false
	case kindScalar:
	case kindNull:
		d.report(CodeMissing, path, n.pos, "write a value after the colon, or remove the key", "%s has no value", path)
		return "", false
	default:
		d.report(CodeType, path, n.pos, "write one value after the colon", "%s must be %s, got %s", path, want, n.describe())
		return "", false
	}
	value, errs := expand(n.text, d.env)
	for _, e := range errs {
		line, column := lineColumn(n.text, e.offset)
		d.report(e.code, path, n.inner(d.doc.lines, line, column), e.try, "%s: %s", path, e.message)
	}
	if value.referenced {
		d.hidden[path] = true
	}
	return value.text, !value.failed
}

// lineColumn turns an offset in characters into a line and a column.
func lineColumn(text string, offset int) (line, column int) {
	line, column = 1, 1
	for i, r := range []rune(text) {
		if i == offset {
			break
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

// echo quotes a value for a message, unless it must not be shown.
func (d *decoder) echo(path, text string) string {
	switch {
	case d.hidden[path]:
		return "the value of the reference"
	case len(text) > 60:
		return strconv.Quote(text[:60] + "…")
	}
	return strconv.Quote(text)
}

// text decodes a string. check may refuse it; what it returns completes the
// sentence "name: value …" and must not repeat the value.
func (d *decoder) text(dst *string, check func(string) (code Code, problem, try string)) func(*node, string) {
	return func(n *node, path string) {
		text, ok := d.scalar(n, path, "text")
		if !ok {
			return
		}
		if n.style == styleNumber || n.style == styleBool {
			d.report(CodeType, path, n.pos, fmt.Sprintf("put it in quotes: %q", text), "%s must be text, got %s", path, n.describe())
			return
		}
		if text == "" {
			try := "write a value, or remove the key"
			if reference.MatchString(n.text) {
				try = "set what the reference names, or give a default: ${NAME:-…}"
			}
			d.report(CodeMissing, path, n.pos, try, "%s is empty", path)
			return
		}
		if check != nil {
			if code, problem, try := check(text); problem != "" {
				d.report(code, path, n.pos, try, "%s: %s %s", path, d.echo(path, text), problem)
				return
			}
		}
		*dst = text
	}
}

// secret decodes a string that is never shown.
func (d *decoder) secret(dst *string) func(*node, string) {
	return func(n *node, path string) {
		d.hidden[path] = true
		d.text(dst, nil)(n, path)
	}
}

// texts decodes a list of strings. A single string is a list of one.
func (d *decoder) texts(dst *[]string) func(*node, string) {
	return func(n *node, path string) {
		if n.kind == kindScalar {
			d.report(CodeType, path, n.pos, "put it in brackets: [a, b]", "%s must be a list, got %s", path, n.describe())
			return
		}
		d.list(n, path, func(n *node, path string) {
			var s string
			before := len(d.problems)
			d.text(&s, nil)(n, path)
			if len(d.problems) == before && n.kind != kindBroken {
				*dst = append(*dst, s)
			}
		})
	}
}

// oneOf decodes one of the accepted words.
func oneOf[T ~string](d *decoder, dst *T, words ...T) func(*node, string) {
	return func(n *node, path string) {
		text, ok := d.scalar(n, path, "text")
		if !ok {
			return
		}
		if slices.Contains(words, T(text)) {
			*dst = T(text)
			return
		}
		names := make([]string, len(words))
		for i, w := range words {
			names[i] = string(w)
		}
		p := d.report(CodeValue, path, n.pos, "use one of: "+strings.Join(names, ", "), "%s: %s is not accepted", path, d.echo(path, text))
		if !d.hidden[path] {
			p.Suggestion = nearest(text, names)
		}
	}
}

// yesNo decodes true or false.
func (d *decoder) yesNo(dst *bool) func(*node, string) {
	return func(n *node, path string) {
		text, ok := d.scalar(n, path, "true or false")
		if !ok {
			return
		}
		switch {
		case (n.style == styleBool || d.hidden[path]) && (text == "true" || text == "false"):
			*dst = text == "true"
		case slices.Contains([]string{"yes", "on", "y", "1"}, strings.ToLower(text)):
			d.report(CodeType, path, n.pos, "write true", "%s must be true or false", path).Suggestion = "true"
		case slices.Contains([]string{"no", "off", "n", "0"}, strings.ToLower(text)):
			d.report(CodeType, path, n.pos, "write false", "%s must be true or false", path).Suggestion = "false"
		default:
			d.report(CodeType, path, n.pos, "write true or false, without quotes", "%s must be true or false", path)
		}
	}
}

// whole decodes a whole number between lo and hi, both included.
func (d *decoder) whole(dst *int, lo, hi int) func(*node, string) {
	return func(n *node, path string) {
		text, ok := d.scalar(n, path, "a whole number")
		if !ok {
			return
		}
		value, err := strconv.Atoi(text)
		switch {
		case n.style == styleQuoted && !d.hidden[path]:
			d.report(CodeType, path, n.pos, "remove the quotes", "%s must be a whole number, got text", path)
		case err != nil:
			d.report(CodeType, path, n.pos, fmt.Sprintf("write a whole number from %d to %d, in digits", lo, hi),
				"%s must be a whole number, got %s", path, d.echo(path, text))
		case value < lo || value > hi:
			d.report(CodeRange, path, n.pos, fmt.Sprintf("write a whole number from %d to %d", lo, hi),
				"%s: %s is out of range", path, d.echo(path, text))
		default:
			*dst = value
		}
	}
}

// duration decodes a duration between lo and hi, both included. none, when not
// zero, is what the word "none" stands for.
func (d *decoder) duration(dst *time.Duration, lo, hi, none time.Duration) func(*node, string) {
	return func(n *node, path string) {
		text, ok := d.scalar(n, path, "a duration")
		if !ok {
			return
		}
		if none != 0 && text == "none" {
			*dst = none
			return
		}
		value, err := parseDuration(text)
		limits := fmt.Sprintf("write a duration from %s to %s, such as %q", formatDuration(lo), formatDuration(hi), formatDuration(exampleDuration(*dst, lo, hi)))
		if none != 0 {
			limits += `, or "none"`
		}
		switch {
		case err != nil:
			p := d.report(CodeDuration, path, n.pos, limits+"; units are ms, s, m, h, d", "%s: %s %s", path, d.echo(path, text), err)
			if n.style == styleNumber && !d.hidden[path] {
				p.Suggestion = text + "s"
			}
		case value < lo || value > hi:
			d.report(CodeDuration, path, n.pos, limits, "%s: %s is out of range", path, d.echo(path, text))
		default:
			*dst = value
		}
	}
}

// exampleDuration picks one for a message: the default where there is one.
func exampleDuration(current, lo, hi time.Duration) time.Duration {
	if current > 0 {
		return current
	}
	return min(max(10*time.Second, lo), hi)
}

// size decodes a number of bytes between lo and hi, both included.
func (d *decoder) size(dst *int, lo, hi int64) func(*node, string) {
	return func(n *node, path string) {
		text, ok := d.scalar(n, path, "a size")
		if !ok {
			return
		}
		value, err := parseSize(text)
		limits := fmt.Sprintf("write a size from %s to %s", formatSize(lo), formatSize(hi))
		switch {
		case err != nil:
			d.report(CodeSize, path, n.pos, limits+"; units are B, KiB, MiB, GiB, kB, MB, GB", "%s: %s %s", path, d.echo(path, text), err)
		case value < lo || value > hi:
			d.report(CodeSize, path, n.pos, limits, "%s: %s is out of range", path, d.echo(path, text))
		default:
			*dst = int(value)
		}
	}
}
