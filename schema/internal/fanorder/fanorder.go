// Package fanorder puts the events of a fan-out into the order in which every store works on them.
package fanorder

import (
	"cmp"
	"slices"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Order is the order of a batch.
type Order struct {
	// Fans are places in the batch, each event once: those whose rows are to be touched by their ids, so that two
	// statements about the same events lock them in the same order, and then those that are not.
	Fans []int
	// Rows is how many of them have rows that are to be touched.
	Rows int
	// Repeated counts fans that are in the batch twice; Duplicates names those that differ.
	Repeated   int
	Duplicates []string
}

// Of orders the fans.
func Of(fans []delivery.Fan) Order {
	var o Order
	all := make([]int, len(fans))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(x, y int) int { return cmp.Compare(fans[x].Event.ID, fans[y].Event.ID) })
	for _, i := range all {
		e := &fans[i].Event
		if n := len(o.Fans); n > 0 && fans[o.Fans[n-1]].Event.ID == e.ID {
			o.Repeated++
			if first := &fans[o.Fans[n-1]].Event; first.Type != e.Type || string(first.Payload) != string(e.Payload) {
				o.Duplicates = append(o.Duplicates, e.ID)
			}
			continue
		}
		o.Fans = append(o.Fans, i)
	}
	o.Rows = len(o.Fans)
	if imageOnly := func(i int) bool { return fans[i].FromLog && fans[i].ImageOnly }; slices.ContainsFunc(o.Fans, imageOnly) {
		last := slices.DeleteFunc(slices.Clone(o.Fans), func(i int) bool { return !imageOnly(i) })
		o.Fans = append(slices.DeleteFunc(o.Fans, imageOnly), last...)
		o.Rows -= len(last)
	}
	return o
}
