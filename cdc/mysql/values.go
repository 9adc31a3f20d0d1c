package mysql

import (
	"encoding/binary"
	"math"
	"net/netip"
	"strconv"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
)

// append adds the text of a value, as a SELECT prints it. n is what the value took of data, which goes on
// behind it.
func (c *column) append(text, data []byte) (_ []byte, n int, ok bool) {
	if c.width < 0 || len(data) < c.width {
		return text, 0, false
	}
	if c.prefix > 0 {
		return c.appendSized(text, data)
	}
	value := data[:c.width]
	switch c.typ {
	case gomysql.MYSQL_TYPE_TINY, gomysql.MYSQL_TYPE_SHORT, gomysql.MYSQL_TYPE_INT24, gomysql.MYSQL_TYPE_LONG, gomysql.MYSQL_TYPE_LONGLONG:
		if c.unsigned {
			text = strconv.AppendUint(text, little(value), 10)
		} else {
			text = strconv.AppendInt(text, signed(little(value), c.width), 10)
		}
	case gomysql.MYSQL_TYPE_FLOAT:
		text = appendFloat(text, float64(math.Float32frombits(binary.LittleEndian.Uint32(value))), 32)
	case gomysql.MYSQL_TYPE_DOUBLE:
		text = appendFloat(text, math.Float64frombits(little(value)), 64)
	case gomysql.MYSQL_TYPE_NEWDECIMAL:
		text, n = appendDecimal(text, data, int(c.meta>>8), int(c.meta&0xff))
		return text, n, n > 0
	case gomysql.MYSQL_TYPE_BIT:
		text = append(text, value...)
	case gomysql.MYSQL_TYPE_ENUM, gomysql.MYSQL_TYPE_SET:
		text, ok = c.appendNames(text, little(value))
		return text, c.width, ok
	default:
		text = c.appendWhen(text, value)
	}
	return text, c.width, true
}

// appendSized adds a value that has its size before it.
func (c *column) appendSized(text, data []byte) (_ []byte, n int, ok bool) {
	size := little(data[:c.prefix])
	if size > uint64(len(data)-c.prefix) {
		return text, 0, false
	}
	n = c.prefix + int(size)
	value := data[c.prefix:n]
	if c.typ == gomysql.MYSQL_TYPE_JSON {
		text, ok = appendJSON(text, value)
		return text, n, ok
	}
	if c.kind == asIs {
		return append(text, value...), n, true
	}
	if len(value) > c.padded {
		return text, 0, false
	}
	if c.kind == fixed {
		start := len(text)
		text = append(append(text, value...), make([]byte, c.padded-len(value))...)
		return text[:start+c.padded], n, true
	}
	var all [16]byte // those that end in zeros are logged without them
	copy(all[:], value)
	switch c.kind {
	case asUUID:
		text = appendUUID(text, all[:])
	case asINET4:
		text = netip.AddrFrom4([4]byte(all[:4])).AppendTo(text)
	case asINET6:
		text = netip.AddrFrom16(all).AppendTo(text)
	}
	return text, n, true
}

// appendNames adds the name of an ENUM, or those of a SET.
func (c *column) appendNames(text []byte, n uint64) ([]byte, bool) {
	if c.typ == gomysql.MYSQL_TYPE_ENUM {
		switch {
		case n == 0:
			return text, true // the empty name of an invalid value
		case n > uint64(len(c.names)):
			return text, false
		}
		return append(text, c.names[n-1]...), true
	}
	if len(c.names) < 64 && n>>len(c.names) != 0 {
		return text, false
	}
	first := true
	for i, name := range c.names {
		if n&(1<<i) == 0 {
			continue
		}
		if !first {
			text = append(text, ',')
		}
		text, first = append(text, name...), false
	}
	return text, true
}

