package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// watcher looks at the server through a plain SQL connection of its own, apart
// from the stream. It measures how much log is retained, notices that the
// publication or a table was changed, finds the root of partitions, and learns of
// a shutdown at once, because the server ends plain sessions first. Its failures
// never hurt the stream.
type watcher struct {
	s *Source
	// stream is the stream to speak to; nil when none runs.
	stream atomic.Pointer[stream]
	// questions holds the one question that the stream waits for.
	questions chan question

	mu sync.Mutex
	// idle is the session while it waits for something to do; only then may its read
	// be interrupted.
	idle *session
}

// question asks whose partition a table is, as the transaction xid left it.
type question struct {
	oid, xid uint32
	answer   chan<- answer
}

// answer is what the catalog knows, or why it could not be asked.
type answer struct {
	whereabouts

	err error
}

// Paces of the watcher.
const (
	watchQueryTimeout = 5 * time.Second
	watchRetry        = time.Second
)

func newWatcher(s *Source) *watcher {
	return &watcher{s: s, questions: make(chan question, 1)}
}

// watch names the stream to speak to. The stream's goroutine calls it.
func (w *watcher) watch(st *stream) {
	w.forget() // of a stream that is gone
	w.stream.Store(st)
}

// forget takes back a question that nobody has taken.
func (w *watcher) forget() {
	select {
	case <-w.questions:
	default:
	}
}

// lookUp asks which registered table the one with this OID belongs to, after the
// transaction xid. The stream's goroutine calls it, and before it asks again it waits
// for the answer or forgets the question.
func (w *watcher) lookUp(oid, xid uint32) <-chan answer {
	answers := make(chan answer, 1)
	w.questions <- question{oid: oid, xid: xid, answer: answers}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle != nil {
		w.idle.interrupt()
	}
	return answers
}

// run keeps a connection open until ctx ends.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := w.s.dial(ctx, forWatch)
		if err == nil {
			stop := context.AfterFunc(ctx, c.interrupt)
			err = w.serve(ctx, c)
			stop()
			c.close()
			if sqlState(err) == stateAdminShutdown && ctx.Err() == nil {
				continue // a shutdown or only this session: a new connection tells
			}
		}
		w.s.status.retained.Store(-1)
		w.s.status.heldByStandby.Store(false)
		if st := w.stream.Load(); st != nil && sqlState(err) == stateCannotConnect {
			st.hear(errServerStopping)
		}
		pause := w.s.cfg.WatchInterval
		if w.stream.Load() != nil {
			pause = min(pause, watchRetry)
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

// serve answers questions and looks around at intervals until the connection
// ends.
func (w *watcher) serve(ctx context.Context, c *session) error {
	var next time.Time
	for {
		if !time.Now().Before(next) {
			if err := w.look(ctx, c); err != nil {
				return err
			}
			next = time.Now().Add(w.s.cfg.WatchInterval)
		}
		asked, err := w.rest(ctx, c, next)
		if err == nil && asked != nil {
			err = w.answer(ctx, c, *asked)
		}
		if err != nil {
			return err
		}
	}
}

// rest waits for a question, the next look, or the end of the connection.
func (w *watcher) rest(ctx context.Context, c *session, until time.Time) (asked *question, err error) {
	if err := w.setIdle(c, c, until); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.setIdle(nil, c, time.Time{})) }()
	// As in stream.turn: asked after the deadline was set, so that no interruption
	// is overwritten.
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case q := <-w.questions:
		return &q, nil
	default:
	}
	// Nothing was asked of the server, so it speaks only to end the session.
	if _, err := c.conn.ReceiveMessage(context.Background()); err != nil && !pgconn.Timeout(err) {
		return nil, err
	}
	return nil, nil
}

func (w *watcher) setIdle(idle, c *session, deadline time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = idle
	return c.conn.Conn().SetReadDeadline(deadline)
}

// answer looks the table up, once its transaction is visible: the log has a commit
// a moment before other sessions see it, and with a synchronous standby well
// before.
func (w *watcher) answer(ctx context.Context, c *session, q question) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	a := answer{err: c.awaitVisible(ctx, q.xid)}
	if a.err == nil {
		a.whereabouts, a.err = c.rootOf(ctx, q.oid, w.s.cfg.Publication, w.s.cfg.Tables)
	}
	q.answer <- a
	return a.err
}

// look reads what Status tells and checks that the publication still fits.
func (w *watcher) look(ctx context.Context, c *session) error {
	ctx, cancel := context.WithTimeout(ctx, watchQueryTimeout)
	defer cancel()
	row, err := c.row(ctx, `SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), -1)::bigint,
		pg_current_wal_lsn(), pg_size_bytes(current_setting('max_slot_wal_keep_size')),
		coalesce((SELECT wait_event FROM pg_stat_activity a WHERE a.pid = s.active_pid), '')
		FROM (SELECT) one LEFT JOIN pg_replication_slots s ON slot_name = `+quoteLiteral(w.s.cfg.Slot), 4)
	if err != nil {
		return fmt.Errorf("look at the slot: %w", err)
	}
	retained, err := strconv.ParseInt(row[0], 10, 64)
	end, err1 := parsePoint(row[1])
	limit, err2 := strconv.ParseInt(row[2], 10, 64)
	if err := errors.Join(err, err1, err2); err != nil {
		return fmt.Errorf("look at the slot: %w", err)
	}
	w.s.status.retained.Store(retained)
	w.s.status.retainLimit.Store(limit)
	w.s.status.heldByStandby.Store(row[3] == "WaitForStandbyConfirmation")
	st := w.stream.Load()
	if st == nil {
		return nil
	}
	w.s.status.raiseServerEnd(uint64(end))
	p, err := c.inspectPublication(ctx, w.s.cfg.Publication, w.s.cfg.Tables)
	if err != nil {
		return err
	}
	if !w.s.fits(p, st.a.tables) {
		st.hear(errRecheck)
	}
	return nil
}
