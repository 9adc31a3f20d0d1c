package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
)

func (d *decoder) handlers(c *Config, n *node, path string, def *defaults, source string) {
	d.list(n, path, func(n *node, path string) { d.handler(c, n, path, def, source) })
}

// handler decodes one handler. source names the source it stands in, empty at
// the top level.
func (d *decoder) handler(c *Config, n *node, path string, def *defaults, source string) {
	h := Handler{Concurrency: def.concurrency, Timeout: def.timeout, Retry: def.retry, path: path}
	fields := []field{
		required("name", d.text(&h.Name, nil)),
		optional("aliases", d.texts(&h.Aliases)).aka("alias"),
		required("on", d.texts(&h.On)).aka("events", "types", "topics", "event_types", "subscribe"),
		optional("when", d.text(&h.When, nil)).aka("if", "filter", "condition", "where"),
		optional("concurrency", d.whole(&h.Concurrency, 1, 10_000)).aka("workers", "parallelism"),
		optional("timeout", d.duration(&h.Timeout, 100*time.Millisecond, day, 0)),
		optional("retry", d.retry(&h.Retry)).aka("retries", "backoff"),
		optional(KindWebhook, func(n *node, path string) { h.Webhook = d.webhook(n, path) }).aka("http", "url"),
		optional(KindLogger, func(n *node, path string) { h.Logger = d.logger(n, path) }).aka("log", "stdout"),
	}
	if source == "" {
		fields = append(fields, optional("sources", d.texts(&h.Sources)).aka("source"))
	} else {
		h.Sources = []string{source}
	}
	if !d.object(n, path, fields...) {
		return
	}
	kinds := slices.DeleteFunc([]string{KindWebhook, KindLogger}, func(k string) bool { return !d.has(join(path, k)) })
	switch {
	case len(kinds) == 0:
		d.report(CodeHandlerKind, path, n.pos, "add one of: webhook:, logger:", "%s says nothing about what to do with an event", path)
	case len(kinds) > 1:
		d.report(CodeHandlerKind, path, d.posOf(join(path, kinds[1])), "make two handlers of it, each with a name of its own",
			"%s has more than one kind: %s", path, strings.Join(kinds, ", "))
	}
	if h.Webhook != nil {
		h.Webhook.Timeout = h.Timeout
		d.checkWebhook(*h.Webhook, join(path, KindWebhook))
	}
	c.Handlers = append(c.Handlers, h)
}

func (d *decoder) logger(n *node, path string) *Logger {
	l := &Logger{Level: LevelInfo}
	if n.kind == kindNull { // "logger:" alone says enough
		return l
	}
	d.object(n, path,
		optional("level", oneOf(d, &l.Level, LevelDebug, LevelInfo, LevelWarn, LevelError)),
		optional("payload", d.yesNo(&l.Payload)),
	)
	return l
}

func (d *decoder) webhook(n *node, path string) *webhook.Config {
	w := &webhook.Config{}
	var maxResponse int
	d.object(n, path,
		required("url", d.secretURL(&w.URL)).aka("endpoint", "target", "uri"),
		optional("format", oneOf(d, &w.Format, webhook.Envelope, webhook.Raw, webhook.CloudEvents, webhook.CloudEventsStructured)),
		optional("content_type", d.text(&w.ContentType, nil)),
		optional("source", d.text(&w.Source, nil)),
		optional("secrets", d.secrets(&w.Secrets)).aka("secret", "sign", "signing_secret", "signing"),
		optional("headers", d.headers(&w.Headers)),
		optional("permanent_on", d.statuses(&w.PermanentOn)),
		optional("max_retry_after", d.duration(&w.MaxRetryAfter, time.Second, day, 0)),
		optional("max_response", d.size(&maxResponse, 1, 16<<20)),
		optional("max_connections", d.whole(&w.MaxConns, 1, 10_000)),
		optional("allow_networks", d.texts(&w.AllowNetworks)),
		optional("deny_networks", d.texts(&w.DenyNetworks)),
		optional("public_only", d.yesNo(&w.PublicOnly)),
		optional("proxy", d.secretURL(&w.ProxyURL)),
		optional("ca_file", d.text(&w.CAFile, nil)),
		optional("cert_file", d.text(&w.CertFile, nil)),
		optional("key_file", d.text(&w.KeyFile, nil)),
	)
	w.MaxResponse = int64(maxResponse)
	return w
}

// secretURL decodes a URL, whose path or query may be a secret.
func (d *decoder) secretURL(dst *string) func(*node, string) { return d.secret(dst) }

func (d *decoder) secrets(dst *[]string) func(*node, string) {
	return func(n *node, path string) {
		if n.kind == kindScalar {
			d.report(CodeType, path, n.pos, `write a list: ["${NAME}"], or two items while a secret is being replaced`, "%s must be a list, got %s", path, n.describe())
			return
		}
		d.list(n, path, func(n *node, path string) {
			var s string
			d.secret(&s)(n, path)
			if s != "" {
				*dst = append(*dst, s)
			}
		})
	}
}

