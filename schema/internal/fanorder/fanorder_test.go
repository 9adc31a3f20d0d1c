package fanorder

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func TestOf(t *testing.T) {
	fan := func(id, payload string, imageOnly bool) delivery.Fan {
		return delivery.Fan{FromLog: true, ImageOnly: imageOnly, Event: event.Event{ID: id, Type: "t", Payload: []byte(payload)}}
	}
	got := Of([]delivery.Fan{fan("c", "1", false), fan("a", "1", true), fan("b", "1", false), fan("c", "2", false), fan("b", "1", false)})
	want := Order{Fans: []int{2, 0, 1}, Rows: 2, Repeated: 2, Duplicates: []string{"c"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := Of(nil); len(got.Fans) != 0 || got.Rows != 0 {
		t.Errorf("of nothing: %+v", got)
	}
}
