package mysql

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// TestEveryStatementMayFail (48, Q15): each statement of a fan-out, a claim, a renewal and an outcome fails once. A
// conflict is not seen by the caller. A lost connection is, and then all of the transaction is there or nothing: the
// deliveries, the marks and the position move together, and the same call once more ends well.
func TestEveryStatementMayFail(t *testing.T) {
	conflicts := []uint16{numLockWait, numDeadlock, numCheckRead, numRolledBack, numWSRepNotReady}
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		s, f := newFaulty(t, w)
		ctx := t.Context()
		tenure := w.mustAcquire(t, w.store.Keeper("src", "me"))
		defer func() { _ = tenure.Release(ctx) }()
		events := someEvents(3)
		w.InsertEvents(t, events...)
		before := func() {
			w.exec(t, "DELETE FROM event_notifications")
			w.exec(t, "UPDATE events SET delivered = 0")
			w.exec(t, "UPDATE sources SET position = ''")
		}
		batch := func() delivery.FanOut {
			b := delivery.FanOut{Source: "src", Position: "p", Epoch: tenure.Epoch(), Lease: someLease()}
			for _, e := range events {
				b.Fans = append(b.Fans, someFan(e, "billing", "mail"))
			}
			return b
		}
		whole := func(when string, none bool) (there bool) {
			t.Helper()
			position, _, _ := w.position(t)
			var marked int
			w.row(t, []any{&marked}, "SELECT COUNT(*) FROM events WHERE delivered = 1")
			n := len(w.Deliveries(t))
			if there = n == 6; there != (marked == 3) || there != (position == "p") || !there && (n+marked > 0 || position != "" || !none) {
				t.Errorf("%s: %d deliveries, %d marks, at %q", when, n, marked, position)
			}
			return there
		}
		f.fail(0, nil)
		before()
		if _, err := s.FanOut(ctx, batch()); err != nil {
			t.Fatal(err)
		}
		whole("undisturbed", false)
		statements := len(f.seen)
		if statements < 6 {
			t.Fatalf("a fan-out is %v", f.seen)
		}
		for n := 1; n <= statements; n++ {
			before()
			f.fail(n, &mysqldriver.MySQLError{Number: conflicts[n%len(conflicts)], Message: "injected"})
			if _, err := s.FanOut(ctx, batch()); err != nil {
				t.Errorf("conflict in statement %d: %v", n, err)
			}
			whole("after a conflict in statement "+itoa(n), false)

			before()
			f.fail(n, mysqldriver.ErrInvalidConn)
			b := batch()
			if _, err := s.FanOut(ctx, b); err == nil {
				t.Errorf("a connection lost in statement %d was not noticed", n)
			}
			whole("after a connection lost in statement "+itoa(n), true)
			if _, err := s.FanOut(ctx, b); err != nil {
				t.Errorf("once more: %v", err)
			}
			whole("once more", false)
		}
		handlingMayFail(t, w, s, f, conflicts)
	})
}

// handlingMayFail: a claim, a renewal and outcomes meet a conflict in each of their statements.
func handlingMayFail(t *testing.T, w world, s *Store, f *faults, conflicts []uint16) {
	t.Helper()
	ctx := t.Context()
	for n := 1; ; n++ {
		w.exec(t, "DELETE FROM event_notifications")
		w.exec(t, "DELETE FROM event_notification_attempts")
		w.exec(t, "UPDATE events SET delivered = 0")
		w.fanOut(t, someFan(someEvents(1)[0], "billing", "mail"))
		f.fail(n, &mysqldriver.MySQLError{Number: conflicts[n%len(conflicts)], Message: "injected"})
		lease := someLease()
		claimed, err := s.Claim(ctx, lease, append(claimOf("billing", 5), claimOf("mail", 5)...))
		if err != nil || len(claimed.Claimed) != 2 {
			t.Fatalf("conflict in statement %d: claimed %+v, %v", n, claimed, err)
		}
		leases := []delivery.LeaseRef{{ID: claimed.Claimed[0].ID, Token: lease.Token}, {ID: claimed.Claimed[1].ID, Token: lease.Token}}
		if renewal, err := s.Renew(ctx, leases, lease.For); err != nil || len(renewal.Held) != 2 {
			t.Fatalf("conflict in statement %d: renewed %+v, %v", n, renewal, err)
		}
		settled, err := s.Settle(ctx, []delivery.Outcome{
			{ID: leases[0].ID, Token: lease.Token, Verdict: delivery.Success},
			{ID: leases[1].ID, Token: lease.Token, Verdict: delivery.Retry, Attempt: 1, Error: "x"},
		})
		if err != nil || len(settled) != 2 || len(w.Attempts(t, leases[1].ID)) != 1 || len(w.Attempts(t, leases[0].ID)) != 0 {
			t.Fatalf("conflict in statement %d: settled %+v, %v", n, settled, err)
		}
		if f.count.Load() < int64(n) {
			return
		}
	}
}

