package event_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

type orderPlaced struct {
	OrderID string `json:"order_id"`
	Total   int    `json:"total"`
}

// A handler with a typed payload. What it returns decides what happens to the
// delivery; a payload that is no orderPlaced never reaches it.
func ExampleTyped() {
	billing := event.Typed(func(ctx context.Context, e event.Envelope, o orderPlaced) error {
		fmt.Printf("charge %d for %s, key %s\n", o.Total, o.OrderID, e.IdempotencyKey)
		return nil
	})

	e := event.Envelope{
		Event:          event.Event{ID: "5f1c", Type: "order.placed", Payload: []byte(`{"order_id":"o-7","total":120}`)},
		Handler:        "billing",
		IdempotencyKey: event.IdempotencyKey("5f1c", "billing"),
	}
	fmt.Println("error:", billing.Handle(context.Background(), e))

	e.Payload = []byte(`{"order_id":"o-7","total":"a lot"}`)
	err := billing.Handle(context.Background(), e)
	class, _ := event.Classify(err)
	fmt.Println(class, "-", err)
	// Output:
	// charge 120 for o-7, key dlv_0ab32666a4382fa94dd64f201324194b
	// error: <nil>
	// undecodable - decode payload of order.placed as event_test.orderPlaced: field "total" wants int, got a JSON string at byte 33
}

var errCardGone = errors.New("card was cancelled")

// Errors of the outside world are sorted once, where they arise.
func ExamplePermanent() {
	charge := func(status int) error {
		switch status {
		case http.StatusOK:
			return nil
		case http.StatusGone:
			return event.Permanent(errCardGone)
		case http.StatusTooManyRequests:
			return event.RetryAfter(errors.New("bank is busy"), time.Minute)
		default:
			return fmt.Errorf("bank answered %d", status)
		}
	}
	for _, status := range []int{200, 410, 429, 500} {
		err := charge(status)
		if err == nil {
			fmt.Println(status, "done")
			continue
		}
		class, after := event.Classify(fmt.Errorf("charge: %w", err))
		fmt.Println(status, class, after)
	}
	// Output:
	// 200 done
	// 410 permanent 0s
	// 429 retry 1m0s
	// 500 retry 0s
}

// Snooze waits for something that is no failure, and costs no attempt.
func ExampleSnooze() {
	h := event.HandlerFunc(func(ctx context.Context, e event.Envelope) error {
		if e.Attempt == 1 {
			return event.Snooze(30 * time.Second)
		}
		return nil
	})
	for attempt := 1; attempt <= 2; attempt++ {
		fmt.Println(h.Handle(context.Background(), event.Envelope{Attempt: attempt}))
	}
	// Output:
	// snoozed for 30s
	// <nil>
}
