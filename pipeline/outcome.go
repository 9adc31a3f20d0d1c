package pipeline

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// ErrLeaseLost is the cause of a handler's context (see [context.Cause]) that
// ends because this process does not hold the delivery's lease any more, or
// cannot be sure that it does. Another process may be running the delivery.
var ErrLeaseLost = errors.New("the delivery's lease is lost")

// ErrStopping is the cause of a handler's context that ends because the pipeline
// stops and Config.ShutdownTimeout is over. The attempt is given back.
var ErrStopping = errors.New("the pipeline is stopping")

// Limits on the text that an outcome carries into the database, in bytes.
const (
	maxMessage = 500
	maxCode    = 100
)

// Codes of attempts that ended without the handler returning what it meant to.
const (
	codePanic   = "panic"
	codeGoexit  = "goexit"
	codeTimeout = "timeout"
)

// panicError is a handler's panic as an error; what was thrown may carry
// personal data and is kept apart from the text.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return "the handler panicked" }
func (e *panicError) Code() string  { return codePanic }

// goexitError says that the handler ended its goroutine (runtime.Goexit, or a
// test's FailNow).
type goexitError struct{}

func (goexitError) Error() string { return "the handler ended its goroutine" }
func (goexitError) Code() string  { return codeGoexit }

// judge turns the end of an attempt into what is written about it. It reads no
// clock and does no I/O.
type judge struct {
	messages bool
	random   func() float64
}

// outcome judges what the handler returned. cause is the cause of the
// handler's context at that moment, nil while the context was alive.
//
// The methods of err are the handler author's code; if they panic, the attempt
// did.
func (j judge) outcome(of *job, err, cause error) (o delivery.Outcome) {
	o = delivery.Outcome{ID: of.id, Token: of.token, Attempt: of.claims}
	if err == nil {
		o.Verdict = delivery.Success
		return o
	}
	defer func() {
		if p := recover(); p != nil {
			o.Reason, o.Message, o.Error = "", "", codePanic
			j.retry(&o, of, 0)
		}
	}()
	class, after := event.Classify(err)
	if interrupted(err, class, cause) {
		o.Verdict = delivery.GiveBack
		return o
	}
	o.Error = clip(event.Code(err), maxCode)
	if j.messages {
		o.Message = clip(redact(err.Error()), maxMessage)
	}
	switch class {
	case event.ClassPermanent:
		o.Verdict, o.Reason = delivery.Fail, delivery.ReasonPermanent
	case event.ClassUndecodable:
		o.Verdict, o.Reason = delivery.Block, delivery.ReasonUndecodable
	case event.ClassSnooze:
		return delivery.Outcome{ID: o.ID, Token: o.Token, Attempt: o.Attempt, Verdict: delivery.GiveBack, Delay: min(after, maxSnooze)}
	case event.ClassCancel:
		return delivery.Outcome{ID: o.ID, Token: o.Token, Attempt: o.Attempt, Verdict: delivery.Discard, Reason: clip(event.Reason(err), maxMessage)}
	default:
		if errors.Is(cause, context.DeadlineExceeded) {
			o.Error = codeTimeout
		}
		j.retry(&o, of, after)
	}
	return o
}

// retry fills in when the delivery is due again, and the limits that the store
// checks it against.
func (j judge) retry(o *delivery.Outcome, of *job, after time.Duration) {
	p := of.sub.Retry
	o.Verdict = delivery.Retry
	o.Delay = p.delay(of.attempts+1, after, j.random)
	o.Window, o.MaxAttempts = p.window(), p.MaxAttempts
}

// interrupted says whether an attempt failed because this process took its
// context away: that is no fault of the delivery, so its attempt is given back
// (queues 23). A panic is a fault at any time, and a class that the handler
// chose on purpose is believed, unless it only carries the cancellation.
func interrupted(err error, class event.Class, cause error) bool {
	if !errors.Is(cause, ErrStopping) && !errors.Is(cause, ErrLeaseLost) {
		return false
	}
	var p *panicError
	if errors.As(err, &p) || errors.As(err, new(goexitError)) {
		return false
	}
	return class == event.ClassRetry || errors.Is(err, context.Canceled)
}

// userInfo and secretish find what must not get into a table: user information
// in URLs, and values that follow a word for a secret.
var (
	userInfo  = regexp.MustCompile(`://[^/\s@]+@`)
	secretish = regexp.MustCompile(`(?i)((?:password|passwd|pwd|secret|token|api[_-]?key|authorization)["']?\s*[=:]\s*["']?(?:(?:bearer|basic)\s+)?)[^\s"',;&]+|(bearer\s+)[^\s"',;&]+`)
)

// redact removes credentials from a message. It is a second line of defence: a
// handler should not put them there.
func redact(s string) string {
	const enough = 8 * maxMessage
	if len(s) > enough {
		s = s[:enough]
	}
	return secretish.ReplaceAllString(userInfo.ReplaceAllString(s, "://***@"), "${1}${2}***")
}

// clip makes s fit to be stored: valid UTF-8 without NUL, at most n bytes.
func clip(s string, n int) string {
	if len(s) > 2*n {
		s = s[:2*n]
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