// TestARowThatIsDeletedWhileItIsFannedOut: where rows are read without a lock, one may be deleted between the look at it
// and the insert of its deliveries. It is no row that the database refuses: the log's image stands in.
func TestARowThatIsDeletedWhileItIsFannedOut(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		for _, tc := range []struct {
			name, table string
			layout      layout
			imageOnly   bool
			fromLog     bool
		}{
			{"without a mark", "outboxevent", layouts()[2], false, true},
			{"found by the poller", "outboxevent", layouts()[2], false, false},
			{"locked by somebody", "events", layouts()[0], true, true},
		} {
			w := newWorld(t, kind, tc.layout, Config{})
			s, f := newFaulty(t, w)
			events := someEvents(2)
			w.InsertEvents(t, events...)
			deleted := false
			f.before = func(word string) {
				if word == "INSERT" && !deleted {
					deleted = true
					w.exec(t, "DELETE FROM "+tc.table+" WHERE id = ?", events[0].ID)
				}
			}
			batch := delivery.FanOut{Source: "src", Lease: someLease()}
			for _, e := range events {
				fan := someFan(e, "billing", "mail")
				fan.FromLog, fan.ImageOnly = tc.fromLog, tc.imageOnly
				batch.Fans = append(batch.Fans, fan)
			}
			result, err := s.FanOut(t.Context(), batch)
			want := 4
			if !tc.fromLog {
				want = 2 // it was gone before anybody had seen it delivered
			}
			if err != nil || !deleted || len(result.Created) != want || len(w.Deliveries(t)) != want {
				t.Errorf("%s: %d deliveries, got %+v, %v", tc.name, len(w.Deliveries(t)), result, err)
			}
		}
	})
}

// TestAServerThatTakesNoWritesIsLeft: after a failover, connections of the pool may still lead to the former primary, which
// answers all but writes. They are not used again.
func TestAServerThatTakesNoWritesIsLeft(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		s, f := newFaulty(t, w)
		events := someEvents(1)
		w.InsertEvents(t, events...)
		batch := delivery.FanOut{Source: "src", Lease: someLease(), Fans: []delivery.Fan{someFan(events[0], "billing")}}
		before := f.connects.Load()
		f.fail(4, &mysqldriver.MySQLError{Number: numReadOnlyOption, Message: "running with the --read-only option"})
		if _, err := s.FanOut(t.Context(), batch); !readOnly(err) || s.Rejected(err) {
			t.Errorf("got %v", err)
		}
		if _, err := s.FanOut(t.Context(), batch); err != nil || len(w.Deliveries(t)) != 1 {
			t.Errorf("on another connection: %d deliveries, %v", len(w.Deliveries(t)), err)
		}
		if n := f.connects.Load() - before; n != 1 {
			t.Errorf("%d new connections", n)
		}
	})
}

