package mysql

import (
	"bytes"
	"encoding/hex"
	"math"
	"strconv"
	"time"
)

// This file prints values as the server does. What is appended to is a text that others stand in
// already.

// little is a number whose lowest byte comes first, of up to eight bytes.
func little(data []byte) (n uint64) {
	for i, b := range data {
		n |= uint64(b) << (8 * i)
	}
	return n
}

// big is a number whose highest byte comes first.
func big(data []byte) (n uint64) {
	for _, b := range data {
		n = n<<8 | uint64(b)
	}
	return n
}

// signed extends the sign of a number of some bytes.
func signed(n uint64, width int) int64 {
	unused := 64 - 8*width
	return int64(n<<unused) >> unused
}

// plainDigits is how many digits before the point, or zeros behind it and one, a number has
// before the server writes it with an exponent. It has more before the point if one is left to stand behind it.
const plainDigits = 15

// appendFloat is the shortest text that reads back as the same number, in the server's form.
func appendFloat(text []byte, v float64, bits int) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.AppendFloat(text, v, 'g', -1, bits) // the server has none
	}
	var buf [32]byte
	e := strconv.AppendFloat(buf[:0], v, 'e', -1, bits)
	if e[0] == '-' {
		text, e = append(text, '-'), e[1:]
	}
	i := bytes.IndexByte(e, 'e')
	digits, exponent := e[:i], atoi(e[i+1:])
	if exponent >= -plainDigits && (exponent < plainDigits || len(digits)-len(".") > exponent+1) {
		return strconv.AppendFloat(text, math.Abs(v), 'f', -1, bits)
	}
	text = append(append(text, digits...), 'e')
	return strconv.AppendInt(text, int64(exponent), 10)
}

// atoi reads what strconv printed.
func atoi(text []byte) (n int) {
	for _, c := range text {
		if c >= '0' {
			n = 10*n + int(c-'0')
		}
	}
	if text[0] == '-' {
		return -n
	}
	return n
}

const digitsPerWord = 9

// wordBytes is how many bytes some digits of a decimal take.
var wordBytes = [digitsPerWord + 1]int{0, 1, 1, 2, 2, 3, 3, 4, 4, 4}

// appendDecimal prints a DECIMAL, which is in words of nine digits from the point outwards; the
// first and the last one may have fewer. n is what it took of data, and 0 if it is none.
func appendDecimal(text, data []byte, precision, scale int) (_ []byte, n int) {
	whole := precision - scale
	if precision == 0 || whole < 0 {
		return text, 0
	}
	n = whole/digitsPerWord*4 + wordBytes[whole%digitsPerWord] + scale/digitsPerWord*4 + wordBytes[scale%digitsPerWord]
	if n > len(data) {
		return text, 0
	}
	d := decimalText{text: text, data: data[:n], first: 0x80}
	if data[0]&0x80 == 0 {
		d.text, d.mask = append(d.text, '-'), 0xff
	}
	start := len(d.text)
	d.word(whole%digitsPerWord, start)
	for range whole / digitsPerWord {
		d.word(digitsPerWord, start)
	}
	if len(d.text) == start {
		d.text = append(d.text, '0')
	}
	if scale > 0 {
		d.text = append(d.text, '.')
		for range scale / digitsPerWord {
			d.word(digitsPerWord, -1)
		}
		d.word(scale%digitsPerWord, -1)
	}
	if d.bad {
		return text, 0
	}
	return d.text, n
}

type decimalText struct {
	text, data  []byte
	first, mask byte // what the first byte, and every byte, are changed by
	bad         bool
}

// word prints the next digits. Leading zeros are left out while the text is no longer than
// start.
func (d *decimalText) word(digits, start int) {
	value := uint64(0)
	for range wordBytes[digits] {
		value = value<<8 | uint64(d.data[0]^d.first^d.mask)
		d.data, d.first = d.data[1:], 0
	}
	if len(d.text) == start {
		if value > 0 {
			d.text = strconv.AppendUint(d.text, value, 10)
		}
		d.bad = d.bad || len(d.text)-start > digits
		return
	}
	limit := uint64(1)
	for range digits {
		limit *= 10
	}
	d.bad = d.bad || value >= limit
	d.text = appendPadded(d.text, value, digits)
}

// appendPadded prints a number with zeros before it.
func appendPadded(text []byte, n uint64, digits int) []byte {
	start := len(text)
	for range digits {
		text = append(text, '0')
	}
	for i := len(text) - 1; i >= start; i-- {
		text[i] += byte(n % 10)
		n /= 10
	}
	return text
}

