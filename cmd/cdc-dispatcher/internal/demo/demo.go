package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

const (
	// readyTimeout bounds the wait for the log; after it the poller does the work.
	readyTimeout = 10 * time.Second
	// settleTimeout bounds the wait for open deliveries when the time is up, and
	// hurriedTimeout when a person interrupted.
	settleTimeout  = 15 * time.Second
	hurriedTimeout = 5 * time.Second
	// shutdownTimeout bounds the handlers that still run then.
	shutdownTimeout = 2 * time.Second
)

// Config says what to show.
type Config struct {
	// For is how long the application writes; 0 means until interrupted.
	For time.Duration
	// Rate is the application's transactions per second. Default 100.
	Rate float64
	// Database is the kind of server. Default PostgreSQL.
	Database config.Database
	// DSN of a server of that kind to use; the user must be allowed to create a
	// database. Empty starts a throw-away server.
	DSN string
	// Out receives words and pictures, os.Stderr as a rule. Required.
	Out io.Writer
	// Live says that Out is a terminal, which can be drawn on; otherwise it gets a line
	// per second.
	Live bool
	// Color says that the pictures may be coloured.
	Color bool
}

// Run shows the demo until its time is up or ctx ends, takes everything down, and
// returns what it counted. Besides ctx it listens for SIGINT and SIGTERM itself: the first
// ends the application, the second skips the wait for open deliveries. The error
// is about the run; whether promises were kept is for [Result.Err] to say.
func Run(ctx context.Context, c Config) (_ Result, err error) {
	if c.Rate == 0 {
		c.Rate = 100
	}
	s := &stage{Config: c, live: newLive(), receipts: ledger.NewRecorder("demo")}
	calm, hurry, stop := interrupts(ctx)
	defer stop()
	if s.ground, err = openGround(calm, c, s.say); err != nil {
		return Result{}, interrupted(calm, err)
	}
	s.host = s.ground.about()
	defer func() {
		// Last, and even while a panic passes through.
		s.say(s.host.farewell)
		if cerr := s.ground.close(context.WithoutCancel(ctx)); cerr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", cerr))
		}
	}()
	if err := s.prepare(calm); err != nil {
		return Result{}, interrupted(calm, err)
	}
	if err := s.perform(calm, hurry); err != nil {
		return Result{}, err
	}
	return s.count(context.WithoutCancel(ctx))
}

// interrupts returns a context that ends with ctx or the first signal, and one that
// ends with the second.
func interrupts(ctx context.Context) (calm, hurry context.Context, stop func()) {
	calm, stopCalm := context.WithCancel(ctx)
	hurry, stopHurry := context.WithCancel(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 2)
	// A terminal that goes away must not leave a database behind.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range signals {
			if calm.Err() == nil {
				stopCalm()
			} else {
				stopHurry()
			}
		}
	}()
	return calm, hurry, func() {
		signal.Stop(signals)
		close(signals)
		<-ended
		stopCalm()
		stopHurry()
	}
}

// interrupted hides an error that only says that a person interrupted.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted before it began")
	}
	return err
}

// stage is one run of the demo.
type stage struct {
	Config
	ground   ground
	host     *host // the ground's
	pipe     *pipeline.Pipeline
	roles    []role
	live     *live
	writers  ledger.Writers
	receipts *ledger.Recorder
	began    time.Time     // when the application began to write
	wrote    time.Duration // how long it wrote
}

// say writes a line of words. A demo that cannot speak still runs.
func (s *stage) say(words string) { _, _ = fmt.Fprintln(s.Out, words) }

// prepare makes the tables and wires the pipeline, as a user's program would.
func (s *stage) prepare(ctx context.Context) error {
	deliveries, err := s.ground.prepare(ctx)
	if err != nil {
		return err
	}
	s.roles = roles(s.receipts)
	config := pipeline.Config{
		Source: "demo", Store: deliveries, Observer: s.live,
		ShutdownTimeout: shutdownTimeout,
	}
	for _, r := range s.roles {
		config.Handlers = append(config.Handlers, r.Handler)
	}
	if s.host.slot != "" {
		source, err := s.ground.log()
		if err != nil {
			return err
		}
		table := s.ground.table()
		config.Log, config.Table, config.Decode = source, table.QualifiedName(), table.Decoder()
	}
	s.pipe, err = pipeline.New(config)
	return err
}

// perform runs pipeline, application and view, and ends them in the order that
// the package documentation gives.
func (s *stage) perform(calm, hurry context.Context) error {
	running, stopPipeline := context.WithCancel(context.WithoutCancel(calm))
	defer stopPipeline()
	writing, stopWriting := context.WithCancel(calm)
	defer stopWriting()
	settling, stopSettling := context.WithCancel(hurry)
	defer stopSettling()

	pipe := make(chan error, 1)
	go func() {
		err := s.pipe.Run(running)
		// A pipeline that fails ends the show; one that was stopped has ended it already.
		stopWriting()
		stopSettling()
		pipe <- err
	}()
	s.awaitLog(writing)
	s.began = time.Now()
	viewing, stopViewing := context.WithCancel(context.WithoutCancel(calm))
	defer stopViewing()
	view := make(chan error, 1)
	go func() { view <- s.watch(viewing) }()

	err := s.write(writing)
	if err == nil {
		err = s.settle(calm, settling)
	}
	stopViewing()
	err = errors.Join(err, <-view)
	stopPipeline()
	return errors.Join(err, <-pipe)
}

// awaitLog waits until the log is read and the poller has had its first look, so that
// the events that follow come through the log.
func (s *stage) awaitLog(ctx context.Context) {
	if s.host.slot == "" {
		s.say("this server gives no log that can be read: the demo polls")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if h := s.pipe.Health(); h.Mode == cdc.ModeStreaming && !h.PolledAt.IsZero() {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// write runs the application for its time.
func (s *stage) write(ctx context.Context) error {
	if s.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.For)
		defer cancel()
	}
	s.live.phase.Store("the application writes")
	app := s.ground.application()
	app.Ledger, app.Rate, app.Seed, app.Draw = &s.writers, s.Rate, rand.Uint64(), drawing()
	err := workload.Run(ctx, app)
	s.wrote = time.Since(s.began)
	return err
}

// settle waits, for a while, until every event is fanned out and no delivery is open.
func (s *stage) settle(calm, ctx context.Context) error {
	timeout := settleTimeout
	if calm.Err() != nil {
		timeout = hurriedTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.live.phase.Store("waiting for the last deliveries")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		open, err := s.ground.open(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // what is open is counted as open
		case err != nil:
			return fmt.Errorf("look for open deliveries: %w", err)
		case !open:
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// count compares the accounts after everything has ended.
func (s *stage) count(ctx context.Context) (Result, error) {
	stored, rows, err := s.ground.accounts(ctx)
	if err != nil {
		return Result{}, err
	}
	writers, receipts := s.writers.Snapshot().Resolve(stored), s.receipts.Receipts()
	r := Result{
		Server: s.host.origin, Database: s.host.version, Mode: "log",
		DurationSeconds: round(s.wrote.Seconds(), 2),
		EventsViaLog:    int(s.live.viaLog.Load()), EventsViaPoller: int(s.live.viaPoller.Load()),
	}
	if s.host.slot == "" {
		r.Mode = "poll"
	}
	r.fill(ledger.Compare(ledger.Input{
		Writers: writers, Subscribers: subscribers, Rows: rows, Receipts: receipts,
	}), ledger.Latencies(writers, receipts))
	return r, nil
}
