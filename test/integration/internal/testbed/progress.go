package testbed

import (
	"testing"
	"time"
)

// Open counts what has not ended yet: events that are not fanned out, and open deliveries.
const Open = `
	SELECT (SELECT count(*) FROM eventlog.events WHERE NOT delivered AND event_type IS NOT NULL)
	     + (SELECT count(*) FROM eventlog.event_notifications WHERE state IN ('PENDING', 'FAILED'))`

// Progress waits until a number is what is wanted. It asks until the answer has not
// changed for three minutes.
func Progress(t testing.TB, what string, ask func() int64, want int64) {
	t.Helper()
	const patience = 3 * time.Minute
	timer := time.NewTimer(0)
	defer timer.Stop()
	last, since := int64(-1), time.Now()
	for {
		<-timer.C
		asked := time.Now()
		n := ask()
		if n == want {
			return
		}
		if n != last {
			last, since = n, time.Now()
		} else if time.Since(since) > patience {
			t.Fatalf("waited for %s: stuck at %d for %s", what, n, patience)
		}
		// A question about a large table must not be the load.
		timer.Reset(max(20*time.Millisecond, 10*time.Since(asked)))
	}
}
