package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// oldestVersion is the first server version whose catalog this package reads.
const oldestVersion = 150000

// server is what the set-up learns about the server.
type server struct {
	version       int
	database      string
	identity      identity
	end           resumePoint   // of the log that is on disk
	senderTimeout time.Duration // wal_sender_timeout; 0 means none
}

// anchor is where and how to begin streaming.
type anchor struct {
	server server
	start  resumePoint
	// gap is announced before the first row.
	gap      *cdc.Gap
	tolerate bool
	// tables are the registered tables; roots are their OIDs and those of what belongs
	// to them. The stream owns roots and adds to it.
	tables []tableState
	roots  map[uint32]Table
	// columns are those of the tables, by OID, where their places are known.
	columns map[uint32][]cdc.Column
}

// prepare does everything before the stream starts, on the replication
// connection itself: it checks the server, waits while another replica holds
// the slot, makes publication and slot fit, and picks the start position.
func (s *Source) prepare(ctx context.Context, c *session) (anchor, error) {
	var a anchor
	var err error
	if a.server, err = c.inspectServer(ctx); err != nil {
		return a, err
	}
	s.meet(a.server.identity, a.server.end)
	for {
		slot, err := s.awaitFreeSlot(ctx, c)
		if err != nil {
			return a, err
		}
		if err := s.recall(ctx, slot); err != nil {
			return a, err
		}
		f := findings{slot: slot, database: a.server.database, version: a.server.version, create: s.cfg.Create}
		f.names.slot, f.names.publication = s.cfg.Slot, s.cfg.Publication
		if err := f.wrongKind(); err != nil {
			return a, err
		}
		p, err := s.ensurePublication(ctx, c, slot.exists)
		if err != nil {
			return a, err
		}
		s.reportDrift(p)
		a.tables = p.tables
		if a.roots, err = c.descendants(ctx, p.tables); err != nil {
			return a, err
		}
		if a.columns, err = c.columns(ctx, p.tables); err != nil {
			return a, err
		}
		f.memory = s.memory
		again, err := s.carryOut(ctx, c, decide(f), f, &a)
		if err != nil {
			return a, err
		}
		if !again {
			return a, nil
		}
	}
}

// recall asks whether somebody has read from a slot that is not there.
func (s *Source) recall(ctx context.Context, slot slotState) error {
	if slot.exists || s.memory.hadSlot || s.cfg.Recall == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
	defer cancel()
	position, err := s.cfg.Recall(ctx)
	if err != nil {
		return retryable(reasonRecall, fmt.Errorf("slot %q is missing, and whether there was one is not known: %w", s.cfg.Slot, err),
			"the table that remembers the source's position must be readable; nothing is read from the log until it is")
	}
	s.memory.recalled, s.memory.hadSlot = position, position != ""
	return nil
}

// inspectServer checks that the server can serve a logical stream at all.
func (c *session) inspectServer(ctx context.Context) (server, error) {
	row, err := c.row(ctx, `SELECT current_setting('server_version_num'), current_setting('wal_level'), current_database(),
		pg_is_in_recovery(), (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout')`, 5)
	if err != nil {
		return server{}, fmt.Errorf("inspect the server: %w", err)
	}
	version, err := strconv.Atoi(row[0])
	if err != nil {
		return server{}, fmt.Errorf("server version %q: %w", row[0], err)
	}
	timeout, err := strconv.Atoi(row[4])
	if err != nil {
		return server{}, fmt.Errorf("wal_sender_timeout %q: %w", row[4], err)
	}
	switch {
	case version < oldestVersion:
		return server{}, permanent(reasonVersion, fmt.Errorf("the server is version %d", version/10000), "upgrade to PostgreSQL 15 or later")
	case row[3] == "t":
		return server{}, retryable(reasonRecovery, errors.New("the server is a standby"), "point the DSN at the primary")
	case row[1] != "logical":
		return server{}, permanent(reasonWALLevel, fmt.Errorf("wal_level is %s", row[1]),
			"ALTER SYSTEM SET wal_level = logical; then restart the server")
	}
	system, err := c.identify(ctx)
	if err != nil {
		return server{}, fmt.Errorf("identify the system: %w", err)
	}
	return server{
		version:       version,
		database:      row[2],
		identity:      identity{system: system.SystemID, timeline: system.Timeline},
		end:           resumePoint(system.XLogPos),
		senderTimeout: time.Duration(timeout) * time.Millisecond,
	}, nil
}

