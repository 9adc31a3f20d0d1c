package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// poison is one bad event, and how the deliveries of it end: "STATE reason" by handler.
type poison struct {
	eventType, payload string
	want               map[string]string
}

const done = "SUCCEEDED "

func poisons(maxPayload int) []poison {
	return []poison{
		{"poison.panic", `{"total": 1}`, map[string]string{"steady": done, "fragile": "DEAD attempts", "choosy": done}},
		{"poison.goexit", `{"total": 1}`, map[string]string{"steady": done, "fragile": "DEAD attempts", "choosy": done}},
		{"poison.hang", `{"total": 1}`, map[string]string{"steady": done, "fragile": "DEAD attempts", "choosy": done}},
		{"poison.permanent", `{"total": 1}`, map[string]string{"steady": done, "fragile": "DEAD permanent", "choosy": done}},
		{"poison.decode", `{"total": "one"}`, map[string]string{"steady": done, "fragile": "BLOCKED undecodable", "choosy": "BLOCKED condition"}},
		{"poison.condition", `{}`, map[string]string{"steady": done, "fragile": done, "choosy": "BLOCKED condition"}},
		{"poison.null", ``, map[string]string{
			"steady": "BLOCKED null_payload", "fragile": "BLOCKED null_payload", "choosy": "BLOCKED null_payload"}},
		{"poison.oversize", `{"total": 1, "filler": "` + filler(maxPayload) + `"}`, map[string]string{
			"steady": "BLOCKED oversize", "fragile": "BLOCKED oversize", "choosy": "BLOCKED oversize"}},
		{"poison.refused", `{"total": 1, "refuse": true}`, map[string]string{
			"steady": "BLOCKED rejected", "fragile": "BLOCKED rejected", "choosy": "BLOCKED rejected"}},
	}
}

type total struct {
	Total int `json:"total"`
}

// fragile misbehaves as the event's type says.
func fragile(_ context.Context, e event.Envelope, _ total) error {
	switch e.Type {
	case "poison.panic":
		panic("poisoned")
	case "poison.goexit":
		runtime.Goexit()
	case "poison.hang":
		timer := time.NewTimer(time.Until(e.Deadline) + 50*time.Millisecond) // deaf to its context
		defer timer.Stop()
		<-timer.C
		return errors.New("late")
	case "poison.permanent":
		return event.Permanent(errors.New("never"))
	}
	return nil
}

// Poison of every kind, in one transaction with good events: each ends in a state
// with its reason, for its handler only, and everything else is delivered.
func TestGuarantee_PoisonEvent(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		const maxPayload = 64 << 10
		w.subscribers = func(string) []string { return []string{"steady", "fragile", "choosy"} }
		if err := w.db.RefusePayloads(t.Context()); err != nil {
			t.Fatal(err)
		}
		bad := handle("fragile", event.Typed(fragile).Handle)
		bad.Timeout, bad.Retry.MaxAttempts = 100*time.Millisecond, 2
		choosy := handle("choosy", func(context.Context, event.Envelope) error { return nil })
		choosy.When = "event.payload.total < 10"
		handlers := []pipeline.Handler{
			handle("steady", func(context.Context, event.Envelope) error { return nil }), bad, choosy,
		}
		d := w.dispatch(options{}, handlers, hooks{config: func(c *pipeline.Config) { c.MaxPayload = maxPayload }})
		w.streaming()

		tx := w.begin()
		events := w.insert(tx, 50, "order.placed", `{"total": 1}`)
		list := poisons(maxPayload)
		for _, p := range list {
			events = append(events, w.insert(tx, 1, p.eventType, p.payload)...)
			events = append(events, w.insert(tx, 10, "order.placed", `{"total": 1}`)...)
		}
		if err := tx.InsertSentinel(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.commit(tx, events)
		w.settle()
		w.emit(20, "order.placed", `{"total": 1}`)
		w.settle()
		d.stop()

		want := map[string]string{}
		for _, p := range list {
			for h, end := range p.want {
				want[p.eventType+" "+h] = end
			}
		}
		if diff := cmp.Diff(want, w.ends("poison.%")); diff != "" {
			t.Errorf("how poison ended (-want +got):\n%s", diff)
		}
		if n := w.number(`SELECT count(*) FROM eventlog.event_notifications WHERE event_type = 'order.placed' AND state <> 'SUCCEEDED'`); n != 0 {
			t.Errorf("%d deliveries of good events did not succeed", n)
		}
		if got := d.counts.totals().Other[pipeline.CountSentinel]; got != 1 {
			t.Errorf("sentinels counted = %d, want 1", got)
		}
		w.wrecked = append(w.wrecked, fmt.Sprintf("%d kinds of poison", len(list)))
		w.verdict()
	})
}

// ends reads "STATE reason" by "type handler".
func (w *world) ends(types string) map[string]string {
	w.t.Helper()
	return w.pairs(`SELECT concat(event_type, ' ', handler_name), concat(state, ' ', coalesce(reason, ''))
		FROM eventlog.event_notifications WHERE event_type LIKE $1`, types)
}
