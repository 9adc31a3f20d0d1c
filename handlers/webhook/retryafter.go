package webhook

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// retryAfter reads the Retry-After of an answer: how long the receiver asks to be left
// alone, between 0 and limit. What cannot be read is 0, so that it changes nothing: the
// caller takes the longer of this and its own delay.
//
// A date is compared with the answer's own Date, so that the result depends on no
// clock of ours; only without one is now taken.
func retryAfter(h http.Header, now time.Time, limit time.Duration) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if d, ok := seconds(v, limit); ok {
		return d
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), limit)
}

// seconds reads a plain decimal number; ok is false for anything else. A number too
// long for any integer is still a number, and means limit.
func seconds(v string, limit time.Duration) (d time.Duration, ok bool) {
	n, err := strconv.ParseUint(v, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return limit, true
	case err != nil:
		return 0, false
	case n > uint64(limit/time.Second):
		return limit, true
	}
	return time.Duration(n) * time.Second, true
}
