package event_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

var errPlain = errors.New("the till is on fire")

func TestClassify_FindsTheClassThroughWrapping(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("charge order 7: %w", fmt.Errorf("call: %w", err)) }
	for _, c := range []struct {
		name  string
		err   error
		class event.Class
		after time.Duration
	}{
		{"plain error", errPlain, event.ClassRetry, 0},
		{"permanent", event.Permanent(errPlain), event.ClassPermanent, 0},
		{"retry after", event.RetryAfter(errPlain, 3*time.Second), event.ClassRetry, 3 * time.Second},
		{"negative retry after", event.RetryAfter(errPlain, -time.Hour), event.ClassRetry, 0},
		{"undecodable", event.Undecodable(errPlain), event.ClassUndecodable, 0},
		{"snooze", event.Snooze(time.Minute), event.ClassSnooze, time.Minute},
		{"negative snooze", event.Snooze(-time.Minute), event.ClassSnooze, 0},
		{"cancel", event.Cancel("order was withdrawn"), event.ClassCancel, 0},
		{"outermost class wins", event.RetryAfter(event.Permanent(errPlain), time.Second), event.ClassRetry, time.Second},
		{"joined", errors.Join(io.EOF, event.Permanent(errPlain)), event.ClassPermanent, 0},
		{"first of two joined", errors.Join(event.Snooze(time.Second), event.Permanent(errPlain)), event.ClassSnooze, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			for depth, err := range map[string]error{"bare": c.err, "wrapped": wrap(c.err)} {
				class, after := event.Classify(err)
				if class != c.class || after != c.after {
					t.Errorf("%s: Classify = %v, %v; want %v, %v", depth, class, after, c.class, c.after)
				}
			}
		})
	}
}

func TestClassify_NilStaysNil(t *testing.T) {
	for name, err := range map[string]error{
		"Permanent":   event.Permanent(nil),
		"RetryAfter":  event.RetryAfter(nil, time.Hour),
		"Undecodable": event.Undecodable(nil),
	} {
		if err != nil {
			t.Errorf("%s(nil) = %v; a handler that passes its nil through must succeed", name, err)
		}
	}
}

func TestClassed_ErrorKeepsItsTextAndCause(t *testing.T) {
	err := event.Permanent(fmt.Errorf("send: %w", errPlain))
	if !errors.Is(err, errPlain) {
		t.Error("the cause is hidden by the class")
	}
	if got, want := err.Error(), "send: the till is on fire"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if got, want := event.Cancel("withdrawn").Error(), "withdrawn"; got != want {
		t.Errorf("Cancel's text = %q, want the reason %q", got, want)
	}
}

func TestReason_IsWhatCancelWasGiven(t *testing.T) {
	wrapped := fmt.Errorf("order of jane@example.com: %w", event.Cancel("order was withdrawn"))
	for err, want := range map[error]string{wrapped: "order was withdrawn", errPlain: "", nil: ""} {
		if got := event.Reason(err); got != want {
			t.Errorf("Reason(%v) = %q, want %q", err, got, want)
		}
	}
}

func TestClass_String(t *testing.T) {
	for class, want := range map[event.Class]string{
		event.ClassRetry:       "retry",
		event.ClassPermanent:   "permanent",
		event.ClassUndecodable: "undecodable",
		event.ClassSnooze:      "snooze",
		event.ClassCancel:      "cancel",
	} {
		if class.String() != want {
			t.Errorf("Class(%d) = %q, want %q", class, class, want)
		}
	}
}

type codedError struct{ code string }

func (e codedError) Error() string { return "secret text" }
func (e codedError) Code() string  { return e.code }

func TestM19_CodeIsShortAndHoldsNoText(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"nil", nil, ""},
		{"coded", codedError{"http_503"}, "http_503"},
		{"coded, wrapped and classed", fmt.Errorf("a: %w", event.Permanent(codedError{"http_410"})), "http_410"},
		{"outermost code wins", fmt.Errorf("%w: %w", codedError{"outer"}, codedError{"inner"}), "outer"},
		{"deadline", fmt.Errorf("call: %w", context.DeadlineExceeded), "timeout"},
		{"canceled", fmt.Errorf("call: %w", context.Canceled), "canceled"},
		{"type of the innermost", event.RetryAfter(fmt.Errorf("x: %w", &os.PathError{Op: "open", Path: "/secret", Err: errPlain}), 1), "*errors.errorString"},
		{"type of a leaf", fmt.Errorf("x: %w", leafError{}), "event_test.leafError"},
		{"first branch of a joined error", errors.Join(leafError{}, errPlain), "event_test.leafError"},
		{"several causes in one format", fmt.Errorf("%w and %w", leafError{}, errPlain), "event_test.leafError"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := event.Code(c.err); got != c.want {
				t.Errorf("Code = %q, want %q", got, c.want)
			}
		})
	}
}

type leafError struct{}

func (leafError) Error() string { return "leaf" }
