package schema

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseTime(t *testing.T) {
	for text, want := range map[string]string{
		"2026-11-30":                       "2026-11-30T00:00:00Z",
		"2026-11-30 10:18:05":              "2026-11-30T10:18:05Z",
		"2026-11-30T10:18:05Z":             "2026-11-30T10:18:05Z",
		"2026-11-30 10:18:05.1":            "2026-11-30T10:18:05.1Z",
		"2026-11-30 10:18:05.123456":       "2026-11-30T10:18:05.123456Z",
		"2026-11-30 10:18:05.123456789":    "2026-11-30T10:18:05.123456Z",
		"2026-11-30 10:18:05.123456+00":    "2026-11-30T10:18:05.123456Z",
		"2026-11-30 10:18:05+05:30":        "2026-11-30T04:48:05Z",
		"2026-11-30 23:18:05-03:30":        "2026-12-01T02:48:05Z",
		"1883-11-18 12:00:00-04:56:02":     "1883-11-18T16:56:02Z",
		"2024-02-29 00:00:00":              "2024-02-29T00:00:00Z",
		"9999-12-31 23:59:59.999999":       "9999-12-31T23:59:59.999999Z",
		"infinity":                         "9999-12-31T23:59:59.999999Z",
		"-infinity":                        "0001-01-01T00:00:00.000001Z",
		"10000-01-01 00:00:00":             "9999-12-31T23:59:59.999999Z",
		"294276-12-31 23:59:59.999999":     "9999-12-31T23:59:59.999999Z",
		"0044-03-15 12:00:00 BC":           "0001-01-01T00:00:00.000001Z",
		"0044-03-15 BC":                    "0001-01-01T00:00:00.000001Z",
		"4714-11-24 00:00:00+00 BC":        "0001-01-01T00:00:00.000001Z",
		"0001-01-01 00:00:00":              "0001-01-01T00:00:00.000001Z",
		"9999-12-31 23:59:59.999999-12:00": "9999-12-31T23:59:59.999999Z",
		"0001-01-01 00:00:00.000002+00:00": "0001-01-01T00:00:00.000002Z",
		"0000-00-00 00:00:00":              "0001-01-01T00:00:00.000001Z",
		"2026-00-10":                       "0001-01-01T00:00:00.000001Z",
		"2026-11-00 10:18:05.123456":       "0001-01-01T00:00:00.000001Z",
	} {
		got, err := parseTime([]byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if s := got.Format(time.RFC3339Nano); s != want || got.Location() != time.UTC {
			t.Errorf("%q: got %s %s, want %s", text, s, got.Location(), want)
		}
	}
}

// TestA170_NumbersAreNotTimes: whether 1796033885 is seconds or days is not guessed.
func TestA170_NumbersAreNotTimes(t *testing.T) {
	for _, text := range []string{"1796033885", "1796033885123.5", "-7", "20261130", "1.79e12", "0"} {
		if got, err := parseTime([]byte(text)); err != errNumericTime { //nolint:errorlint // returned as is
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

func TestParseTimeRefuses(t *testing.T) {
	for _, text := range []string{
		"", " ", "now", "2026", "2026-1-30", "2026-11", "2026-13-01", "2026-02-30", "2025-02-29 00:00:00", "2026-00-32", "2026-13-00", "2026-00-10 24:00:00",
		"2026-11-30 ", "2026-11-30 1:00:00", "2026-11-30 10:18", "2026-11-30 24:00:00", "2026-11-30 10:60:00",
		"2026-11-30 10:18:60", "2026-11-30 10:18:05.", "2026-11-30 10:18:05 AD", "2026-11-30 10:18:05+5",
		"2026-11-30 10:18:05+05:3", "30.11.2026 10:18:05", "Mon Nov 30 10:18:05 2026", "2026-11-30 10:18:05x", "2026-11-30 10:18:05+00 ",
	} {
		if got, err := parseTime([]byte(text)); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestParseTimeReadsWhatIsPrinted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := time.UnixMicro(rapid.Int64Range(earliestMicros, latestMicros).Draw(t, "micros")).UTC()
		zone := time.FixedZone("", 60*rapid.IntRange(-15*60, 15*60).Draw(t, "minutes east"))
		local := want.In(zone)
		if local.Year() < 1 || local.Year() > 9999 {
			return
		}
		got, err := parseTime([]byte(local.Format("2006-01-02 15:04:05.999999-07:00")))
		if err != nil || !got.Equal(want) {
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
	})
}
