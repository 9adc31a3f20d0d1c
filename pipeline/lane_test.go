package pipeline

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRoom_KeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &lane{sub: &subscriber{Handler: Handler{Concurrency: rapid.IntRange(1, 500).Draw(t, "concurrency")}}}
		for range rapid.IntRange(0, 50).Draw(t, "attempts") {
			l.pace.ended(time.Duration(rapid.Int64Range(-1, int64(time.Hour)).Draw(t, "took")))
			l.pace.carried(rapid.Int64Range(0, 16<<20).Draw(t, "size"))
		}
		l.workers = rapid.IntRange(0, l.sub.Concurrency).Draw(t, "workers")
		l.reserved = rapid.IntRange(0, 100).Draw(t, "reserved")
		l.queue = make([]*attempt, rapid.IntRange(0, maxPrefetch).Draw(t, "queued"))
		left := rapid.Int64Range(-maxQueuedBytes, maxQueuedBytes).Draw(t, "bytes left")
		room := l.room(left)
		idle := max(l.sub.Concurrency-l.workers-l.reserved-len(l.queue), 0)
		switch {
		case room < idle:
			t.Fatalf("room for %d, but %d workers are idle", room, idle)
		case room > idle && int64(room)*l.pace.bytes() > left:
			t.Fatalf("room for %d of %d bytes each, with %d bytes left and %d idle", room, l.pace.bytes(), left, idle)
		case room > l.sub.Concurrency+maxPrefetch:
			t.Fatalf("room for %d", room)
		}
	})
}

func TestPace_OneLargePayloadShrinksThePrefetchAndIsForgotten(t *testing.T) {
	l := &lane{sub: &subscriber{Handler: Handler{Concurrency: 16}}}
	l.pace.ended(time.Microsecond)
	l.pace.carried(100)
	if got := l.room(maxQueuedBytes); got != maxPrefetch+16 {
		t.Errorf("room for %d small ones", got)
	}
	l.pace.carried(4 << 20)
	if got := l.room(maxQueuedBytes); got > 16 {
		t.Errorf("room for %d large ones", got)
	}
	for range 1000 {
		l.pace.carried(100)
	}
	if got := l.room(maxQueuedBytes); got != maxPrefetch+16 {
		t.Errorf("room for %d once it is forgotten", got)
	}
}

func TestPace_AHiccupDoesNotStopThePrefetchAndASlowHandlerDoes(t *testing.T) {
	p := pace{}
	for range 100 {
		p.ended(time.Microsecond)
	}
	for range 16 {
		p.ended(30 * time.Millisecond) // the machine was busy with something else
	}
	if got := p.prefetch(16); got != maxPrefetch {
		t.Errorf("prefetch %d after one hiccup", got)
	}
	for range 150 {
		p.ended(300 * time.Millisecond)
	}
	if got := p.prefetch(16); got > 16 {
		t.Errorf("prefetch %d for a handler that has become slow", got)
	}
}
