package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Format is the shape of the request body.
type Format string

// The formats.
const (
	// Envelope wraps the payload: {"id", "type", "timestamp", …, "data"}, as
	// Standard Webhooks advises. It is the default.
	Envelope Format = "envelope"
	// Raw sends the payload's bytes and nothing else. The only format that takes
	// a payload which is not JSON.
	Raw Format = "raw"
	// CloudEvents sends the payload's bytes as body and the event's attributes as
	// ce- headers (CloudEvents 1.0, binary mode).
	CloudEvents Format = "cloudevents"
	// CloudEventsStructured sends one JSON document with attributes and data
	// (CloudEvents 1.0, structured mode).
	CloudEventsStructured Format = "cloudevents_structured"
)

// Config describes one receiver. URL is required; the zero value of every other
// field is its default.
type Config struct {
	// URL is the receiver, http or https. A user and password in it are sent as
	// basic authentication.
	URL string
	// Format of the body. Default [Envelope].
	Format Format
	// ContentType of the body in format [Raw]; the other formats have their own.
	// Default "application/json".
	ContentType string
	// Source is the CloudEvents attribute source, a URI reference. Default:
	// "/cdc-dispatcher", followed by the event's namespace if it has one.
	Source string
	// Secrets sign the request. Each is "whsec_" and the base64 of 24 to 64 bytes.
	// While a secret is being replaced, list the new and the old one: every
	// request is signed with all of them and the receiver accepts any. Default: no signature.
	Secrets []string
	// Headers are added to every request. Names that this package sets itself
	// (webhook-…, ce-…, content-type, traceparent) and those of the connection are refused.
	Headers map[string]string

	// Timeout of one attempt, from dialling to the status line. Default 15 s. An
	// earlier deadline of Handle's context ends the attempt too.
	Timeout time.Duration
	// PermanentOn lists the statuses that no further attempt can mend, 300 to 599.
	// Nil means 410 alone: it is the one by which a receiver says that it wants no
	// more; all else, a 400 or 404 in the middle of a bad deployment included,
	// is tried again. Empty and not nil means none.
	PermanentOn []int
	// MaxRetryAfter bounds what a Retry-After can ask for. Default 24 h.
	MaxRetryAfter time.Duration
	// MaxResponse is the most bytes read of an answer's body, for [Error.Response] and to
	// keep the connection; a longer one costs the connection. Default 20 KiB.
	MaxResponse int64
	// MaxConns bounds the connections to the receiver; requests beyond wait for
	// one inside their timeout. Default 64.
	MaxConns int

	// AllowNetworks lists addresses and networks ("10.0.0.0/8", "169.254.10.1") that are
	// allowed although a default or PublicOnly refuses them. A network opens those that are refused
	// always only if it holds nothing else: "169.254.0.0/16", not "0.0.0.0/0".
	AllowNetworks []string
	// DenyNetworks lists those that are refused, whatever else allows them.
	DenyNetworks []string
	// PublicOnly refuses loopback, private, shared and reserved networks too. Set
	// it where targets come from people you do not trust. Refused always, unless
	// listed by themselves in AllowNetworks: link-local, multicast, unspecified
	// and cloud metadata addresses.
	PublicOnly bool

	// ProxyURL sends requests through an HTTP proxy. HTTP_PROXY and its kin are not
	// read: events go where this configuration says and nowhere else. With a proxy the
	// address guard sees the proxy's address only, so PublicOnly refuses it.
	ProxyURL string
	// CAFile holds PEM certificates to trust instead of the system's. TLS is 1.2 or later.
	CAFile string
	// CertFile and KeyFile are a PEM client certificate and its key. They are read at
	// every handshake, so a renewed certificate needs no restart.
	CertFile, KeyFile string
}

const (
	defaultTimeout       = 15 * time.Second
	defaultMaxRetryAfter = 24 * time.Hour
	defaultMaxResponse   = 20 << 10
	defaultMaxConns      = 64
)

