package schema

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/fuzzcorpus"
)

func TestFuzzCorpusIsNotEmpty(t *testing.T) { fuzzcorpus.Check(t) }

// FuzzDecode decodes a row. An event that comes of it has an id and a time that every consumer
// can hold, and an error names the column and no value.
func FuzzDecode(f *testing.F) {
	f.Fuzz(func(t *testing.T, date, id, payload string) {
		r := eventlogRow("event_date", date, "id", id, "payload", payload)
		r.Relation.Columns[11].Type = typeBytea
		e, err := Eventlog("").Decoder()(r)
		if err == nil && (!isUUID(e.ID) || e.Date.IsZero() || e.Date.Year() > 9999) {
			t.Errorf("got %+v", e)
		}
		if err == nil {
			return
		}
		for _, value := range []string{date, id, payload} {
			if len(value) > 12 && strings.Contains(err.Error(), value) {
				t.Errorf("%v quotes the row", err)
			}
		}
		if !strings.Contains(err.Error(), `column "`) {
			t.Errorf("%v names no column", err)
		}
	})
}

// FuzzDecodeOutbox decodes a row in Debezium's layout, with the payload as text, as JSON or as bytes. What comes of it
// has an id, and the payload is the row's own; an error names the column and no value.
func FuzzDecodeOutbox(f *testing.F) {
	f.Fuzz(func(t *testing.T, id, typ, payload string, kind uint8) {
		r := row("public.outbox", "id", id, "aggregatetype", "order", "aggregateid", "o-1", "type", typ, "payload", payload)
		binary := kind%2 == 1
		if binary {
			r.Relation.Columns[4].Type = typeBytea
		}
		e, err := Debezium("", "").Decoder()(r)
		if err != nil {
			if !strings.Contains(err.Error(), `column "`) || len(payload) > 12 && strings.Contains(err.Error(), payload) {
				t.Errorf("%v", err)
			}
			return
		}
		content := []byte(payload)
		if binary {
			if content, err = decodeBytea(content); err != nil {
				t.Fatalf("%q was decoded", payload)
			}
		}
		if !isUUID(e.ID) || e.Key != id && e.ID != id || e.Type != typ || !bytes.Equal(e.Payload, content) {
			t.Errorf("%q, %q, %q became %+v", id, typ, payload, e)
		}
	})
}

// FuzzTime reads a time. One that is read is in range, in UTC, of whole microseconds, and reads
// as itself in each form that a database prints it in.
func FuzzTime(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseTime([]byte(text))
		if err != nil {
			return
		}
		if got.Before(earliest()) || got.After(latest()) || got.Location() != time.UTC || got.Nanosecond()%1000 != 0 {
			t.Fatalf("%q reads as %s", text, got)
		}
		for _, form := range []string{"2006-01-02 15:04:05.999999", "2006-01-02 15:04:05.999999-07", "2006-01-02T15:04:05.999999Z"} {
			again, err := parseTime([]byte(got.Format(form)))
			if err != nil || !again.Equal(got) {
				t.Fatalf("%s is printed as %s, which reads as %s (%v)", got, got.Format(form), again, err)
			}
		}
	})
}

// FuzzBytea reads binary content. What is written in either form reads as itself, and a text
// of neither form never becomes longer.
func FuzzBytea(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		for form, text := range map[string][]byte{"hex": []byte(`\x` + hex.EncodeToString(data)), "escape": escaped(data)} {
			got, err := decodeBytea(text)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%s: %q reads as %q (%v)", form, text, got, err)
			}
		}
		got, err := decodeBytea(data)
		if err == nil && len(got) > len(data) {
			t.Fatalf("%q became %q", data, got)
		}
		if err != nil && err != errBytea { //nolint:errorlint // the very error, which quotes nothing
			t.Fatal(err)
		}
	})
}

// escaped is PostgreSQL's older form of a bytea.
func escaped(data []byte) []byte {
	var out []byte
	for _, c := range data {
		switch {
		case c == '\\':
			out = append(out, `\\`...)
		case c < 0x20 || c > 0x7e:
			out = append(out, '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
		default:
			out = append(out, c)
		}
	}
	return out
}

// canonical says that a text is a UUID as a database prints it.
func canonical(s string) bool {
	id, err := uuid.Parse(s)
	return err == nil && id.String() == s
}

// FuzzEventID derives ids. An id is a UUID, a UUID is its own id, and no other key of the
// table has it.
func FuzzEventID(f *testing.F) {
	f.Fuzz(func(t *testing.T, one, other string) {
		id, derived := EventID("public.outbox", one)
		if !canonical(id) || derived == canonical(one) || !derived && id != one {
			t.Fatalf("%q has the id %s, derived: %v", one, id, derived)
		}
		if again, _ := EventID("public.outbox", other); (again == id) != (one == other) {
			t.Fatalf("%q has the id %s, and %q the id %s", one, id, other, again)
		}
	})
}
