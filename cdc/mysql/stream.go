package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// stream is one life of a binlog connection. One goroutine owns it: it takes events,
// assembles, hands over, and does what is due by the clock, also while the consumer is busy.
type stream struct {
	s      *Source
	cfg    *driver.Config
	side   *sql.DB
	log    *logConn
	facts  facts
	tenure Tenure
	gap    *cdc.Gap
	start  place
	out    chan<- cdc.Transaction
	ctx    context.Context // of run; only for what the assembler calls back

	asm       *assembler
	changed   chan error // the watcher's word
	timer     *time.Timer
	nextCheck time.Time
	nextSave  time.Time
	nextOwn   time.Time // when our own writes move the saved position too
	progress  bool      // an event of the log came
}

func newStream(s *Source, cfg *driver.Config, side *sql.DB, f facts, tenure Tenure, out chan<- cdc.Transaction) *stream {
	st := &stream{
		s: s, cfg: cfg, side: side, facts: f, tenure: tenure, out: out,
		changed: make(chan error, 1), timer: time.NewTimer(time.Hour),
	}
	st.timer.Stop()
	return st
}

// open starts the stream at a place. gap is announced before anything else.
func (st *stream) open(ctx context.Context, start place, gap *cdc.Gap) error {
	st.start, st.gap = start, gap
	st.asm = newAssembler(st.s.cfg, start.clone(), st.tenure.Epoch())
	st.asm.fold = st.facts.fold
	st.asm.emit = st.handOver
	st.asm.warn = st.s.warnOnce
	if gap != nil {
		st.s.memory.certain = nil // a log that began anew may use the names of its transactions again
	}
	st.asm.forgive, st.asm.certain = st.s.memory.undecodable, st.s.memory.certain
	st.asm.lookUp = func(t Table) (definition, error) {
		d, err := describe(st.ctx, st.side, t)
		if err != nil {
			return nil, classifySQL("look at the event table", err, st.cfg)
		}
		return d, nil
	}
	durable := start.position()
	if gap != nil {
		// Until the gap is on record, the place before it is what counts: it is found again
		// after whatever happens.
		durable = gap.From
	}
	st.s.begin(durable)
	if gap != nil {
		st.s.handedOver(gap.To)
	}
	st.log = st.s.newLog(st.cfg, st.facts)
	if err := st.log.start(ctx, start); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if st.log.silent() {
			err = errStalled
		}
		return classifyStart(err, st.cfg)
	}
	now := time.Now()
	st.nextCheck, st.nextSave, st.nextOwn = now.Add(st.s.cfg.CheckInterval), now.Add(st.s.cfg.SaveInterval), now.Add(ownInterval)
	st.s.status.started(st)
	return nil
}

// close ends the connection.
func (st *stream) close() {
	st.timer.Stop()
	if st.log != nil {
		st.log.close()
	}
}

