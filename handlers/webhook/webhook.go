package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

const (
	userAgent = "cdc-dispatcher"

	// Bounds inside Config.Timeout, so that one step cannot use it all up.
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second

	// readGrace is how long the body of an answer may keep the attempt: its status
	// is known by then, only the reuse of the connection and the text for people depend on it.
	readGrace = 2 * time.Second

	idleTimeout       = 90 * time.Second
	maxResponseHeader = 64 << 10

	// An HTTP/2 connection whose peer has vanished would fail every attempt in turn
	// until TCP notices; a ping finds out.
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
)

// Webhook is an [event.Handler] that posts each event to one receiver. It is safe
// for concurrent use.
type Webhook struct {
	cfg       Config
	target    *url.URL
	host      string
	header    http.Header
	keys      [][]byte
	dialer    *net.Dialer
	transport *http.Transport
	now       func() time.Time
}

var _ event.Handler = (*Webhook)(nil)

// New checks cfg and returns its Webhook, or an error that names everything wrong
// with it and repeats no secret. It reads the certificate files and connects to nothing.
func New(cfg Config) (*Webhook, error) {
	cfg = cfg.withDefaults()
	target, authorization, targetErr := parseTarget(cfg.URL)
	proxy, proxyErr := parseProxy(cfg.ProxyURL)
	keys, keysErr := parseSecrets(cfg.Secrets)
	g, guardErr := newGuard(cfg)
	tlsConfig, tlsErr := cfg.tlsConfig()
	if targetErr == nil && guardErr == nil {
		targetErr = checkLiteral(target.Hostname(), g)
	}
	if err := errors.Join(targetErr, cfg.validate(), keysErr, guardErr, proxyErr, tlsErr); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}

	header := http.Header{"User-Agent": {userAgent}}
	if authorization != "" {
		header.Set("Authorization", authorization)
	}
	for name, value := range cfg.Headers {
		header.Set(name, value)
	}
	dialer := &net.Dialer{Timeout: dialTimeout, Control: g.control}
	return &Webhook{
		cfg: cfg, target: target, host: hostPort(target), header: header, keys: keys, dialer: dialer, now: time.Now,
		transport: &http.Transport{
			Proxy:               proxy,
			DialContext:         dialer.DialContext,
			TLSClientConfig:     tlsConfig,
			TLSHandshakeTimeout: handshakeTimeout,
			// Not needed, and an answer cannot be a compressed bomb.
			DisableCompression: true,
			MaxConnsPerHost:    cfg.MaxConns,
			// As many as connections, so that a burst does not close and dial again.
			MaxIdleConns:           cfg.MaxConns,
			MaxIdleConnsPerHost:    cfg.MaxConns,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxResponseHeader,
			// A dialer of one's own turns HTTP/2 off otherwise.
			ForceAttemptHTTP2: true,
			HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		},
	}, nil
}

// Handle sends one request for e and returns what its answer means, see the package
// documentation. The error is, or wraps, an *[Error].
func (w *Webhook) Handle(ctx context.Context, e event.Envelope) error {
	header := w.header.Clone()
	body, err := w.render(e, header)
	if err != nil {
		return event.Undecodable(&Error{code: codeNotJSON, host: w.host, text: err.Error()})
	}
	sign(header, w.keys, e.IdempotencyKey, w.now(), body)
	if tp := traceparent(e.Traceparent); tp != "" {
		header.Set(headerTraceparent, tp)
	}
	return w.post(ctx, header, body)
}

// post makes the round trip. The transport is used as it is, without http.Client:
// then there is no code that could follow a redirect, and no cookie or proxy that was not configured.
func (w *Webhook) post(parent context.Context, header http.Header, body []byte) error {
	ctx, cancel := context.WithTimeout(parent, w.cfg.Timeout)
	defer cancel()
	var handshake atomic.Pointer[error]
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			if err != nil {
				handshake.Store(&err)
			}
		},
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.target.String(), bytes.NewReader(body))
	if err != nil {
		return &Error{code: codeConnection, host: w.host, text: "request cannot be built", cause: err}
	}
	req.Header = header

	resp, err := w.transport.RoundTrip(req)
	if err != nil {
		var tlsErr error
		if p := handshake.Load(); p != nil {
			tlsErr = *p
		}
		return transportError(parent, w.host, err, tlsErr)
	}
	defer func() { _ = resp.Body.Close() }() // it was read, or cut off on purpose
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// Nobody asked for that. What follows is the bare connection, which no context ends.
		return w.failure(resp, "")
	}
	text := w.readBody(resp.Body, cancel)
	if resp.StatusCode/100 == 2 {
		return nil
	}
	return w.failure(resp, text)
}

// failure says what an answer other than 2xx asks for.
func (w *Webhook) failure(resp *http.Response, text string) error {
	err := statusError(w.host, resp, text)
	if slices.Contains(w.cfg.PermanentOn, resp.StatusCode) {
		return event.Permanent(err)
	}
	if after := retryAfter(resp.Header, w.now(), w.cfg.MaxRetryAfter); after > 0 {
		return event.RetryAfter(err, after)
	}
	return err
}

// readBody reads the body of an answer for as long as it is short and prompt.
// Neither length, slowness nor an early end changes what the status said.
func (w *Webhook) readBody(body io.Reader, cancel context.CancelFunc) string {
	stop := time.AfterFunc(readGrace, cancel)
	defer stop.Stop()
	b, _ := io.ReadAll(io.LimitReader(body, w.cfg.MaxResponse+1))
	if int64(len(b)) > w.cfg.MaxResponse {
		return fmt.Sprintf("(answer longer than %d bytes)", w.cfg.MaxResponse)
	}
	return printable(b)
}

// Close closes the connections that no request is using. Call it after the last
// Handle; it returns nil.
func (w *Webhook) Close() error {
	w.transport.CloseIdleConnections()
	return nil
}

// String names the receiver by host and port only.
func (w *Webhook) String() string { return "webhook " + w.host }

// String names the receiver by host and port only.
func (cfg Config) String() string {
	target, _, err := parseTarget(cfg.URL)
	if err != nil {
		return "webhook"
	}
	return "webhook " + hostPort(target)
}

// LogValue implements [slog.LogValuer], so that no handler logs the secrets.
func (cfg Config) LogValue() slog.Value { return slog.StringValue(cfg.String()) }
