package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestQ35_RetryAfterIsReadAndBounded(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const limit = 24 * time.Hour
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		name, value, date string
		want              time.Duration
	}{
		{"absent", "", "", 0},
		{"seconds", "120", "", 2 * time.Minute},
		{"spaces around", "  120 ", "", 2 * time.Minute},
		{"zero", "0", "", 0},
		{"exactly the limit", "86400", "", limit},
		{"ten years", "315360000", "", limit},
		{"more digits than any integer has", strings.Repeat("9", 400), "", limit},
		{"negative", "-120", "", 0},
		{"plus sign", "+120", "", 0},
		{"fraction", "1.5", "", 0},
		{"hexadecimal", "0x10", "", 0},
		{"garbage", "soon", "", 0},
		{"date", date(90 * time.Second), "", 90 * time.Second},
		{"date in the past", date(-time.Hour), "", 0},
		{"date in ten years", date(10 * 365 * 24 * time.Hour), "", limit},
		{"date of the year 9999", "Fri, 31 Dec 9999 23:59:59 GMT", "", limit},
		{"RFC 850 date", now.Add(time.Minute).Format("Monday, 02-Jan-06 15:04:05 GMT"), "", time.Minute},
		{"asctime date", now.Add(time.Minute).Format(time.ANSIC), "", time.Minute},
		{"broken date", "Sun, 99 Mar 2026 12:00:00 GMT", "", 0},
		// Q34: our clock is five minutes off, in either direction; the answer's Date is not.
		{"date, our clock slow", date(6 * time.Minute), date(5 * time.Minute), time.Minute},
		{"date, our clock fast", date(-4 * time.Minute), date(-5 * time.Minute), time.Minute},
		{"date, and the answer's Date is garbage", date(time.Minute), "yesterday", time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			if c.value != "" {
				h.Set("Retry-After", c.value)
			}
			if c.date != "" {
				h.Set("Date", c.date)
			}
			if got := retryAfter(h, now, limit); got != c.want {
				t.Errorf("retryAfter = %v, want %v", got, c.want)
			}
		})
	}
}
