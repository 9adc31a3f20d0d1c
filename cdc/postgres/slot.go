package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// slotState is a row of pg_replication_slots. It is read as JSON, because each
// version of the server has columns that the others do not know.
type slotState struct {
	exists bool

	Plugin    string `json:"plugin"`
	Type      string `json:"slot_type"`
	Database  string `json:"database"`
	Temporary bool   `json:"temporary"`
	Active    bool   `json:"active"`
	ActivePID uint32 `json:"active_pid"`
	Restart   string `json:"restart_lsn"`
	Confirmed string `json:"confirmed_flush_lsn"`
	WALStatus string `json:"wal_status"`
	// Conflicting exists from 16 on, InvalidationReason from 17 on.
	Conflicting        bool   `json:"conflicting"`
	InvalidationReason string `json:"invalidation_reason"`
}

// invalid says that the server will never stream from the slot again.
func (s slotState) invalid() bool {
	return s.exists && (s.WALStatus == "lost" || s.Conflicting || s.InvalidationReason != "")
}

// whyInvalid names the reason and the setting behind it.
func (s slotState) whyInvalid() string {
	switch s.InvalidationReason {
	case "idle_timeout":
		return "it was unused for longer than idle_replication_slot_timeout"
	case "wal_level_insufficient":
		return "wal_level was below logical"
	case "rows_removed":
		return "rows of the catalog that it needs were removed (hot_standby_feedback)"
	}
	return "it would have kept more log than max_slot_wal_keep_size allows"
}

// confirmed is the slot's own position; 0 when it has none.
func (s slotState) confirmed() resumePoint {
	at, err := parsePoint(s.Confirmed)
	if err != nil {
		return 0
	}
	return at
}

// inspectSlot reads the slot.
func (c *session) inspectSlot(ctx context.Context, name string) (slotState, error) {
	rows, err := c.query(ctx, "SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = "+quoteLiteral(name))
	if err != nil {
		return slotState{}, fmt.Errorf("read slot %q: %w", name, err)
	}
	if len(rows) == 0 {
		return slotState{}, nil
	}
	s := slotState{exists: true}
	if err := json.Unmarshal([]byte(rows[0][0]), &s); err != nil {
		return slotState{}, fmt.Errorf("read slot %q: %w", name, err)
	}
	return s, nil
}

// action is what to do about a slot before streaming from it.
type action int

const (
	useSlot     action = iota // stream from it
	createSlot                // it is not there
	replaceSlot               // it can never be streamed from again
	refuseSlot                // somebody else must act; see err
)

// findings is all that decides about a slot.
type findings struct {
	slot     slotState
	database string
	version  int // server_version_num
	create   bool
	names    struct{ slot, publication string }
	memory   memory
}

// memory is what one life of a connection leaves to the next. It is owned by
// the goroutine of Run.
type memory struct {
	identity identity
	epoch    uint64
	// reached is how far the log of this history has come, as the server has written
	// it down for good.
	reached resumePoint
	// hadSlot: the slot was there, so that its absence is a loss.
	hadSlot bool
	// recalled is what others remember of a slot that this process has not seen.
	recalled cdc.Position
	// confirmed is the last position that was confirmed, durable the end of the last
	// durable commit. Zero when nothing is known, or when another replica may have
	// moved the slot since.
	confirmed, durable resumePoint
	// floor is the last position that this process knows to have been confirmed, by
	// itself or by whoever held the slot. It outlives a stand-by and a change of
	// server: a gap that is found then began there, or later.
	floor mark
	// broken is the reason of the gap for which the slot must be replaced although
	// the catalog shows nothing wrong with it.
	broken string
	// mended says what the log may lack, because the publication did not fit until now.
	mended string
	// serverChanged says how the server differs from the one before, until a stream
	// has begun on it.
	serverChanged string
	// gap waits to be handed over.
	gap *cdc.Gap
	// unreadable is where rows could not be decoded. If the same place fails again, the
	// row is left to the poller.
	unreadable map[rowPlace]struct{}
	// reanchored holds when slots were replaced or created anew, within the last hour.
	reanchored []time.Time
}

