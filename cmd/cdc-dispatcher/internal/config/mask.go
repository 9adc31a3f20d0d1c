package config

import (
	"regexp"
	"slices"
	"strings"
)

// hidden stands for a masked stretch of the file.
const hidden = "***"

// span is a stretch of one line, in columns: from included, to excluded.
type span struct{ from, to int }

// masks are the stretches of the file that are never shown, by line.
type masks map[int][]span

// secretWords are the keys whose values are secrets, in the form that fold gives.
var secretWords = []string{
	"dsn", "password", "passwd", "secret", "secrets", "token", "tokens",
	"authorization", "headers", "apikey", "credential", "credentials",
}

// secretKey says whether a key names a secret or looks like a misspelt one.
func secretKey(key string) bool {
	key = fold(key)
	return slices.ContainsFunc(secretWords, func(w string) bool {
		return strings.Contains(key, w) || distance(key, w) <= (len(w)+1)/4
	})
}

// onlyReference matches a value that shows nothing: a reference without a default.
var onlyReference = regexp.MustCompile(`^["']?\$\{(file:[^}]*|\w+)\}["']?$`)

// tree masks every scalar below a key that names a secret, wherever it stands: a
// secret in the wrong place is still one.
func (m *masks) tree(n *node, secret bool) {
	if *m == nil {
		*m = masks{}
	}
	switch n.kind {
	case kindMap:
		for _, e := range n.entries {
			m.tree(e.value, secret || secretKey(e.key))
		}
	case kindList:
		for _, item := range n.items {
			m.tree(item, secret)
		}
	case kindScalar, kindBroken:
		if secret && !onlyReference.MatchString(n.text) && !harmlessDSN(n.text) {
			m.add(n.pos, n.end)
		}
	}
}

// add masks from one place to another.
func (m *masks) add(from, to Pos) {
	if *m == nil {
		*m = masks{}
	}
	for line := from.Line; line <= to.Line; line++ {
		s := span{1, 1 << 30}
		if line == from.Line {
			s.from = from.Column
		}
		if line == to.Line {
			s.to = to.Column
		}
		if s.from < s.to {
			(*m)[line] = append((*m)[line], s)
		}
	}
}

// dsnWithoutPassword matches connection strings that are safe to show;
// reference matches what a password may consist of in one.
var (
	dsnWithoutPassword = regexp.MustCompile(`^[a-z]+://([^:@/?\s]*:?@)?[^@?\s]*(\?[^@\s]*)?$|` +
		`^([^:@/?\s()]*:?@)?(tcp|unix)\([^()@\s]*\)/[^@?\s/]*(\?[^@\s/]*)?$`)
	reference = regexp.MustCompile(`\$\{(file:[^}]*|\w+)\}`)
)

func harmlessDSN(text string) bool {
	text = reference.ReplaceAllString(text, "")
	return dsnWithoutPassword.MatchString(text) && !strings.Contains(strings.ToLower(text), "pass")
}

// comments masks what follows a word for a secret in a line that is a comment.
func (m masks) comments(lines []string) {
	for i, line := range lines {
		if !strings.HasPrefix(strings.TrimLeft(line, " \t"), "#") {
			continue
		}
		found := secretLine.FindStringIndex(line)
		if found == nil {
			continue
		}
		value, _, _ := strings.Cut(line[found[1]:], " #")
		if !onlyReference.MatchString(strings.TrimSpace(value)) {
			m[i+1] = append(m[i+1], span{len([]rune(line[:found[1]])) + 1, 1 << 30})
		}
	}
}

// secretLine finds a key that names a secret in a line of a file that could not be
// parsed.
var secretLine = regexp.MustCompile(`(?i)[\w-]*(dsn|dns|passw|secre|token|authori|header|apikey|api_key|credential)[\w-]*["']?\s*[:=]\s*`)

// maskText masks a file without a tree. It hides too much rather than too little:
// the rest of the line, and all following lines that are indented further or are list items.
func maskText(lines []string) masks {
	m := masks{}
	inside := -1 // indentation of the key whose value is being hidden
	for i, line := range lines {
		trimmed := strings.TrimLeft(line, " \t")
		indent := len(line) - len(trimmed)
		if inside >= 0 && trimmed != "" && (indent > inside || strings.HasPrefix(trimmed, "-") && indent >= inside) {
			m[i+1] = append(m[i+1], span{1, 1 << 30})
			continue
		}
		inside = -1
		found := secretLine.FindStringIndex(line)
		if found == nil {
			continue
		}
		inside = indent
		value := strings.TrimSpace(line[found[1]:])
		if !onlyReference.MatchString(value) && !harmlessDSN(value) {
			m[i+1] = append(m[i+1], span{len([]rune(line[:found[1]])) + 1, 1 << 30})
		}
	}
	return m
}

// urlTail matches what follows the host in a URL: the paths and queries of webhooks are secrets as often
// as not. It ends before what closes a list or a mapping around it.
const urlTail = `[/?#]((?:\$\{[^}\s]*\}|\$[^{\s"]|[^\s"$])*(?:\$\{[^}\s]*\}|[^\s"',\]}]))`

// secretShapes find secrets by their looks, wherever they stand. The first group
// is what is hidden.
var secretShapes = []*regexp.Regexp{
	regexp.MustCompile(`(?i)https?://[^\s/?#"']*` + urlTail),
	regexp.MustCompile(`(?i)https?://([^\s/?#"'@]+)@`),
	regexp.MustCompile(`(?i)(?:url|proxy)["']?\s*[:=]\s*["']?(?:[a-z][a-z0-9+.-]*://)?[^\s/?#"':]*(?::\d+)?` + urlTail),
	regexp.MustCompile(`://[^\s:/@]*:(.+)@`),
	regexp.MustCompile(`[^\s"':@/(){},]+:(\S+)@(?:tcp|unix)\(`),
	regexp.MustCompile(`whsec_([^\s"',\]}]+)`),
	regexp.MustCompile(`(?i)(?:password|passwd|pwd)\s*=\s*('[^']*'?|[^\s'"]+)`),
	regexp.MustCompile(`(?i)(?:bearer|basic)\s+([\w.~+/=-]{8,})`),
}

// show returns a line with its secrets hidden, and where a column of the line
// is in the result.
func (m masks) show(number int, line string, column int) (text string, caret int) {
	spans := slices.Clone(m[number])
	for _, shape := range secretShapes {
		for _, at := range shape.FindAllStringSubmatchIndex(line, -1) {
			if onlyReference.MatchString(line[at[2]:at[3]]) {
				continue
			}
			from := len([]rune(line[:at[2]])) + 1
			spans = append(spans, span{from, from + len([]rune(line[at[2]:at[3]]))})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })

	runes := []rune(line)
	var out strings.Builder
	width, next := 0, 1 // width of out, first column not looked at yet
	put := func(part []rune) {
		for i, r := range part {
			if next+i == column {
				caret = width + 1
			}
			out.WriteRune(r)
			width++
		}
	}
	for _, s := range spans {
		from, to := max(s.from, next), min(s.to, len(runes)+1)
		if from >= to {
			continue
		}
		part := runes[from-1 : to-1]
		if strings.Trim(string(part), " \t-,[]{}\"'") == "" {
			continue // the space between two values
		}
		put(runes[next-1 : from-1])
		if column >= from && column < to {
			caret = width + 1
		}
		out.WriteString(hidden)
		width += len(hidden)
		next = to
	}
	put(runes[next-1:])
	if caret == 0 {
		caret = width + 1
	}
	return out.String(), caret
}
