package postgres

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

func startedAt(t rapid.TB, at resumePoint) confirmRule {
	t.Helper()
	c, err := startConfirm(at)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfirmRule(t *testing.T) {
	type step func(c *confirmRule) error
	begin := func() step { return func(c *confirmRule) error { c.begin(); return nil } }
	commit := func(end resumePoint) step { return func(c *confirmRule) error { return c.commit(end, true) } }
	foreign := func(end resumePoint) step { return func(c *confirmRule) error { return c.commit(end, false) } }
	keepalive := func(end resumePoint) step { return func(c *confirmRule) error { c.keepalive(end); return nil } }
	ack := func(at resumePoint) step { return func(c *confirmRule) error { c.ack(at); return nil } }
	for name, tc := range map[string]struct {
		steps []step
		want  resumePoint
	}{
		"B2: at first the slot's own position":            {nil, 100},
		"idle: the keepalive":                             {[]step{keepalive(150)}, 150},
		"B1: a keepalive after an undurable commit":       {[]step{begin(), commit(120), keepalive(150)}, 100},
		"the keepalive once it is durable":                {[]step{begin(), commit(120), keepalive(150), ack(120)}, 150},
		"B3: a commit that came during the flush":         {[]step{begin(), commit(120), begin(), commit(140), ack(120)}, 120},
		"an acknowledgement of several":                   {[]step{begin(), commit(120), begin(), commit(140), ack(140)}, 140},
		"a keepalive inside a transaction":                {[]step{begin(), keepalive(150)}, 100},
		"a commit without our rows is like a keepalive":   {[]step{begin(), foreign(120)}, 120},
		"but not past an undurable one":                   {[]step{begin(), commit(110), begin(), foreign(120)}, 100},
		"an acknowledgement between two commits":          {[]step{begin(), commit(120), begin(), commit(140), ack(130)}, 120},
		"an acknowledgement of what was never handed out": {[]step{ack(500)}, 100},
		"an old keepalive":                                {[]step{keepalive(150), keepalive(120)}, 150},
		"an acknowledgement again":                        {[]step{begin(), commit(120), ack(120), keepalive(150), ack(120)}, 150},
	} {
		t.Run(name, func(t *testing.T) {
			c := startedAt(t, 100)
			for _, s := range tc.steps {
				if err := s(&c); err != nil {
					t.Fatal(err)
				}
			}
			if got := c.flush(); got != tc.want {
				t.Errorf("confirmed %d, want %d", got, tc.want)
			}
		})
	}
}

func TestConfirmRefusesACommitThatGoesBack(t *testing.T) {
	c := startedAt(t, 100)
	if err := c.commit(100, true); err == nil {
		t.Error("a commit that ends where the stream began was taken")
	}
	if err := c.commit(120, true); err != nil {
		t.Fatal(err)
	}
	if err := c.commit(120, false); err == nil {
		t.Error("a commit that ends where the last one did was taken")
	}
}

func TestB8_ZeroIsNeverConfirmed(t *testing.T) {
	if _, err := startConfirm(0); !errors.Is(err, errZeroPosition) {
		t.Errorf("start at zero: %v", err)
	}
	if _, err := new(confirmRule).status(); !errors.Is(err, errZeroPosition) {
		t.Errorf("status without a position: %v", err)
	}
}

func TestB8_StatusSetsAllThreePositions(t *testing.T) {
	c := startedAt(t, 100)
	c.begin()
	if err := c.commit(120, true); err != nil {
		t.Fatal(err)
	}
	got, err := c.status()
	if err != nil {
		t.Fatal(err)
	}
	want := pglogrepl.StandbyStatusUpdate{WALWritePosition: 120, WALFlushPosition: 100, WALApplyPosition: 100}
	if got != want {
		t.Errorf("status %+v, want %+v", got, want)
	}
}

// TestB5_ConfirmedIsAlwaysAPointThatWasReceived runs the rule against a model:
// the list of all commits, whether each is durable, and all keepalives.
func TestB5_ConfirmedIsAlwaysAPointThatWasReceived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const startPoint = 1000
		c := startedAt(t, startPoint)
		seen := []resumePoint{startPoint} // every point that may ever be confirmed
		type commit struct {
			end     resumePoint
			ours    bool
			durable bool
		}
		var commits []commit
		open := false
		last, previous := resumePoint(startPoint), resumePoint(startPoint)
		next := func() resumePoint { return last + resumePoint(rapid.IntRange(1, 50).Draw(t, "step")) }
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				if open {
					t.Skip("a transaction is open")
				}
				c.begin()
				open = true
			},
			"commit": func(t *rapid.T) {
				if !open {
					t.Skip("no transaction is open")
				}
				last = next()
				ours := rapid.Bool().Draw(t, "ours")
				if err := c.commit(last, ours); err != nil {
					t.Fatal(err)
				}
				open = false
				commits = append(commits, commit{end: last, ours: ours, durable: !ours})
				seen = append(seen, last)
			},
			"keepalive": func(t *rapid.T) {
				if !open { // inside a transaction it names nothing new
					last = next()
				}
				c.keepalive(last)
				seen = append(seen, last)
			},
			"ack": func(t *rapid.T) {
				// Any value: a commit's end, something between two, something far away.
				at := resumePoint(rapid.IntRange(0, int(last)+10).Draw(t, "at"))
				c.ack(at)
				for i := range commits {
					if commits[i].end <= at {
						commits[i].durable = true
					}
				}
			},
			"": func(t *rapid.T) {
				got := c.flush()
				if got < previous {
					t.Fatalf("confirmed %d after %d", got, previous)
				}
				previous = got
				if !slices.Contains(seen, got) {
					t.Fatalf("confirmed %d, which was never received", got)
				}
				settled := !open
				for _, m := range commits {
					if m.durable {
						continue
					}
					settled = false
					if m.end <= got {
						t.Fatalf("confirmed %d, but the commit that ends at %d is not durable", got, m.end)
					}
				}
				if settled && got != last {
					t.Fatalf("confirmed %d although all up to %d is durable", got, last)
				}
			},
		})
	})
}