// withDefaults returns cfg with its zero values filled in.
func (cfg Config) withDefaults() Config {
	if cfg.Format == "" {
		cfg.Format = Envelope
	}
	if cfg.ContentType == "" {
		cfg.ContentType = contentJSON
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.PermanentOn == nil {
		cfg.PermanentOn = []int{http.StatusGone}
	}
	if cfg.MaxRetryAfter == 0 {
		cfg.MaxRetryAfter = defaultMaxRetryAfter
	}
	if cfg.MaxResponse == 0 {
		cfg.MaxResponse = defaultMaxResponse
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = defaultMaxConns
	}
	return cfg
}

// validate names everything that is wrong at once. No message repeats a value
// that may hold a secret.
func (cfg Config) validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(!slices.Contains([]Format{Envelope, Raw, CloudEvents, CloudEventsStructured}, cfg.Format),
		"format %q is unknown; use %s, %s, %s or %s", cfg.Format, Envelope, Raw, CloudEvents, CloudEventsStructured)
	refuse(!validHeaderValue(cfg.ContentType), "content type %q is not a header value", cfg.ContentType)
	if cfg.Source != "" {
		_, err := url.Parse(cfg.Source)
		refuse(err != nil, "source %q is no URI reference", cfg.Source)
	}
	refuse(cfg.Timeout < 0, "timeout %s is negative", cfg.Timeout)
	refuse(cfg.MaxRetryAfter < 0, "max retry-after %s is negative", cfg.MaxRetryAfter)
	refuse(cfg.MaxResponse < 0, "max response %d is negative", cfg.MaxResponse)
	refuse(cfg.MaxConns < 0, "max connections %d is negative", cfg.MaxConns)
	for _, status := range cfg.PermanentOn {
		refuse(status < 300 || status > 599, "permanent status %d is not between 300 and 599", status)
	}
	seen := map[string]bool{}
	for name, value := range cfg.Headers {
		canonical := http.CanonicalHeaderKey(name)
		refuse(seen[canonical], "header %s is listed twice, in different case", canonical)
		seen[canonical] = true
		refuse(!validHeaderName(name), "header name %q has characters that HTTP does not allow", name)
		refuse(!validHeaderValue(value), "header %s has a value that HTTP does not allow", name)
		refuse(reservedHeader(name), "header %s is set by the webhook itself or by HTTP", name)
	}
	refuse(cfg.PublicOnly && cfg.ProxyURL != "", "public-only cannot be kept through a proxy: the guard would see the proxy's address, not the target's")
	return errors.Join(errs...)
}

// parseTarget splits a URL into what is requested and the basic authentication
// that it carries. Its errors never repeat the URL.
func parseTarget(raw string) (target *url.URL, authorization string, err error) {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		return nil, "", errors.New("url is missing")
	case err != nil:
		return nil, "", errors.New("url cannot be parsed")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "", errors.New("url must begin with http:// or https://")
	case u.Hostname() == "":
		return nil, "", errors.New("url has no host")
	}
	if u.User != nil {
		password, _ := u.User.Password()
		authorization = basicAuth(u.User.Username(), password)
		u.User = nil
	}
	u.Fragment, u.RawFragment = "", ""
	return u, authorization, nil
}

func parseProxy(raw string) (func(*http.Request) (*url.URL, error), error) {
	if raw == "" {
		return nil, nil
	}
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, errors.New("proxy must be an http:// or https:// URL")
	}
	return http.ProxyURL(u), nil
}

// tlsConfig reads the files once, so that a mistake shows at start.
func (cfg Config) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s holds no PEM certificate", cfg.CAFile)
		}
	}
	if cfg.CertFile != "" || cfg.KeyFile != "" {
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
			return &cert, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return c, nil
}

// reservedHeader says whether name would fight with what this package or
// net/http sends.
func reservedHeader(name string) bool {
	name = strings.ToLower(name)
	if strings.HasPrefix(name, "webhook-") || strings.HasPrefix(name, "ce-") {
		return true
	}
	switch name {
	case "content-type", "content-length", "content-encoding", "traceparent", "host", "connection", "keep-alive",
		"transfer-encoding", "te", "trailer", "upgrade", "expect", "proxy-authorization", "proxy-connection":
		return true
	}
	return false
}

// validHeaderName says whether name is a token of RFC 9110.
func validHeaderName(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}) < 0
}

// validHeaderValue says whether v can be a header value: no control characters, so
// that nothing in it can end the header.
func validHeaderValue(v string) bool {
	return strings.IndexFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0
}

// checkLiteral refuses a target whose host is an address that the guard would
// refuse at every attempt.
func checkLiteral(host string, g guard) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		return g.check(ip)
	}
	return nil // a name: it is checked when it is dialled
}

// hostPort is the part of the target that errors may show.
func hostPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	if u.Scheme == "https" {
		return net.JoinHostPort(u.Hostname(), "443")
	}
	return net.JoinHostPort(u.Hostname(), "80")
}