// TestAFrozenProcessHoldsNobodyUp: a process stops for good within the transaction of a fan-out, its connection stays. The
// server ends it, and another process fans the same event out.
func TestAFrozenProcessHoldsNobodyUp(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel() // it mostly waits
		w := newWorld(t, kind, layouts()[0], Config{})
		events := someEvents(1)
		w.InsertEvents(t, events...)
		ctx := t.Context()
		frozen, f := newFaulty(t, w)
		srv, err := frozen.serverOf(ctx)
		if err != nil {
			t.Fatal(err)
		}
		idle := "wait_timeout = " + itoa(idleSeconds)
		if !strings.Contains(srv.session, idle) {
			t.Fatal("the server does not end idle sessions")
		}
		hasty := *srv
		// It counts between any two statements, also before the process freezes.
		hasty.session = strings.Replace(srv.session, idle, "wait_timeout = 10", 1)
		frozen.server = &hasty
		there, thaw, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		f.before = func(word string) {
			if word == "COMMIT" {
				close(there)
				<-thaw
			}
		}
		batch := func() delivery.FanOut {
			return delivery.FanOut{Source: "src", Lease: someLease(), Fans: []delivery.Fan{someFan(events[0], "billing")}}
		}
		go func() {
			_, err := frozen.FanOut(ctx, batch())
			done <- err
		}()
		select {
		case <-there:
		case err := <-done:
			t.Fatalf("the fan-out ended before its COMMIT: %v", err)
		}
		testdb.WaitFor(t, "another process to fan the event out", func() bool {
			result, err := w.store.FanOut(ctx, batch())
			if err != nil {
				t.Log(err) // it waits for the lock
			}
			return len(result.Created) == 1
		})
		close(thaw)
		if err := <-done; err == nil || rejected(err) {
			t.Errorf("the frozen process committed: %v", err)
		}
		if n := len(w.Deliveries(t)); n != 1 {
			t.Errorf("%d deliveries", n)
		}
	})
}

// TestRefusalsHaveACode: the server's message quotes values, so what may be logged of a refusal is its number.
func TestRefusalsHaveACode(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		events := someEvents(2)
		w.InsertEvents(t, events...)
		w.fanOut(t, someFan(events[1], "billing"))
		lease := someLease()
		claimed, err := w.store.Claim(t.Context(), lease, claimOf("billing", 1))
		if err != nil {
			t.Fatal(err)
		}
		w.exec(t, "CREATE TRIGGER no_insert BEFORE INSERT ON event_notifications FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'secret'")
		w.exec(t, "CREATE TRIGGER no_update BEFORE UPDATE ON event_notifications FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'secret'")
		check := func(what string, err error) {
			t.Helper()
			if !w.store.Rejected(err) || event.Code(err) != "mysql_1644" {
				t.Errorf("%s: the code of %v is %q", what, err, event.Code(err))
			}
		}
		_, err = w.store.FanOut(t.Context(), delivery.FanOut{Lease: someLease(), Fans: []delivery.Fan{someFan(events[0], "billing")}})
		check("fan out", err)
		check("quarantine", w.store.Quarantine(t.Context(), someFan(events[0], "billing"), err))
		gone := someFan(someEvents(3)[2], "billing")
		absent := w.store.Quarantine(t.Context(), gone, err)
		check("quarantine without a row", absent)
		if !errors.Is(absent, delivery.ErrAbsent) {
			t.Errorf("got %v", absent)
		}
		if len(claimed.Claimed) != 1 {
			t.Fatalf("claimed %+v", claimed)
		}
		_, err = w.store.Settle(t.Context(), []delivery.Outcome{{ID: claimed.Claimed[0].ID, Token: lease.Token, Verdict: delivery.Success}})
		check("settle", err)
	})
}

// TestWhatPassesAndWhatIsRefused tells errors apart by their numbers.
func TestWhatPassesAndWhatIsRefused(t *testing.T) {
	of := func(number uint16, state string) error {
		e := &mysqldriver.MySQLError{Number: number}
		copy(e.SQLState[:], state)
		return e
	}
	for _, tc := range []struct {
		err                     error
		rejected, passing, held bool
	}{
		{of(1205, "HY000"), false, true, true},
		{of(1213, "40001"), false, true, false},
		{of(1020, "HY000"), false, true, false},
		{of(3101, "40000"), false, true, false},
		{of(1047, "08S01"), false, true, false},
		{of(3572, "HY000"), false, false, true},
		{of(1062, "23000"), true, false, false},
		{of(1452, "23000"), true, false, false},
		{of(1406, "22001"), true, false, false},
		{of(1366, "HY000"), true, false, false},
		{of(1644, "45000"), true, false, false},
		{of(1644, "01234"), true, false, false},
		{of(3140, "22032"), true, false, false},
		{of(3819, "HY000"), true, false, false},
		{of(4025, "23000"), true, false, false},
		{of(1153, "08S01"), true, false, false},
		{mysqldriver.ErrPktTooLarge, true, false, false},
		{of(1142, "42000"), false, false, false},
		{of(1290, "HY000"), false, false, false},
		{mysqldriver.ErrInvalidConn, false, false, false},
		{errors.New("any"), false, false, false},
		{nil, false, false, false},
	} {
		if got := [3]bool{rejected(tc.err), passing(tc.err), locked(tc.err)}; got != [3]bool{tc.rejected, tc.passing, tc.held} {
			t.Errorf("%v: got %v", tc.err, got)
		}
	}
}