func (d *decoder) headers(dst *map[string]string) func(*node, string) {
	return func(n *node, path string) {
		if n.kind != kindMap {
			d.object(n, path, field{name: "Header-Name"})
			return
		}
		*dst = map[string]string{}
		for _, e := range n.entries {
			at := join(path, e.key)
			d.at[at] = e.value
			var value string
			d.secret(&value)(e.value, at)
			(*dst)[e.key] = value
		}
	}
}

func (d *decoder) statuses(dst *[]int) func(*node, string) {
	return func(n *node, path string) {
		*dst = []int{}
		d.list(n, path, func(n *node, path string) {
			status := 0
			d.whole(&status, 300, 599)(n, path)
			if status != 0 {
				*dst = append(*dst, status)
			}
		})
	}
}

// checkWebhook asks the webhook's own constructor about one setting after the
// other, so that each objection has its place, and then about all together.
func (d *decoder) checkWebhook(w webhook.Config, path string) {
	const anyURL = "https://receiver.example"
	try := func(setting string, cfg webhook.Config, advice string) {
		at := join(path, setting)
		if !d.has(at) || d.reported(at) {
			return
		}
		if cfg.URL == "" {
			cfg.URL = anyURL
		}
		d.objections(at, cfg, advice)
	}
	before := len(d.problems)
	allowed := w.AllowNetworks
	for i, network := range w.AllowNetworks {
		at := fmt.Sprintf("allow_networks[%d]", i)
		try(at, webhook.Config{AllowNetworks: []string{network}}, `write an address or a network, such as "10.0.0.0/8"`)
		if d.reported(join(path, at)) {
			allowed = nil // or the URL would be blamed for it
		}
	}
	try("url", webhook.Config{URL: w.URL, AllowNetworks: allowed}, "write the receiver's address: https://host/path")
	try("content_type", webhook.Config{ContentType: w.ContentType}, "write a media type, such as application/json")
	try("source", webhook.Config{Source: w.Source}, "write a URI or a path, such as /orders")
	for i, s := range w.Secrets {
		try(fmt.Sprintf("secrets[%d]", i), webhook.Config{Secrets: []string{s}},
			`a secret is "whsec_" and the base64 of 24 to 64 bytes; make one with: printf 'whsec_%s\n' "$(openssl rand -base64 32)"`)
	}
	for name, value := range w.Headers {
		try("headers."+name, webhook.Config{Headers: map[string]string{name: value}}, "use another header, or another value")
	}
	for i, network := range w.DenyNetworks {
		try(fmt.Sprintf("deny_networks[%d]", i), webhook.Config{DenyNetworks: []string{network}}, `write an address or a network, such as "10.0.0.0/8"`)
	}
	try("proxy", webhook.Config{ProxyURL: w.ProxyURL}, "write http://host:port")
	try("ca_file", webhook.Config{CAFile: w.CAFile}, "name a file with PEM certificates")
	for _, name := range []string{"cert_file", "key_file"} {
		if d.has(join(path, name)) {
			try(name, webhook.Config{CertFile: w.CertFile, KeyFile: w.KeyFile}, "name both, a PEM certificate and its key")
			break
		}
	}
	if len(d.problems) == before && w.URL != "" {
		d.objections(path, w, "see the webhook's settings in the configuration reference")
	}
}

// objections reports what the constructor has against cfg, at a setting.
func (d *decoder) objections(at string, cfg webhook.Config, advice string) {
	made, err := webhook.New(cfg)
	if err == nil {
		_ = made.Close() // nothing was connected; documented to return nil
		return
	}
	for _, one := range flatten(err) {
		d.report(CodeHandler, at, d.posOf(at), advice, "%s: %s", at, one)
	}
}

// flatten lists the errors that were joined, without what they were wrapped in.
func flatten(err error) []error {
	for err != nil {
		switch x := err.(type) { //nolint:errorlint // walks the tree itself
		case interface{ Unwrap() []error }:
			var all []error
			for _, e := range x.Unwrap() {
				all = append(all, flatten(e)...)
			}
			return all
		case interface{ Unwrap() error }:
			if inner := x.Unwrap(); inner != nil && isJoined(inner) {
				err = inner
				continue
			}
			return []error{err}
		default:
			return []error{err}
		}
	}
	return nil
}

// isJoined says whether several errors hide somewhere below err.
func isJoined(err error) bool {
	for err != nil {
		switch x := err.(type) { //nolint:errorlint // walks the tree itself
		case interface{ Unwrap() []error }:
			return true
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		default:
			return false
		}
	}
	return false
}
