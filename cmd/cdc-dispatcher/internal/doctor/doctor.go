// Package doctor checks a PostgreSQL database from the connection up to the
// oldest event, and says for each finding what was measured and which statement
// mends it.
//
// Promise: it changes nothing, not even a setting of a session that a pooler hands to others; its
// transactions are read-only and every statement in them has a time limit. Checks run in the order of their dependencies, and one whose ground
// has failed is skipped, so that one cause is one finding. No finding shows a
// password or the content of an event.
//
// [Run] uses at most two connections for SQL and, unless the log is not to be read, a
// third one to see that replication is let in. All are closed when it returns,
// and no goroutine is left.
package doctor

import (
	"context"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// Config says what to check. DSN and Table are required; the zero value of every
// other field is its default.
type Config struct {
	// DSN is where statements go; ReplicationDSN, when not empty, where the log is read.
	DSN, ReplicationDSN string
	// Password, when not empty, replaces the one in both.
	Password string
	// Poll says that the log is not read: its checks are left out.
	Poll bool
	// Slot and Publication default to "cdc_dispatcher".
	Slot, Publication string
	// Create says that the reader may create both, so that their absence is no finding
	// as long as the role can.
	Create bool
	// Table is the event table, Schema where the product's own tables are. Default "eventlog".
	Table  schema.Table
	Schema string

	// Timeout of one connection or statement. Default 10 s.
	Timeout time.Duration
	// MaxSkew is the tolerated difference between this clock and the database's. Default 1 s.
	MaxSkew time.Duration
	// LongTransaction is how long a transaction may be open. Default 10 min.
	LongTransaction time.Duration
	// Undelivered is how long an event that a handler wants may wait for its
	// fan-out. Default 5 min.
	Undelivered time.Duration
	// LargeTable is how many rows a table may have of which the poller reads all, each
	// time. Default 500,000.
	LargeTable float64

	// now is this clock; tests set it.
	now func() time.Time
}

func (c Config) withDefaults() Config {
	orDefault(&c.ReplicationDSN, c.DSN)
	orDefault(&c.Slot, "cdc_dispatcher")
	orDefault(&c.Publication, "cdc_dispatcher")
	orDefault(&c.Schema, schema.DefaultSchema)
	orDefault(&c.Timeout, 10*time.Second)
	orDefault(&c.MaxSkew, time.Second)
	orDefault(&c.LongTransaction, 10*time.Minute)
	orDefault(&c.Undelivered, 5*time.Minute)
	orDefault(&c.LargeTable, 500_000)
	if c.now == nil {
		c.now = time.Now
	}
	c.Table = c.Table.WithDefaults()
	return c
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Status is the result of one check.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warn    Status = "warn"
	Fail    Status = "fail"
	Skipped Status = "skipped"
)

// Finding is what a check found.
type Finding struct {
	Status Status `json:"status"`
	// Message is one sentence.
	Message string `json:"message"`
	// Value is what was measured; empty when the message says it all.
	Value string `json:"value,omitempty"`
	// Fix holds the statements that mend it, in order, to be run by somebody who may.
	Fix []string `json:"fix,omitempty"`
	// Hint is what no statement can do: a restart, another DSN, a word of caution.
	Hint string `json:"hint,omitempty"`
}

// Result is a check and its finding.
type Result struct {
	// Code is stable; scripts and pages refer to it.
	Code string `json:"code"`
	Name string `json:"name"`
	Finding
	// Because is the code of the check that must pass before this one means anything.
	Because string `json:"because,omitempty"`
}

// Report is the result of all checks, in order.
type Report struct {
	Results []Result `json:"checks"`
}

// Worst is Fail, Warn or OK.
func (r Report) Worst() Status {
	worst := OK
	for _, res := range r.Results {
		if res.Status == Fail {
			return Fail
		}
		if res.Status == Warn {
			worst = Warn
		}
	}
	return worst
}

// Count returns how many checks have a status.
func (r Report) Count(s Status) int {
	n := 0
	for _, res := range r.Results {
		if res.Status == s {
			n++
		}
	}
	return n
}

// Run runs all checks that apply and returns their report. It does not fail: what
// keeps it from checking is itself a finding.
func Run(ctx context.Context, cfg Config) Report {
	cfg = cfg.withDefaults()
	return run(ctx, cfg, checks(cfg))
}

// Codes of checks that other commands ask for.
const (
	// CodeVersion is the check of the server's version, CodePrimary that it takes writes,
	// CodeConnections that some are free.
	CodeVersion     = codeVersion
	CodePrimary     = codePrimary
	CodeConnections = codeConnections
	// CodePrivileges is the check of the role's rights on tables.
	CodePrivileges = codePrivileges
)

// Only runs one check, after those that it needs, and returns its result: for
// programs that refuse to start on what would fail later.
func Only(ctx context.Context, cfg Config, code string) Result {
	cfg = cfg.withDefaults()
	report := run(ctx, cfg, upTo(checks(cfg), code))
	return report.Results[len(report.Results)-1]
}

func run(ctx context.Context, cfg Config, list []check[*session]) Report {
	s := &session{cfg: cfg}
	defer s.close()
	return s.report(ctx, list)
}

func (s *session) report(ctx context.Context, list []check[*session]) Report {
	return report(ctx, s, list, s.cfg.Timeout, describe)
}

// The codes, in the order in which they are checked.
const (
	codeConnect     = "CD2001"
	codeTLS         = "CD2002"
	codePooler      = "CD2003"
	codeVersion     = "CD2004"
	codePrimary     = "CD2005"
	codeClock       = "CD2006"
	codeConnections = "CD2007"

	codeTable      = "CD2101"
	codePrivileges = "CD2102"
	codeMigrations = "CD2103"
	codeColumns    = "CD2104"
	codePollIndex  = "CD2105"

	codeWALLevel     = "CD2201"
	codeReplication  = "CD2202"
	codeSlotsFree    = "CD2203"
	codeSendersFree  = "CD2204"
	codeReplicate    = "CD2205"
	codeKeepSize     = "CD2206"
	codeIdleSlot     = "CD2207"
	codeSenderTime   = "CD2208"
	codePublication  = "CD2209"
	codePublished    = "CD2210"
	codeSlot         = "CD2211"
	codeSlotHealth   = "CD2212"
	codeTransactions = "CD2213"

	codeNullIDs     = "CD2301"
	codeUndelivered = "CD2302"
	codeGaps        = "CD2303"
)

// checks returns the checks that apply, each after all that it needs.
func checks(cfg Config) []check[*session] {
	list := []check[*session]{
		{codeConnect, "connection", nil, checkConnect},
		{codeTLS, "encryption", []string{codeConnect}, checkTLS},
		{codePooler, "pooler", []string{codeConnect}, checkPooler},
		{codeVersion, "server version", []string{codeConnect}, checkVersion},
		{codePrimary, "primary", []string{codeVersion}, checkPrimary},
		{codeClock, "clock", []string{codeConnect}, checkClock},
		{codeConnections, "free connections", []string{codeConnect}, checkConnections},

		{codeTable, "event table", []string{codePrimary}, checkTable},
		{codePrivileges, "privileges", []string{codeTable}, checkPrivileges},
		{codeMigrations, "migrations", []string{codePrivileges}, checkMigrations},
		{codeColumns, "columns", []string{codeMigrations}, checkColumns},
		{codePollIndex, "poller's index", []string{codeMigrations, codeColumns}, checkPollIndex},
	}
	if !cfg.Poll {
		list = append(list, []check[*session]{
			{codeWALLevel, "wal_level", []string{codePrimary}, checkWALLevel},
			{codeReplication, "replication right", []string{codeWALLevel}, checkReplicationRight},
			{codeSlotsFree, "free slots", []string{codeWALLevel}, checkSlotsFree},
			{codeSendersFree, "free senders", []string{codeWALLevel}, checkSendersFree},
			{codeReplicate, "replication connection", []string{codePooler, codeReplication, codeSendersFree}, checkReplicate},
			{codeKeepSize, "WAL guard", []string{codeWALLevel}, checkKeepSize},
			{codeIdleSlot, "idle slot limit", []string{codeWALLevel}, checkIdleSlot},
			{codeSenderTime, "sender timeout", []string{codeWALLevel}, checkSenderTimeout},
			{codePublication, "publication", []string{codeWALLevel, codePrivileges}, checkPublication},
			{codePublished, "published table", []string{codePublication, codeColumns}, checkPublished},
			{codeSlot, "slot", []string{codeReplication, codeSlotsFree}, checkSlot},
			{codeSlotHealth, "slot health", []string{codeSlot}, checkSlotHealth},
			{codeTransactions, "long transactions", []string{codePrimary}, checkTransactions},
		}...)
	}
	return append(list, []check[*session]{
		{codeNullIDs, "rows without id", []string{codePrivileges, codeColumns}, checkNullIDs},
		{codeUndelivered, "oldest undelivered", []string{codeMigrations, codeColumns}, checkUndelivered},
		{codeGaps, "gaps", []string{codeMigrations}, checkGaps},
	}...)
}
