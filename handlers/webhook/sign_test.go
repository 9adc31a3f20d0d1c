package webhook

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The published check vector of Standard Webhooks.
const (
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTime      = 1614265330
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func secret(b byte) string {
	return secretPrefix + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))
}

func mustKeys(t testing.TB, secrets ...string) [][]byte {
	t.Helper()
	keys, err := parseSecrets(secrets)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestStandardWebhooks_Vector(t *testing.T) {
	h := http.Header{}
	sign(h, mustKeys(t, vectorSecret), vectorID, time.Unix(vectorTime, 999), []byte(vectorBody))
	for name, want := range map[string]string{
		"webhook-id": vectorID, "webhook-timestamp": "1614265330", "webhook-signature": vectorSignature,
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if err := Verify(h, []byte(vectorBody), time.Unix(vectorTime, 0), vectorSecret); err != nil {
		t.Errorf("Verify refuses the vector: %v", err)
	}
}

func TestSign_WithoutSecretsStillIdentifies(t *testing.T) {
	h := http.Header{}
	sign(h, nil, "dlv_1", time.Unix(7, 0), nil)
	if h.Get("webhook-id") != "dlv_1" || h.Get("webhook-timestamp") != "7" || h.Values("webhook-signature") != nil {
		t.Errorf("headers = %v", h)
	}
}

func TestVerify(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	body := []byte(`{"a":1}`)
	oldKey, newKey := secret(1), secret(2)
	signed := func(at time.Time, secrets ...string) http.Header {
		h := http.Header{}
		sign(h, mustKeys(t, secrets...), "dlv_1", at, body)
		return h
	}
	edit := func(h http.Header, name, value string) http.Header { h.Set(name, value); return h }
	good := signed(now, oldKey).Get("webhook-signature")

	for _, c := range []struct {
		name    string
		header  http.Header
		body    []byte
		secrets []string
		ok      bool
	}{
		{"same secret", signed(now, oldKey), body, []string{oldKey}, true},
		{"rotation: receiver still has the old one", signed(now, newKey, oldKey), body, []string{oldKey}, true},
		{"rotation: receiver already has the new one", signed(now, newKey, oldKey), body, []string{newKey}, true},
		{"receiver accepts two", signed(now, oldKey), body, []string{newKey, oldKey}, true},
		{"five minutes old", signed(now.Add(-5*time.Minute), oldKey), body, []string{oldKey}, true},
		{"five minutes ahead", signed(now.Add(5*time.Minute), oldKey), body, []string{oldKey}, true},
		{"unknown versions and junk are skipped", edit(signed(now, oldKey), "webhook-signature", "v1a,xx v2, , v1,?? "+good), body, []string{oldKey}, true},

		{"older than five minutes", signed(now.Add(-5*time.Minute-time.Second), oldKey), body, []string{oldKey}, false},
		{"further ahead than five minutes", signed(now.Add(5*time.Minute+time.Second), oldKey), body, []string{oldKey}, false},
		{"other secret", signed(now, oldKey), body, []string{newKey}, false},
		{"no secret", signed(now, oldKey), body, nil, false},
		{"body changed", signed(now, oldKey), []byte(`{"a":2}`), []string{oldKey}, false},
		{"id changed", edit(signed(now, oldKey), "webhook-id", "dlv_2"), body, []string{oldKey}, false},
		{"timestamp changed", edit(signed(now, oldKey), "webhook-timestamp", "1700000001"), body, []string{oldKey}, false},
		{"timestamp is no number", edit(signed(now, oldKey), "webhook-timestamp", "now"), body, []string{oldKey}, false},
		{"timestamp of the far future", edit(signed(now, oldKey), "webhook-timestamp", "9223372036854775807"), body, []string{oldKey}, false},
		{"timestamp of the far past", edit(signed(now, oldKey), "webhook-timestamp", "-9223372036854775808"), body, []string{oldKey}, false},
		{"no signature", signed(now), body, []string{oldKey}, false},
		{"no id", edit(signed(now, oldKey), "webhook-id", ""), body, []string{oldKey}, false},
		{"signature without version", edit(signed(now, oldKey), "webhook-signature", strings.TrimPrefix(good, "v1,")), body, []string{oldKey}, false},
		{"signature cut", edit(signed(now, oldKey), "webhook-signature", good[:len(good)-5]), body, []string{oldKey}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Verify(c.header, c.body, now, c.secrets...)
			if c.ok && err != nil || !c.ok && !errors.Is(err, ErrSignature) {
				t.Errorf("Verify = %v", err)
			}
		})
	}
}

func TestVerify_MalformedSecretIsNotTheRequestsFault(t *testing.T) {
	err := Verify(http.Header{}, nil, time.Now(), "whsec_tooshort")
	if err == nil || errors.Is(err, ErrSignature) {
		t.Errorf("Verify = %v", err)
	}
}

func TestParseSecret(t *testing.T) {
	sized := func(n int) string { return secretPrefix + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, c := range []struct {
		name, secret string
		ok           bool
	}{
		{"vector", vectorSecret, true},
		{"24 bytes", sized(24), true},
		{"64 bytes", sized(64), true},
		{"23 bytes", sized(23), false},
		{"65 bytes", sized(65), false},
		{"empty", "", false},
		{"prefix only", "whsec_", false},
		{"no prefix", strings.TrimPrefix(vectorSecret, "whsec_"), false},
		{"asymmetric secret", "whsk_" + strings.TrimPrefix(vectorSecret, "whsec_"), false},
		{"no padding", strings.TrimRight(sized(25), "="), false},
		{"URL alphabet", secretPrefix + base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 24)), false},
		{"line break", vectorSecret + "\n", false},
		{"trailing bits", secretPrefix + strings.Repeat("A", 33) + "B==", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseSecret(c.secret)
			if (err == nil) != c.ok {
				t.Fatalf("parseSecret = %v", err)
			}
			if err != nil && len(c.secret) > 10 && strings.Contains(err.Error(), c.secret[8:]) {
				t.Errorf("error %q repeats the secret", err)
			}
		})
	}
}
