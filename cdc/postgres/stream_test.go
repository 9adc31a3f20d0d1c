package postgres

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// offline is a stream without a connection, for what needs none: out takes up to
// 16 transactions.
func offline(t *testing.T) (*stream, chan cdc.Transaction) {
	t.Helper()
	src, err := New(Config{DSN: "host=localhost", Tables: []Table{events}})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan cdc.Transaction, 16)
	st, err := newStream(src, nil, nil, anchor{start: 100, roots: map[uint32]Table{}}, out)
	if err != nil {
		t.Fatal(err)
	}
	st.lastStatus, st.lastTick = time.Now(), time.Now()
	return st, out
}

// play sends messages of pgoutput through the stream until one fails.
func play(t *testing.T, st *stream, messages ...[]byte) error {
	t.Helper()
	return playAt(t, st, 77, messages...)
}

func playAt(t *testing.T, st *stream, at uint64, messages ...[]byte) error {
	t.Helper()
	for _, m := range messages {
		payload := append(new(wireText).put(byte('w'), at, uint64(77), int64(0)).Bytes(), m...)
		if err := st.take(t.Context(), &pgproto3.CopyData{Data: payload}); err != nil {
			return err
		}
	}
	return nil
}

func message(kind byte, body []byte) []byte { return append([]byte{kind}, body...) }

func TestARowThatCannotBeReadBecomesAGapTheSecondTime(t *testing.T) {
	transaction := [][]byte{
		message('B', beginBytes(110, 0)),
		message('R', relationBytes(1, "public", "events", idColumn...)),
		message('I', insertBytes(1, "1")),
		message('I', insertBytes(1, "2", "one value too many")),
		message('I', insertBytes(1, "3")),
		message('C', commitBytes(110, 120, 0)),
	}
	st, _ := offline(t)
	err := play(t, st, transaction...)
	var problem *cdc.SourceError
	if !errors.As(err, &problem) || problem.Reason != reasonProtocol || problem.Permanent {
		t.Fatalf("the first time: %v, want an error that a new connection may mend", err)
	}

	again, out := offline(t)
	again.s.memory = st.s.memory
	if err := play(t, again, transaction...); err != nil {
		t.Fatalf("the second time: %v", err)
	}
	rows, gap := <-out, <-out
	if got := ids(rows.Records); len(got) != 2 || got[0] != "1" || got[1] != "3" {
		t.Errorf("rows %v, want the readable ones", got)
	}
	if gap.Gap == nil || gap.Gap.Reason != gapDecode || gap.Position != "0/78" || !rows.Partial || rows.Position != "" {
		t.Errorf("rows %+v, then %+v, want a gap that has the position of both", rows, gap)
	}
	if again.confirm.flush() != 100 {
		t.Error("the damaged transaction was confirmed before it was acknowledged")
	}
	// A row at another place is tried again, as any is the first time.
	if err := playAt(t, again, 99, transaction...); err == nil {
		t.Error("a row at another place was given up at once")
	}
}

// TestRowsOfOnePositionAreToldApart: the rows of one statement may share a position.
func TestRowsOfOnePositionAreToldApart(t *testing.T) {
	bad := message('I', insertBytes(1, "2", "one value too many"))
	good := message('I', insertBytes(1, "1"))
	head := [][]byte{message('B', beginBytes(110, 0)), message('R', relationBytes(1, "public", "events", idColumn...))}
	end := message('C', commitBytes(110, 120, 0))
	memory := memory{}
	for i, tc := range []struct {
		rows [][]byte
		ok   bool
	}{
		{[][]byte{good, good, bad}, false},          // damaged on the wire
		{[][]byte{good, bad, good}, false},          // another row of the same position, damaged on the wire
		{[][]byte{good, good, bad}, true},           // again
		{[][]byte{good, good, bad, bad, bad}, true}, // what follows in its transaction has no other cause
	} {
		st, out := offline(t)
		st.s.memory = memory
		err := play(t, st, append(append(append([][]byte{}, head...), tc.rows...), end)...)
		if (err == nil) != tc.ok {
			t.Fatalf("stream %d: %v, want it to go on: %v", i, err, tc.ok)
		}
		if tc.ok {
			if rows, gap := <-out, <-out; len(rows.Records) != 2 || gap.Gap == nil {
				t.Errorf("stream %d: rows %+v, gap %+v", i, rows, gap)
			}
		}
		memory = st.s.memory
	}
}

