package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// send delivers one event the way the dispatcher does.
func send(t *testing.T, url string, secrets ...string) error {
	t.Helper()
	hook, err := webhook.New(webhook.Config{URL: url + "/hook", Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hook.Close() }()
	return hook.Handle(t.Context(), event.Envelope{
		Event: event.Event{
			ID: "0197f1f0-0000-7000-8000-000000000001", Type: "order.placed",
			Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Payload: []byte(`{"total":7}`),
		},
		Handler: "billing", IdempotencyKey: "one-key", Attempt: 1,
	})
}

func TestShowsWhatArrived(t *testing.T) {
	var out strings.Builder
	server := httptest.NewServer(newReceiver(&out, secret))
	defer server.Close()
	for range 2 { // the second is a repeat of the same delivery
		if err := send(t, server.URL, secret); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var got []delivery
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].ID != "one-key" || got[0].Arrivals != 2 || !strings.Contains(string(got[0].Body), "order.placed") {
		t.Errorf("GET / shows %+v", got)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 || !strings.Contains(out.String(), "one-key arrival 2") {
		t.Errorf("printed:\n%s", out.String())
	}
}

func TestRefusesWhatIsNotSigned(t *testing.T) {
	server := httptest.NewServer(newReceiver(&strings.Builder{}, secret))
	defer server.Close()
	if err := send(t, server.URL); err == nil {
		t.Error("an unsigned delivery was accepted")
	}
	if err := send(t, server.URL, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"); err == nil {
		t.Error("a delivery signed with another secret was accepted")
	}
}
