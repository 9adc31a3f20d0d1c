package mysql

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
)

// MySQL logs JSON in the binary form that it stores. It is turned into text here, and not by
// the library: that builds Go values of it and marshals those, which costs several times as much,
// and prints numbers in other words than the server.

// Types of a value in a document.
const (
	jsonSmallObject = iota
	jsonLargeObject
	jsonSmallArray
	jsonLargeArray
	jsonLiteral
	jsonInt16
	jsonUint16
	jsonInt32
	jsonUint32
	jsonInt64
	jsonUint64
	jsonDouble
	jsonString
	jsonOpaque = 15
)

// maxJSONDepth is the server's own limit.
const maxJSONDepth = 100

// jsonGrowth is more than a byte of an intact document can become: six characters for a
// control character. Damaged documents can name one part many times.
const jsonGrowth = 8

// jsonText appends the text of a document, as a SELECT prints it.
type jsonText struct {
	text []byte
	most int // bytes in text before a document counts as damaged
}

// appendJSON appends the text of a document that the server stored.
func appendJSON(text, doc []byte) ([]byte, bool) {
	if len(doc) == 0 { // INSERT IGNORE makes these of NULL
		return append(text, "null"...), true
	}
	j := jsonText{text: text, most: len(text) + jsonGrowth*len(doc) + 64}
	ok := j.value(doc[0], doc[1:], 1)
	return j.text, ok
}

// value appends one value, whose data may go on behind it.
func (j *jsonText) value(typ byte, data []byte, depth int) bool {
	if len(j.text) > j.most || depth > maxJSONDepth {
		return false
	}
	switch typ {
	case jsonSmallObject, jsonLargeObject, jsonSmallArray, jsonLargeArray:
		return j.container(typ, data, depth)
	case jsonString:
		s, ok := jsonBytes(data)
		if ok {
			j.string(s)
		}
		return ok
	case jsonOpaque:
		return j.opaque(data)
	}
	return j.scalar(typ, data)
}

func (j *jsonText) scalar(typ byte, data []byte) bool {
	width := 0
	switch typ {
	case jsonLiteral:
		width = 1
	case jsonInt16, jsonUint16:
		width = 2
	case jsonInt32, jsonUint32:
		width = 4
	case jsonInt64, jsonUint64, jsonDouble:
		width = 8
	}
	if width == 0 || len(data) < width {
		return false
	}
	n := little(data[:width])
	switch typ {
	case jsonLiteral:
		return j.literal(n)
	case jsonInt16, jsonInt32, jsonInt64:
		j.text = strconv.AppendInt(j.text, signed(n, width), 10)
	case jsonDouble:
		return j.double(math.Float64frombits(n))
	default:
		j.text = strconv.AppendUint(j.text, n, 10)
	}
	return true
}

func (j *jsonText) literal(n uint64) bool {
	literals := [...]string{"null", "true", "false"}
	if n >= uint64(len(literals)) {
		return false
	}
	j.text = append(j.text, literals[n]...)
	return true
}

// double: a whole number keeps a digit behind the point, which tells it from an integer.
func (j *jsonText) double(v float64) bool {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return false // JSON has none
	}
	start := len(j.text)
	j.text = appendFloat(j.text, v, 64)
	if !slices.ContainsFunc(j.text[start:], func(c byte) bool { return c == '.' || c == 'e' }) {
		j.text = append(j.text, '.', '0')
	}
	return true
}

// container appends an object or an array. It has its number of entries and its size, then
// the entries of its keys, then those of its values, then what they point to, counted from the
// beginning of the container.
func (j *jsonText) container(typ byte, data []byte, depth int) bool {
	word := 2
	if typ == jsonLargeObject || typ == jsonLargeArray {
		word = 4
	}
	if len(data) < 2*word {
		return false
	}
	count, size := little(data[:word]), little(data[word:2*word])
	if size > uint64(len(data)) || size < uint64(2*word) {
		return false
	}
	c := jsonContainer{data: data[:size], word: word, isObject: typ == jsonSmallObject || typ == jsonLargeObject}
	if count > size/uint64(c.entry()) || 2*word+int(count)*c.entry() > int(size) {
		return false
	}
	c.count = int(count)
	brackets := "[]"
	if c.isObject {
		brackets = "{}"
	}
	j.text = append(j.text, brackets[0])
	for i := range c.count {
		if i > 0 {
			j.text = append(j.text, ", "...)
		}
		if c.isObject {
			key, ok := c.key(i)
			if !ok {
				return false
			}
			j.string(key)
			j.text = append(j.text, ": "...)
		}
		typ, value, ok := c.value(i)
		if !ok || !j.value(typ, value, depth+1) {
			return false
		}
	}
	j.text = append(j.text, brackets[1])
	return true
}