// identify asks who the server is.
func (c *session) identify(ctx context.Context) (pglogrepl.IdentifySystemResult, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	return pglogrepl.IdentifySystem(ctx, c.conn)
}

// meet compares the server with the last one. When it is another, on another
// timeline, or its log ends before a place that was on its disk already, what is remembered of
// positions counts no more: a new epoch begins.
//
// What the server sends, it has on disk, and a crash takes nothing of that away. So a
// log that has become shorter is a copy from before, put in the place of the server
// with its identity: its next commits get positions that were used already.
func (s *Source) meet(now identity, end resumePoint) {
	last, reached := s.memory.identity, s.memory.reached
	s.memory.identity, s.memory.reached = now, end
	var changed string
	switch {
	case last == identity{}:
		return
	case last.system != now.system:
		changed = fmt.Sprintf("the DSN leads to another server (system %s, before %s)", now.system, last.system)
	case last.timeline != now.timeline:
		changed = fmt.Sprintf("the server was promoted or restored (timeline %d, before %d)", now.timeline, last.timeline)
	case end < reached:
		changed = fmt.Sprintf("the server was restored from a copy of itself (its log ends at %s, before at %s)", end, reached)
	default:
		return
	}
	s.memory.epoch++
	s.memory.confirmed, s.memory.durable = 0, 0
	s.memory.serverChanged = changed
	s.log.Warn("the server's history changed", slog.String("detail", changed))
}

// awaitFreeSlot returns the slot's state once no other session streams from it.
// Meanwhile this process stands by (B20).
func (s *Source) awaitFreeSlot(ctx context.Context, c *session) (slotState, error) {
	quiet := time.Time{} // nothing is logged before then
	for {
		slot, err := c.inspectSlot(ctx, s.cfg.Slot)
		if err != nil {
			return slot, err
		}
		s.memory.floor = s.memory.floor.raised(mark{s.memory.epoch, slot.confirmed()})
		if !slot.Active {
			return slot, nil
		}
		s.standBy(slot.ActivePID)
		if now := time.Now(); now.After(quiet) {
			quiet = now.Add(time.Minute)
			s.log.Info("standing by: another session streams from the slot", slog.Uint64("pid", uint64(slot.ActivePID)))
		}
		if err := sleep(ctx, s.cfg.StandbyPoll); err != nil {
			return slot, err
		}
	}
}

// standBy: whoever holds the slot moves and mends it, so that what is remembered
// of it says nothing any more. The floor stays: no gap begins before it.
func (s *Source) standBy(pid uint32) {
	s.memory.confirmed, s.memory.durable = 0, 0
	s.memory.hadSlot, s.memory.broken = true, ""
	s.status.setMode(cdc.ModeStandby, fmt.Sprintf("session %d streams from slot %q", pid, s.cfg.Slot))
}

// carryOut acts on a decision. again means that the slot must be looked at anew.
func (s *Source) carryOut(ctx context.Context, c *session, d decision, f findings, a *anchor) (again bool, err error) {
	s.remember(d.gap)
	var at resumePoint
	switch d.action {
	case refuseSlot:
		return false, d.err
	case useSlot:
		if at = f.slot.confirmed(); at == 0 {
			return false, fmt.Errorf("slot %q has the position %q", s.cfg.Slot, f.slot.Confirmed)
		}
		// What this process made durable on the same server need not come again.
		at = max(at, s.memory.durable)
	case createSlot, replaceSlot:
		if at, err = s.reanchor(ctx, c, d, f); err != nil || at == 0 {
			return err == nil, err
		}
		s.memory.confirmed, s.memory.durable = 0, 0
	}
	if s.memory.gap != nil && s.memory.gap.To == "" {
		s.memory.gap.To = mark{at: at}.position()
	}
	s.memory.floor = s.memory.floor.raised(mark{s.memory.epoch, at})
	s.memory.hadSlot = true
	s.memory.broken, s.memory.serverChanged, s.memory.mended = "", "", ""
	a.start, a.gap, a.tolerate = at, s.memory.gap, d.tolerate
	return false, nil
}

