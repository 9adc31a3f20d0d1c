package event

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Class says what an error returned by a handler asks for.
type Class int

// The classes, see the package documentation for the state each leads to. An
// error without a class is ClassRetry: the safe default is to try again.
const (
	ClassRetry Class = iota
	ClassPermanent
	ClassUndecodable
	ClassSnooze
	ClassCancel
)

func (c Class) String() string {
	switch c {
	case ClassPermanent:
		return "permanent"
	case ClassUndecodable:
		return "undecodable"
	case ClassSnooze:
		return "snooze"
	case ClassCancel:
		return "cancel"
	default:
		return "retry"
	}
}

// outcome is an error with a class. It is found through wrapping by Classify.
type outcome struct {
	class Class
	after time.Duration
	err   error
}

func (o *outcome) Error() string { return o.err.Error() }
func (o *outcome) Unwrap() error { return o.err }

// Permanent marks err as one that no further attempt can mend; the delivery
// becomes DEAD. Permanent(nil) is nil.
func Permanent(err error) error { return classed(ClassPermanent, 0, err) }

// RetryAfter marks err as retryable, but no earlier than d from now. It can
// lengthen the retry policy's delay, never shorten it. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error { return classed(ClassRetry, d, err) }

// Undecodable marks err as "this process cannot understand the payload"; the
// delivery becomes BLOCKED and no attempt is used up (M8, M9).
// Undecodable(nil) is nil.
func Undecodable(err error) error { return classed(ClassUndecodable, 0, err) }

// Snooze gives the attempt back and makes the delivery due again after d.
func Snooze(d time.Duration) error {
	return classed(ClassSnooze, d, fmt.Errorf("snoozed for %s", d))
}

// Cancel ends the delivery as DISCARDED with the given reason.
func Cancel(reason string) error { return classed(ClassCancel, 0, errors.New(reason)) }

func classed(c Class, after time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &outcome{class: c, after: max(after, 0), err: err}
}

// Classify returns the class of err and the delay that came with it (zero when
// none did). The outermost class wins, and in a joined error the first one.
// Classify(nil) is ClassRetry, 0: ask only about errors.
func Classify(err error) (Class, time.Duration) {
	var o *outcome
	if errors.As(err, &o) {
		return o.class, o.after
	}
	return ClassRetry, 0
}

// Reason returns the text of the error that was given its class, without what
// was wrapped around it since: for a [Cancel], its reason. For an error without
// a class it is empty.
func Reason(err error) string {
	var o *outcome
	if errors.As(err, &o) {
		return o.err.Error()
	}
	return ""
}

// Coded is implemented by errors that carry a short machine-readable code, such
// as "http_503" or "dial". Code ends up in event_notifications.last_error; the
// message does not, unless the operator asked for it (M19).
type Coded interface {
	error
	Code() string
}

// Code returns the short code to store for err: the code of the first [Coded]
// in its chain; else "timeout" or "canceled" for the errors of a context that
// ended; else the Go type of the innermost error, following the first branch of
// a joined one. Code(nil) is empty.
func Code(err error) string {
	var c Coded
	switch {
	case err == nil:
		return ""
	case errors.As(err, &c):
		return c.Code()
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	for next := cause(err); next != nil; next = cause(err) {
		err = next
	}
	return fmt.Sprintf("%T", err)
}

// cause is errors.Unwrap that also goes into the first branch of a joined error.
func cause(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return errors.Unwrap(err)
}