// identity tells one history of a server from another: positions of different
// identities cannot be compared.
type identity struct {
	system   string
	timeline int32
}

// decision is what decide comes to.
type decision struct {
	action action
	err    error
	// gap is announced before the first row; nil when nothing was missed.
	gap *cdc.Gap
	// tolerate: warnings about a missing publication are expected, the gap covers them.
	tolerate bool
}

// skipsMissingPublication is the first version that skips rows, with a warning, where
// the publication is missing; older ones fail.
const skipsMissingPublication = 180000

// decide says what to do about the slot, from the catalog and from what this
// process knows of earlier connections. It does no I/O.
func decide(f findings) decision {
	if err := f.wrongKind(); err != nil {
		return decision{action: refuseSlot, err: err}
	}
	from := place(cmp.Or(f.from().position(), f.memory.recalled))
	gap := func(reason, detail string) *cdc.Gap { return &cdc.Gap{Reason: reason, Detail: detail, From: from} }
	switch {
	case !f.slot.exists:
		return f.missing(gap)
	case f.slot.invalid():
		why := f.slot.whyInvalid()
		return f.replace(gap(gapSlotLost, fmt.Sprintf("the server invalidated slot %q: %s", f.names.slot, why)))
	case f.memory.broken == gapSlotLost:
		return f.replace(gap(gapSlotLost, fmt.Sprintf("the server removed log that slot %q still needed", f.names.slot)))
	case f.memory.broken == gapPublication:
		lost := gap(gapPublication, fmt.Sprintf(notCarried, f.names.publication))
		if !f.create && f.version >= skipsMissingPublication {
			return decision{action: useSlot, gap: lost, tolerate: true}
		}
		return f.replace(lost)
	case f.memory.serverChanged != "":
		return decision{action: useSlot, gap: gap(gapServerChanged, f.memory.serverChanged)}
	case f.memory.confirmed != 0 && f.slot.confirmed() > max(f.memory.confirmed, f.memory.durable):
		return decision{action: useSlot, gap: gap(gapSlotMoved, fmt.Sprintf(
			"somebody moved slot %q from %s to %s", f.names.slot, f.memory.confirmed, f.slot.Confirmed))}
	case f.memory.mended != "":
		return decision{action: useSlot, gap: gap(gapPublicationTable, f.memory.mended)}
	}
	return decision{action: useSlot}
}

// from is where a gap that is found now began. What this process confirmed counts
// first: a slot that is further was moved there by somebody else.
func (f findings) from() mark {
	if f.memory.confirmed != 0 {
		return mark{f.memory.epoch, f.memory.confirmed}
	}
	return f.memory.floor.raised(mark{f.memory.epoch, f.slot.confirmed()})
}

// wrongKind refuses a slot that is not ours to use.
func (f findings) wrongKind() error {
	drop := fmt.Sprintf("choose another slot name, or SELECT pg_drop_replication_slot(%s)", quoteLiteral(f.names.slot))
	switch s := f.slot; {
	case !s.exists:
		return nil
	case s.Type != "logical":
		return permanent(reasonSlot, fmt.Errorf("slot %q is a %s slot", f.names.slot, s.Type), drop)
	case s.Plugin != "pgoutput":
		return permanent(reasonSlot, fmt.Errorf("slot %q belongs to the plugin %s, not to pgoutput", f.names.slot, s.Plugin), drop)
	case s.Database != f.database:
		return permanent(reasonSlot, fmt.Errorf("slot %q belongs to database %q", f.names.slot, s.Database),
			"choose another slot name: slots of all databases share one set of names")
	case s.Temporary:
		return permanent(reasonSlot, fmt.Errorf("slot %q is temporary", f.names.slot), "choose another slot name")
	}
	return nil
}

