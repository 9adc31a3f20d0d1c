package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
)

// tooEarly lists deliveries that succeeded at the receiver and were begun again before a tenth
// of a lease had passed. A process begins an attempt only in the first nine tenths of a lease,
// and nobody else may have the delivery before the whole of it is over; until then only a
// failed attempt may be repeated.
func tooEarly(receipts []ledger.Receipt) (early []ledger.Pair) {
	last := map[ledger.Pair]ledger.Receipt{}
	receipts = slices.Clone(receipts)
	slices.SortFunc(receipts, func(a, b ledger.Receipt) int { return a.Start.Compare(b.Start) })
	for _, r := range receipts {
		before, again := last[r.Pair]
		if again && before.Outcome == ledger.OutcomeOK && r.Start.Sub(before.Start) < lease/10 {
			early = append(early, r.Pair)
		}
		last[r.Pair] = r
	}
	return early
}

func TestTooEarly(t *testing.T) {
	at := func(tenths float64) time.Time { return time.Unix(0, 0).Add(time.Duration(tenths * float64(lease/10))) }
	attempt := func(event string, start float64, outcome string) ledger.Receipt {
		return ledger.Receipt{Pair: ledger.Pair{Event: event}, Start: at(start), End: at(start + 0.1), Outcome: outcome}
	}
	got := tooEarly([]ledger.Receipt{
		attempt("repeated after a failure", 0, "retry"), attempt("repeated after a failure", 0.2, "ok"),
		attempt("taken over at the end", 0, "ok"), attempt("taken over at the end", 1.1, "ok"),
		attempt("taken away", 0.5, "ok"), attempt("taken away", 0, "ok"),
		attempt("once", 0, "ok"),
	})
	if diff := cmp.Diff([]ledger.Pair{{Event: "taken away"}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
