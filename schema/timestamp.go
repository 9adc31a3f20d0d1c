package schema

import (
	"errors"
	"strings"
	"time"
)

// The range of times that every consumer of an event can hold: JSON has no year
// beyond 9999, and Go's zero time means "absent". Everything outside, infinity and
// the years before Christ included, is moved to the nearer end; the SQL stores do the same.
const (
	earliestMicros = -62135596800_000000 + 1 // 0001-01-01 00:00:00.000001
	latestMicros   = 253402300800_000000 - 1 // 9999-12-31 23:59:59.999999
)

func earliest() time.Time { return time.UnixMicro(earliestMicros).UTC() }
func latest() time.Time   { return time.UnixMicro(latestMicros).UTC() }

func clamp(t time.Time) time.Time {
	switch {
	case t.Before(earliest()):
		return earliest()
	case t.After(latest()):
		return latest()
	default:
		return t
	}
}

var (
	errNumericTime = errors.New("is a number without a unit, which would have to be guessed")
	errTimeText    = errors.New("is not a timestamp in ISO form")
)

// parseTime reads a date, timestamp or timestamptz in the ISO form that databases print:
// "2026-11-30", "2026-11-30 10:18:05.123456", "2026-11-30 10:18:05+05:30",
// "0044-03-15 12:00:00 BC", "infinity". A text without a zone is UTC (A19). A date that is zero, or zero in
// part, as MySQL and MariaDB may store it, is the earliest time. The
// result is UTC, cut to microseconds and to the range above. A bare number is
// refused rather than guessed at (A170).
func parseTime(b []byte) (time.Time, error) {
	s := string(b)
	switch s {
	case "infinity":
		return latest(), nil
	case "-infinity":
		return earliest(), nil
	}
	if isNumber(s) {
		return time.Time{}, errNumericTime
	}
	p := timeParser{s: s}
	t, ok := p.parse()
	if !ok {
		return time.Time{}, errTimeText
	}
	return clamp(t), nil
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789.+-eE") == "" && !strings.Contains(strings.TrimPrefix(s, "-"), "-")
}

// era is how a year before Christ ends.
const era = " BC"

// timeParser reads its text from left to right.
type timeParser struct{ s string }

func (p *timeParser) parse() (time.Time, bool) {
	year, ok := p.number(4, 6)
	if !ok || !p.skip('-') {
		return time.Time{}, false
	}
	month, ok1 := p.number(2, 2)
	ok2 := p.skip('-')
	day, ok3 := p.number(2, 2)
	if !ok1 || !ok2 || !ok3 {
		return time.Time{}, false
	}
	var hour, minute, second, nanos, offset int
	if p.s != "" && p.s != era && (p.skip(' ') || p.skip('T')) {
		if hour, minute, second, nanos, ok = p.clock(); !ok {
			return time.Time{}, false
		}
		if offset, ok = p.zone(); !ok {
			return time.Time{}, false
		}
	}
	return p.finish(year, month, day, hour, minute, second, nanos, offset)
}

func (p *timeParser) finish(year, month, day, hour, minute, second, nanos, offset int) (time.Time, bool) {
	switch p.s {
	case "":
	case era:
		year = 1 - year
	default:
		return time.Time{}, false
	}
	if month > 12 || day > 31 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	if month == 0 || day == 0 {
		return earliest(), true
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
	if t.Day() != day { // 30 February
		return time.Time{}, false
	}
	return t.Add(-time.Duration(offset) * time.Second), true
}

// clock reads "10:18:05" with an optional fraction, which is cut to microseconds.
func (p *timeParser) clock() (hour, minute, second, nanos int, ok bool) {
	hour, ok1 := p.number(2, 2)
	ok2 := p.skip(':')
	minute, ok3 := p.number(2, 2)
	ok4 := p.skip(':')
	second, ok5 := p.number(2, 2)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
		return 0, 0, 0, 0, false
	}
	if !p.skip('.') {
		return hour, minute, second, 0, true
	}
	micros, digits := 0, 0
	for ; len(p.s) > 0 && isDigit(p.s[0]); p.s = p.s[1:] {
		if digits++; digits <= 6 {
			micros = micros*10 + int(p.s[0]-'0')
		}
	}
	for i := digits; i < 6; i++ {
		micros *= 10
	}
	return hour, minute, second, micros * 1000, digits > 0
}

// zone reads "", "Z", "+00", "-03:30" or "+05:53:28" and returns seconds east of UTC.
func (p *timeParser) zone() (int, bool) {
	if p.skip('Z') {
		return 0, true
	}
	sign := 1
	switch {
	case p.skip('+'):
	case p.skip('-'):
		sign = -1
	default:
		return 0, true
	}
	seconds, ok := p.number(2, 2)
	seconds *= 3600
	for unit := 60; ok && unit > 0 && p.skip(':'); unit /= 60 {
		var n int
		n, ok = p.number(2, 2)
		seconds += n * unit
	}
	return sign * seconds, ok
}

// number reads between least and most digits.
func (p *timeParser) number(least, most int) (n int, ok bool) {
	i := 0
	for ; i < len(p.s) && i < most && isDigit(p.s[i]); i++ {
		n = n*10 + int(p.s[i]-'0')
	}
	p.s = p.s[i:]
	return n, i >= least
}

func (p *timeParser) skip(c byte) bool {
	if len(p.s) == 0 || p.s[0] != c {
		return false
	}
	p.s = p.s[1:]
	return true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
