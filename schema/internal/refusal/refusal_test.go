package refusal

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r List
		if got := r.List(); got == nil || len(got) != 0 {
			t.Errorf("got %v", got)
		}
		for i := range most + 10 {
			if !r.Add(fmt.Sprint(i)) {
				t.Errorf("%d is not new", i)
			}
		}
		if r.Add("1009") {
			t.Error("known and new at once")
		}
		if n := len(r.List()); n != most {
			t.Errorf("%d entries", n)
		}
		<-time.After(For + time.Second)
		if n := len(r.List()); n != 0 {
			t.Errorf("%d entries are left after their time", n)
		}
	})
}