// TestUnknownTableWithoutAnAnswer: whether the stream may go on depends on whether the
// rows can be ours.
func TestUnknownTableWithoutAnAnswer(t *testing.T) {
	plain := tableState{table: events, oid: 1, kind: 'r'}
	for name, tc := range map[string]struct {
		table tableState
		goOn  bool
	}{
		"plain":                {plain, true},
		"partitioned":          {tableState{table: events, oid: 1, kind: 'p'}, false},
		"a parent of children": {tableState{table: events, oid: 1, kind: 'r', children: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, out := offline(t)
				defer st.timer.Stop()
				st.w, st.a.tables = newWatcher(st.s), []tableState{tc.table} // nobody answers
				st.due = time.Now().Add(time.Hour)
				begin := time.Now()
				err := play(t, st, message('B', beginBytes(110, 0)),
					message('R', relationBytes(7, "public", "unknown", idColumn...)), message('I', insertBytes(7, "1")))
				if !tc.goOn {
					if reasonOf(err) != reasonConnection || cdc.IsPermanent(err) || time.Since(begin) != lookupTimeout {
						t.Errorf("after %s: %v", time.Since(begin), err)
					}
					return
				}
				if err != nil || time.Since(begin) != lookupShort {
					t.Fatalf("after %s: %v", time.Since(begin), err)
				}
				for i := range 10 {
					if err := play(t, st, message('R', relationBytes(uint32(8+i), "public", "more", idColumn...))); err != nil {
						t.Fatal(err)
					}
				}
				if waited := time.Since(begin); waited > 2*lookupShort {
					t.Errorf("a few tables held the stream up for %s", waited)
				}
				if err := play(t, st, message('C', commitBytes(110, 120, 0))); err != nil {
					t.Fatal(err)
				}
				if tx := <-out; tx.Sweep == "" || len(tx.Records) != 0 || tx.Position != "0/78" {
					t.Errorf("handed over %+v, want a look of the poller", tx)
				}
			})
		})
	}
}

func TestMessagesThatMeanNothingHereArePassedOver(t *testing.T) {
	st, out := offline(t)
	err := play(t, st,
		message('O', []byte("origin")), message('Y', nil), message('M', []byte("message")), message('?', nil),
		message('B', beginBytes(110, 0)), message('T', nil), message('U', nil), message('D', nil),
		message('C', commitBytes(110, 120, 0)))
	if err != nil || len(out) != 0 {
		t.Fatalf("%v, %d transactions", err, len(out))
	}
	if got := st.confirm.flush(); got != 120 {
		t.Errorf("confirmed %s, want the end of the transaction that had nothing for us", got)
	}
	for _, other := range []pgproto3.BackendMessage{
		&pgproto3.ParameterStatus{}, &pgproto3.NoticeResponse{Code: "01000"}, &pgproto3.CopyData{}, &pgproto3.CopyData{Data: []byte("x")},
		&pgproto3.NoticeResponse{Code: "55000", File: "slot.c"},
	} {
		if err := st.take(t.Context(), other); err != nil {
			t.Errorf("%T: %v", other, err)
		}
	}
}

func TestB27_WarningOf18EndsTheStreamOnce(t *testing.T) {
	st, _ := offline(t)
	warning := &pgproto3.NoticeResponse{Code: "55000", File: "pgoutput.c", Message: "skipped loading publication"}
	err := st.take(t.Context(), warning)
	if !errors.Is(err, errPublication) {
		t.Errorf("warning: %v", err)
	}
	if st.s.learn(st, err); st.s.memory.broken != gapPublication {
		t.Errorf("remembered %q", st.s.memory.broken)
	}
	st.a.tolerate = true
	if err := st.take(t.Context(), warning); err != nil {
		t.Errorf("an expected warning: %v", err)
	}
}

func TestTheServersEndOfTheStreamIsAnOutageNotAFault(t *testing.T) {
	st, _ := offline(t)
	for _, m := range []pgproto3.BackendMessage{&pgproto3.CopyDone{}, &pgproto3.CommandComplete{}, &pgproto3.ReadyForQuery{}} {
		if err := classifyStream(st.take(t.Context(), m)); reasonOf(err) != reasonServerDown || cdc.IsPermanent(err) {
			t.Errorf("%T: %v", m, err)
		}
	}
}