// remember keeps a gap until it is handed over. Of several, the first one says
// why and from where.
//
// It begins an epoch, unless a change of server has just done so: what was handed over
// before may lie beyond the place of the gap, and its acknowledgement says nothing about the gap.
func (s *Source) remember(gap *cdc.Gap) {
	if gap == nil || s.memory.gap != nil {
		return
	}
	s.memory.gap = gap
	if s.memory.serverChanged == "" {
		s.memory.epoch++
	}
}

// reanchor makes the slot, in place of the old one if there is one. It returns
// zero when another replica did so first.
func (s *Source) reanchor(ctx context.Context, c *session, d decision, f findings) (resumePoint, error) {
	if d.gap != nil {
		if err := s.paceReanchor(ctx); err != nil {
			return 0, err
		}
	}
	if d.action == replaceSlot {
		s.log.Warn("replacing the slot", slog.String("reason", d.gap.Reason), slog.String("detail", d.gap.Detail))
		dropped, err := c.dropSlot(ctx, s.cfg.Slot, f.slot)
		if err != nil {
			return 0, err
		}
		if !dropped {
			s.memory.broken = "" // it is another slot by now, which must speak for itself
			return 0, nil
		}
	}
	at, err := s.create(ctx, c, f.version)
	if err == nil && at == 0 {
		s.memory.broken = ""
	}
	return at, err
}

// paceReanchor waits, when a slot was replaced within the last hour already, for
// the longest pause: a slot that is lost again and again must not be replaced in
// a tight loop (B26).
func (s *Source) paceReanchor(ctx context.Context) error {
	now := time.Now()
	recent := s.memory.reanchored[:0]
	for _, t := range s.memory.reanchored {
		if now.Sub(t) < time.Hour {
			recent = append(recent, t)
		}
	}
	s.memory.reanchored = append(recent, now)
	if len(recent) == 0 {
		return nil
	}
	return sleep(ctx, s.cfg.BackoffMax)
}

// Bounds on the wait for one open transaction while a slot is made.
const (
	firstPatience = 30 * time.Second
	mostPatience  = 10 * time.Minute
)

// create makes the slot. While a transaction that was open before does not end,
// it tries again, longer each time, and names the session (B28). It returns zero
// when another replica made the slot first.
func (s *Source) create(ctx context.Context, c *session, version int) (resumePoint, error) {
	s.status.setMode(cdc.ModeConnecting, "creating the slot, which waits for transactions that are open now")
	patience := s.patience
	for {
		at, err := c.createSlot(ctx, s.cfg.Slot, s.cfg.Failover && version >= 170000, patience)
		switch sqlState(err) {
		case stateDuplicateObject:
			return 0, nil
		case stateLockTimeout:
			if err := s.nameBlocker(ctx, c); err != nil {
				return 0, err
			}
			patience = min(2*patience, mostPatience)
			continue
		case statePrivilege:
			return 0, permanent(reasonPrivilege, err, "give the role of the DSN the attribute REPLICATION, or create the slot as an administrator")
		}
		if err != nil {
			return 0, err
		}
		s.log.Info("created the slot", slog.String("position", at.String()))
		_, err = c.query(ctx, "SET lock_timeout = 0")
		return at, err
	}
}

// nameBlocker logs who holds the creation of the slot up.
func (s *Source) nameBlocker(ctx context.Context, c *session) error {
	pid, err := c.oldestWriter(ctx)
	if err != nil || pid == "" {
		return err
	}
	s.status.setMode(cdc.ModeConnecting, "slot creation waits for the open transaction of session "+pid)
	s.log.Warn("slot creation waits for an open transaction", slog.String("blocking_pid", pid))
	return nil
}

// reportDrift logs what about the publication differs from the default, once.
func (s *Source) reportDrift(p publicationState) {
	for _, text := range p.drift() {
		if _, known := s.drift[text]; !known {
			s.drift[text] = struct{}{}
			s.log.Warn("the publication differs from what the dispatcher would create",
				slog.String("publication", s.cfg.Publication), slog.String("detail", text))
		}
	}
}

// sleep waits for d or for the end of ctx, which is then the error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
