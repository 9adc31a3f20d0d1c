package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// Paces of the feedback.
const (
	// mostSilence is the longest time between two status updates; half of the
	// server's wal_sender_timeout may make it shorter.
	mostSilence = 10 * time.Second
	// voluntary is the least time between status updates that nobody asked for, so
	// that acknowledgements and keepalives do not become a storm.
	voluntary = time.Second
	// hurried takes its place once the server is shutting down.
	hurried = 100 * time.Millisecond
	// lookupTimeout bounds the wait for the side connection, lookupShort the same where
	// the reader can do without its answer.
	lookupTimeout = 30 * time.Second
	lookupShort   = 5 * time.Second
	// mostUnreadable bounds how many places of unreadable rows are remembered.
	mostUnreadable = 100
)

// rowPlace is the place of a row in the log. Rows of one statement may share a
// position (B7), so they are counted.
type rowPlace struct {
	epoch    uint64
	position pglogrepl.LSN
	nth      int
}

// stream is one life of a replication connection. One goroutine owns it and the
// connection: it reads, decodes, hands over and sends status. Others may only
// call hear.
//
// There is no ticker. The read deadline is the clock: when it passes, the read
// returns, status is sent and the next deadline is set. While the hand-off is
// full the same clock runs as a timer, so that the server hears from us whatever
// the consumer does (B15).
type stream struct {
	s   *Source
	c   *session
	w   *watcher
	a   anchor
	out chan<- cdc.Transaction

	asm     *assembler
	confirm confirmRule
	pings   pingRun

	interval   time.Duration // between status updates
	staleAfter time.Duration // silence after which the server counts as gone
	lastStatus time.Time
	lastTick   time.Time
	sent       resumePoint // last position confirmed to the server
	due        time.Time   // when to tick next
	armed      time.Time   // the read deadline that is set
	asked      bool        // a keepalive was asked for
	reading    time.Time   // since when the socket is read again
	giveUp     time.Time   // when to drop the connection of a stopping server
	timer      *time.Timer
	row        rowPlace // of the last row
	unanswered bool     // the side connection did not answer the last question

	heard chan struct{} // closed by hear
	cause atomic.Pointer[error]
}

func newStream(s *Source, c *session, w *watcher, a anchor, out chan<- cdc.Transaction) (*stream, error) {
	confirm, err := startConfirm(a.start)
	if err != nil {
		return nil, err
	}
	timeout := a.server.senderTimeout
	st := &stream{
		s: s, c: c, w: w, a: a, out: out,
		asm:        newAssembler(s.cfg.Tables, a.roots, s.memory.epoch, s.cfg.MaxRecords, s.cfg.MaxBytes),
		confirm:    confirm,
		pings:      pingRun{limit: timeout},
		interval:   mostSilence,
		staleAfter: silenceWithoutLimit,
		sent:       0,
		timer:      time.NewTimer(time.Hour),
		heard:      make(chan struct{}),
	}
	st.asm.now = a.columns
	st.timer.Stop()
	if timeout > 0 {
		st.interval = min(mostSilence, timeout/2)
		st.staleAfter = timeout + timeout/2
	}
	return st, nil
}

// start begins streaming and reports the start position.
func (st *stream) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, st.c.limit)
	defer cancel()
	err := pglogrepl.StartReplication(ctx, st.c.conn, quoteIdent(st.s.cfg.Slot), pglogrepl.LSN(st.a.start),
		pglogrepl.StartReplicationOptions{Mode: pglogrepl.LogicalReplication, PluginArgs: []string{
			"proto_version '1'",
			// The grammar of replication commands knows no backslash escapes.
			"publication_names '" + strings.ReplaceAll(quoteIdent(st.s.cfg.Publication), "'", "''") + "'",
		}})
	if err != nil {
		return fmt.Errorf("start streaming from slot %q: %w", st.s.cfg.Slot, err)
	}
	now := time.Now()
	st.reading = now
	status := &st.s.status
	status.epoch.Store(st.s.memory.epoch)
	status.serverEnd.Store(0)
	status.lag.Store(0)
	status.staleAfter.Store(int64(st.staleAfter))
	status.setMode(cdc.ModeStreaming, "")
	return st.send(now)
}

// run streams until ctx ends or the connection does. When ctx ends it confirms
// what is acknowledged, and its error is that of ctx.
func (st *stream) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, st.c.interrupt)()
	err := st.announce(ctx, st.a.gap)
	for err == nil {
		err = st.turn(ctx)
	}
	st.s.status.lag.Store(0)
	if ctx.Err() != nil || errors.Is(err, errRecheck) || errors.Is(err, errServerStopping) {
		if st.takeAcks(); st.send(time.Now()) == nil {
			st.c.leave()
		}
	}
	return err
}

