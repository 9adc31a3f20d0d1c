package event

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Handler reacts to events. Handle is called once per attempt; the same
// delivery may be attempted again after a failure, a crash or a lost lease, so
// effects outside the database must be idempotent (A92). Deliveries of one
// handler run concurrently and in no promised order (A93).
//
// Handle must return soon after ctx ends: its lease may be gone, and another
// process may already be running the delivery.
type Handler interface {
	Handle(ctx context.Context, e Envelope) error
}

// HandlerFunc lets a function be a [Handler].
type HandlerFunc func(ctx context.Context, e Envelope) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, e Envelope) error { return f(ctx, e) }

// Typed returns a [Handler] that decodes the payload into a T before it calls
// fn. A payload that does not decode is [Undecodable]: its delivery becomes
// BLOCKED with the reason, because trying again cannot help (M9).
func Typed[T any](fn func(ctx context.Context, e Envelope, payload T) error) Handler {
	return HandlerFunc(func(ctx context.Context, e Envelope) error {
		var payload T
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			return Undecodable(fmt.Errorf("decode payload of %s as %T: %w", e.Type, payload, describeDecode(err)))
		}
		return fn(ctx, e, payload)
	})
}

// describeDecode keeps the place and the expected type of a JSON error and
// drops the value, which may be a secret (C12, C70).
func describeDecode(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return fmt.Errorf("field %q wants %s, got a JSON %s at byte %d", typ.Field, typ.Type, jsonKind(typ.Value), typ.Offset)
	}
	var syn *json.SyntaxError
	if errors.As(err, &syn) {
		return fmt.Errorf("invalid JSON at byte %d", syn.Offset)
	}
	return errors.New("payload does not fit the type")
}

// jsonKind cuts "number 12345" down to "number".
func jsonKind(v string) string {
	for i := range len(v) {
		if v[i] == ' ' {
			return v[:i]
		}
	}
	return v
}

// IdempotencyKey derives the stable, dot-free key of one (event, handler) pair:
// "dlv_" and 32 hex digits of SHA-256 over both.
func IdempotencyKey(eventID, handler string) string {
	h := sha256.New()
	h.Write([]byte(eventID))
	h.Write([]byte{0})
	h.Write([]byte(handler))
	sum := h.Sum(nil)
	return "dlv_" + hex.EncodeToString(sum[:16])
}