type jsonContainer struct {
	data     []byte
	word     int // bytes of an offset
	count    int
	isObject bool
}

// entry is the size of what each value, with its key, has in the head.
func (c *jsonContainer) entry() int {
	if c.isObject {
		return c.word + 2 + c.word + 1
	}
	return c.word + 1
}

// from is what an offset points to, which lies behind the head: a value that contains itself is damaged.
func (c *jsonContainer) from(offset uint64) ([]byte, bool) {
	if offset < uint64(2*c.word+c.count*c.entry()) || offset > uint64(len(c.data)) {
		return nil, false
	}
	return c.data[offset:], true
}

func (c *jsonContainer) key(i int) ([]byte, bool) {
	entry := c.data[2*c.word+i*(c.word+2):]
	length := little(entry[c.word : c.word+2])
	key, ok := c.from(little(entry[:c.word]))
	if !ok || length > uint64(len(key)) {
		return nil, false
	}
	return key[:length], true
}

func (c *jsonContainer) value(i int) (typ byte, data []byte, ok bool) {
	at := 2*c.word + i*(c.word+1)
	if c.isObject {
		at += c.count * (c.word + 2)
	}
	entry := c.data[at : at+1+c.word]
	switch typ := entry[0]; typ {
	case jsonLiteral, jsonInt16, jsonUint16:
		return typ, entry[1:], true
	case jsonInt32, jsonUint32:
		if c.word == 4 {
			return typ, entry[1:], true
		}
	}
	data, ok = c.from(little(entry[1:]))
	return entry[0], data, ok
}

// jsonBytes is a string of bytes behind its length, which has seven bits in each byte.
func jsonBytes(data []byte) ([]byte, bool) {
	length, n := binary.Uvarint(data[:min(len(data), 5)])
	if n <= 0 || length > uint64(len(data)-n) {
		return nil, false
	}
	return data[n : n+int(length)], true
}

// string appends a string in quotes.
func (j *jsonText) string(s []byte) {
	j.text = append(j.text, '"')
	done := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		j.text = append(append(j.text, s[done:i]...), '\\')
		done = i + 1
		switch c {
		case '\b':
			c = 'b'
		case '\f':
			c = 'f'
		case '\n':
			c = 'n'
		case '\r':
			c = 'r'
		case '\t':
			c = 't'
		case '"', '\\':
		default:
			const digits = "0123456789abcdef"
			j.text = append(j.text, 'u', '0', '0', digits[c>>4])
			c = digits[c&15]
		}
		j.text = append(j.text, c)
	}
	j.text = append(append(j.text, s[done:]...), '"')
}

// opaque appends a value of SQL that JSON has no form for.
func (j *jsonText) opaque(data []byte) bool {
	if len(data) == 0 {
		return false
	}
	typ := data[0]
	data, ok := jsonBytes(data[1:])
	if !ok {
		return false
	}
	switch typ {
	case gomysql.MYSQL_TYPE_NEWDECIMAL:
		if len(data) < 2 {
			return false
		}
		text, n := appendDecimal(j.text, data[2:], int(data[0]), int(data[1]))
		j.text = text
		return n > 0 && n == len(data)-2
	case gomysql.MYSQL_TYPE_DATE, gomysql.MYSQL_TYPE_DATETIME, gomysql.MYSQL_TYPE_TIMESTAMP, gomysql.MYSQL_TYPE_TIME:
		if len(data) != 8 {
			return false
		}
		packed := int64(binary.LittleEndian.Uint64(data))
		j.text = append(j.text, '"')
		switch typ {
		case gomysql.MYSQL_TYPE_TIME:
			j.text = appendTime(j.text, packed, 6)
		case gomysql.MYSQL_TYPE_DATE:
			j.text = appendDate(j.text, packed)
		default:
			j.text = appendDatetime(j.text, packed, 6)
		}
		j.text = append(j.text, '"')
		return true
	}
	j.text = append(j.text, `"base64:type`...)
	j.text = append(strconv.AppendUint(j.text, uint64(typ), 10), ':')
	for len(data) > base64Line {
		j.text = append(base64.StdEncoding.AppendEncode(j.text, data[:base64Line]), `\n`...)
		data = data[base64Line:]
	}
	j.text = append(base64.StdEncoding.AppendEncode(j.text, data), '"')
	return true
}

// base64Line is how many bytes the server writes to a line.
const base64Line = 57