// turn receives and processes one message, or does what is due.
func (st *stream) turn(ctx context.Context) error {
	if st.due != st.armed {
		st.armed = st.due
		if err := st.c.conn.Conn().SetReadDeadline(st.due); err != nil {
			return err
		}
		// Whoever interrupts does so after these became true. Asking after the deadline
		// was set makes sure that the interruption is not overwritten unseen.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := st.obey(); err != nil {
			return err
		}
	}
	message, err := st.c.conn.ReceiveMessage(context.Background())
	switch {
	case err == nil:
		return st.take(ctx, message)
	case pgconn.Timeout(err):
		st.armed = time.Time{}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := st.obey(); err != nil {
			return err
		}
		now := time.Now()
		if st.silent(now) {
			return errStalled
		}
		return st.tick(now)
	}
	return err
}

// take processes one message of the protocol.
func (st *stream) take(ctx context.Context, message pgproto3.BackendMessage) error {
	switch m := message.(type) {
	case *pgproto3.CopyData:
		return st.copyData(ctx, m.Data)
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(m)
	case *pgproto3.NoticeResponse:
		// From 18 on a missing publication is a warning, and its rows are skipped. The
		// state is shared with other warnings, so the place in the server's source is
		// asked as well.
		if m.Code == stateNotReady && m.File == "pgoutput.c" && !st.a.tolerate {
			return fmt.Errorf("%w: %s", errPublication, m.Message)
		}
		return nil
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return errServerDone
	}
	return nil // a parameter's new value, for example
}

// copyData processes one replication message.
func (st *stream) copyData(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return protocolError(err)
		}
		return st.keepalive(k)
	case pglogrepl.XLogDataByteID:
		w, err := decodeWAL(data[1:])
		if err != nil {
			return protocolError(err)
		}
		return st.wal(ctx, w)
	}
	return nil
}

// keepalive takes the server's word for how far it has decoded.
func (st *stream) keepalive(k pglogrepl.PrimaryKeepaliveMessage) error {
	st.confirm.keepalive(resumePoint(k.ServerWALEnd))
	st.s.status.received.Store(uint64(st.confirm.received))
	st.s.status.raiseServerEnd(uint64(k.ServerWALEnd))
	if !k.ReplyRequested {
		if !st.asked { // sent because there is nothing else to send
			st.s.status.lag.Store(0)
		}
		st.asked = false
		st.pull()
		return nil
	}
	if st.pings.saw(k.ServerTime) {
		st.stopping("it asks again as soon as it is answered")
	}
	if !st.giveUp.IsZero() {
		// A stopping server asks until everything is confirmed. Answering each time
		// would keep both sides busy and change nothing.
		st.due = earlier(st.due, time.Now().Add(hurried))
		return nil
	}
	st.takeAcks()
	return st.send(time.Now())
}

// wal processes one message of pgoutput.
func (st *stream) wal(ctx context.Context, w walData) error {
	body := w.message[1:]
	switch w.message[0] {
	case messageInsert:
		return st.insert(ctx, w, body)
	case messageBegin:
		m, err := decodeBegin(body)
		if err == nil {
			err = st.asm.begin(m)
		}
		if err != nil {
			return protocolError(err)
		}
		st.confirm.begin()
	case messageCommit:
		m, err := decodeCommit(body)
		if err != nil {
			return protocolError(err)
		}
		st.s.status.lag.Store(int64(w.sent.Sub(m.commitTime)))
		return st.commit(ctx, m)
	case messageRelation:
		m, err := decodeRelation(body)
		if err != nil {
			return protocolError(err)
		}
		if st.asm.relation(m) {
			return nil
		}
		return st.lookUp(ctx, m)
	}
	return nil
}

// insert takes one row. One that cannot be read ends the connection the first
// time, because a fault of the wire does not come again. The second time the row
// is left to the poller and a gap says so: it must not hold up all that follow.
func (st *stream) insert(ctx context.Context, w walData, body []byte) error {
	st.count(w.start)
	var part cdc.Transaction
	var full bool
	m, err := decodeInsert(body)
	if err == nil {
		part, full, err = st.asm.insert(m)
	}
	if err != nil {
		if st.firstTime() {
			return protocolError(err)
		}
		st.s.log.Error("a row of the log cannot be read and is left to the poller",
			slog.String("position", w.start.String()), slog.Any("err", err))
		st.asm.giveUp(gapDecode, fmt.Sprintf("the row at %s cannot be read: %s", w.start, err))
		return nil
	}
	if full {
		return st.handOver(ctx, part)
	}
	return nil
}

// count keeps account of which row this is.
func (st *stream) count(at pglogrepl.LSN) {
	if epoch := st.s.memory.epoch; st.row.position != at || st.row.epoch != epoch {
		st.row = rowPlace{epoch: epoch, position: at}
		return
	}
	st.row.nth++
}

// firstTime says whether the row that just failed deserves another connection, and
// remembers it. Further rows of a transaction with a row that failed twice do not: a
// table that cannot be read may have millions.
func (st *stream) firstTime() bool {
	known := st.s.memory.unreadable
	if _, again := known[st.row]; again || st.asm.damage.unreadable {
		return false
	}
	if known == nil || len(known) >= mostUnreadable {
		known = map[rowPlace]struct{}{}
		st.s.memory.unreadable = known
	}
	known[st.row] = struct{}{}
	return true
}

