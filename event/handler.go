package event

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
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
//
// A JSON null does not decode into a struct: encoding/json would leave the
// struct empty, and fn would act on values that nobody sent. A T that has its
// own UnmarshalJSON, a pointer, a map and the like may receive null.
func Typed[T any](fn func(ctx context.Context, e Envelope, payload T) error) Handler {
	return HandlerFunc(func(ctx context.Context, e Envelope) error {
		var payload T
		if err := decode(e.Payload, &payload); err != nil {
			return Undecodable(fmt.Errorf("decode payload of %s as %s: %w", e.Type, reflect.TypeFor[T](), err))
		}
		return fn(ctx, e, payload)
	})
}

func decode(payload json.RawMessage, into any) error {
	if err := json.Unmarshal(payload, into); err != nil {
		return describeDecode(err)
	}
	_, own := into.(json.Unmarshaler)
	if !own && reflect.TypeOf(into).Elem().Kind() == reflect.Struct && bytes.Equal(bytes.TrimSpace(payload), []byte("null")) {
		return decodeError("payload is a JSON null")
	}
	return nil
}

// decodeError says where a payload failed to decode, without what was there.
type decodeError string

func (e decodeError) Error() string { return string(e) }

// Code implements [Coded].
func (decodeError) Code() string { return "decode" }

// describeDecode keeps the place and the expected type of a JSON error and
// drops the value, which may be a secret (C12, C70).
func describeDecode(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return decodeError(fmt.Sprintf("field %q wants %s, got a JSON %s at byte %d", typ.Field, typ.Type, jsonKind(typ.Value), typ.Offset))
	}
	var syn *json.SyntaxError
	if errors.As(err, &syn) {
		return decodeError(fmt.Sprintf("invalid JSON at byte %d", syn.Offset))
	}
	return decodeError("payload does not fit the type")
}

// jsonKind cuts "number 12345" down to "number".
func jsonKind(v string) string {
	kind, _, _ := strings.Cut(v, " ")
	return kind
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
