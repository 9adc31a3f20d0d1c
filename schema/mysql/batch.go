package mysql

import (
	"cmp"
	"slices"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema/internal/fanorder"
)

// fanBatch is a batch prepared for the database: each event once, sorted by id, so that two batches
// with the same events lock and insert in the same order. Its events are numbered by
// their place in order.
type fanBatch struct {
	delivery.FanOut
	// order lists the fans that take part, as indexes into Fans. The first rows of them are looked for
	// in the table, the others are left alone there.
	order []int
	rows  int
	// place is the number of the event of each fan that takes part.
	place map[int]int
	// repeated counts fans that are in the batch twice; duplicates names those that differ.
	repeated   int
	duplicates []string
}

func newFanBatch(batch delivery.FanOut) *fanBatch {
	o := fanorder.Of(batch.Fans)
	b := &fanBatch{FanOut: batch, order: o.Fans, rows: o.Rows, repeated: o.Repeated, duplicates: o.Duplicates, place: map[int]int{}}
	for n, i := range b.order {
		b.place[i] = n
	}
	return b
}

// numbers lists the events from the n-th on, up to before the end.
func numbers(n, end int) []int {
	var list []int
	for ; n < end; n++ {
		list = append(list, n)
	}
	return list
}

func (b *fanBatch) fan(n int) *delivery.Fan { return &b.Fans[b.order[n]] }

func (b *fanBatch) event(n int) *event.Event { return &b.fan(n).Event }

// key is the text of the table's own key of an event.
func (b *fanBatch) key(n int) string {
	e := b.event(n)
	return cmp.Or(e.Key, e.ID)
}

func (b *fanBatch) keys(events []int) []string {
	keys := make([]string, len(events))
	for i, n := range events {
		keys[i] = b.key(n)
	}
	return keys
}

// withTargets lists the events that get deliveries.
func (b *fanBatch) withTargets(events []int) []int {
	return slices.DeleteFunc(slices.Clone(events), func(n int) bool { return len(b.fan(n).Targets) == 0 })
}

// without lists the events that are not in the second list.
func without(events, others []int) []int {
	return slices.DeleteFunc(slices.Clone(events), func(n int) bool { return slices.Contains(others, n) })
}

// goal is one delivery to be inserted: a target of an event.
type goal struct{ event, target int }

// goals lists the deliveries of the events, in the order of the unique key.
func (b *fanBatch) goals(events []int) []goal {
	var list []goal
	for _, n := range events {
		first := len(list)
		for j := range b.fan(n).Targets {
			list = append(list, goal{n, j})
		}
		targets := b.fan(n).Targets
		slices.SortStableFunc(list[first:], func(x, y goal) int { return cmp.Compare(targets[x.target].Handler, targets[y.target].Handler) })
	}
	return list
}

func (b *fanBatch) target(g goal) *delivery.Target { return &b.fan(g.event).Targets[g.target] }