// Times are packed into 64 bits by the server, with the microseconds in the lowest 24.
const (
	fractionBits = 24
	clockBits    = 17 // of hours, minutes and seconds
)

// appendDatetime prints a packed date and time with some digits of its fraction.
func appendDatetime(text []byte, packed int64, digits int) []byte {
	if packed < 0 {
		packed = -packed
	}
	text = append(appendDate(text, packed), ' ')
	clock := uint64(packed>>fractionBits) & (1<<clockBits - 1)
	return appendFraction(appendClock(text, clock>>12, clock>>6&63, clock&63), packed, digits)
}

// appendDate prints the date of a packed date and time.
func appendDate(text []byte, packed int64) []byte {
	if packed < 0 {
		packed = -packed
	}
	days := uint64(packed) >> (fractionBits + clockBits)
	return appendDay(text, days>>5/13, days>>5%13, days&31)
}

// appendTime prints a packed duration.
func appendTime(text []byte, packed int64, digits int) []byte {
	if packed < 0 {
		text, packed = append(text, '-'), -packed
	}
	clock := uint64(packed >> fractionBits)
	return appendFraction(appendClock(text, clock>>12&1023, clock>>6&63, clock&63), packed, digits)
}

// appendTimestamp prints seconds since 1970 in UTC, of which 0 is no time at all.
func appendTimestamp(text []byte, seconds int64, micros uint64, digits int) []byte {
	if seconds == 0 {
		text = append(text, "0000-00-00 00:00:00"...)
	} else {
		at := time.Unix(seconds, 0).UTC()
		year, month, day := at.Date()
		hour, minute, second := at.Clock()
		text = append(appendDay(text, uint64(year), uint64(month), uint64(day)), ' ')
		text = appendClock(text, uint64(hour), uint64(minute), uint64(second))
	}
	return appendFraction(text, int64(micros), digits)
}

func appendDay(text []byte, year, month, day uint64) []byte {
	text = append(appendPadded(text, year, 4), '-')
	text = append(appendPadded(text, month, 2), '-')
	return appendPadded(text, day, 2)
}

// appendClock prints hours, minutes and seconds. Durations have up to three digits of hours.
func appendClock(text []byte, hour, minute, second uint64) []byte {
	width := 2
	if hour > 99 {
		width = 3
	}
	text = append(appendPadded(text, hour, width), ':')
	text = append(appendPadded(text, minute, 2), ':')
	return appendPadded(text, second, 2)
}

// appendFraction prints digits of the microseconds in the lowest bits.
func appendFraction(text []byte, packed int64, digits int) []byte {
	if digits == 0 {
		return text
	}
	micros := uint64(packed) & (1<<fractionBits - 1)
	for range 6 - digits {
		micros /= 10
	}
	return appendPadded(append(text, '.'), micros, digits)
}

// appendUUID prints 16 bytes in network order as the lower-case text of a UUID.
func appendUUID(text, b []byte) []byte {
	text = hex.AppendEncode(text, b[:4])
	for _, group := range [...][2]int{{4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		text = hex.AppendEncode(append(text, '-'), b[group[0]:group[1]])
	}
	return text
}

// packedDatetime reads a DATETIME of some digits, whose highest byte comes first.
func packedDatetime(data []byte, digits int) int64 {
	const offset = 1 << 39
	return (int64(big(data[:5]))-offset)<<fractionBits + int64(fraction(data[5:], digits))
}

// packedTime reads a TIME.
func packedTime(data []byte, digits int) int64 {
	if digits > 4 {
		const offset = 1 << 47
		return int64(big(data[:6])) - offset
	}
	const offset = 1 << 23
	whole := int64(big(data[:3])) - offset
	micros := int64(fraction(data[3:], digits))
	if whole < 0 && micros != 0 {
		// Negative ones count up to zero: the whole part is the next lower second, and the fraction what is above it.
		size := fractionSize(digits)
		return (whole+1)<<fractionBits + micros - int64(fractionUnit[size])<<(8*size)
	}
	return whole<<fractionBits + micros
}

// fractionSize is how many bytes some digits of a fraction take.
func fractionSize(digits int) int { return (digits + 1) / 2 }

// fractionUnit is how many microseconds a fraction of so many bytes counts.
var fractionUnit = [...]uint64{0, 10000, 100, 1}

func fraction(data []byte, digits int) uint64 {
	size := fractionSize(digits)
	return fractionUnit[size] * big(data[:size])
}
