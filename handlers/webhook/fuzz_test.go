package webhook

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

// FuzzRetryAfter reads answers of any receiver: the wait is between nothing and the limit.
func FuzzRetryAfter(f *testing.F) {
	f.Fuzz(func(t *testing.T, value, date string, limit int64) {
		if limit < 0 {
			return
		}
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		if d := retryAfter(h, time.Unix(1_700_000_000, 0), time.Duration(limit)); d < 0 || d > time.Duration(limit) {
			t.Errorf("retryAfter(%q, %q) = %v is outside of 0 … %v", value, date, d, time.Duration(limit))
		}
	})
}

// FuzzPercentEncode encodes any text: the result is plain, and decodes to the text.
func FuzzPercentEncode(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		got := percentEncode(s)
		if strings.ContainsFunc(got, func(r rune) bool { return r < 0x21 || r > 0x7e || r == '"' }) {
			t.Fatalf("percentEncode(%q) = %q is not plain", s, got)
		}
		back, err := url.PathUnescape(got)
		if err != nil || !utf8.ValidString(back) || utf8.ValidString(s) && back != s {
			t.Fatalf("%q decodes to %q, %v; want %q", got, back, err, s)
		}
	})
}

// FuzzParseSecret reads secrets: a key is of allowed length and has one spelling, and an error does not
// repeat the secret.
func FuzzParseSecret(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		key, err := parseSecret(s)
		if err != nil {
			if len(s) > 20 && strings.Contains(err.Error(), s) {
				t.Errorf("error %q repeats the secret", err)
			}
			return
		}
		if len(key) < minSecret || len(key) > maxSecret {
			t.Errorf("key of %d bytes accepted", len(key))
		}
		if again := secretPrefix + base64.StdEncoding.EncodeToString(key); again != s {
			t.Errorf("two spellings of one key: %q and %q", s, again)
		}
	})
}

// FuzzVerify checks what sign has signed: it verifies as it is, and not after any change of body, id or
// time, nor with a signature that was made up.
func FuzzVerify(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, key, body []byte, id, made string, flip uint16) {
		if len(key) < minSecret || len(key) > maxSecret || strings.TrimSpace(id) != id || id == "" {
			return
		}
		secret := secretPrefix + base64.StdEncoding.EncodeToString(key)
		h := http.Header{}
		sign(h, [][]byte{key}, id, now, body)
		if err := Verify(h, body, now.Add(tolerance), secret); err != nil {
			t.Fatalf("what was signed does not verify: %v", err)
		}
		refused := func(what string, h http.Header, body []byte, at time.Time) {
			t.Helper()
			if err := Verify(h, body, at, secret); !errors.Is(err, ErrSignature) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if len(body) > 0 {
			changed := bytes.Clone(body)
			changed[int(flip/8)%len(body)] ^= 1 << (flip % 8)
			refused("another body", h, changed, now)
		}
		refused("more body", h, append(bytes.Clone(body), 0), now)
		refused("too late", h, body, now.Add(tolerance+time.Second))
		other := h.Clone()
		other.Set(headerID, id+"x")
		refused("another id", other, body, now)
		other = h.Clone()
		other.Set(headerSignature, made)
		if !strings.Contains(made, strings.TrimRight(strings.TrimPrefix(h.Get(headerSignature), signatureVersion), "=")[:40]) {
			refused("a signature that was made up", other, body, now)
		}
	})
}

// FuzzTraceparent takes any text: what is let through is the text itself, and fits a header.
func FuzzTraceparent(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		if got := traceparent(s); got != "" && (got != s || len(got) != 55 || strings.Trim(got, "0123456789abcdef-") != "") {
			t.Fatalf("%q is let through as %q", s, got)
		}
	})
}

// FuzzTarget reads addresses: what is requested has a host, is HTTP and holds no password, and an
// error does not repeat the address.
func FuzzTarget(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw string) {
		target, authorization, err := parseTarget(raw)
		if err != nil {
			if len(raw) > 10 && strings.Contains(err.Error(), raw) {
				t.Errorf("%v repeats the address", err)
			}
			return
		}
		if target.User != nil || target.Fragment != "" || target.Hostname() == "" || target.Scheme != "http" && target.Scheme != "https" {
			t.Errorf("%q is requested as %s", raw, target)
		}
		again, err := url.Parse(target.String())
		if err != nil || again.Host != target.Host || again.User != nil {
			t.Errorf("%q is requested as %s, which reads as %v (%v)", raw, target, again, err)
		}
		if authorization != "" && !strings.HasPrefix(authorization, "Basic ") {
			t.Errorf("authorization %q", authorization)
		}
	})
}

// FuzzNetworks reads a network and asks the guard about an address: one that the network
// contains is refused in each form it can be written in.
func FuzzNetworks(f *testing.F) {
	f.Fuzz(func(t *testing.T, network, address string) {
		prefixes, err := parseNetworks([]string{network})
		if err != nil {
			return
		}
		if again, err := parseNetworks([]string{prefixes[0].String()}); err != nil || again[0] != prefixes[0] || prefixes[0] != prefixes[0].Masked() {
			t.Fatalf("%q reads as %s, which reads as %v (%v)", network, prefixes[0], again, err)
		}
		addr, err := netip.ParseAddr(address)
		if err != nil || !prefixes[0].Contains(addr.Unmap().WithZone("")) {
			return
		}
		g := guard{deny: prefixes}
		for _, form := range []netip.Addr{addr, addr.Unmap(), netip.AddrFrom16(addr.As16())} {
			if g.check(form) == nil {
				t.Errorf("%s is in %s, and is not refused", form, prefixes[0])
			}
		}
	})
}