func TestFeedbackIsSentAsOftenAsTheServerNeeds(t *testing.T) {
	src, err := New(Config{DSN: "host=localhost", Tables: []Table{events}})
	if err != nil {
		t.Fatal(err)
	}
	for timeout, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, time.Minute: 10 * time.Second, 20 * time.Second: 10 * time.Second, 5 * time.Second: 2500 * time.Millisecond,
	} {
		st, err := newStream(src, nil, nil, anchor{start: 1, server: server{senderTimeout: timeout}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if st.interval != want {
			t.Errorf("with wal_sender_timeout = %s status goes out every %s, want %s", timeout, st.interval, want)
		}
		if stale := timeout * 3 / 2; timeout > 0 && st.staleAfter != stale {
			t.Errorf("with wal_sender_timeout = %s silence counts after %s, want %s", timeout, st.staleAfter, stale)
		}
	}
}

func TestScheduleHurriesOnlyWhileSomethingWaits(t *testing.T) {
	st, _ := offline(t)
	now := time.Now()
	st.lastStatus, st.lastTick = now, now
	st.schedule(now)
	if got := st.due.Sub(now); got != st.interval {
		t.Errorf("idle: next status after %s, want %s", got, st.interval)
	}
	st.confirm.begin()
	if err := st.confirm.commit(120, true); err != nil {
		t.Fatal(err)
	}
	st.pull()
	if got := st.due.Sub(now); got != voluntary {
		t.Errorf("pending: next look after %s, want %s", got, voluntary)
	}
	st.stopping("test")
	if got := st.due.Sub(now); got > voluntary {
		t.Errorf("stopping: next look after %s", got)
	}
}

// TestGapIsNotAcknowledgedByWhatCameBefore: reading may resume where the last acknowledgement was, or before what the
// connection before has handed over and the consumer is only about to acknowledge.
func TestGapIsNotAcknowledgedByWhatCameBefore(t *testing.T) {
	old, out := offline(t)
	src, gap := old.s, &cdc.Gap{Reason: gapPublicationTable}
	src.Ack(mark{0, 100}.position())
	src.remember(gap)
	st, err := newStream(src, nil, nil, old.a, out)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.announce(t.Context(), gap); err != nil {
		t.Fatal(err)
	}
	got := <-out
	if got.Gap == nil || point(t, got.Position) != 100 {
		t.Fatalf("announced %+v", got)
	}
	src.Ack(mark{0, 150}.position())
	st.confirm.begin()
	if err := st.confirm.commit(150, true); err != nil {
		t.Fatal(err)
	}
	st.confirm.keepalive(200)
	if st.takeAcks(); st.confirm.flush() != 100 || st.confirm.waiting() != 2 {
		t.Error("the gap was taken for acknowledged")
	}
	src.Ack(got.Position)
	if st.takeAcks(); st.confirm.flush() != 100 || st.confirm.waiting() != 1 {
		t.Error("the acknowledgement of the gap was not taken")
	}
	src.Ack(mark{st.asm.epoch, 150}.position())
	if st.takeAcks(); st.confirm.flush() != 200 {
		t.Error("the acknowledgement of what follows the gap was not taken")
	}
}

// TestEpochs: a gap begins one, but not two where the server has changed.
func TestEpochs(t *testing.T) {
	st, _ := offline(t)
	src := st.s
	src.meet(identity{"a", 1}, 100)
	src.remember(nil)
	src.meet(identity{"a", 1}, 100)
	if src.memory.epoch != 0 {
		t.Errorf("epoch %d before anything happened", src.memory.epoch)
	}
	src.remember(&cdc.Gap{Reason: gapPublication})
	src.remember(&cdc.Gap{Reason: gapSlotMissing}) // the first one was not handed over yet
	if src.memory.epoch != 1 || src.memory.gap.Reason != gapPublication {
		t.Errorf("epoch %d, gap %v after a gap", src.memory.epoch, src.memory.gap)
	}
	src.memory.gap = nil
	src.meet(identity{"b", 1}, 100)
	src.remember(&cdc.Gap{Reason: gapServerChanged})
	if src.memory.epoch != 2 {
		t.Errorf("epoch %d after a change of server", src.memory.epoch)
	}
}

func TestPullDoesNotMakeEveryMessageTick(t *testing.T) {
	st, _ := offline(t)
	st.lastStatus = time.Now().Add(-5 * time.Second)
	st.due = st.lastStatus.Add(st.interval)
	st.confirm.begin()
	if err := st.confirm.commit(120, true); err != nil {
		t.Fatal(err)
	}
	st.pull()
	if !st.due.After(time.Now()) {
		t.Error("with something pending since the last look, the next look is due at once")
	}
}
