package pipeline

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// router decides which handlers an event goes to. It is pure but for the row ids
// it draws: no clock, no I/O, no state. It may be used by several goroutines.
type router struct {
	subs       []*subscriber
	maxPayload int
	// markUnsubscribed is FanOutConfig.MarkUnsubscribed.
	markUnsubscribed bool
	newID            func() uuid.UUID
}

// routed is an event on its way into the delivery table.
type routed struct {
	fan delivery.Fan
	// subs is parallel to fan.Targets.
	subs []*subscriber
	// commitTime is zero when unknown.
	commitTime time.Time
}

// route returns the event with its targets. ok is false when it is to be left
// alone: a sentinel (A53), or an event that nobody listens to (A54) unless those are to be
// marked. An event that every condition declines is marked, without a delivery.
func (r *router) route(ev event.Event) (out routed, ok bool) {
	out.fan.Event = ev
	view := newEventView(&out.fan.Event)
	for _, sub := range r.subs {
		if !sub.match.matches(ev.Type) {
			continue
		}
		ok = true
		blocked, detail, takes := r.judge(sub, view)
		if !takes {
			continue
		}
		out.subs = append(out.subs, sub)
		out.fan.Targets = append(out.fan.Targets, delivery.Target{
			ID:      r.newID(),
			Handler: sub.Name,
			Window:  sub.Retry.window(),
			Blocked: blocked,
			Detail:  detail,
		})
	}
	return out, ok || r.markUnsubscribed && ev.Type != ""
}

// judge asks one handler's condition. A handler that cannot be given the event, or
// whose condition has no answer, gets a BLOCKED delivery: nothing disappears.
func (r *router) judge(sub *subscriber, view *eventView) (blocked, detail string, takes bool) {
	size := len(view.ev.Payload)
	unreadable := size == 0 || size > r.maxPayload
	if c := sub.cond; c != nil && (!unreadable || !c.payload) {
		switch holds, err := c.holdsFor(view); {
		case err != nil:
			return delivery.ReasonCondition, err.Error(), true
		case !holds:
			return "", "", false
		}
	}
	switch {
	case size == 0:
		return delivery.ReasonNullPayload, "the event has a type but no payload", true
	case unreadable:
		return delivery.ReasonOversize, fmt.Sprintf("payload of %d bytes, the limit is %d", size, r.maxPayload), true
	}
	return "", "", true
}

// blockedCounter says what is counted for a delivery that is created BLOCKED.
func blockedCounter(reason string) (Counter, bool) {
	switch reason {
	case delivery.ReasonCondition:
		return CountConditionError, true
	case delivery.ReasonNullPayload:
		return CountNullPayload, true
	case delivery.ReasonOversize:
		return CountOversize, true
	}
	return "", false
}

// newRowID draws the primary key of a delivery row. Version 7 rises with time, so
// that new rows meet on the last pages of the key's index.
func newRowID() uuid.UUID {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.New()
	}
	return id
}
