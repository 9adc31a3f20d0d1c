package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// healthy is what the catalog shows of a slot that can be used.
func healthy() findings {
	f := findings{
		slot: slotState{
			exists: true, Plugin: "pgoutput", Type: "logical", Database: "app",
			Restart: "0/100", Confirmed: "0/200", WALStatus: "reserved",
		},
		database: "app", version: 150018, create: true,
	}
	f.names.slot, f.names.publication = "s", "p"
	return f
}

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(f *findings)
		action   action
		gap      string
		hint     string // part of the statement that a person is told
		tolerate bool
	}{
		"healthy":                        {func(*findings) {}, useSlot, "", "", false},
		"first start":                    {func(f *findings) { f.slot = slotState{} }, createSlot, "", "", false},
		"first start, not ours to make":  {func(f *findings) { f.slot = slotState{}; f.create = false }, refuseSlot, "", "pg_create_logical_replication_slot('s', 'pgoutput')", false},
		"dropped while we knew it":       {func(f *findings) { f.slot = slotState{}; f.memory.hadSlot = true }, createSlot, gapSlotMissing, "", false},
		"B26: lost, as 15 says it":       {func(f *findings) { f.slot.WALStatus = "lost" }, replaceSlot, gapSlotLost, "", false},
		"B26: conflicting, as 16 does":   {func(f *findings) { f.slot.Conflicting = true }, replaceSlot, gapSlotLost, "", false},
		"B26: a reason, as 17 does":      {func(f *findings) { f.slot.InvalidationReason = "wal_removed" }, replaceSlot, gapSlotLost, "", false},
		"B26: idle, as 18 does":          {func(f *findings) { f.slot.InvalidationReason = "idle_timeout" }, replaceSlot, gapSlotLost, "", false},
		"lost, not ours to replace":      {func(f *findings) { f.slot.WALStatus = "lost"; f.create = false }, refuseSlot, "", "pg_drop_replication_slot('s')", false},
		"log removed below it":           {func(f *findings) { f.memory.broken = gapSlotLost }, replaceSlot, gapSlotLost, "", false},
		"B27: no publication in the log": {func(f *findings) { f.memory.broken = gapPublication }, replaceSlot, gapPublication, "", false},
		"B27: the same, on 15, not ours": {func(f *findings) { f.memory.broken = gapPublication; f.create = false }, refuseSlot, "", "pg_drop_replication_slot('s')", false},
		"B27: the same, on 18, not ours": {func(f *findings) { f.memory.broken = gapPublication; f.create = false; f.version = 180006 }, useSlot, gapPublication, "", true},
		"B29: promoted":                  {func(f *findings) { f.memory.serverChanged = "promoted" }, useSlot, gapServerChanged, "", false},
		"B29: promoted, without slot":    {func(f *findings) { f.memory.serverChanged = "promoted"; f.slot = slotState{}; f.memory.hadSlot = true }, createSlot, gapServerChanged, "", false},
		"B14: moved past us":             {func(f *findings) { f.memory.confirmed = 0x1FF }, useSlot, gapSlotMoved, "", false},
		"where we left it":               {func(f *findings) { f.memory.confirmed = 0x200 }, useSlot, "", "", false},
		"behind us":                      {func(f *findings) { f.memory.confirmed = 0x300 }, useSlot, "", "", false},
		"table added":                    {func(f *findings) { f.memory.mended = "it lacked a table" }, useSlot, gapPublicationTable, "", false},
		"another plugin":                 {func(f *findings) { f.slot.Plugin = "test_decoding" }, refuseSlot, "", "pg_drop_replication_slot('s')", false},
		"another plugin, and lost":       {func(f *findings) { f.slot.Plugin = "wal2json"; f.slot.WALStatus = "lost" }, refuseSlot, "", "choose another slot name", false},
		"a physical slot":                {func(f *findings) { f.slot.Type = "physical" }, refuseSlot, "", "choose another slot name", false},
		"another database's":             {func(f *findings) { f.slot.Database = "shop" }, refuseSlot, "", "choose another slot name", false},
		"a temporary slot":               {func(f *findings) { f.slot.Temporary = true }, refuseSlot, "", "choose another slot name", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			tc.change(&f)
			d := decide(f)
			gap := ""
			if d.gap != nil {
				gap = d.gap.Reason
			}
			if d.action != tc.action || gap != tc.gap || d.tolerate != tc.tolerate {
				t.Errorf("action %v, gap %q, tolerate %v; want %v, %q, %v", d.action, gap, d.tolerate, tc.action, tc.gap, tc.tolerate)
			}
			if (d.err != nil) != (tc.action == refuseSlot) {
				t.Fatalf("error %v", d.err)
			}
			if d.err != nil && (!cdc.IsPermanent(d.err) || !strings.Contains(d.err.Error(), tc.hint)) {
				t.Errorf("error %v does not name %q", d.err, tc.hint)
			}
		})
	}
}

