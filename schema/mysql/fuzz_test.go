package mysql

import (
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

// FuzzTime reads a time as the server prints it. One that is read is not before the earliest,
// and reads as itself when it was a parameter.
func FuzzTime(f *testing.F) {
	first, err := parseTime(earliest)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseTime(text)
		if err != nil {
			return
		}
		if got.Before(first) || got.Location() != time.UTC {
			t.Fatalf("%q reads as %s", text, got)
		}
		written, ok := timeText(got).(string)
		if !ok {
			t.Fatalf("%q reads as the zero time", text)
		}
		// A parameter has microseconds, as the columns have.
		if again, err := parseTime(written); err != nil || !again.Equal(got.Truncate(time.Microsecond)) {
			t.Fatalf("%q reads as %s, is written as %s and reads as %s (%v)", text, got, written, again, err)
		}
	})
}
