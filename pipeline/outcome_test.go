package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// httpError is a coded error with a secret in its text.
type httpError struct{}

func (httpError) Error() string { return "POST https://bob:hunter2@shop.example/hook: 503" }
func (httpError) Code() string  { return "http_503" }

func TestOutcome_WhatAHandlerReturnsDecides(t *testing.T) {
	of := &job{id: uuid.New(), token: uuid.New(), attempts: 2, claims: 4, sub: &subscriber{Handler: Handler{
		Retry: RetryPolicy{Base: time.Second, Cap: time.Minute, Window: time.Hour, MaxAttempts: 9},
	}}}
	cancelled := fmt.Errorf("call: %w", context.Canceled)
	retry := delivery.Outcome{Verdict: delivery.Retry, Delay: 4 * time.Second, Window: time.Hour, MaxAttempts: 9}
	coded := func(o delivery.Outcome, code string) delivery.Outcome { o.Error = code; return o }
	giveBack := delivery.Outcome{Verdict: delivery.GiveBack}
	tests := []struct {
		name  string
		err   error
		cause error
		want  delivery.Outcome
	}{
		{"nil", nil, nil, delivery.Outcome{Verdict: delivery.Success}},
		{"nil although time was up", nil, context.DeadlineExceeded, delivery.Outcome{Verdict: delivery.Success}},
		{"nil although the lease is lost: the fence decides", nil, ErrLeaseLost, delivery.Outcome{Verdict: delivery.Success}},
		{"plain", errors.New("no"), nil, coded(retry, "*errors.errorString")},
		{"coded", httpError{}, nil, coded(retry, "http_503")},
		{"retry after", event.RetryAfter(httpError{}, 30*time.Second), nil, func() delivery.Outcome {
			o := coded(retry, "http_503")
			o.Delay = 30 * time.Second
			return o
		}()},
		{"timeout", errors.New("gave up"), context.DeadlineExceeded, coded(retry, "timeout")},
		{"permanent", fmt.Errorf("order 7: %w", event.Permanent(httpError{})), nil, delivery.Outcome{Verdict: delivery.Fail, Reason: "permanent", Error: "http_503"}},
		{"undecodable", event.Undecodable(errors.New("no field id")), nil, delivery.Outcome{Verdict: delivery.Block, Reason: "undecodable", Error: "*errors.errorString"}},
		{"snooze", event.Snooze(time.Minute), nil, delivery.Outcome{Verdict: delivery.GiveBack, Delay: time.Minute}},
		{"snooze for good", event.Snooze(1 << 62), nil, delivery.Outcome{Verdict: delivery.GiveBack, Delay: maxSnooze}},
		{"cancel", fmt.Errorf("jane@example.com: %w", event.Cancel("withdrawn\x00")), nil, delivery.Outcome{Verdict: delivery.Discard, Reason: "withdrawn"}},
		{"Q23 stopping", cancelled, ErrStopping, giveBack},
		{"Q23 stopping, and the cancellation is not in the chain", errors.New("read: i/o timeout"), ErrStopping, giveBack},
		{"lease lost", cancelled, ErrLeaseLost, giveBack},
		{"stopping, but permanent by itself", event.Permanent(httpError{}), ErrStopping, delivery.Outcome{Verdict: delivery.Fail, Reason: "permanent", Error: "http_503"}},
		{"stopping, permanent only because it wraps everything", event.Permanent(cancelled), ErrStopping, giveBack},
		{"a panic while stopping is still one", &panicError{}, ErrStopping, coded(retry, "panic")},
		{"a goexit while stopping too", goexitError{}, ErrStopping, coded(retry, "goexit")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.ID, tt.want.Token, tt.want.Attempt = of.id, of.token, 4
			got := judge{random: func() float64 { return 0 }}.outcome(of, tt.err, tt.cause)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func TestM19_MessagesAreStoredOnlyWhenAskedForAndWithoutSecrets(t *testing.T) {
	of := &job{sub: &subscriber{}}
	if got := (judge{}).outcome(of, httpError{}, nil); got.Message != "" {
		t.Errorf("stored %q unasked", got.Message)
	}
	for in, want := range map[string]string{
		httpError{}.Error():                             "POST https://***@shop.example/hook: 503",
		"dial postgres://u:p%40ss@db/x?sslmode=disable": "dial postgres://***@db/x?sslmode=disable",
		`{"password": "s3cret", "user": "bob"}`:         `{"password": "***", "user": "bob"}`,
		"401 for Authorization: Bearer abc.def.ghi":     "401 for Authorization: Bearer ***",
		"sent bearer abc.def":                           "sent bearer ***",
		"api_key=12345&x=1":                             "api_key=***&x=1",
		"order 7 is locked":                             "order 7 is locked",
		"bad \xff\x00byte":                              "bad \uFFFDbyte",
	} {
		if got := (judge{messages: true}).outcome(of, errors.New(in), nil); got.Message != want {
			t.Errorf("%q is stored as %q, want %q", in, got.Message, want)
		}
	}
}

func TestClip_IsAlwaysStorable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + strings.Repeat(rapid.String().Draw(t, "text"), 20)
		n := rapid.IntRange(0, 600).Draw(t, "n")
		got := clip(s, n)
		if len(got) > n || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Fatalf("clip(%q, %d) = %q", s, n, got)
		}
		if clean := strings.ReplaceAll(s, "\x00", ""); utf8.ValidString(s) && len(s) <= n && got != clean {
			t.Fatalf("clip(%q, %d) = %q, want it whole", s, n, got)
		}
	})
}
