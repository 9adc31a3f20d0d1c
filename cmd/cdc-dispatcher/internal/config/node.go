package config

import "strings"

// Pos is a place in the file. Both numbers count from 1; Column counts characters.
type Pos struct{ Line, Column int }

// before says whether p comes before q.
func (p Pos) before(q Pos) bool {
	return p.Line < q.Line || p.Line == q.Line && p.Column < q.Column
}

// kind is what a node is.
type kind int

const (
	// kindBroken was reported already; decoders pass over it in silence.
	kindBroken kind = iota
	kindScalar
	kindNull
	kindList
	kindMap
)

// style is how a scalar was written, which is what its type depends on.
type style int

const (
	styleText   style = iota // plain, and not one of the following
	styleNumber              // plain number
	styleBool                // plain true or false
	styleQuoted              // 'x' or "x"
	styleBlock               // | or >
)

// node is one value of the file.
type node struct {
	kind  kind
	style style
	// pos is where the value begins, end the first place after it.
	pos, end Pos
	text     string  // of a scalar
	entries  []entry // of a map, in the order of the file
	items    []*node // of a list
}

// entry is one key of a map and its value.
type entry struct {
	key   string
	pos   Pos
	value *node
}

// describe names what the node is, for "want …, got …".
func (n *node) describe() string {
	switch n.kind {
	case kindNull:
		return "nothing"
	case kindList:
		return "a list"
	case kindMap:
		return "a mapping"
	default:
		switch n.style {
		case styleNumber:
			return "a number"
		case styleBool:
			return "true or false"
		default:
			return "text"
		}
	}
}

// inner translates a place inside the text of a scalar into a place in the file.
// Where the way the scalar is written makes that uncertain, it is the scalar's
// beginning.
func (n *node) inner(lines []string, line, column int) Pos {
	switch {
	case n.style == styleBlock:
		at := n.pos.Line + line
		if at > len(lines) {
			return n.pos
		}
		indent := 0
		for i := n.pos.Line + 1; i <= len(lines); i++ {
			if text := lines[i-1]; strings.TrimSpace(text) != "" {
				indent = len(text) - len(strings.TrimLeft(text, " "))
				break
			}
		}
		return Pos{at, indent + column}
	case line != 1 || n.pos.Line > len(lines):
		return n.pos
	}
	rest := []rune(lines[n.pos.Line-1])
	if n.pos.Column > len(rest) {
		return n.pos
	}
	rest = rest[n.pos.Column-1:]
	offset := 0
	if n.style == styleQuoted {
		offset = 1
	}
	if !strings.HasPrefix(string(rest[min(offset, len(rest)):]), n.text) {
		return n.pos // continued on another line, or written with escapes
	}
	return Pos{n.pos.Line, n.pos.Column + offset + column - 1}
}
