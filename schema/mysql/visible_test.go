package mysql

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	reader "github.com/cdc-dispatcher/cdc-dispatcher/cdc/mysql"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// TestSeenIsNotYetVisible (25, 26 of the store's part): eight writers; every event goes from the log straight into a
// fan-out, which reads its row back. None is lost, none fails, and what the table did not show in time is left to the
// poller. The tenure and the position are the real ones.
func TestSeenIsNotYetVisible(t *testing.T) {
	const writers, each = 8, 60
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		source, err := reader.New(reader.Config{
			DSN: w.db.DSN(), Tables: []reader.Table{{Schema: w.db.Name(), Name: "events"}}, Own: []reader.Table{{Schema: w.db.Name()}},
			Keeper: reader.KeeperOf(w.store.Keeper("src", "me").Acquire),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		out := make(chan cdc.Transaction)
		var run sync.WaitGroup
		run.Go(func() {
			if err := source.Run(ctx, out); err != nil {
				t.Error(err)
			}
		})
		testdb.WaitFor(t, "the stream", func() bool { return source.Status().Mode == cdc.ModeStreaming })

		var writing sync.WaitGroup
		for n := range writers {
			writing.Go(func() {
				for i := range each {
					e := someEvents(1)[0]
					e.ID = uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n, "/", i)).String()
					w.InsertEvents(t, e)
				}
			})
		}
		decode := w.table.Decoder()
		seen, deferred, absent := map[string]bool{}, 0, 0
		timeout := time.NewTimer(10 * time.Minute)
		defer timeout.Stop()
		for len(seen) < writers*each {
			select {
			case tx := <-out:
				batch := delivery.FanOut{Source: "src", Position: tx.Position, Epoch: tx.Epoch, Lease: someLease()}
				for _, r := range tx.Records {
					e, err := decode(r)
					if err != nil {
						t.Fatal(err)
					}
					seen[e.ID] = true
					batch.Fans = append(batch.Fans, someFan(e, "billing"))
				}
				result, err := w.store.FanOut(ctx, batch)
				if err != nil {
					t.Fatal(err)
				}
				deferred, absent = deferred+len(result.Deferred), absent+result.Absent
				source.Ack(tx.Position)
			case <-timeout.C:
				t.Fatalf("%d of %d events were seen", len(seen), writers*each)
			}
		}
		writing.Wait()
		// The poller's turn.
		var late []event.Event
		for late = w.undelivered(t, allTypes()); len(late) > 0; late = w.undelivered(t, allTypes()) {
			var fans []delivery.Fan
			for _, e := range late {
				fans = append(fans, someFan(e, "billing"))
			}
			w.fanOut(t, fans...)
		}
		rows := w.Deliveries(t)
		for _, r := range rows {
			if !seen[r.Event.ID] {
				t.Errorf("a delivery of an event that nobody inserted: %s", r.Event.ID)
			}
		}
		if len(rows) != writers*each || absent > 0 {
			t.Errorf("%d deliveries of %d events, %d of them not from their rows", len(rows), writers*each, absent)
		}
		testdb.Note(t, fmt.Sprintf("%d events, %d left to the poller", writers*each, deferred))
		stop()
		run.Wait()
		if position, _, epoch := w.position(t); position == "" || epoch < 1 { // another tenure is no fault
			t.Errorf("at %q in epoch %d", position, epoch)
		}
	})
}

// TestARowThatIsNotVisibleIsDeferred: a transaction whose rows are in the log and not yet in sight, such as a prepared
// one. It is left to the poller after a moment, with a mark and without, and others are not held up with it.
func TestARowThatIsNotVisibleIsDeferred(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		for _, l := range []layout{layouts()[0], layouts()[2]} {
			w := newWorld(t, kind, l, Config{})
			events := someEvents(3)
			w.InsertEvents(t, events[0])
			commit := w.BeginEvent(t, events[1])
			result := w.fanOut(t, someFan(events[0], "billing"), someFan(events[1], "billing"), someFan(events[2], "billing"))
			if len(result.Created) != 2 || result.Fresh != 1 || result.Absent != 1 || len(result.Deferred) != 1 || result.Deferred[0] != 1 {
				t.Errorf("%s: got %+v", l.name, result)
			}
			commit()
			if found := w.undelivered(t, allTypes()); len(found) != 1 || found[0].ID != events[1].ID {
				t.Errorf("%s: found %v", l.name, found)
			}
		}
	})
}
