package config

import (
	"github.com/goccy/go-yaml/ast"
)

// convert turns a node of the YAML library into one of ours. Features of YAML
// that make a file mean something else than it shows are reported and become
// kindBroken.
func (doc *document) convert(in ast.Node, end Pos) *node {
	out := &node{pos: doc.place(in), end: end}
	switch x := in.(type) {
	case *ast.NullNode:
		out.kind = kindNull
	case *ast.BoolNode:
		out.kind, out.style, out.text = kindScalar, styleBool, x.Token.Value
	case *ast.IntegerNode:
		out.kind, out.style, out.text = kindScalar, styleNumber, x.Token.Value
	case *ast.FloatNode:
		out.kind, out.style, out.text = kindScalar, styleNumber, x.Token.Value
	case *ast.InfinityNode:
		out.kind, out.style, out.text = kindScalar, styleNumber, x.Token.Value
	case *ast.NanNode:
		out.kind, out.style, out.text = kindScalar, styleNumber, x.Token.Value
	case *ast.StringNode:
		out.kind, out.text = kindScalar, x.Value
		if c := firstRune(doc.lines, out.pos); c == '"' || c == '\'' {
			out.style = styleQuoted
		}
	case *ast.LiteralNode:
		out.kind, out.style, out.text = kindScalar, styleBlock, x.Value.Value
	case *ast.SequenceNode:
		out.kind = kindList
		for i, item := range x.Values {
			itemEnd := end
			if i+1 < len(x.Values) {
				itemEnd = doc.place(x.Values[i+1])
				if x.IsFlowStyle {
					itemEnd = doc.beforeComma(itemEnd)
				}
			}
			out.items = append(out.items, doc.convert(item, itemEnd))
		}
	case *ast.MappingNode:
		out.kind = kindMap
		doc.convertEntries(out, x.Values, end, x.IsFlowStyle)
	case *ast.MappingValueNode:
		out.kind = kindMap
		doc.convertEntries(out, []*ast.MappingValueNode{x}, end, false)
	case *ast.AnchorNode, *ast.AliasNode:
		doc.report(CodeFeature, out.pos, "write the value out in both places", "anchors (&name) and aliases (*name) are not used here")
	case *ast.TagNode:
		doc.report(CodeFeature, out.pos, `remove the tag; put text in quotes: "…"`, "tags such as !!str are not used here")
	default:
		doc.report(CodeFeature, out.pos, "write plain keys, lists and values", "this kind of YAML (%s) is not used here", in.Type())
	}
	return out
}

// convertEntries fills a map. A repeated key is reported; its first value counts.
func (doc *document) convertEntries(out *node, values []*ast.MappingValueNode, end Pos, flow bool) {
	seen := map[string]Pos{}
	for i, v := range values {
		pos, valueEnd := doc.place(v.Key), end
		if i+1 < len(values) {
			valueEnd = doc.place(values[i+1].Key)
			if flow {
				valueEnd = doc.beforeComma(valueEnd)
			}
		}
		var key string
		switch k := v.Key.(type) {
		case *ast.MergeKeyNode:
			doc.report(CodeFeature, pos, "write the keys out", "merge keys (<<) are not used here")
			continue
		case *ast.StringNode:
			key = k.Value
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
			key = k.GetToken().Value
		default:
			doc.report(CodeFeature, pos, "write the key as plain text followed by a colon", "a key must be plain text")
			continue
		}
		if first, twice := seen[key]; twice {
			doc.report(CodeDuplicateKey, pos, "keep one of the two", "key %q is already set on line %d", key, first.Line)
			continue
		}
		seen[key] = pos
		var value *node
		if v.Value == nil {
			value = &node{kind: kindNull, pos: pos, end: valueEnd}
		} else {
			value = doc.convert(v.Value, valueEnd)
		}
		out.entries = append(out.entries, entry{key: key, pos: pos, value: value})
	}
}

// firstRune is the character at a place of the file, 0 outside of it.
func firstRune(lines []string, p Pos) rune {
	if p.Line < 1 || p.Line > len(lines) {
		return 0
	}
	runes := []rune(lines[p.Line-1])
	if p.Column < 1 || p.Column > len(runes) {
		return 0
	}
	return runes[p.Column-1]
}
