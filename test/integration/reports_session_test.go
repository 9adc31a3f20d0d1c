package integration

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// B21: the role has limits on everything that a session may take its time with. The stream outlives them, and
// the sessions for statements, which the server ends while they are idle, are made anew unnoticed.
func TestB21_SessionLimitsStopNoDelivery(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		role := "limited_" + w.text(`SELECT current_database()`)
		w.exec(fmt.Sprintf(`CREATE ROLE %q SUPERUSER LOGIN`, role))
		t.Cleanup(func() {
			if err := w.db.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf(`DROP OWNED BY %q; DROP ROLE %[1]q`, role)); err != nil {
				t.Error(err)
			}
		})
		// Shorter than a pool trusts a session that it has not asked: statements meet sessions that are gone.
		limits := map[string]string{"idle_session_timeout": "300ms", "statement_timeout": "5s", "idle_in_transaction_session_timeout": "5s", "lock_timeout": "5s"}
		if w.postgres().Server.Major() >= 17 {
			limits["transaction_timeout"] = "5s"
		}
		for limit, value := range limits {
			w.exec(fmt.Sprintf(`ALTER ROLE %q SET %s = '%s'`, role, limit, value))
		}
		u, err := url.Parse(w.db.DSN())
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(role)
		direct := w.db
		w.db = reachedBy{direct, u.String()}
		d := w.dispatch(options{Lease: time.Minute, PollInterval: time.Hour}, steadyAndMoody(), hooks{})
		w.db = direct
		w.streaming()
		const ours = `SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND backend_type = 'client backend' AND application_name NOT LIKE 'cdc-dispatcher%'`
		const senderPID = `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`
		sender := w.number(senderPID, slotName)
		for range 3 {
			w.emit(10, "order.placed", `{}`)
			w.settle()
			testdb.WaitFor(t, "a session for statements to be idle", func() bool {
				return w.number(ours+` AND state_change < clock_timestamp() - interval '200 ms'`, role) > 0
			})
			testdb.WaitFor(t, "the server to end it", func() bool {
				return w.number(ours+` AND state_change < clock_timestamp() - interval '200 ms'`, role) == 0
			})
			w.wrecked = append(w.wrecked, "idle sessions ended")
		}
		w.emit(10, "order.placed", `{}`)
		w.settle()
		if pid := w.number(senderPID, slotName); pid != sender {
			t.Errorf("the sender's process was %d and is %d", sender, pid)
		}
		d.stop()
		w.verdict()
	})
}

// B28: the slot cannot be made, because somebody's transaction stays open. The poller delivers meanwhile, and
// the log is read once the transaction ends, without a gap.
func TestB28_DeliversWhileTheSlotWaits(t *testing.T) {
	eachPostgres(t, func(t *testing.T, w *world) {
		blocker := w.begin()
		held := w.insert(blocker, 1, "order.held", `{}`)
		d := w.dispatch(options{Grace: time.Hour}, steadyAndMoody(), hooks{})
		testdb.WaitFor(t, "the poller's first look", func() bool { return !d.pipe.Health().PolledAt.IsZero() })
		w.emit(20, "order.placed", `{}`)
		w.settle()
		if w.db.Streaming(t.Context()) || d.byLog() != 0 {
			t.Error("the slot was made beside an open transaction: the test shows nothing")
		}
		w.commit(blocker, held)
		w.wrecked = append(w.wrecked, "slot held up by an open transaction")
		w.streaming()
		w.logBrings(d)
		w.settle()
		if n := w.number(`SELECT count(*) FROM eventlog.gaps`); n != 0 {
			t.Errorf("%d gaps, want none", n)
		}
		d.stop()
		w.verdict()
	})
}
