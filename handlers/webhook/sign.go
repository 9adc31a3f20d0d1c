package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of Standard Webhooks 1.0.0.
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
)

const (
	secretPrefix = "whsec_"
	minSecret    = 24
	maxSecret    = 64

	signatureVersion = "v1,"

	// tolerance is how far a request's timestamp may be from the receiver's clock.
	tolerance = 5 * time.Minute
)

// ErrSignature is wrapped by every error of [Verify] that is the request's fault.
var ErrSignature = errors.New("webhook signature does not verify")

// parseSecret returns the HMAC key of a "whsec_…" secret. Its errors never
// repeat the secret.
func parseSecret(s string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(s, secretPrefix)
	if !ok {
		return nil, fmt.Errorf("does not begin with %s", secretPrefix)
	}
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return nil, fmt.Errorf("is not standard base64 with padding after %s", secretPrefix)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("holds %d bytes; %d to %d are allowed", len(key), minSecret, maxSecret)
	}
	return key, nil
}

func parseSecrets(secrets []string) ([][]byte, error) {
	keys := make([][]byte, 0, len(secrets))
	for i, s := range secrets {
		key, err := parseSecret(s)
		if err != nil {
			return nil, fmt.Errorf("secret %d %w", i+1, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// signature is one entry of the signature header: HMAC-SHA256 over
// id "." timestamp "." body.
func signature(key []byte, id, timestamp string, body []byte) string {
	return signatureVersion + base64.StdEncoding.EncodeToString(mac(key, id, timestamp, body))
}

func mac(key []byte, id, timestamp string, body []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(id + "." + timestamp + "."))
	m.Write(body)
	return m.Sum(nil)
}

// sign sets the three headers. Without keys there is no signature header.
func sign(h http.Header, keys [][]byte, id string, now time.Time, body []byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	h.Set(headerID, id)
	h.Set(headerTimestamp, timestamp)
	if len(keys) == 0 {
		return
	}
	signatures := make([]string, len(keys))
	for i, key := range keys {
		signatures[i] = signature(key, id, timestamp, body)
	}
	h.Set(headerSignature, strings.Join(signatures, " "))
}

// Verify is for receivers: it returns nil if one of the signatures in h was
// made over body with one of the secrets ("whsec_…"), and the request's
// timestamp is within five minutes of now. Pass time.Now(), and the body exactly as it
// was received. Signatures of unknown versions are skipped; comparison takes
// the same time wherever the difference is.
//
// After it, h.Get("webhook-id") can be trusted: it is the same on every attempt
// of a delivery, so a receiver that has seen it may answer 2xx and do nothing.
//
// An error that wraps [ErrSignature] means that the request should be refused (401);
// another one means that a secret is malformed.
func Verify(h http.Header, body []byte, now time.Time, secrets ...string) error {
	keys, err := parseSecrets(secrets)
	if err != nil {
		return err
	}
	id, timestamp := h.Get(headerID), h.Get(headerTimestamp)
	if id == "" || timestamp == "" || h.Get(headerSignature) == "" {
		return fmt.Errorf("%w: a webhook- header is missing", ErrSignature)
	}
	sent, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: timestamp is no number", ErrSignature)
	}
	if off := now.Sub(time.Unix(sent, 0)); off > tolerance || off < -tolerance {
		return fmt.Errorf("%w: timestamp is further than %s from this clock", ErrSignature, tolerance)
	}
	for entry := range strings.FieldsSeq(h.Get(headerSignature)) {
		encoded, ok := strings.CutPrefix(entry, signatureVersion)
		if !ok {
			continue
		}
		got, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			continue
		}
		for _, key := range keys {
			if hmac.Equal(got, mac(key, id, timestamp, body)) {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: no signature matches", ErrSignature)
}