// appendWhen adds a date or a time. The forms without a digit in their name are those of tables that were made
// before MySQL 5.6.
func (c *column) appendWhen(text, value []byte) []byte {
	digits := int(c.meta)
	switch c.typ {
	case gomysql.MYSQL_TYPE_YEAR:
		year := uint64(value[0])
		if year > 0 {
			year += 1900
		}
		text = appendPadded(text, year, 4)
	case gomysql.MYSQL_TYPE_DATE:
		n := little(value)
		text = appendDay(text, n>>9, n>>5&15, n&31)
	case gomysql.MYSQL_TYPE_TIMESTAMP2:
		text = appendTimestamp(text, int64(big(value[:4])), fraction(value[4:], digits), digits)
	case gomysql.MYSQL_TYPE_DATETIME2:
		text = appendDatetime(text, packedDatetime(value, digits), digits)
	case gomysql.MYSQL_TYPE_TIME2:
		text = appendTime(text, packedTime(value, digits), digits)
	case gomysql.MYSQL_TYPE_TIMESTAMP:
		text = appendTimestamp(text, int64(little(value)), 0, 0)
	case gomysql.MYSQL_TYPE_DATETIME:
		n := little(value)
		day, clock := n/1e6, n%1e6
		text = append(appendDay(text, day/10000, day/100%100, day%100), ' ')
		text = appendClock(text, clock/10000, clock/100%100, clock%100)
	case gomysql.MYSQL_TYPE_TIME:
		n := signed(little(value), 3)
		if n < 0 {
			text, n = append(text, '-'), -n
		}
		text = appendClock(text, uint64(n/10000), uint64(n/100%100), uint64(n%100))
	}
	return text
}

// measure finds how many bytes a value has, or has before it.
func (c *column) measure() {
	switch c.typ {
	case gomysql.MYSQL_TYPE_TINY, gomysql.MYSQL_TYPE_YEAR:
		c.width = 1
	case gomysql.MYSQL_TYPE_SHORT:
		c.width = 2
	case gomysql.MYSQL_TYPE_INT24, gomysql.MYSQL_TYPE_DATE, gomysql.MYSQL_TYPE_TIME:
		c.width = 3
	case gomysql.MYSQL_TYPE_LONG, gomysql.MYSQL_TYPE_FLOAT, gomysql.MYSQL_TYPE_TIMESTAMP:
		c.width = 4
	case gomysql.MYSQL_TYPE_LONGLONG, gomysql.MYSQL_TYPE_DOUBLE, gomysql.MYSQL_TYPE_DATETIME:
		c.width = 8
	case gomysql.MYSQL_TYPE_TIMESTAMP2:
		c.width = 4 + fractionSize(int(c.meta))
	case gomysql.MYSQL_TYPE_DATETIME2:
		c.width = 5 + fractionSize(int(c.meta))
	case gomysql.MYSQL_TYPE_TIME2:
		c.width = 3 + fractionSize(int(c.meta))
	case gomysql.MYSQL_TYPE_NEWDECIMAL:
		c.width = 0 // it says itself
	case gomysql.MYSQL_TYPE_BIT:
		c.width = (int(c.meta>>8)*8 + int(c.meta&0xff) + 7) / 8
	case gomysql.MYSQL_TYPE_ENUM, gomysql.MYSQL_TYPE_SET:
		c.width = int(c.meta & 0xff)
	case gomysql.MYSQL_TYPE_STRING:
		c.padded = stringWidth(c.meta)
		c.prefix = sizeBytes(c.padded)
	case gomysql.MYSQL_TYPE_VARCHAR, gomysql.MYSQL_TYPE_VAR_STRING:
		c.prefix = sizeBytes(int(c.meta))
	case gomysql.MYSQL_TYPE_BLOB, gomysql.MYSQL_TYPE_JSON, gomysql.MYSQL_TYPE_GEOMETRY, gomysql.MYSQL_TYPE_VECTOR:
		c.prefix = int(c.meta)
	default:
		c.width = unreadable
	}
	c.check()
}

const unreadable = -1

// check finds out what a table map that is damaged, or of the future, says.
func (c *column) check() {
	sound := true
	switch c.typ {
	case gomysql.MYSQL_TYPE_TIMESTAMP2, gomysql.MYSQL_TYPE_DATETIME2, gomysql.MYSQL_TYPE_TIME2:
		sound = c.meta <= 6
	case gomysql.MYSQL_TYPE_BIT, gomysql.MYSQL_TYPE_SET:
		sound = c.width >= 1 && c.width <= 8
	case gomysql.MYSQL_TYPE_ENUM:
		sound = c.width == 1 || c.width == 2
	case gomysql.MYSQL_TYPE_BLOB, gomysql.MYSQL_TYPE_JSON, gomysql.MYSQL_TYPE_GEOMETRY, gomysql.MYSQL_TYPE_VECTOR:
		sound = c.prefix >= 1 && c.prefix <= 4
	}
	if !sound {
		c.width, c.prefix = unreadable, 0
	} else if c.prefix > 0 {
		c.width = c.prefix
	}
}

// sizeBytes is how many bytes the size of a string takes that has so many at most.
func sizeBytes(most int) int {
	if most > 255 {
		return 2
	}
	return 1
}