// commit ends a transaction.
func (st *stream) commit(ctx context.Context, m commitMessage) error {
	f, err := st.asm.commit(m)
	if err == nil {
		err = st.confirm.commit(f.end, len(f.txs) > 0)
	}
	if err != nil {
		return protocolError(err)
	}
	st.s.status.received.Store(uint64(st.confirm.received))
	st.s.status.foreign.Store(st.asm.foreign)
	for _, tx := range f.txs {
		if err := st.handOver(ctx, tx); err != nil {
			return err
		}
		if tx.Gap != nil {
			st.s.status.gaps.Add(1)
		}
	}
	st.pull()
	return nil
}

// announce hands a gap over before anything else. It counts as pending: until
// the consumer has it on record, nothing after it is confirmed.
func (st *stream) announce(ctx context.Context, gap *cdc.Gap) error {
	if gap == nil {
		return nil
	}
	st.confirm.wait(st.a.start)
	st.s.log.Warn("a stretch of the log was not read; the poller covers it",
		slog.String("reason", gap.Reason), slog.String("detail", gap.Detail),
		slog.String("from", string(gap.From)), slog.String("to", string(gap.To)))
	at := mark{st.s.memory.epoch, st.a.start}.position()
	if err := st.handOver(ctx, cdc.Transaction{Gap: gap, Position: at}); err != nil {
		return err
	}
	st.s.memory.gap = nil
	st.s.status.gaps.Add(1)
	st.pull()
	return nil
}

// handOver gives the consumer a transaction, waiting as long as it must.
func (st *stream) handOver(ctx context.Context, tx cdc.Transaction) error {
	select {
	case st.out <- tx:
		return nil
	default:
	}
	st.s.status.waiting.Store(true)
	defer st.s.status.waiting.Store(false)
	_, err := st.await(ctx, st.out, tx, nil)
	return err
}

// lookUp asks the side connection whose partition an unknown table is.
//
// Without an answer the stream ends, and the next one asks again: the rows may be
// ours. Where no registered table has others below it, they are not, but for a table
// that was made its child a moment ago. Then the stream goes on, and the poller, which sees
// children, is asked for a look.
func (st *stream) lookUp(ctx context.Context, m relationMessage) error {
	dispensable := allAlone(st.a.tables)
	a, err := st.ask(ctx, m, st.patience(dispensable))
	if st.unanswered = errors.Is(err, errUnanswered); st.unanswered && dispensable {
		st.s.log.Warn("a table of the log could not be looked up and counts as not registered",
			slog.String("table", m.table.String()), slog.Any("err", err))
		st.asm.resolve(m, Table{}, false)
		st.asm.askForSweep("table_unknown")
		return nil
	}
	if err != nil {
		return fmt.Errorf("whose partition is %s: %w", m.table, err)
	}
	if a.lost != "" {
		st.s.log.Warn("rows of a table that may have been part of a registered one are left out",
			slog.String("table", m.table.String()), slog.String("because", a.lost))
		st.asm.lose(m, a.lost)
		return nil
	}
	st.asm.resolve(m, a.root, a.found)
	return nil
}

// patience is how long to wait for the side connection. A stream that can do without
// and had no answer the last time does not stop again for each of many tables.
func (st *stream) patience(dispensable bool) time.Duration {
	switch {
	case !dispensable:
		return lookupTimeout
	case st.unanswered:
		return voluntary / 10
	}
	return lookupShort
}

func (st *stream) ask(ctx context.Context, m relationMessage, patience time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		retryable(reasonConnection, fmt.Errorf("%w in time", errUnanswered), ""))
	defer cancel()
	defer st.w.forget()
	a, err := st.await(ctx, nil, cdc.Transaction{}, st.w.lookUp(m.oid, st.asm.xid))
	if err == nil && a.err != nil {
		err = retryable(reasonConnection, fmt.Errorf("%w: %w", errUnanswered, a.err), "")
	}
	return a, err
}

// await waits until out takes tx or an answer comes; one of the channels is nil.
// Meanwhile status goes on.
func (st *stream) await(ctx context.Context, out chan<- cdc.Transaction, tx cdc.Transaction, answers <-chan answer) (answer, error) {
	defer func() {
		st.timer.Stop()
		st.reading = time.Now()
	}()
	heard := st.heard
	for {
		st.timer.Reset(time.Until(st.due))
		select {
		case out <- tx:
			return answer{}, nil
		case a := <-answers:
			return a, nil
		case <-st.timer.C:
			if err := st.tick(time.Now()); err != nil {
				return answer{}, err
			}
		case <-heard:
			heard = nil
			if err := st.obey(); err != nil {
				return answer{}, err
			}
		case <-ctx.Done():
			return answer{}, context.Cause(ctx)
		}
	}
}