// TestTwoSweepsInOppositeOrder: both bring the same events, one from the last to the first; half of the rows are
// there, half only in the log. Nothing is lost, nothing is twice, and no conflict reaches the caller (Q12).
func TestTwoSweepsInOppositeOrder(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		events := someEvents(600)
		w.InsertEvents(t, events[:300]...)
		var wg sync.WaitGroup
		for sweep := range 2 {
			wg.Go(func() {
				for n := range 12 {
					if sweep == 1 {
						n = 11 - n
					}
					var fans []delivery.Fan
					for i := range 50 {
						if sweep == 1 {
							i = 49 - i
						}
						fans = append(fans, someFan(events[(n*50+i*7)%600], "a", "b", "c"))
					}
					// One hundred at a time, which overlap with those of the next batch.
					for i := range 50 {
						fans = append(fans, someFan(events[(n*50+i)%600], "c", "b", "a"))
					}
					if _, err := w.store.FanOut(t.Context(), delivery.FanOut{Lease: someLease(), Fans: fans}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		stop := make(chan struct{})
		claimed := map[uuid.UUID]int{}
		var claimers sync.WaitGroup
		var mu sync.Mutex
		for range 2 {
			claimers.Go(func() {
				for done := false; !done; {
					select {
					case <-stop:
						done = true
					default:
					}
					result, err := w.store.Claim(t.Context(), someLease(), append(claimOf("a", 50), claimOf("b", 50)...))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for _, c := range result.Claimed {
						claimed[c.ID]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		close(stop)
		claimers.Wait()
		if n := len(w.Deliveries(t)); n != 1800 {
			t.Errorf("%d deliveries of 600 events for 3 handlers", n)
		}
		for id, n := range claimed {
			if n != 1 {
				t.Errorf("%s was leased %d times", id, n)
			}
		}
		if left := w.undelivered(t, allTypes()); len(left) != 0 {
			t.Errorf("%d events are not marked", len(left))
		}
	})
}

// The network swallows everything between the last statement of a transaction and its end. The
// wait for an answer ends with the call's deadline; found by a plan of TestFaults, whose
// dispatcher never stopped.
func TestEndOfATransactionOnASilentNetwork(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		w := newWorld(t, kind, layouts()[0], Config{})
		cfg, err := mysqldriver.ParseDSN(w.db.DSN())
		if err != nil {
			t.Fatal(err)
		}
		proxy := faultproxy.New(t, cfg.Addr)
		cfg.Addr = proxy.Addr()
		PoolConfig(cfg)
		connector, err := mysqldriver.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		pool := sql.OpenDB(connector)
		t.Cleanup(func() { _ = pool.Close() })
		s := newStore(t, w.db, pool, Config{Table: w.table})
		failed := errors.New("the work failed")
		for _, result := range []error{nil, failed} {
			if _, err := s.serverOf(t.Context()); err != nil { // the only question on the way to fn
				t.Fatal(err)
			}
			limit := 5 * time.Second // the wait for COMMIT takes all of it
			if result != nil {
				limit = time.Minute // far more than the way to fn takes; the wait for ROLLBACK has a limit of its own
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			done := make(chan error, 1)
			go func() {
				done <- s.once(ctx, lockSeconds, func(q querier) error {
					_, err := q.ExecContext(ctx, "UPDATE sources SET owner = owner")
					proxy.Blackhole()
					return errors.Join(err, result)
				})
			}()
			var got error
			testdb.WaitFor(t, "the call to end", func() bool {
				select {
				case got = <-done:
					return true
				default:
					return false
				}
			})
			cancel()
			proxy.Heal()
			if result == nil && !errors.Is(got, context.DeadlineExceeded) || result != nil && !errors.Is(got, failed) {
				t.Errorf("after a fn that returned %v: %v", result, got)
			}
		}
	})
}