func TestPositionText(t *testing.T) {
	for _, tc := range []struct {
		mark mark
		text cdc.Position
	}{
		{mark{0, 0}, ""},
		{mark{0, 0x16B374D8}, "0/16B374D8"},
		{mark{0, 0xAB_0000_00FF}, "AB/FF"},
		{mark{3, 0xAB_0000_00FF}, "AB/FF#3"},
	} {
		if got := tc.mark.position(); got != tc.text {
			t.Errorf("position of %+v = %q, want %q", tc.mark, got, tc.text)
		}
		if tc.text == "" {
			continue
		}
		if got, err := parseMark(tc.text); err != nil || got != tc.mark {
			t.Errorf("parse %q = %+v, %v", tc.text, got, err)
		}
	}
	for _, bad := range []cdc.Position{"", "1", "1/", "/1", "x/1", "1/1#", "1/1#x", "1/1#-1", "1/100000000", "1/1 "} {
		if m, err := parseMark(bad); err == nil {
			t.Errorf("parse %q = %+v, want an error", bad, m)
		}
	}
}

func TestAckKeepsTheLatestOfTheLatestEpoch(t *testing.T) {
	src, err := New(Config{DSN: "host=localhost", Tables: []Table{{"public", "events"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ ack, want cdc.Position }{
		{"0/200", "0/200"},
		{"0/100", "0/200"},
		{"", "0/200"},
		{"nonsense", "0/200"},
		{"0/50#1", "0/50#1"},
		{"0/300", "0/50#1"},
		{"0/60#1", "0/60#1"},
	} {
		src.Ack(tc.ack)
		if got := src.acked.Load().position(); got != tc.want {
			t.Errorf("after Ack(%q): %s, want %s", tc.ack, got, tc.want)
		}
	}
}
