package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// This file is the part of a stream that talks back to the server.

// takeAcks tells the confirm rule what the consumer made durable.
func (st *stream) takeAcks() {
	if m := st.s.acked.Load(); m != nil && m.epoch == st.s.memory.epoch {
		st.confirm.ack(m.at)
		st.s.status.durable.Store(uint64(st.confirm.durable))
	}
}

// tick does what is due: status by the clock, or because something became
// durable since.
func (st *stream) tick(now time.Time) error {
	st.lastTick = now
	if !st.giveUp.IsZero() && !now.Before(st.giveUp) {
		return errServerStopping
	}
	st.takeAcks()
	if !now.Before(st.lastStatus.Add(st.interval)) || st.confirm.flush() > st.sent {
		return st.send(now)
	}
	st.schedule(now)
	return nil
}

// send sends a status update and sets the next one's time.
func (st *stream) send(now time.Time) error {
	update, err := st.confirm.status()
	if err != nil {
		return err
	}
	// An idle but healthy server says nothing while we keep reporting, so it is
	// asked for a sign of life when it has been silent for a while (B18).
	lastByte := time.Unix(0, st.s.status.lastByte.Load())
	update.ReplyRequested = now.Sub(lastByte) >= st.interval/2
	update.ClientTime = now
	st.asked = st.asked || update.ReplyRequested
	if err := st.c.conn.Conn().SetWriteDeadline(now.Add(writeTimeout)); err != nil {
		return err
	}
	if err := pglogrepl.SendStandbyStatusUpdate(context.Background(), st.c.conn, update); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	st.lastStatus, st.lastTick = now, now
	st.sent = resumePoint(update.WALFlushPosition)
	st.s.status.confirmed.Store(uint64(st.sent))
	st.schedule(now)
	return nil
}

// schedule sets when to tick next: at the end of the interval, sooner while
// something waits to become durable.
func (st *stream) schedule(now time.Time) {
	st.due = st.lastStatus.Add(st.interval)
	switch {
	case !st.giveUp.IsZero():
		st.due = earlier(st.due, now.Add(hurried))
	case !st.confirm.settled():
		st.due = earlier(st.due, now.Add(voluntary))
	}
}

// pull brings the next tick forward when there is, or may soon be, something
// new to confirm. It runs after every message, so it reads no clock: the time is
// counted from the last tick.
func (st *stream) pull() {
	if st.confirm.waiting() > 0 || st.confirm.flush() > st.sent {
		st.due = earlier(st.due, st.lastTick.Add(voluntary))
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// silent says that the server has not been heard of for too long although the
// socket was read.
func (st *stream) silent(now time.Time) bool {
	last := time.Unix(0, st.s.status.lastByte.Load())
	if st.reading.After(last) {
		last = st.reading
	}
	return now.Sub(last) > st.staleAfter
}

// progressed says that the connection did its work.
func (st *stream) progressed() bool { return st.confirm.received > st.a.start }

// hear is how the watcher speaks to the stream, from its own goroutine. Only the
// first cause counts.
func (st *stream) hear(cause error) {
	if st.cause.CompareAndSwap(nil, &cause) {
		close(st.heard)
		st.c.interrupt()
	}
}

// obey acts on what was heard.
func (st *stream) obey() error {
	cause := st.cause.Load()
	if cause == nil {
		return nil
	}
	if errors.Is(*cause, errServerStopping) {
		st.stopping("it takes no new connections")
		return nil
	}
	return *cause
}

// stopping: the server waits, in a shutdown, until everything it sent is
// confirmed. It is given what can be confirmed for a short while; then the
// connection is dropped rather than holding the server up (B17). Nothing is lost:
// the slot stays where the last durable commit was.
func (st *stream) stopping(how string) {
	if !st.giveUp.IsZero() {
		return
	}
	now := time.Now()
	st.giveUp = now.Add(st.s.cfg.StopGrace)
	st.due = earlier(st.due, now.Add(hurried))
	st.s.log.Debug("the server is shutting down", slog.String("noticed_by", how), slog.Int("waiting", st.confirm.waiting()))
}

// pingRun tells the keepalives of a server that is shutting down from ordinary
// ones. A stopping server asks for a reply again as soon as it had one; any other
// asks when half of wal_sender_timeout has passed without one. The server's own
// send times are compared, so that keepalives which waited in the socket while
// nobody read do not look like a run.
type pingRun struct {
	limit time.Duration // wal_sender_timeout
	last  time.Time
	close int // pings that came close after another
}

// pingsInARun is how many pings must follow closely before the server counts as
// stopping.
const pingsInARun = 3

func (p *pingRun) saw(sent time.Time) bool {
	near := time.Second
	if p.limit > 0 {
		near = min(near, p.limit/8)
	}
	if gap := sent.Sub(p.last); gap >= 0 && gap < near {
		p.close++
	} else {
		p.close = 0
	}
	p.last = sent
	return p.close >= pingsInARun
}

func protocolError(err error) error {
	return &cdc.SourceError{Err: fmt.Errorf("read the stream: %w", err), Reason: reasonProtocol}
}
