package admin

import (
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

// Overview is the state of one source on one screen. Its numbers are counted up to the
// count limit, so that it costs the same whatever the size of the tables.
type Overview struct {
	// Now is the database's clock.
	Now time.Time `json:"now"`
	// Handlers that are registered or have deliveries, by name.
	Handlers []HandlerOverview `json:"handlers"`
	// Undelivered counts events that no path has fanned out; Wanted those of them that a
	// registered handler subscribes to: the others wait for one on purpose (A54).
	Undelivered Count `json:"undelivered"`
	Wanted      Count `json:"wanted"`
	// OldestWanted is how long the oldest of those has waited; 0 when there is none or the
	// table has no date.
	OldestWanted time.Duration `json:"oldest_wanted_ns"`
	// Unidentifiable counts undelivered events without a key, which can have no delivery.
	Unidentifiable Count          `json:"unidentifiable"`
	Sources        []SourceStatus `json:"sources"`
	// Gaps that no sweep has closed, oldest first, at most 100.
	Gaps []OpenGap `json:"gaps"`
	// Incomplete names the parts above that took longer than the time limit and are empty.
	Incomplete []string `json:"incomplete,omitempty"`
}

// HandlerOverview counts the deliveries of one stored handler name.
type HandlerOverview struct {
	Handler string `json:"handler"`
	// Registered says that a process serves or served the name, or an alias of it.
	Registered bool `json:"registered"`
	// Paused is nil while it runs.
	Paused *delivery.Pause          `json:"paused,omitempty"`
	States map[delivery.State]Count `json:"states"`
	// Leased deliveries are being worked on.
	Leased int64 `json:"leased"`
	// Oldest is the age of the oldest delivery that is PENDING or FAILED, among those that are
	// counted: the ones that are due first.
	Oldest time.Duration `json:"oldest_ns"`
}

// SourceStatus is what the process that reads a source last said of it.
type SourceStatus struct {
	Name     string        `json:"name"`
	Owner    string        `json:"owner"`
	Mode     string        `json:"mode"`
	Detail   string        `json:"detail,omitempty"`
	Position string        `json:"position,omitempty"`
	Updated  time.Time     `json:"updated"`
	Silent   time.Duration `json:"silent_ns"`
}

// OpenGap is a stretch of log that was not read and is not swept yet.
type OpenGap struct {
	Source   string    `json:"source"`
	Reason   string    `json:"reason"`
	Detail   string    `json:"detail"`
	From     string    `json:"from,omitempty"`
	To       string    `json:"to,omitempty"`
	Detected time.Time `json:"detected"`
}