func TestGapNamesTheSettingAndTheStart(t *testing.T) {
	f := healthy()
	f.slot.WALStatus = "lost"
	gap := decide(f).gap
	if !strings.Contains(gap.Detail, "max_slot_wal_keep_size") || gap.From != "0/200" {
		t.Errorf("gap %+v", gap)
	}
	f.slot.InvalidationReason = "idle_timeout"
	if gap := decide(f).gap; !strings.Contains(gap.Detail, "idle_replication_slot_timeout") {
		t.Errorf("gap %+v", gap)
	}
}

// TestAGapBeginsWhereTheLastKnownConfirmationWas: what was remembered of the slot
// may be void, but no gap is without a beginning because of that.
func TestAGapBeginsWhereTheLastKnownConfirmationWas(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(f *findings)
		reason string
		from   cdc.Position
	}{
		"dropped": {func(f *findings) { f.slot = slotState{}; f.memory.confirmed = 0x1F0 }, gapSlotMissing, "0/1F0"},
		"dropped while this process stood by": {func(f *findings) { f.slot = slotState{}; f.memory.floor = mark{0, 0x1E0} },
			gapSlotMissing, "0/1E0"},
		"dropped before this process began": {func(f *findings) { f.slot = slotState{}; f.memory.recalled = "0/1D0#2" },
			gapSlotMissing, "0/1D0"},
		"lost while this process stood by": {func(f *findings) { f.slot.WALStatus = "lost"; f.memory.floor = mark{0, 0x1E0} },
			gapSlotLost, "0/200"},
		"lost, behind what is known": {func(f *findings) { f.slot.WALStatus = "lost"; f.memory.floor = mark{0, 0x240} },
			gapSlotLost, "0/240"},
		"moved past us": {func(f *findings) { f.memory.confirmed = 0x1F0; f.memory.floor = mark{0, 0x200} },
			gapSlotMoved, "0/1F0"},
		"another server, without a slot": {func(f *findings) {
			f.slot, f.memory.epoch, f.memory.serverChanged = slotState{}, 1, "promoted"
			f.memory.floor = mark{0, 0x900}
		}, gapServerChanged, "0/900"},
		"another server, with a slot": {func(f *findings) {
			f.memory.epoch, f.memory.serverChanged, f.memory.floor = 1, "promoted", mark{0, 0x900}
		}, gapServerChanged, "0/200"},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			f.memory.hadSlot = true
			tc.change(&f)
			if gap := decide(f).gap; gap == nil || gap.Reason != tc.reason || gap.From != tc.from {
				t.Errorf("gap %+v, want %s from %s", gap, tc.reason, tc.from)
			}
		})
	}
}

