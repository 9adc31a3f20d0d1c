package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/admin"
)

// sourceStatus is one source of "status".
type sourceStatus struct {
	Source string `json:"source"`
	// Slot is nil when there is none, or the server does not show it.
	Slot *slotStatus `json:"slot"`
	// Binlog is nil on PostgreSQL.
	Binlog *binlogStatus `json:"binlog,omitempty"`
	admin.Overview
}

// slotStatus is what the server says about the replication slot.
type slotStatus struct {
	Name      string `json:"name"`
	Active    bool   `json:"active"`
	WALStatus string `json:"wal_status"`
	// Retained is the log that the server keeps for it, Lag what it has not confirmed.
	Retained int64 `json:"retained_bytes"`
	Lag      int64 `json:"lag_bytes"`
	// Safe is how much more may be written before the slot is at risk; nil when unlimited.
	Safe *int64 `json:"safe_bytes"`
}

// binlogStatus is what a MySQL or MariaDB server says about its log.
type binlogStatus struct {
	// Written is false when the server has no binlog.
	Written bool `json:"written"`
	// Keep is how long a file of it is kept, in seconds; 0 means until somebody deletes it.
	Keep int64 `json:"keep_seconds"`
}

func (a *app) statusCommand() *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show sources, backlog and handlers on one screen",
		Long: `Show sources, backlog and handlers on one screen. The database is asked, so that it works
whether a dispatcher runs or not; numbers are counted up to a limit and then written with a +.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := []sourceStatus{}
			err := a.eachDesk(cmd.Context(), source, func(ctx context.Context, d desk) error {
				o, err := d.Overview(ctx)
				if err != nil {
					return err
				}
				o.Sources = ownRow(o.Sources, d.source.Name)
				s := sourceStatus{Source: d.source.Name, Overview: o}
				if d.my != nil {
					s.Binlog, err = d.binlog(ctx)
				} else {
					s.Slot, err = d.slot(ctx)
				}
				all = append(all, s)
				return err
			})
			if err != nil && len(all) == 0 {
				return err
			}
			if a.format == outputJSON {
				return errors.Join(a.json(all), err)
			}
			var p paper
			for i, s := range all {
				if i > 0 {
					p.WriteByte('\n')
				}
				s.write(&p)
			}
			return errors.Join(a.print(&p), err)
		},
	}
	sourceFlag(cmd, &source)
	return cmd
}

// ownRow keeps what was said about one source: several may keep their tables in one schema.
func ownRow(rows []admin.SourceStatus, name string) []admin.SourceStatus {
	for _, r := range rows {
		if r.Name == name {
			return []admin.SourceStatus{r}
		}
	}
	return []admin.SourceStatus{}
}

// slot asks the server about the source's slot.
func (d desk) slot(ctx context.Context) (*slotStatus, error) {
	if d.source.Mode == config.ModePoll {
		return nil, nil
	}
	s := &slotStatus{Name: d.source.Postgres.Slot}
	err := d.pg.QueryRow(ctx, `
