package mysql

import (
	"fmt"

	"github.com/go-mysql-org/go-mysql/replication"
)

// This file is the part of the assembler for events that the library does not decode.

// generic takes an event that the library does not decode.
func (a *assembler) generic(h *replication.EventHeader, ev *replication.GenericEvent) error {
	switch h.EventType {
	case replication.XA_PREPARE_LOG_EVENT:
		onePhase := len(ev.Data) > 0 && ev.Data[0] != 0
		if onePhase && a.group.ours {
			// Committed with this event, but the rows were not kept: they rarely come this way.
			a.group.sweep = sweepXA
		}
		return a.finish(h, true)
	case replication.INCIDENT_EVENT:
		return a.incident(h)
	case replication.STOP_EVENT, replication.RAND_EVENT, replication.USER_VAR_EVENT, replication.IGNORABLE_EVENT,
		replication.TRANSACTION_CONTEXT_EVENT, replication.VIEW_CHANGE_EVENT, replication.MARIADB_START_ENCRYPTION_EVENT,
		replication.APPEND_BLOCK_EVENT, replication.DELETE_FILE_EVENT:
		return nil
	}
	if h.Flags&replication.LOG_EVENT_IGNORABLE_F != 0 {
		return nil
	}
	a.counts.unknown++
	if a.group.open && a.group.mapped {
		a.damage(gapDecode, fmt.Sprintf("an event of unknown type %d is among the rows of a registered table", h.EventType))
	}
	return nil
}

// incident: the server says that its log lacks something.
func (a *assembler) incident(h *replication.EventHeader) error {
	const sentence = "the server logged an incident: events before it may be missing from the binlog"
	bare := a.group.open && !a.group.body
	if a.group.open {
		a.damage(gapIncident, sentence)
	}
	switch {
	case bare: // it is the whole group
		return a.finish(h, true)
	case a.group.open:
		return nil
	}
	a.counts.moved = true
	return a.announce(group{gap: gapIncident, damage: sentence})
}