func TestB17_PingsOfAStoppingServer(t *testing.T) {
	start := time.Now()
	at := func(ms ...int) []time.Time {
		all := make([]time.Time, len(ms))
		for i, m := range ms {
			all[i] = start.Add(time.Duration(m) * time.Millisecond)
		}
		return all
	}
	for name, tc := range map[string]struct {
		limit time.Duration
		pings []time.Time
		want  bool
	}{
		"asks again at once":                       {time.Minute, at(0, 1, 2, 3), true},
		"asks again at once, no limit":             {0, at(0, 1, 2, 3), true},
		"two are no run":                           {time.Minute, at(0, 1, 2), false},
		"every half of the limit":                  {5 * time.Second, at(0, 2500, 5000, 7500, 10000), false},
		"every half of a very short limit":         {time.Second, at(0, 500, 1000, 1500, 2000), false},
		"a run that was broken off":                {time.Minute, at(0, 1, 2, 30000, 30001, 30002), false},
		"a run after ordinary ones":                {time.Minute, at(0, 30000, 60000, 60001, 60002, 60003), true},
		"a server whose clock went back, no proof": {time.Minute, at(5000, 4000, 3000, 2000), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := pingRun{limit: tc.limit}
			got := false
			for _, ping := range tc.pings {
				got = p.saw(ping)
			}
			if got != tc.want {
				t.Errorf("stopping = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 100, 2: 200, 3: 400, 7: 6400, 8: 10000, 1000: 10000} {
		want *= time.Millisecond
		for range 20 {
			if got := backoff(n, 100*time.Millisecond, 10*time.Second); got > want || got < want*4/5 {
				t.Errorf("pause %d = %s, want %s less a fifth at most", n, got, want)
			}
		}
	}
}

func TestErrorsAreClassified(t *testing.T) {
	cfg := &pgconn.Config{User: "app", Database: "shop"}
	for _, tc := range []struct {
		state     string
		reason    string
		permanent bool
		hint      string
	}{
		{"28P01", reasonAuth, true, "password"},
		{"28000", reasonAuth, true, "pg_hba.conf"},
		{"3D000", reasonDatabase, true, `CREATE DATABASE "shop"`},
		{"42501", reasonReplication, true, `ALTER ROLE "app" REPLICATION`},
		{"08P01", reasonPooler, true, "pooler"},
		{"53300", reasonConnections, false, "max_wal_senders"},
		{"57P03", reasonServerDown, false, ""},
		{"XX000", reasonConnection, false, ""},
	} {
		err := classifyConnect(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: tc.state}), cfg)
		checkClass(t, tc.state, err, tc.reason, tc.permanent, tc.hint)
	}
	for _, tc := range []struct {
		state     string
		reason    string
		permanent bool
		hint      string
	}{
		{"53400", reasonNoSlotFree, true, "max_replication_slots"},
		{"53300", reasonConnections, false, "max_wal_senders"},
		{"42501", reasonPrivilege, true, "role"},
		{"57P01", reasonServerDown, false, ""},
		{"55000", reasonOther, false, ""},
	} {
		err := classifySetup(&pgconn.PgError{Code: tc.state})
		checkClass(t, tc.state, err, tc.reason, tc.permanent, tc.hint)
	}
	checkClass(t, "publication", classifyStream(errPublication), reasonPublication, false, "")
	checkClass(t, "silence", classifyStream(errStalled), reasonStalled, false, "")
	checkClass(t, "end", classifyStream(errServerDone), reasonServerDown, false, "")
	checkClass(t, "network", classifyStream(errors.New("reset")), reasonConnection, false, "")
	if err := permanent(reasonSlot, errors.New("x"), "y"); !errors.Is(classifySetup(err), err) || !errors.Is(classifyStream(err), err) {
		t.Error("a classified error was classified again")
	}
}

func checkClass(t *testing.T, name string, err error, reason string, permanent bool, hint string) {
	t.Helper()
	var s *cdc.SourceError
	if !errors.As(err, &s) {
		t.Fatalf("%s: %v is not classified", name, err)
	}
	if s.Reason != reason || s.Permanent != permanent || !strings.Contains(s.Hint, hint) {
		t.Errorf("%s: %+v; want reason %s, permanent %v, hint with %q", name, s, reason, permanent, hint)
	}
}

// TestBackoffStaysWithinItsBounds: also where doubling would overflow.
func TestBackoffStaysWithinItsBounds(t *testing.T) {
	for _, b := range []struct{ least, most time.Duration }{
		{100 * time.Millisecond, 10 * time.Second}, {20 * time.Second, time.Minute}, {time.Hour, time.Hour}, {1, 1<<63 - 1},
	} {
		last := time.Duration(0)
		for n := 1; n <= 100; n++ {
			d := backoff(n, b.least, b.most)
			if d > b.most || d < b.least-b.least/5 || d < last-last/5 {
				t.Errorf("attempt %d of %s to %s: %s after %s", n, b.least, b.most, d, last)
			}
			last = max(last, d)
		}
	}
}
