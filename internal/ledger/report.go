package ledger

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// listed is how many ids of a broken promise are printed.
const listed = 5

func appendBroken[T Pair | string](out []string, what string, ids []T) []string {
	if len(ids) == 0 {
		return out
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d", what, len(ids))
	for i, id := range ids {
		if i == listed {
			b.WriteString(" …")
			break
		}
		fmt.Fprintf(&b, " %v", id)
	}
	return append(out, b.String())
}

// String names the pair as "event/handler".
func (p Pair) String() string { return p.Event + "/" + p.Handler }

// String is one line with the counts, for a log.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "events %d, rolled back %d, deliveries %d", r.Events, r.RolledBack, r.Deliveries)
	for _, s := range delivery.States() {
		if n := r.States[s]; n > 0 {
			fmt.Fprintf(&b, ", %s %d", strings.ToLower(string(s)), n)
		}
	}
	fmt.Fprintf(&b, ", starts %d, retried %d, duplicates %d", r.Starts, r.Retried, r.Duplicates)
	return b.String()
}

// Story tells in one line what the accounts know about a pair, for whoever looks into a broken promise.
func (in Input) Story(p Pair) string {
	var b strings.Builder
	for _, row := range in.Rows {
		if row.Pair == p {
			fmt.Fprintf(&b, "row %s, %d failed attempts, %d claims", row.State, row.Attempts, row.Claims)
		}
	}
	for _, s := range groupReceipts(in.Receipts)[p] {
		fmt.Fprintf(&b, "; %s attempt %d at %s", s.Process, s.Attempt, s.Start.UTC().Format("15:04:05.000"))
		if !s.End.IsZero() {
			fmt.Fprintf(&b, " %s after %s", s.Outcome, s.End.Sub(s.Start).Round(time.Millisecond))
		}
		if s.Settled {
			b.WriteString(" settled")
		}
	}
	return b.String()
}

// Latencies returns, sorted, how long after its commit each pair of a committed
// event first reached its handler. It counts from the moment the writer sent
// COMMIT, so the database's own flush is part of it and none is negative on one
// machine.
func Latencies(w Snapshot, receipts []Receipt) []time.Duration {
	first := make(map[Pair]time.Time, len(receipts))
	for _, rc := range receipts {
		if at, ok := first[rc.Pair]; !ok || rc.Start.Before(at) {
			first[rc.Pair] = rc.Start
		}
	}
	out := make([]time.Duration, 0, len(first))
	for pair, at := range first {
		if e, ok := w.Committed[pair.Event]; ok {
			out = append(out, at.Sub(e.At))
		}
	}
	slices.Sort(out)
	return out
}

// Percentile returns the p-th percentile (0 to 100) of sorted values by the
// nearest rank, 0 when there are none.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
