package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// scriptedSource runs one step of its script per Run, and the last one again and again.
type scriptedSource struct {
	mu     sync.Mutex
	mode   cdc.Mode
	runs   []time.Duration // since the first
	begun  time.Time
	script []func(ctx context.Context, s *scriptedSource) error
}

func (s *scriptedSource) Run(ctx context.Context, _ chan<- cdc.Transaction) error {
	s.mu.Lock()
	if len(s.runs) == 0 {
		s.begun = time.Now()
	}
	step := s.script[min(len(s.runs), len(s.script)-1)]
	s.runs = append(s.runs, time.Since(s.begun))
	s.mu.Unlock()
	s.set(cdc.ModeConnecting)
	defer s.set(cdc.ModeStopped)
	return step(ctx, s)
}

func (s *scriptedSource) Ack(cdc.Position) {}

func (s *scriptedSource) set(m cdc.Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
}

func (s *scriptedSource) Status() cdc.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cdc.Status{Mode: s.mode}
}

func (s *scriptedSource) starts() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.runs...)
}

// fails returns err at once.
func fails(err error) func(context.Context, *scriptedSource) error {
	return func(context.Context, *scriptedSource) error { return err }
}

// streams reads for d, or until it is stopped, and then fails.
func streams(mode cdc.Mode, d time.Duration) func(context.Context, *scriptedSource) error {
	return func(ctx context.Context, s *scriptedSource) error {
		s.set(mode)
		if !sleep(ctx, d) {
			return nil
		}
		return errors.New("cut")
	}
}

const forever = 1000 * time.Hour

// supervise runs a supervisor over the script for d, inside a bubble.
func supervise(t *testing.T, d time.Duration, script ...func(context.Context, *scriptedSource) error) (*supervisor, *scriptedSource, *logBook) {
	t.Helper()
	src, book := &scriptedSource{script: script}, &logBook{}
	s := newSupervisor(src, nil, func(context.Context) bool { return true }, slog.New(slog.NewTextHandler(book, nil)), &recorder{})
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = s.run(ctx) })
	done.Go(func() { _ = s.watch(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	elapse(d)
	synctest.Wait()
	return s, src, book
}

func TestSupervisorRunsAFailingSourceAgainAndLogsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, src, book := supervise(t, 5*time.Minute,
			fails(errors.New("refused")), fails(errors.New("refused")), fails(errors.New("refused")), streams(cdc.ModeStreaming, forever))
		if n := len(src.starts()); n != 4 {
			t.Errorf("%d runs, want 4", n)
		}
		if book.lines("reading the log failed") != 1 || book.lines("reading the log recovered") != 1 {
			t.Errorf("log:\n%s", book)
		}
		if st := s.state(); st.reading != readingNow || st.err != nil {
			t.Errorf("state %+v", st)
		}
	})
}

func TestSupervisorRunsAPermanentlyBrokenSourceSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := cdc.Permanent(errors.New("wal_level is replica"), "ALTER SYSTEM SET wal_level = logical, then restart")
		s, src, book := supervise(t, 10*time.Minute+time.Second, fails(bad))
		if n := len(src.starts()); n < 9 || n > 13 {
			t.Errorf("%d runs in ten minutes, want about one a minute", n)
		}
		if book.lines("needs your help") != 1 || book.lines("ALTER SYSTEM") != 1 {
			t.Errorf("log:\n%s", book)
		}
		st := s.state()
		if st.reading != notReading || !st.permanent || st.notReadingFor < 10*time.Minute {
			t.Errorf("state %+v", st)
		}
		select {
		case <-s.settled:
		default:
			t.Error("the poller would wait for ever")
		}
	})
}

func TestSupervisorPausesAreShortAgainAfterItHasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := fails(errors.New("cut"))
		_, src, _ := supervise(t, time.Hour, cut, cut, cut, cut, cut, cut, cut, streams(cdc.ModeStreaming, time.Minute), streams(cdc.ModeStreaming, forever))
		at := src.starts()
		if n := len(at); n != 9 {
			t.Fatalf("%d runs, want 9", n)
		}
		if before := at[7] - at[6]; before < 15*time.Second {
			t.Errorf("the seventh pause was %s", before)
		}
		if after := at[8] - at[7] - time.Minute; after > time.Second {
			t.Errorf("the pause after a run that had read was %s", after)
		}
	})
}

func TestSupervisorAsksForCalmBetweenRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		src := &scriptedSource{script: []func(context.Context, *scriptedSource) error{func(ctx context.Context, s *scriptedSource) error {
			order = append(order, "run")
			if len(order) > 2 {
				<-ctx.Done()
				return nil
			}
			return errors.New("cut")
		}}}
		s := newSupervisor(src, nil, func(context.Context) bool { order = append(order, "calm"); return true },
			slog.New(slog.DiscardHandler), &recorder{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.run(ctx); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"run", "calm", "run"}, order); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestSupervisorTellsThePollerWhatTheSourceDoes(t *testing.T) {
	for _, tc := range []struct {
		mode cdc.Mode
		want reading
	}{
		{cdc.ModeStreaming, readingNow},
		{cdc.ModeStandby, readingNow},
		{cdc.ModeWaitingForStandby, readingNow},
		{cdc.ModeCatchingUp, readingBehind},
		{cdc.ModeConnecting, notReading},
		{cdc.ModePolling, notReading},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _, _ := supervise(t, time.Minute, streams(tc.mode, forever))
			st := s.state()
			if st.reading != tc.want {
				t.Errorf("%s: %v, want %v", tc.mode, st.reading, tc.want)
			}
			if (st.notReadingFor > 30*time.Second) != (tc.want == notReading) {
				t.Errorf("%s: not read for %s", tc.mode, st.notReadingFor)
			}
			select {
			case <-s.settled:
				if tc.want == notReading {
					t.Errorf("%s: settled", tc.mode)
				}
			default:
				if tc.want != notReading {
					t.Errorf("%s: not settled", tc.mode)
				}
			}
		})
	}
}

func TestSupervisorPresumesThatASourceWithoutStatusReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSupervisor(silentSource{}, nil, nil, slog.New(slog.DiscardHandler), &recorder{})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { _ = s.run(ctx) })
		done.Go(func() { _ = s.watch(ctx) })
		elapse(time.Second)
		if s.state().reading != notReading {
			t.Error("reads at once")
		}
		<-s.settled
		if s.state().reading != readingNow {
			t.Error("does not read")
		}
		cancel()
		done.Wait()
	})
}
