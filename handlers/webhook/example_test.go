package webhook_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
)

// A receiver verifies before it looks, and treats webhook-id as idempotency key.
func ExampleVerify() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		if err := webhook.Verify(r.Header, body, time.Now(), secret); err != nil {
			http.Error(w, "not for me", http.StatusUnauthorized)
			return
		}
		fmt.Printf("%s\n", body)
	}))
	defer receiver.Close()

	hook, err := webhook.New(webhook.Config{URL: receiver.URL, Secrets: []string{secret}})
	if err != nil {
		panic(err)
	}
	defer hook.Close()
	err = hook.Handle(context.Background(), event.Envelope{
		Event:          event.Event{ID: "5f1c", Type: "order.placed", Payload: []byte(`{"order_id": "o-7"}`)},
		IdempotencyKey: event.IdempotencyKey("5f1c", "billing"),
	})
	fmt.Println("error:", err)
	// Output:
	// {"id":"5f1c","type":"order.placed","data":{"order_id": "o-7"}}
	// error: <nil>
}

// What an attempt met is a code, fit for a column, a metric or a log line.
func ExampleError() {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer receiver.Close()

	hook, err := webhook.New(webhook.Config{URL: receiver.URL, Format: webhook.Raw})
	if err != nil {
		panic(err)
	}
	defer hook.Close()
	err = hook.Handle(context.Background(), event.Envelope{})
	_, after := event.Classify(err)
	fmt.Println(event.Code(err), after)
	// Output:
	// http_503 2m0s
}
