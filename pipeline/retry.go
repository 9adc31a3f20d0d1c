package pipeline

import (
	"math"
	"time"
)

// maxRetryAfter bounds the delay that a handler's error can ask for, so that a
// remote's Retry-After of ten years does not park a delivery for good (queues 35).
const maxRetryAfter = 24 * time.Hour

// maxSnooze bounds a handler's Snooze. It is only a guard for the database's
// date arithmetic: a snooze is the handler's own plan, not a remote's wish.
const maxSnooze = 366 * 24 * time.Hour

// RetryDefault is the policy of a handler that names none: 1 s doubling up to 5
// min with full jitter, for 7 days, without a limit on attempts.
func RetryDefault() RetryPolicy {
	return RetryPolicy{Base: time.Second, Cap: 5 * time.Minute, Jitter: true, Window: 7 * 24 * time.Hour}
}

// RetryEkbatan reproduces Ekbatan's figures (A118 to A126): 30 s doubling up to 5
// min, for 7 days from the event, without a limit on attempts and without jitter.
func RetryEkbatan() RetryPolicy {
	return RetryPolicy{Base: 30 * time.Second, Cap: 5 * time.Minute, Window: 7 * 24 * time.Hour}
}

// RetryVernac reproduces Vernac's figures (C81, C82, C85): 1 s doubling up to 5
// min, five attempts, whatever the event's age, without jitter.
func RetryVernac() RetryPolicy {
	return RetryPolicy{Base: time.Second, Cap: 5 * time.Minute, Window: -1, MaxAttempts: 5}
}

// withDefaults fills what was left out. The zero policy is RetryDefault, which
// has jitter; a policy that says anything has jitter only if it says so.
func (p RetryPolicy) withDefaults() RetryPolicy {
	d := RetryDefault()
	if p == (RetryPolicy{}) {
		return d
	}
	if p.Base <= 0 {
		p.Base = d.Base
	}
	if p.Cap <= 0 {
		p.Cap = d.Cap
	}
	if p.Window == 0 {
		p.Window = d.Window
	}
	p.MaxAttempts = max(p.MaxAttempts, 0)
	return p
}

// window is the retry window as package delivery writes it: 0 for none.
func (p RetryPolicy) window() time.Duration { return max(p.Window, 0) }

// backoff is the delay after the n-th failure before jitter: min(Cap, Base ×
// 2^(n−1)), for any n from 1 without overflow.
func (p RetryPolicy) backoff(n int) time.Duration {
	doublings := max(n, 1) - 1
	if doublings >= 63 || p.Base > p.Cap>>doublings {
		return p.Cap
	}
	return p.Base << doublings
}

// delay is how long a delivery waits after its n-th failure. after is what the
// handler asked for: it lengthens the policy's delay, jitter included, and never
// shortens it, up to maxRetryAfter. random returns a number in [0, 1).
func (p RetryPolicy) delay(n int, after time.Duration, random func() float64) time.Duration {
	d := p.backoff(n)
	if p.Jitter {
		d = time.Duration(random() * float64(d))
	}
	return max(d, min(after, maxRetryAfter))
}

// Timetable returns the delays after the first n failures: fewer than n when the
// policy gives up before. It assumes that attempts take no time and start at
// the event's date; with Jitter these are the longest delays that can be drawn.
func (p RetryPolicy) Timetable(n int) []time.Duration {
	p = p.withDefaults()
	var delays []time.Duration
	var elapsed time.Duration
	for failure := 1; failure <= n; failure++ {
		d := p.backoff(failure)
		if failure == p.MaxAttempts || p.expires(elapsed, d) {
			break
		}
		delays = append(delays, d)
		elapsed = addCapped(elapsed, d)
	}
	return delays
}

// GivesUp returns the number of the last attempt and when it takes place, counted
// from the event's date, if every attempt fails at once; ok is false for a
// policy that never gives up. With Jitter there may be more attempts, not fewer.
func (p RetryPolicy) GivesUp() (attempts int, after time.Duration, ok bool) {
	p = p.withDefaults()
	if p.Window < 0 && p.MaxAttempts == 0 {
		return 0, 0, false
	}
	attempts = 1
	for attempts != p.MaxAttempts {
		d := p.backoff(attempts)
		if p.expires(after, d) {
			break
		}
		if d == p.Cap {
			return p.givesUpAtCap(attempts, after)
		}
		attempts++
		after = addCapped(after, d)
	}
	return attempts, after, true
}

// givesUpAtCap counts the remaining attempts, which are all Cap apart, without
// walking them: a week of milliseconds is a long walk.
func (p RetryPolicy) givesUpAtCap(attempts int, after time.Duration) (int, time.Duration, bool) {
	more := math.MaxInt
	if p.Window >= 0 {
		more = int((p.Window - after) / p.Cap)
	}
	if p.MaxAttempts > 0 {
		more = min(more, p.MaxAttempts-attempts)
	}
	if time.Duration(more) > (math.MaxInt64-after)/p.Cap {
		return attempts + more, math.MaxInt64, true
	}
	return attempts + more, after + time.Duration(more)*p.Cap, true
}

// expires says whether an attempt d after elapsed would be strictly later than
// the window; exactly at its end is still allowed (A111).
func (p RetryPolicy) expires(elapsed, d time.Duration) bool {
	return p.Window >= 0 && d > p.Window-elapsed
}

func addCapped(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