// run streams until ctx ends or the connection does.
func (st *stream) run(ctx context.Context) error {
	st.ctx = ctx
	if err := st.announce(); err != nil {
		return err
	}
	for {
		st.timer.Reset(time.Until(st.due()))
		select {
		case batch := <-st.log.events:
			for _, e := range batch.events {
				if err := st.take(logEvent{e, &batch.rows}); err != nil {
					return err
				}
			}
		case err := <-st.log.failed:
			return st.failure(err)
		case err := <-st.changed:
			return err
		case <-st.timer.C:
			if err := st.tick(ctx); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		// The clock counts also while events never stop.
		if now := time.Now(); !now.Before(st.due()) {
			if err := st.tick(ctx); err != nil {
				return err
			}
		}
	}
}

// failure sorts the end of the library's part.
func (st *stream) failure(err error) error {
	if st.log.silent() {
		return errStalled
	}
	if number, _ := serverError(err); number == 0 && errors.Is(scrub(err), errDecode) {
		return &undecodable{st.asm.where()}
	}
	return err
}

// take processes one event.
func (st *stream) take(e logEvent) error {
	switch e.Header.EventType {
	case replication.HEARTBEAT_EVENT, replication.HEARTBEAT_LOG_EVENT_V2:
		st.s.status.lag.Store(0) // sent because there is nothing else to send
		return nil
	case replication.ROTATE_EVENT, replication.FORMAT_DESCRIPTION_EVENT:
		// These come with every connection and prove nothing.
	default:
		st.progress = true
	}
	commit := st.asm.group.commit
	err := st.asm.take(e)
	if err == nil && !commit.IsZero() && !st.asm.group.open {
		st.s.status.lag.Store(int64(max(0, time.Since(commit)+st.facts.clock)))
	}
	st.s.status.foreign.Store(st.asm.counts.foreign + st.s.memory.foreign)
	return err
}

// announce hands the gap over before anything that follows it.
func (st *stream) announce() error {
	if st.gap == nil {
		return nil
	}
	st.s.log.Warn("a stretch of the log was not read; the poller covers it",
		slog.String("reason", st.gap.Reason), slog.String("detail", st.gap.Detail),
		slog.String("from", string(st.gap.From)), slog.String("to", string(st.gap.To)))
	return st.handOver(cdc.Transaction{Gap: st.gap, Position: st.gap.To, Epoch: st.tenure.Epoch()})
}

// handOver gives the consumer a transaction, waiting as long as it must. Meanwhile what
// is due by the clock is done.
func (st *stream) handOver(tx cdc.Transaction) error {
	if tx.Position != "" && (tx.Gap == nil || tx.Gap != st.gap) {
		st.s.handedOver(tx.Position)
	}
	if tx.Gap != nil {
		st.s.status.gaps.Add(1)
	}
	select {
	case st.out <- tx:
		return nil
	default:
	}
	st.s.status.waiting.Store(true)
	defer st.s.status.waiting.Store(false)
	for {
		st.timer.Reset(time.Until(st.due()))
		select {
		case st.out <- tx:
			return nil
		case err := <-st.changed:
			return err
		case <-st.timer.C:
			if err := st.tick(st.ctx); err != nil {
				return err
			}
		case <-st.ctx.Done():
			return st.ctx.Err()
		}
	}
}

func (st *stream) due() time.Time {
	if st.nextSave.Before(st.nextCheck) {
		return st.nextSave
	}
	return st.nextCheck
}

// tick does what is due: makes sure that this process still is the reader, and saves how
// far it has read past transactions that are nobody's.
func (st *stream) tick(ctx context.Context) error {
	now := time.Now()
	st.s.status.received.Store(ptr(st.asm.position()))
	if !now.Before(st.nextCheck) {
		st.nextCheck = now.Add(st.s.cfg.CheckInterval)
		if err := st.s.check(ctx, st.tenure); err != nil {
			return err
		}
	}
	if now.Before(st.nextSave) {
		return nil
	}
	st.nextSave = now.Add(st.s.cfg.SaveInterval)
	// Our own writes come back through the log. If they moved the position, saving it would
	// be a reason to save it again.
	at, settled := st.s.worthSaving(st.asm, !now.Before(st.nextOwn))
	if settled {
		st.asm.counts.moved = false
	}
	if at == "" {
		return nil
	}
	st.nextOwn = now.Add(ownInterval)
	return st.s.save(ctx, st.tenure, at, st.facts.identity)
}

// ownInterval is how often the position is saved while nothing but our own writes is logged. What is kept must not
// fall behind what the server purges, which would be taken for a gap.
const ownInterval = 10 * time.Minute

// learn keeps what the next connection needs to know about this one.
func (st *stream) learn(err error) {
	m := &st.s.memory
	if st.asm == nil {
		return
	}
	m.foreign += st.asm.counts.foreign
	m.resume = st.s.answer(false, st.asm.position)
	m.identity = st.facts.identity
	number, text := serverError(err)
	refused := number == errBinlogFatal && !sameID(text)
	if st.progress && !refused {
		m.refusal = refusal{}
	}
	if bad := new(undecodable); errors.As(err, &bad) {
		st.skip(bad)
	}
	if large := new(largeCommit); errors.As(err, &large) {
		m.certain = append(slices.Clone(m.certain[max(0, len(m.certain)-mostCertain+1):]), large.transaction)
	}
	if refused {
		// Also after something came: a file that is damaged further on is sent up to there each time. That reading
		// gets anywhere shows in the place.
		if m.refusal.at != m.resume {
			m.refusal = refusal{at: m.resume}
		}
		m.refusal.text = text
		m.refusal.times++
	}
}

// skip decides about something that could not be decoded. The second time at the same
// place the row is given up by the assembler; what even the library cannot read is skipped as
// a whole transaction.
func (st *stream) skip(bad *undecodable) {
	m := &st.s.memory
	if m.undecodable != bad.transaction {
		m.undecodable = bad.transaction
		return
	}
	if m.resume != st.asm.position() {
		return // something before it is not durable yet, and comes again first
	}
	after := st.asm.end.clone()
	after.add(st.asm.group.id)
	m.skip = &skipped{
		at: m.resume, to: after, known: st.asm.group.open && after.mode != modeFile,
		detail: fmt.Sprintf("transaction %s cannot be decoded", bad.transaction),
	}
}

// mostCertain is more than the large transactions that can be on their way at a time.
const mostCertain = 64

func ptr[T any](v T) *T { return &v }
