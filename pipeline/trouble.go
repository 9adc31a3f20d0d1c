package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// remindEvery is how long a lasting trouble stays silent when its text changes.
const remindEvery = time.Minute

// trouble is one thing that can fail for a while, such as "reach the database".
// It logs the first failure and the recovery; between them it logs only another
// failure than before, and at most once a minute. It may be used by several goroutines.
type trouble struct {
	log  *slog.Logger
	what string // "fan-out", "look for undelivered events" …

	mu     sync.Mutex
	err    error
	since  time.Time
	logged time.Time
	times  int
}

func newTrouble(log *slog.Logger, what string) *trouble { return &trouble{log: log, what: what} }

// failed notes a failure that passes by itself.
func (t *trouble) failed(err error, attrs ...slog.Attr) {
	t.note(slog.LevelWarn, t.what+" failed, trying again", err, attrs)
}

// failedForGood notes a failure that a person has to mend.
func (t *trouble) failedForGood(err error, attrs ...slog.Attr) {
	t.note(slog.LevelError, t.what+" failed and needs your help", err, attrs)
}

func (t *trouble) note(level slog.Level, message string, err error, attrs []slog.Attr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	first := t.err == nil
	changed := !first && t.err.Error() != err.Error()
	if first {
		t.since, t.times = now, 0
	}
	t.err = err
	t.times++
	if first || changed && now.Sub(t.logged) >= remindEvery {
		t.logged = now
		//nolint:sloglint // what is one of a few constants, and reads best in the message
		t.log.LogAttrs(context.Background(), level, message, append(attrs, slog.Any("error", err))...)
	}
}

// recovered notes a success.
func (t *trouble) recovered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		return
	}
	//nolint:sloglint // as above
	t.log.LogAttrs(context.Background(), slog.LevelInfo, t.what+" recovered",
		slog.Duration("after", time.Since(t.since).Round(time.Millisecond)), slog.Int("failures", t.times))
	t.err, t.since = nil, time.Time{}
}

// present returns the failure that lasts now and its beginning; zero and nil when
// all is well.
func (t *trouble) present() (since time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.since, t.err
}

// seldom lets a repeated message through once per key and interval, and counts
// what it held back. It may be used by several goroutines.
type seldom struct {
	every time.Duration

	mu   sync.Mutex
	last map[string]*seldomEntry
}

type seldomEntry struct {
	at   time.Time
	held int
}

// seldomKeys bounds the memory of a seldom; beyond it, it forgets all and starts again.
const seldomKeys = 1000

// allow says whether the message with this key may be logged now, and how many
// like it were held back since the last one.
func (s *seldom) allow(key string) (held int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	e := s.last[key]
	if e != nil && now.Sub(e.at) < s.every {
		e.held++
		return 0, false
	}
	if s.last == nil || len(s.last) >= seldomKeys {
		s.last = make(map[string]*seldomEntry)
	}
	if e != nil {
		held = e.held
	}
	s.last[key] = &seldomEntry{at: now}
	return held, true
}
