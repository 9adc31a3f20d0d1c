package pipeline

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestRetryPresetsToTheFigure(t *testing.T) {
	s := time.Second
	tests := []struct {
		name   string
		policy RetryPolicy
		ask    int
		want   []time.Duration
	}{
		{"A121 ekbatan", RetryEkbatan(), 6, []time.Duration{30 * s, 60 * s, 120 * s, 240 * s, 300 * s, 300 * s}},
		{"C82 vernac", RetryVernac(), 100, []time.Duration{1 * s, 2 * s, 4 * s, 8 * s}},
		{"default", RetryDefault(), 10, []time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s}},
		{"zero is the default", RetryPolicy{}, 2, []time.Duration{1 * s, 2 * s}},
		{"one attempt is never retried", RetryPolicy{MaxAttempts: 1}, 3, nil},
		{"A111 exactly at the window", RetryPolicy{Base: s, Window: 3 * s}, 9, []time.Duration{1 * s, 2 * s}},
		{"A111 a microsecond past the window", RetryPolicy{Base: s, Window: 3*s - time.Microsecond}, 9, []time.Duration{1 * s}},
		{"base above cap", RetryPolicy{Base: time.Hour, Cap: s}, 2, []time.Duration{1 * s, 1 * s}},
		{"nothing asked", RetryEkbatan(), 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.policy.Timetable(tt.ask)); diff != "" {
				t.Errorf("timetable (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRetryGivesUp(t *testing.T) {
	tests := []struct {
		name     string
		policy   RetryPolicy
		attempts int
		after    time.Duration
		ok       bool
	}{
		{"C81 vernac: five attempts", RetryVernac(), 5, 15 * time.Second, true},
		// 450 s in four delays, then 2,014 of 300 s; A126 says about 2,000.
		{"A126 ekbatan: seven days", RetryEkbatan(), 2019, 604650 * time.Second, true},
		{"never", RetryPolicy{Window: -1}, 0, 0, false},
		{"one attempt", RetryPolicy{MaxAttempts: 1}, 1, 0, true},
		{"far beyond what a duration holds", RetryPolicy{Window: -1, MaxAttempts: math.MaxInt}, math.MaxInt, math.MaxInt64, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			attempts, after, ok := tt.policy.GivesUp()
			if attempts != tt.attempts || after != tt.after || ok != tt.ok {
				t.Errorf("got %d attempts after %v, %v; want %d after %v, %v", attempts, after, ok, tt.attempts, tt.after, tt.ok)
			}
		})
	}
}

func TestRetryJitterAndRetryAfter(t *testing.T) {
	half := func() float64 { return 0.5 }
	policy := RetryDefault()
	tests := []struct {
		name  string
		n     int
		after time.Duration
		want  time.Duration
	}{
		{"jitter draws below the delay", 3, 0, 2 * time.Second},
		{"Q35 Retry-After lengthens", 3, 120 * time.Second, 120 * time.Second},
		{"Q35 Retry-After never shortens", 5, time.Second, 8 * time.Second},
		{"Q35 ten years meet the ceiling", 1, 10 * 365 * 24 * time.Hour, maxRetryAfter},
		{"a negative one is nothing", 3, -time.Hour, 2 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := policy.delay(tt.n, tt.after, half); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func drawPolicy(t *rapid.T) RetryPolicy {
	span := func(name string) time.Duration {
		return time.Duration(rapid.Int64Range(1, int64(400*24*time.Hour)).Draw(t, name))
	}
	p := RetryPolicy{Base: span("base"), Cap: span("cap"), Jitter: rapid.Bool().Draw(t, "jitter"), Window: -1}
	if rapid.Bool().Draw(t, "bounded") {
		p.Window = span("window")
	}
	p.MaxAttempts = rapid.IntRange(0, 40).Draw(t, "max attempts")
	return p
}

func TestRetryDelayProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		n := rapid.IntRange(1, math.MaxInt).Draw(t, "n")
		after := time.Duration(rapid.Int64().Draw(t, "after"))
		r := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "random")

		d, next := p.backoff(n), p.backoff(max(n, n+1))
		if d <= 0 || d > p.Cap || next < d {
			t.Fatalf("backoff(%d) = %v, then %v, with cap %v", n, d, next, p.Cap)
		}
		if n < 20 {
			if exact := math.Min(float64(p.Cap), float64(p.Base)*math.Pow(2, float64(n-1))); math.Abs(float64(d)-exact) > 1 {
				t.Fatalf("backoff(%d) = %v, want %v", n, d, time.Duration(exact))
			}
		}
		got := p.delay(n, after, func() float64 { return r })
		asked := min(after, maxRetryAfter)
		if got < asked || got < 0 || got > max(d, asked) {
			t.Fatalf("delay = %v, asked for %v, backoff %v", got, asked, d)
		}
		if !p.Jitter && got < d {
			t.Fatalf("delay = %v is shorter than the backoff %v", got, d)
		}
	})
}

func TestRetryGivesUpAgreesWithTimetable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		// Keeps the walk of the model short.
		p.Cap = max(p.Cap, 24*time.Hour)
		p.Base = max(p.Base, time.Hour)
		attempts, after, ok := p.GivesUp()
		if !ok {
			if got := len(p.Timetable(100)); got != 100 {
				t.Fatalf("never gives up, but stops after %d retries", got)
			}
			return
		}
		var elapsed time.Duration
		delays := p.Timetable(1000)
		for _, d := range delays {
			elapsed += d
		}
		if attempts != len(delays)+1 || after != elapsed {
			t.Fatalf("GivesUp: %d attempts after %v; timetable: %d after %v", attempts, after, len(delays)+1, elapsed)
		}
	})
}