// missing decides about a slot that is not there.
func (f findings) missing(gap func(reason, detail string) *cdc.Gap) decision {
	if !f.create {
		return decision{action: refuseSlot, err: permanent(reasonSlot, fmt.Errorf("slot %q does not exist", f.names.slot),
			f.createStatement())}
	}
	d := decision{action: createSlot}
	switch {
	case f.memory.serverChanged != "":
		d.gap = gap(gapServerChanged, f.memory.serverChanged+", and the slot is not on it")
	case f.memory.hadSlot:
		d.gap = gap(gapSlotMissing, fmt.Sprintf("somebody dropped slot %q", f.names.slot))
	}
	return d
}

// replace decides about a slot that can never be used again.
func (f findings) replace(lost *cdc.Gap) decision {
	if !f.create {
		return decision{action: refuseSlot, err: permanent(lost.Reason, errors.New(lost.Detail),
			fmt.Sprintf("SELECT pg_drop_replication_slot(%s); %s", quoteLiteral(f.names.slot), f.createStatement()))}
	}
	return decision{action: replaceSlot, gap: lost}
}

func (f findings) createStatement() string {
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", quoteLiteral(f.names.slot))
}

// dropSlot drops the slot if it is still the one that was looked at: another
// replica may have replaced it meanwhile.
func (c *session) dropSlot(ctx context.Context, name string, seen slotState) (dropped bool, err error) {
	rows, err := c.query(ctx, fmt.Sprintf(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name = %s AND NOT active AND confirmed_flush_lsn IS NOT DISTINCT FROM %s::pg_lsn`,
		quoteLiteral(name), nullable(seen.Confirmed)))
	switch sqlState(err) {
	case stateUndefinedObject, stateInUse:
		return false, nil // somebody was faster
	case statePrivilege:
		return false, permanent(reasonPrivilege, fmt.Errorf("drop slot %q: %w", name, err),
			fmt.Sprintf("SELECT pg_drop_replication_slot(%s)", quoteLiteral(name)))
	}
	if err != nil {
		return false, fmt.Errorf("drop slot %q: %w", name, err)
	}
	return len(rows) == 1, nil
}

// createSlot makes the slot and returns its position. It waits for every
// transaction that is writing when it begins; patience bounds the wait for each
// of them, so that a session whose client is gone does not wait for ever.
func (c *session) createSlot(ctx context.Context, name string, failover bool, patience time.Duration) (resumePoint, error) {
	options := "false, false" // neither temporary nor two-phase
	if failover {
		options += ", true"
	}
	rows, err := c.queryUntil(ctx, fmt.Sprintf(`SET lock_timeout = %d;
		SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput', %s)`,
		patience.Milliseconds(), quoteLiteral(name), options))
	if err != nil {
		return 0, fmt.Errorf("create slot %q: %w", name, err)
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		return 0, fmt.Errorf("create slot %q: the server answered with %d rows", name, len(rows))
	}
	at, err := parsePoint(rows[0][0])
	if err != nil {
		return 0, fmt.Errorf("create slot %q: position %q: %w", name, rows[0][0], err)
	}
	return at, nil
}

// oldestWriter finds the session whose open transaction has the oldest
// transaction id: the one that slot creation waits for first. Any role may see it.
func (c *session) oldestWriter(ctx context.Context) (pid string, err error) {
	rows, err := c.query(ctx, `SELECT coalesce(pid::text, 'none: a prepared transaction') FROM pg_locks
		WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
		ORDER BY age(transactionid) DESC LIMIT 1`)
	if err != nil {
		return "", fmt.Errorf("look for the oldest open transaction: %w", err)
	}
	if len(rows) == 0 {
		return "", nil
	}
	return rows[0][0], nil
}

func nullable(text string) string {
	if text == "" {
		return "NULL"
	}
	return quoteLiteral(text)
}