SELECT active, coalesce(wal_status, ''), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint, safe_wal_size
FROM pg_catalog.pg_replication_slots WHERE slot_name = $1::text AND database = current_database()`, s.Name).
		Scan(&s.Active, &s.WALStatus, &s.Retained, &s.Lag, &s.Safe)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return s, err
}

// binlog asks the server about its log.
func (d desk) binlog(ctx context.Context) (*binlogStatus, error) {
	b := &binlogStatus{}
	err := d.my.QueryRowContext(ctx, "SELECT @@GLOBAL.log_bin, @@GLOBAL.binlog_expire_logs_seconds").Scan(&b.Written, &b.Keep)
	return b, err
}

// write adds the source's part of the screen.
func (s sourceStatus) write(p *paper) {
	p.line("Source", "%s", s.describeSource())
	if s.Binlog != nil {
		p.line("Binlog", "%s", s.Binlog.describe())
	} else {
		p.line("WAL guard", "%s", s.describeSlot())
	}
	p.line("Events", "%s", s.describeEvents())
	for _, g := range s.Gaps {
		p.line("Gap", "%s: %s (since %s, not swept yet)", g.Reason, g.Detail, moment(g.Detected))
	}
	if len(s.Incomplete) > 0 {
		p.line("Left out", "%s took longer than the time limit", strings.Join(s.Incomplete, ", "))
	}
	if len(s.Handlers) == 0 {
		p.line("Handlers", "none has been served yet")
		return
	}
	p.WriteByte('\n')
	rows := [][]string{{"HANDLER", "PENDING", "RETRYING", "RUNNING", "OLDEST", "SUCCEEDED", "DEAD", "BLOCKED", "EXPIRED", "DISCARDED", "NOTE"}}
	for _, h := range s.Handlers {
		rows = append(rows, handlerRow(h))
	}
	p.table(rows)
}

func handlerRow(h admin.HandlerOverview) []string {
	n := func(s delivery.State) string { return h.States[s].String() }
	oldest, note := "-", ""
	if h.Oldest > 0 {
		oldest = span(h.Oldest)
	}
	switch {
	case h.Paused != nil:
		note = fmt.Sprintf("paused by %s %s: %s", h.Paused.By, moment(h.Paused.At), h.Paused.Reason)
	case !h.Registered:
		note = "no process serves it"
	}
	return []string{
		h.Handler, n(delivery.Pending), n(delivery.Failed), fmt.Sprint(h.Leased), oldest, n(delivery.Succeeded),
		n(delivery.Dead), n(delivery.Blocked), n(delivery.Expired), n(delivery.Discarded), note,
	}
}

func (s sourceStatus) describeSource() string {
	if len(s.Sources) == 0 {
		return s.Source + ": no dispatcher has reported yet"
	}
	r := s.Sources[0]
	text := fmt.Sprintf("%s: %s", s.Source, strings.ReplaceAll(r.Mode, "_", " "))
	if r.Position != "" {
		text += ", confirmed " + short(r.Position)
	}
	text += fmt.Sprintf(", reported %s ago by %s", span(r.Silent), r.Owner)
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	// Twice the pace of the reports, and one for a slow statement.
	if r.Silent > 3*recordEvery && r.Mode != "stopped" {
		text += " (it may not run any more)"
	}
	return text
}

func (b binlogStatus) describe() string {
	switch {
	case !b.Written:
		return "the server writes none, so the poller works alone"
	case b.Keep == 0:
		return "kept until somebody deletes it"
	}
	return fmt.Sprintf("kept for %s (binlog_expire_logs_seconds)", span(time.Duration(b.Keep)*time.Second))
}

func (s sourceStatus) describeSlot() string {
	if s.Slot == nil {
		return "no slot"
	}
	text := fmt.Sprintf("slot %s", s.Slot.Name)
	if !s.Slot.Active {
		text += ", nobody reads it"
	}
	text += fmt.Sprintf(", lag %s, retained %s", bytesOf(s.Slot.Lag), bytesOf(s.Slot.Retained))
	if s.Slot.Safe != nil {
		text += fmt.Sprintf(", %s more before it is at risk", bytesOf(*s.Slot.Safe))
	}
	if s.Slot.WALStatus != "" && s.Slot.WALStatus != "reserved" {
		text += ", WAL status " + s.Slot.WALStatus
	}
	return text
}

func (s sourceStatus) describeEvents() string {
	text := fmt.Sprintf("%s not fanned out", s.Undelivered)
	if s.Undelivered.N > 0 {
		text += fmt.Sprintf(", %s of them wanted by a handler", s.Wanted)
	}
	if s.OldestWanted > 0 {
		text += ", the oldest for " + span(s.OldestWanted.Round(time.Millisecond))
	}
	if s.Unidentifiable.N > 0 {
		text += fmt.Sprintf("; %s have no id and cannot be delivered", s.Unidentifiable)
	}
	return text
}
