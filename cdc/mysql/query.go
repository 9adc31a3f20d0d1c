package mysql

import (
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// This file is the part of the assembler that reads the queries of the log. They are
// looked at, never parsed: one that nobody understands ends or fills a group like any other
// (Maxwell #1689).

// query takes a query event: a bracket of a transaction, DDL, or a statement.
func (a *assembler) query(h *replication.EventHeader, ev *replication.QueryEvent) error {
	g := &a.group
	if !g.open {
		a.forget()
		return nil
	}
	text := strings.TrimSpace(string(ev.Query[:min(len(ev.Query), queryHead)]))
	first, rest := word(text)
	second, rest2 := word(rest)
	switch {
	case first == "BEGIN" && !g.alone:
		g.body = true
	case first == "COMMIT" && rest == "":
		return a.finish(h, true)
	case first == "ROLLBACK" && rest == "":
		return a.finish(h, false)
	case first == "ROLLBACK" && second == "TO":
		a.rollbackTo(rest2)
	case first == "SAVEPOINT":
		g.hold = true
		g.marks = append(g.marks, savepoint{identifier(rest), len(g.records), g.bytes})
	case first == "RELEASE" && second == "SAVEPOINT":
	case first == "XA":
		return a.xa(h, second)
	case first == "CREATE" && startsTransaction(ev.Query):
		// The rows of CREATE TABLE … SELECT follow, until an XID.
		a.forget()
		g.body, g.others = true, true
	case g.alone || !g.body:
		a.forget()
		g.others = true
		return a.finish(h, true)
	default:
		switch first {
		case "CREATE", "ALTER", "DROP", "RENAME":
			a.forget()
		}
		return a.statement(string(ev.Schema), string(ev.Query))
	}
	return nil
}

// queryHead is how much of a query its kind is found in.
const queryHead = 512

// xa takes a query that brackets an XA transaction.
func (a *assembler) xa(h *replication.EventHeader, verb string) error {
	switch verb {
	case "START", "BEGIN":
		a.group.prepared, a.group.body = true, true
	case "COMMIT":
		// The rows were in an earlier group, perhaps before this stream began, and whose
		// they were is not said here.
		a.group.sweep = sweepXA
		return a.finish(h, true)
	case "ROLLBACK":
		return a.finish(h, true)
	}
	return nil // XA END, which the prepare event follows
}

// rollbackTo drops what came after a savepoint. The server logs the undone rows only
// beside changes that cannot be rolled back.
func (a *assembler) rollbackTo(rest string) {
	g := &a.group
	if first, after := word(rest); first == "SAVEPOINT" {
		rest = after
	}
	name := identifier(rest)
	for i := len(g.marks) - 1; i >= 0; i-- {
		if m := g.marks[i]; strings.EqualFold(m.name, name) && m.records <= len(g.records) {
			g.records, g.bytes, g.marks = g.records[:m.records], m.bytes, g.marks[:i+1]
			return
		}
	}
	g.records, g.bytes, g.dropped = nil, 0, true
	if g.ours && g.sweep == "" {
		g.sweep = sweepStatement
	}
}

// statement takes a change that was logged as text. If it may have inserted into a
// registered table, the poller has to look: the rows are not in the log.
func (a *assembler) statement(schema, text string) error {
	a.group.others = true
	if into, found := target(text); found {
		if into.Schema == "" {
			into.Schema = schema
		}
		for t := range a.tables {
			if strings.EqualFold(t.Name, into.Name) && strings.EqualFold(t.Schema, into.Schema) {
				return a.loggedAsText(t)
			}
		}
		return nil
	}
	switch first, _ := word(text[:min(len(text), queryHead)]); first {
	case "UPDATE", "DELETE", "TRUNCATE":
		return nil
	}
	words := words(text)
	if !words["insert"] && !words["replace"] && !words["load"] {
		return nil
	}
	for t := range a.tables {
		if words[strings.ToLower(t.Name)] && (t.Schema == schema || words[strings.ToLower(t.Schema)]) {
			return a.loggedAsText(t)
		}
	}
	return nil
}

func (a *assembler) loggedAsText(t Table) error {
	return a.leaveToPoller(sweepStatement, t,
		"rows were logged as a statement and not as rows; binlog_format is not ROW in some session")
}

// words are all words of a text, in lower case.
func words(text string) map[string]bool {
	all := map[string]bool{}
	for w := range strings.FieldsFuncSeq(strings.ToLower(text), func(r rune) bool {
		return r != '_' && r != '$' && r < 0x80 && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	}) {
		all[w] = true
	}
	return all
}

// target is the table that a statement inserts into, if it says so in the usual way.
func target(text string) (into Table, found bool) {
	tokens := tokenizer{text: text}
	for {
		verb, quoted, ok := tokens.next()
		switch {
		case !ok:
			return Table{}, false
		case quoted || !strings.EqualFold(verb, "INSERT") && !strings.EqualFold(verb, "REPLACE"):
			continue
		}
		name, quoted, ok := tokens.next()
		for ok && !quoted && isModifier(name) {
			name, quoted, ok = tokens.next()
		}
		if !ok || name == "" || !quoted && !isWordByte(name[0]) {
			continue // REPLACE is a function, too
		}
		into.Name = name
		if dot, _, ok := tokens.next(); ok && dot == "." {
			if name, _, ok = tokens.next(); !ok {
				return Table{}, false
			}
			into.Schema, into.Name = into.Name, name
		}
		return into, true
	}
}

func isModifier(word string) bool {
	switch strings.ToUpper(word) {
	case "LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE", "INTO":
		return true
	}
	return false
}

// tokenizer reads the words and signs of a statement, without its comments and texts.
type tokenizer struct{ text string }

// next returns the next token; quoted says that it is a name in backticks.
func (t *tokenizer) next() (token string, quoted, ok bool) {
	for t.text != "" {
		c := t.text[0]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			t.text = t.text[1:]
		case strings.HasPrefix(t.text, "/*"):
			_, t.text, _ = strings.Cut(t.text[2:], "*/")
		case c == '#' || t.atDashes():
			_, t.text, _ = strings.Cut(t.text, "\n")
		case c == '\'' || c == '"':
			t.skipText(c)
			return "''", false, true
		case c == '`':
			name, rest, _ := strings.Cut(t.text[1:], "`")
			t.text = rest
			return name, true, true
		case isWordByte(c):
			end := 1
			for end < len(t.text) && isWordByte(t.text[end]) {
				end++
			}
			token, t.text = t.text[:end], t.text[end:]
			return token, false, true
		default:
			token, t.text = t.text[:1], t.text[1:]
			return token, false, true
		}
	}
	return "", false, false
}

