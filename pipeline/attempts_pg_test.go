package pipeline

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// TestPresets_SequencesInTheTable follows a delivery through a preset's whole
// sequence: each due time is read from the row, which is then made due at once.
func TestPresets_SequencesInTheTable(t *testing.T) {
	s := time.Second
	tests := []struct {
		name   string
		policy RetryPolicy
		want   []time.Duration
		// last is done to the row before its last attempt.
		last   string
		end    delivery.State
		reason string
	}{
		{"C82 C81 vernac", RetryVernac(), []time.Duration{1 * s, 2 * s, 4 * s, 8 * s}, "true", delivery.Dead, delivery.ReasonAttempts},
		{
			"A121 A111 ekbatan", RetryEkbatan(), []time.Duration{30 * s, 60 * s, 120 * s, 240 * s, 300 * s, 300 * s},
			// So old that the next due time is past the window, and this attempt is not.
			"event_date = event_date - interval '7 days' + interval '4 min'", delivery.Expired, delivery.ReasonAge,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onPostgres(t, func(t *testing.T, w *world) {
				paused := map[string]delivery.Pause{"h": {}}
				var p *process
				h := does(func(context.Context, event.Envelope) error {
					// Before the outcome can be written: the next attempt may be due before this test looks.
					p.setPaused(paused)
					return errors.New("no")
				})
				h.Retry = tt.policy
				p = newProcess(w.store(w.DSN()), time.Minute, h)
				p.setPaused(paused)
				id := w.add("h", 1)[0]
				p.launch(t)
				// attempt lets exactly one attempt happen: the handler pauses itself.
				attempt := func(n int) pgRow {
					p.setPaused(nil)
					testdb.WaitFor(t, fmt.Sprintf("failure %d", n), func() bool { return w.row(id).Attempts == n })
					return w.row(id)
				}
				// Makes the row due when it is not being looked at.
				again := func(also string) {
					set := "next_retry_at = " + utcNow
					if also != "true" {
						set += ", " + also
					}
					w.Exec("UPDATE eventlog.event_notifications SET " + set)
				}
				for i, want := range tt.want {
					got := attempt(i + 1)
					if got.State != delivery.Failed || got.Attempts != i+1 || got.Delay < want-time.Millisecond || got.Delay > want {
						t.Fatalf("after failure %d: %+v, want FAILED and due in %v", i+1, got, want)
					}
					if i < len(tt.want)-1 {
						again("true")
					}
				}
				again(tt.last)
				if got := attempt(len(tt.want) + 1); got.State != tt.end || got.Reason != tt.reason || got.Leased {
					t.Errorf("ended as %+v, want %s because of %s", got, tt.end, tt.reason)
				}
				var history int
				if err := w.Pool().QueryRow(t.Context(), "SELECT count(*) FROM eventlog.event_notification_attempts").Scan(&history); err != nil || history != len(tt.want)+1 {
					t.Errorf("%d attempts in the history, want %d; %v", history, len(tt.want)+1, err)
				}
			})
		})
	}
}

func TestPoisonHandlersBesideHealthyOnesInTheTable(t *testing.T) {
	onPostgres(t, func(t *testing.T, w *world) {
		policy := RetryPolicy{Base: 10 * time.Millisecond, Cap: 10 * time.Millisecond, MaxAttempts: 3}
		// A timeout that only those run into that are there to do so: all start at once.
		poor := func(name string, fn event.HandlerFunc) Handler {
			return Handler{Name: name, Handler: fn, Retry: policy, Timeout: time.Minute}
		}
		late := func(name string, fn event.HandlerFunc) Handler {
			h := poor(name, fn)
			h.Timeout = 300 * time.Millisecond
			return h
		}
		release := newGate()
		p := newProcess(w.store(w.DSN()), 10*time.Second,
			poor("panic", func(context.Context, event.Envelope) error { panic("card 4242") }),
			poor("goexit", func(context.Context, event.Envelope) error { runtime.Goexit(); return nil }),
			late("timeout", func(ctx context.Context, _ event.Envelope) error { <-ctx.Done(); return ctx.Err() }),
			poor("bytes", func(context.Context, event.Envelope) error { return errors.New("\xff\x00" + strings.Repeat("ä", 400)) }),
			poor("permanent", func(context.Context, event.Envelope) error { return event.Permanent(errors.New("no such account")) }),
			poor("undecodable", event.Typed(func(context.Context, event.Envelope, struct{ N string }) error { return nil }).Handle),
			poor("cancel", func(context.Context, event.Envelope) error { return event.Cancel("withdrawn") }),
			late("dead", func(context.Context, event.Envelope) error { <-release.c; return nil }),
			poor("healthy", succeed),
		)
		p.judge.messages = true
		const each = 20
		for _, l := range p.order {
			w.add(l.sub.Name, each)
		}
		p.launch(t)
		t.Cleanup(release.open)
		want := map[string]string{
			"panic": "DEAD attempts panic: the handler panicked", "goexit": "DEAD attempts goexit: the handler ended its goroutine",
			"timeout":     "DEAD attempts timeout: context deadline exceeded",
			"bytes":       "DEAD attempts *errors.errorString: \uFFFD" + strings.Repeat("ä", 248),
			"permanent":   "DEAD permanent *errors.errorString: no such account",
			"undecodable": `BLOCKED undecodable decode: decode payload of paid as struct { N string }: field "N" wants string, got a JSON number at byte 7`,
			"cancel":      "DISCARDED withdrawn ", "healthy": "SUCCEEDED  ",
		}
		count := func(name, is string) (n int) {
			if err := w.Pool().QueryRow(t.Context(), `SELECT count(*) FROM eventlog.event_notifications
				WHERE handler_name = $1 AND concat_ws(' ', state, COALESCE(reason, ''), COALESCE(last_error, '')) = $2`, name, is).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for name, is := range want {
			testdb.WaitFor(t, fmt.Sprintf("all of %s to be %q", name, is), func() bool { return count(name, is) == each })
		}
		// The dead one holds its workers and nothing else.
		if got := p.health(); got.err != nil {
			t.Errorf("health: %v", got.err)
		}
		w.add("healthy", 1000)
		p.wake("healthy")
		testdb.WaitFor(t, "the healthy handler to go on", func() bool { return count("healthy", want["healthy"]) == each+1000 })
		release.open()
		testdb.WaitFor(t, "the dead handler's deliveries to succeed after all", func() bool { return count("dead", want["healthy"]) == each })
	})
}
