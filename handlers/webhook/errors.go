package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// Codes of the failures without an answer, see [Error.Code]. One with an answer is
// "http_" and its status.
const (
	codeTimeout    = "timeout"
	codeDNS        = "dns"
	codeDial       = "dial"
	codeTLS        = "tls"
	codeRefused    = "address_refused"
	codeConnection = "connection"
	codeCanceled   = "canceled"
	codeNotJSON    = "not_json"
)

// Error says why an attempt failed. Its text holds the receiver's host and port and
// nothing else of the URL; neither header nor secret nor payload, nor what the receiver sent.
type Error struct {
	// Status is the answer's HTTP status; 0 without an answer.
	Status int
	// Response is the answer's body as text, or a note when it was longer than
	// Config.MaxResponse. It is the receiver's text and may repeat the payload:
	// show it to operators, do not log it.
	Response string

	code, host, text string
	cause            error
}

var _ event.Coded = (*Error)(nil)

// Code implements [event.Coded]: "http_503", "http_302", "timeout", "dns", "dial",
// "tls", "address_refused", "connection" (it broke before the answer, or the answer
// was not HTTP), "canceled" or "not_json".
func (e *Error) Code() string { return e.code }

func (e *Error) Error() string { return "webhook " + e.host + ": " + e.text }

// Unwrap returns the cause; nil when the receiver answered.
func (e *Error) Unwrap() error { return e.cause }

func statusError(host string, resp *http.Response, body string) *Error {
	text := fmt.Sprintf("answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	if resp.StatusCode/100 == 3 {
		text += "; redirects are not followed"
	}
	return &Error{
		Status: resp.StatusCode, Response: body,
		code: "http_" + strconv.Itoa(resp.StatusCode), host: host, text: strings.TrimRight(text, " "),
	}
}

// transportError classifies the error of a round trip without an answer.
// handshake is the error of the TLS handshake that this request started, if any.
func transportError(ctx context.Context, host string, err, handshake error) *Error {
	e := &Error{host: host, cause: err}
	var refused *refusedAddressError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		e.code, e.text = codeCanceled, "stopped before an answer"
	case errors.As(err, &refused):
		e.code, e.text = codeRefused, refused.Error()
	case errors.As(err, &dns):
		e.code, e.text = codeDNS, dns.Error()
	case isTimeout(err):
		e.code, e.text = codeTimeout, "no answer in time"
		if errors.As(err, &op) && op.Op == "dial" {
			e.text = "no connection in time"
		}
	case handshake != nil:
		e.code, e.text = codeTLS, "TLS: "+handshake.Error()
	case errors.As(err, &op) && op.Op == "remote error":
		// In TLS 1.3 the server looks at a client certificate after our handshake.
		e.code, e.text = codeTLS, "TLS: "+op.Error()
	case errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		e.code, e.text = codeDial, op.Error()
	default:
		e.code, e.text = codeConnection, connectionText(err)
	}
	return e
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// connectionText has fixed words only: net/http quotes the receiver's bytes in some
// of its errors.
func connectionText(err error) string {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed before an answer"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset before an answer"
	default:
		return "connection broke, or what answered is no HTTP server"
	}
}

// printable makes text of a body that may be anything.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, string(b))
}
