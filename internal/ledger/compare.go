package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Pair names one delivery: an event, and the handler it is for.
type Pair struct{ Event, Handler string }

// Row is one delivery row.
type Row struct {
	Pair
	State  delivery.State
	Reason string
	// Attempts counts failed attempts, Claims the claims that were not given back.
	Attempts, Claims int
	// Leased says that an attempt is running now.
	Leased bool
}

// Fault is a moment, or a while, in which outcomes that were not durable yet were lost.
type Fault struct {
	// Process that died, was stopped or was cut off, with every outcome that it had not
	// written yet. Empty when the server crashed, which concerns every process, and also outcomes
	// that had been written but not flushed: acknowledgements commit asynchronously.
	Process string
	// At is when it began, Until when what lasted was over. Zero means that it was a moment:
	// for a process, its death.
	At, Until time.Time
	// Window is how long before At a handler may have returned without its outcome being
	// written. Zero says nothing of it where a process died.
	Window time.Duration
	// Frozen says that the process did not run meanwhile. It could not watch its leases, so an
	// attempt of it, or one that it began within Window of waking up, may overlap with
	// one of whoever took the delivery over.
	Frozen bool
}

func (f Fault) over() time.Time {
	if f.Until.Before(f.At) {
		return f.At
	}
	return f.Until
}

// swallows says whether the fault may have undone the outcome of an attempt.
func (f Fault) swallows(s Receipt) bool {
	if s.Start.After(f.over()) {
		return false
	}
	if f.Process != "" {
		if f.Process != s.Process || s.Settled {
			return false
		}
		if f.Window == 0 {
			return true
		}
	}
	return s.End.IsZero() || !s.End.Before(f.At.Add(-f.Window))
}

// froze says whether the fault kept the attempt's process from watching its lease.
func (f Fault) froze(s Receipt) bool {
	return f.Frozen && (f.Process == "" || f.Process == s.Process) &&
		!s.Start.After(f.over().Add(f.Window)) && (s.End.IsZero() || !s.End.Before(f.At))
}

// Input is the three accounts, and the faults that were made on purpose.
type Input struct {
	Writers Snapshot
	// Subscribers names the handlers that an event of the type fans out to.
	Subscribers func(eventType string) []string
	Rows        []Row
	Receipts    []Receipt
	Faults      []Fault
	// Lease, when not 0, says that leases ran out on their own, as they do on a machine
	// that is too busy to renew them, and how long they were. An attempt waits for its turn while its lease
	// runs, and starts while a tenth of it is left: it may then, when it was not settled, be repeated a tenth of
	// a lease after it started.
	Lease time.Duration
}

// Report is the difference between the accounts. Lists are sorted, and empty when
// the promise was kept.
type Report struct {
	// Events and RolledBack count the writers' events; Deliveries the rows.
	Events, RolledBack, Deliveries int
	States                         map[delivery.State]int
	// Retried counts deliveries that were claimed more than once.
	Retried int
	// Starts counts handler starts.
	Starts int

	// Lost are committed pairs without a delivery row, Phantom those whose row says
	// SUCCEEDED though no handler returned success.
	Lost, Phantom []Pair
	// RolledBackSeen are undone events that have a row or reached a handler.
	RolledBackSeen []string
	// Extra are rows beyond one per pair, or for pairs that should not exist.
	Extra []Pair
	// Duplicates counts handler starts that no row accounts for; Unexplained lists
	// the pairs where no fault accounts for them either.
	Duplicates  int
	Unexplained []Pair
	// Overlaps are deliveries with two attempts at the same time; RepeatedClaims
	// those with two starts under one attempt number.
	Overlaps, RepeatedClaims []Pair
}

// Broken lists the promises that the report shows as broken, in words; it is empty
// when all was kept. Explained duplicates are within the promise "at least once".
func (r Report) Broken() []string {
	var out []string
	out = appendBroken(out, "lost (no delivery row)", r.Lost)
	out = appendBroken(out, "lost (SUCCEEDED, but no handler returned success)", r.Phantom)
	out = appendBroken(out, "rolled back, but seen", r.RolledBackSeen)
	out = appendBroken(out, "extra delivery rows", r.Extra)
	out = appendBroken(out, "duplicates that no fault explains", r.Unexplained)
	out = appendBroken(out, "overlapping attempts", r.Overlaps)
	return appendBroken(out, "two starts of one claim", r.RepeatedClaims)
}

// Compare compares the accounts. Unknown events of the writers must have been
// resolved: those left are held to no promise.
func Compare(in Input) Report {
	r := Report{
		Events: len(in.Writers.Committed), RolledBack: len(in.Writers.RolledBack),
		Deliveries: len(in.Rows), Starts: len(in.Receipts), States: map[delivery.State]int{},
	}
	starts := groupReceipts(in.Receipts)
	rows := r.checkRows(in)
	r.checkCommitted(in, rows, starts)
	r.checkRolledBack(in, rows, starts)
	for pair, receipts := range starts {
		r.checkStarts(pair, receipts, rows, in)
	}
	for _, list := range []*[]Pair{&r.Lost, &r.Phantom, &r.Extra, &r.Unexplained, &r.Overlaps, &r.RepeatedClaims} {
		slices.SortFunc(*list, comparePairs)
	}
	slices.Sort(r.RolledBackSeen)
	return r
}

