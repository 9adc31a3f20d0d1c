package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

const (
	// permanentPace is the pause between runs of a source that says that running
	// again cannot help: it is run nevertheless, so that the mend is noticed.
	permanentPace = time.Minute
	// watchEvery is how often the mode of the source is looked at.
	watchEvery = 250 * time.Millisecond
	// presumedReading is when a running source that reports no status counts as reading.
	presumedReading = 2 * time.Second
)

// reading is what the source's state means for the poller.
type reading int

const (
	// notReading: connecting, failed, or stopped.
	notReading reading = iota
	// readingBehind: the log is being read, far from its end.
	readingBehind
	// readingNow: the log is being read, by this process or by the one it stands by for.
	readingNow
)

// supervisor runs the source again and again.
type supervisor struct {
	source cdc.Source
	out    chan<- cdc.Transaction
	// calm waits until what the last run handed over is dealt with.
	calm    func(context.Context) bool
	log     *slog.Logger
	obs     Observer
	trouble *trouble
	// settled is closed when it is first known what the source will do: it reads, or
	// it will not for now.
	settled chan struct{}
	settle  sync.Once

	mu sync.Mutex
	// running says that Run is being executed, since then; or is not, since then.
	running bool
	since   time.Time
	mode    cdc.Mode
	// err is why the last run failed, until the source reads again.
	err error
	// notReadingSince is zero while the source reads.
	notReadingSince time.Time
}

func newSupervisor(source cdc.Source, out chan<- cdc.Transaction, calm func(context.Context) bool, log *slog.Logger, obs Observer) *supervisor {
	return &supervisor{
		source: source, out: out, calm: calm, log: log, obs: obs,
		trouble: newTrouble(log, "reading the log"),
		settled: make(chan struct{}),
		mode:    cdc.ModeStopped,
	}
}

// run keeps the source running until ctx ends; the source then confirms what was
// acknowledged. A source that fails is run again after a pause, and only after what it handed
// over has been dealt with.
func (s *supervisor) run(ctx context.Context) error {
	wait := pause{base: time.Second, cap: 30 * time.Second}
	for {
		s.began()
		err := s.source.Run(ctx, s.out)
		if ended(ctx) {
			s.stopped(err)
			return nil
		}
		if err == nil {
			err = errors.New("the source ended without being asked to")
		}
		if s.failed(err) {
			wait.reset()
		}
		d := wait.next()
		if cdc.IsPermanent(err) {
			d = jittered(permanentPace)
		}
		if !s.calm(ctx) || !sleep(ctx, d) {
			return nil
		}
	}
}

func (s *supervisor) began() {
	s.obs.Count(CountSourceRun, "", 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.since, s.mode = true, time.Now(), cdc.ModeConnecting
	if s.notReadingSince.IsZero() {
		s.notReadingSince = s.since
	}
}

// failed notes the end of a run; it says whether the run had been reading, so that
// the pauses begin anew.
func (s *supervisor) failed(err error) (hadRead bool) {
	if cdc.IsPermanent(err) {
		s.trouble.failedForGood(err)
	} else {
		s.trouble.failed(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	hadRead = s.notReadingSince.IsZero()
	s.running, s.since, s.mode, s.err = false, time.Now(), cdc.ModeConnecting, err
	if hadRead {
		s.notReadingSince = s.since
	}
	if cdc.IsPermanent(err) {
		s.settle.Do(func() { close(s.settled) })
	}
	return hadRead
}

func (s *supervisor) stopped(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.since, s.mode = false, time.Now(), cdc.ModeStopped
	if err != nil {
		s.log.Warn("the source could not confirm its position at the end; the next start reads a little again", slog.Any("error", err))
	}
}

// watch looks at the source until ctx ends.
func (s *supervisor) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.observe()
		}
	}
}

// observe takes the source's own word for what it does.
func (s *supervisor) observe() {
	status := s.status()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return
	}
	s.mode = status.Mode
	if readingOf(status.Mode) == notReading {
		if s.notReadingSince.IsZero() {
			s.notReadingSince = time.Now()
		}
		return
	}
	s.notReadingSince, s.err = time.Time{}, nil
	s.trouble.recovered()
	s.settle.Do(func() { close(s.settled) })
}

// status is the source's report. For a source without one it is made from what
// the supervisor knows.
func (s *supervisor) status() cdc.Status {
	if r, ok := s.source.(cdc.Reporter); ok {
		return r.Status()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status := cdc.Status{Mode: s.mode, LagBytes: -1, RetainedBytes: -1, RetainLimitBytes: -1}
	if s.running && time.Since(s.since) >= presumedReading {
		status.Mode = cdc.ModeStreaming
	}
	return status
}

func readingOf(mode cdc.Mode) reading {
	switch mode {
	case cdc.ModeStreaming, cdc.ModeStandby, cdc.ModeWaitingForStandby:
		return readingNow
	case cdc.ModeCatchingUp:
		return readingBehind
	default:
		return notReading
	}
}

// sourceState is a snapshot for the poller and for health.
type sourceState struct {
	reading reading
	// notReadingFor is how long the log has not been read.
	notReadingFor time.Duration
	// err is why; permanent says that only a person can mend it.
	err       error
	permanent bool
	since     time.Time
}

func (s *supervisor) state() sourceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := sourceState{reading: readingOf(s.mode), err: s.err, permanent: cdc.IsPermanent(s.err), since: s.notReadingSince}
	if !s.notReadingSince.IsZero() {
		st.reading = notReading
		st.notReadingFor = time.Since(s.notReadingSince)
	}
	return st
}
