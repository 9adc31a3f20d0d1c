package mysql

import (
	"errors"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	reader "github.com/cdc-dispatcher/cdc-dispatcher/cdc/mysql"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

var _ reader.Tenure = (*Tenure)(nil)

// world is a store on the product's own tables, with the database's real clock.
type world struct {
	*hooks
	store *Store
}

func newWorld(t *testing.T, kind testdb.Kind, l layout, c Config) world {
	t.Helper()
	db := newTestDB(t, kind, l)
	h := newHooks(t, db, l)
	c.Table = h.table
	return world{hooks: h, store: newStore(t, db, poolOf(t, db, nil), c)}
}

func (w world) mustAcquire(t *testing.T, k *Keeper) *Tenure {
	t.Helper()
	tenure, holder, err := k.Acquire(t.Context())
	if err != nil || tenure == nil {
		t.Fatalf("got no tenure: holder %q, %v", holder, err)
	}
	return tenure
}

func (w world) position(t *testing.T) (position, identity string, epoch uint64) {
	t.Helper()
	w.row(t, []any{&position, textTarget{&identity}, &epoch}, "SELECT position, identity, epoch FROM sources WHERE name = 'src'")
	return position, identity, epoch
}

// TestKeeper: one reader at a time, an epoch that rises, and a position that only the latest one writes.
func TestKeeper(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		ctx := t.Context()
		mine, theirs := w.store.Keeper("src", "me"), w.store.Keeper("src", "them")
		first := w.mustAcquire(t, mine)
		if p, i := first.Saved(); first.Epoch() != 1 || p != "" || i != "" {
			t.Errorf("got epoch %d, %q, %q", first.Epoch(), p, i)
		}
		if tenure, holder, err := theirs.Acquire(ctx); tenure != nil || err != nil || !strings.HasPrefix(holder, "me ") {
			t.Errorf("a second tenure: %v, %q, %v", tenure, holder, err)
		}
		// Another source, and the same one of another schema, are nobody's.
		other := w.mustAcquire(t, w.store.Keeper("other", "me"))
		if err := other.Release(ctx); err != nil {
			t.Error(err)
		}
		if err := errors.Join(first.Check(ctx), first.Save(ctx, "gtid-7", "server-a"), first.Release(ctx)); err != nil {
			t.Fatal(err)
		}
		second := w.mustAcquire(t, theirs)
		if p, i := second.Saved(); second.Epoch() != 2 || p != "gtid-7" || i != "server-a" {
			t.Errorf("got epoch %d, %q, %q", second.Epoch(), p, i)
		}

		// The session that holds the lock dies: somebody else takes over, and the old tenure writes nothing more.
		w.exec(t, "DO 0")
		var session int
		w.row(t, []any{&session}, "SELECT IS_USED_LOCK(?)", theirs.lockName())
		w.db.Exec("KILL CONNECTION " + itoa(session))
		var third *Tenure
		testdb.WaitFor(t, "the lock of a session that is gone", func() bool {
			var err error
			if third, _, err = mine.Acquire(ctx); err != nil {
				t.Fatal(err)
			}
			return third != nil
		})
		if err := second.Check(ctx); err == nil {
			t.Error("a tenure without a session is still one")
		}
		if err := second.Save(ctx, "gtid-8", "server-a"); err == nil {
			t.Error("a tenure without a session saved a position")
		}
		if err := second.Release(ctx); err != nil {
			t.Error(err)
		}
		// The epoch alone ends a tenure, too.
		w.exec(t, "UPDATE sources SET epoch = epoch + 1 WHERE name = 'src'")
		if err := third.Check(ctx); !errors.Is(err, ErrTenureLost) {
			t.Errorf("got %v", err)
		}
		if err := third.Save(ctx, "gtid-9", "server-a"); !errors.Is(err, ErrTenureLost) {
			t.Errorf("got %v", err)
		}
		if err := third.Release(ctx); err != nil {
			t.Error(err)
		}
		if p, i, epoch := w.position(t); p != "gtid-7" || i != "server-a" || epoch != 4 {
			t.Errorf("got %q, %q, %d", p, i, epoch)
		}
		// What a source reports about itself leaves the position alone.
		if err := w.store.RecordSource(ctx, "src", "me", cdc.Status{Mode: cdc.ModeStreaming, Confirmed: "elsewhere"}); err != nil {
			t.Fatal(err)
		}
		if p, _, _ := w.position(t); p != "gtid-7" {
			t.Errorf("got %q", p)
		}
	})
}

// TestPositionGoesWithTheDeliveries (48): the position is written with the deliveries, while its epoch is the source's.
// When it is not, the deliveries are written all the same.
func TestPositionGoesWithTheDeliveries(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		ctx := t.Context()
		tenure := w.mustAcquire(t, w.store.Keeper("src", "me"))
		defer func() { _ = tenure.Release(ctx) }()
		fanOut := func(position string, epoch uint64, fans ...delivery.Fan) {
			t.Helper()
			if _, err := w.store.FanOut(ctx, delivery.FanOut{
				Source: "src", Position: cdc.Position(position), Epoch: epoch, Lease: someLease(), Fans: fans,
			}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(position string, deliveries int) {
			t.Helper()
			if p, _, _ := w.position(t); p != position || len(w.Deliveries(t)) != deliveries {
				t.Errorf("at %q with %d deliveries, want %q with %d", p, len(w.Deliveries(t)), position, deliveries)
			}
		}
		events := someEvents(4)
		w.InsertEvents(t, events[:3]...)
		fanOut("p1", tenure.Epoch(), someFan(events[0], "billing"))
		want("p1", 1)
		fanOut("p2", tenure.Epoch()+1, someFan(events[1], "billing"))
		want("p1", 2)
		fanOut("p3", tenure.Epoch()) // nothing of the transaction is of interest
		want("p3", 2)
		gone := someFan(events[3], "billing") // deleted in its own transaction
		fanOut("p4", tenure.Epoch(), someFan(events[2], "billing"), gone)
		want("p4", 4)
		image := someFan(event.Event{ID: someEvents(5)[4].ID, Type: "a"}, "billing")
		image.ImageOnly = true
		fanOut("p5", tenure.Epoch(), image)
		want("p5", 5)
	})
}