// atDashes says that a comment begins here that lasts until the end of the line: two dashes, and white space
// or the end behind them.
func (t *tokenizer) atDashes() bool {
	return strings.HasPrefix(t.text, "--") && (len(t.text) == 2 || t.text[2] <= ' ')
}

func (t *tokenizer) skipText(quote byte) {
	for i := 1; i < len(t.text); i++ {
		switch t.text[i] {
		case '\\':
			i++
		case quote:
			t.text = t.text[i+1:]
			return
		}
	}
	t.text = ""
}

func isWordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// forget drops what is known of columns: a definition may have changed.
func (a *assembler) forget() { clear(a.layouts) }

// startsTransaction says whether the query is the form of CREATE TABLE … SELECT that
// rows follow (MySQL 8.0.21 and later).
func startsTransaction(query []byte) bool {
	end := strings.ToUpper(strings.TrimSpace(string(query[max(0, len(query)-32):])))
	return strings.HasSuffix(end, "START TRANSACTION")
}

// word splits off the first word of a text, in upper case. Comments before it are left out.
func word(text string) (first, rest string) {
	text = strings.TrimSpace(text)
	for strings.HasPrefix(text, "/*") {
		_, after, ok := strings.Cut(text, "*/")
		if !ok {
			return "", ""
		}
		text = strings.TrimSpace(after)
	}
	end := strings.IndexFunc(text, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
	if end < 0 {
		end = len(text)
	}
	return strings.ToUpper(text[:end]), strings.TrimSpace(text[end:])
}

// identifier reads a name, quoted or not.
func identifier(text string) string {
	text = strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(text, "`"); ok {
		name, _, _ := strings.Cut(inner, "`")
		return name
	}
	name, _, _ := strings.Cut(text, " ")
	return strings.TrimRight(name, ";")
}
