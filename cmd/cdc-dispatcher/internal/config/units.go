package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// durationUnits are the units a duration may be written in, "7d" included.
var durationUnits = [...]struct {
	name string
	unit time.Duration
}{
	{"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute},
	{"h", time.Hour}, {"d", 24 * time.Hour},
}

// ParseDuration reads a duration as the configuration has them.
func ParseDuration(text string) (time.Duration, error) { return parseDuration(text) }

// parseDuration reads "10s", "1h30m", "1.5s" or "7d". The error says what is
// wrong and never repeats the text.
func parseDuration(text string) (time.Duration, error) {
	if text == "" {
		return 0, fmt.Errorf("is empty")
	}
	var total time.Duration
	for rest := text; rest != ""; {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		number, tail := rest[:digits], rest[digits:]
		letters := len(tail) - len(strings.TrimLeft(tail, "abcdefghijklmnopqrstuvwxyzµABCDEFGHIJKLMNOPQRSTUVWXYZ"))
		name := tail[:letters]
		rest = tail[letters:]
		value, err := strconv.ParseFloat(number, 64)
		switch {
		case err != nil:
			return 0, fmt.Errorf("is not a duration")
		case name == "":
			return 0, fmt.Errorf("has no unit")
		}
		unit := time.Duration(0)
		for _, u := range durationUnits {
			if u.name == name {
				unit = u.unit
			}
		}
		if unit == 0 {
			return 0, fmt.Errorf("has an unknown unit")
		}
		part := value * float64(unit)
		if part > float64(math.MaxInt64)-float64(total) {
			return 0, fmt.Errorf("is too long")
		}
		total += time.Duration(math.Round(part))
	}
	return total, nil
}

// formatDuration is the inverse of parseDuration in its shortest form.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	var b strings.Builder
	for i := len(durationUnits) - 1; i >= 0; i-- {
		u := durationUnits[i]
		if n := d / u.unit; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.unit
		}
	}
	if b.Len() == 0 {
		return d.String()
	}
	return b.String()
}

// sizeUnits are the units a size may be written in.
var sizeUnits = [...]struct {
	name string
	unit float64
}{
	{"B", 1},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
}

// parseSize reads "16MiB", "500kB" or "1GiB" into bytes.
func parseSize(text string) (int64, error) {
	digits := len(text) - len(strings.TrimLeft(text, "0123456789."))
	value, err := strconv.ParseFloat(text[:digits], 64)
	name := strings.TrimSpace(text[digits:])
	switch {
	case text == "":
		return 0, fmt.Errorf("is empty")
	case err != nil:
		return 0, fmt.Errorf("is not a size")
	case name == "":
		return 0, fmt.Errorf("has no unit")
	}
	for _, u := range sizeUnits {
		if u.name != name {
			continue
		}
		bytes := value * u.unit
		if bytes > 1<<50 {
			return 0, fmt.Errorf("is too large")
		}
		return int64(bytes), nil
	}
	return 0, fmt.Errorf("has an unknown unit")
}

// formatSize writes bytes in the largest binary unit that divides them.
func formatSize(bytes int64) string {
	for _, u := range []struct {
		name string
		unit int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= u.unit && bytes%u.unit == 0 {
			return fmt.Sprintf("%d%s", bytes/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%dB", bytes)
}
