package pipeline

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

// FuzzCondition compiles conditions of any text. One that does not compile has an error with a place
// inside the text; one that does has an answer for an event or an error, each time the same, and
// an error shows nothing of the event.
func FuzzCondition(f *testing.F) {
	f.Fuzz(func(t *testing.T, expr string) {
		c, err := compileEventCondition(expr)
		if err != nil {
			var bad *ConditionError
			if !errors.As(err, &bad) {
				t.Fatalf("%q: %T: %v", expr, err, err)
			}
			lines := strings.Split(expr, "\n")
			if bad.Message == "" || bad.Line < 1 || bad.Line > len(lines) || bad.Column < 1 || bad.Column > utf8.RuneCountInString(lines[bad.Line-1])+2 {
				t.Fatalf("%q: the error is at %d:%d: %q", expr, bad.Line, bad.Column, bad.Message)
			}
			if !strings.HasSuffix(bad.Snippet(), "^") {
				t.Fatalf("%q: the snippet is %q", expr, bad.Snippet())
			}
			return
		}
		holds, err := c.holdsFor(newEventView(orderEvent()))
		again, errAgain := c.holdsFor(newEventView(orderEvent()))
		if holds != again || (err == nil) != (errAgain == nil) {
			t.Fatalf("%q: %v (%v), and then %v (%v)", expr, holds, err, again, errAgain)
		}
		if err != nil && (holds || strings.Contains(err.Error(), "hunter2") && !strings.Contains(expr, "hunter2")) {
			t.Fatalf("%q: %v, %v", expr, holds, err)
		}
	})
}

// FuzzDocument reads documents for conditions. Exactly what is JSON is read; whole numbers stay
// exact; an error says where, and shows nothing.
func FuzzDocument(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := parseJSON(raw)
		if readable := len(raw) == 0 || json.Valid(raw); readable != (err == nil) {
			t.Fatalf("%q: %v", raw, err)
		}
		if err != nil {
			if len(raw) > 12 && strings.Contains(err.Error(), string(raw)) || !strings.Contains(err.Error(), "byte ") {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		if len(raw) > 0 {
			sameDocument(t, raw, got)
		}
	})
}

// sameDocument compares what was read with what encoding/json reads.
func sameDocument(t *testing.T, raw []byte, got any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	var want any
	if err := decoder.Decode(&want); err != nil {
		t.Fatal(err)
	}
	if !sameValue(want, got) {
		t.Fatalf("%s reads as %v", raw, got)
	}
}

func sameValue(want, got any) bool {
	switch want := want.(type) {
	case nil:
		return got == types.NullValue
	case json.Number:
		switch got := got.(type) {
		case int64:
			return strconv.FormatInt(got, 10) == want.String() || want == "-0"
		case uint64: // only what is too large for the other
			return strconv.FormatUint(got, 10) == want.String() && got > math.MaxInt64
		case float64:
			read, err := want.Float64()
			// A whole number is a double only where no integer of 64 bits holds it.
			whole := !strings.ContainsAny(want.String(), ".eE")
			return (err != nil || read == got) && (!whole || math.Abs(got) >= 1<<63)
		}
		return false
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return false
		}
		for i := range want {
			if !sameValue(want[i], list[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok || len(object) != len(want) {
			return false
		}
		for key := range want {
			if !sameValue(want[key], object[key]) {
				return false
			}
		}
		return true
	}
	return want == got
}