// checkRows counts the rows and returns them by pair; a second row of a pair, and
// one that nobody asked for, is extra.
func (r *Report) checkRows(in Input) map[Pair]Row {
	rows := make(map[Pair]Row, len(in.Rows))
	for _, row := range in.Rows {
		r.States[row.State]++
		if row.Claims > 1 {
			r.Retried++
		}
		if _, twice := rows[row.Pair]; twice {
			r.Extra = append(r.Extra, row.Pair)
			continue
		}
		rows[row.Pair] = row
		if !expected(in, row.Pair) {
			r.Extra = append(r.Extra, row.Pair)
		}
	}
	return rows
}

// expected says whether a row of the pair may exist. Rows of rolled-back events
// are reported as such, not as extra.
func expected(in Input, p Pair) bool {
	for _, set := range []map[string]Event{in.Writers.Committed, in.Writers.Unknown} {
		if e, ok := set[p.Event]; ok {
			return slices.Contains(in.Subscribers(e.Type), p.Handler)
		}
	}
	_, undone := in.Writers.RolledBack[p.Event]
	return undone
}

func (r *Report) checkCommitted(in Input, rows map[Pair]Row, starts map[Pair][]Receipt) {
	for id, e := range in.Writers.Committed {
		for _, h := range in.Subscribers(e.Type) {
			pair := Pair{Event: id, Handler: h}
			row, ok := rows[pair]
			switch {
			case !ok:
				r.Lost = append(r.Lost, pair)
			case row.State == delivery.Succeeded && !slices.ContainsFunc(starts[pair], succeeded):
				r.Phantom = append(r.Phantom, pair)
			}
		}
	}
}

func succeeded(rc Receipt) bool { return rc.Outcome == OutcomeOK }

func (r *Report) checkRolledBack(in Input, rows map[Pair]Row, starts map[Pair][]Receipt) {
	seen := map[string]struct{}{}
	for pair := range rows {
		seen[pair.Event] = struct{}{}
	}
	for pair := range starts {
		seen[pair.Event] = struct{}{}
	}
	for id := range in.Writers.RolledBack {
		if _, ok := seen[id]; ok {
			r.RolledBackSeen = append(r.RolledBackSeen, id)
		}
	}
}

// checkStarts compares the starts of one pair with its row and with each other.
func (r *Report) checkStarts(pair Pair, starts []Receipt, rows map[Pair]Row, in Input) {
	excess := len(starts) - accounted(rows[pair])
	if excess > 0 {
		r.Duplicates += excess
		if countCut(starts, in) < excess {
			r.Unexplained = append(r.Unexplained, pair)
		}
	}
	attempts := map[int]bool{}
	var busyUntil time.Time
	var busy Receipt
	overlap, repeated := false, false
	for i, s := range starts {
		overlap = overlap || i > 0 && s.Start.Before(busyUntil) && !frozen(busy, s, in.Faults)
		if end := ended(s, in.Faults); end.After(busyUntil) {
			busy, busyUntil = s, end
		}
		repeated = repeated || attempts[s.Attempt]
		// An attempt that was given back is claimed again under the same number.
		attempts[s.Attempt] = !givenBack(s.Outcome)
	}
	if overlap {
		r.Overlaps = append(r.Overlaps, pair)
	}
	if repeated {
		r.RepeatedClaims = append(r.RepeatedClaims, pair)
	}
}

// accounted is how many starts a row stands for. A missing row stands for none.
func accounted(row Row) int {
	n := row.Attempts
	switch {
	case row.State == delivery.Succeeded, row.State == delivery.Discarded, row.Leased:
		n++
	case row.State == delivery.Blocked && row.Reason == delivery.ReasonUndecodable:
		n++
	}
	return n
}

func givenBack(outcome string) bool {
	return outcome == OutcomeStopped || outcome == "snooze" || outcome == "undecodable"
}

// countCut counts the starts whose outcome a fault, or the end of the lease, may have
// swallowed.
func countCut(starts []Receipt, in Input) int {
	n := 0
	for i, s := range starts {
		lapsed := in.Lease > 0 && !s.Settled && i+1 < len(starts) && starts[i+1].Start.Sub(s.Start) >= in.Lease/10
		if lapsed || slices.ContainsFunc(in.Faults, func(f Fault) bool { return f.swallows(s) }) {
			n++
		}
	}
	return n
}

// forever is later than any receipt.
var forever = time.Unix(1<<40, 0)

// ended is when an attempt stopped running: when its handler returned, or when its process died.
func ended(s Receipt, faults []Fault) time.Time {
	if !s.End.IsZero() {
		return s.End
	}
	end := forever
	for _, f := range faults {
		if f.Process == s.Process && f.Until.IsZero() && !f.At.Before(s.Start) && f.At.Before(end) {
			end = f.At
		}
	}
	return end
}

// frozen says that one of two attempts was beyond its lease because its process was frozen.
func frozen(a, b Receipt, faults []Fault) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool { return f.froze(a) || f.froze(b) })
}

// groupReceipts returns the receipts of each pair in order of start.
func groupReceipts(receipts []Receipt) map[Pair][]Receipt {
	out := make(map[Pair][]Receipt, len(receipts))
	for _, rc := range receipts {
		out[rc.Pair] = append(out[rc.Pair], rc)
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b Receipt) int { return a.Start.Compare(b.Start) })
	}
	return out
}

func comparePairs(a, b Pair) int {
	return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Handler, b.Handler))
}
