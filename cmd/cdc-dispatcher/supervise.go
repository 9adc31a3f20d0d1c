package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/doctor"
	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/server"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

const (
	// lookAgain is how often a source whose database is away, or not migrated, is
	// looked at again.
	lookAgain = 3 * time.Second
	// lookTimeout bounds one look.
	lookTimeout = 15 * time.Second
	// recordEvery is the pace at which a source's mode and position are stored for
	// "status", which asks the database.
	recordEvery = 10 * time.Second
)

// supervisor keeps one source running. Sources share nothing, so nothing that
// happens to one reaches another.
type supervisor struct {
	*wiring
	log *slog.Logger

	// mu guards what report reads; run writes it.
	mu       sync.Mutex
	waiting  string
	pipeline *pipeline.Pipeline
}

func newSupervisor(w *wiring, log *slog.Logger) *supervisor {
	return &supervisor{wiring: w, log: ofSource(log, w.source.Name), waiting: "starting"}
}

// report is a snapshot for probes and metrics.
func (s *supervisor) report() server.Report {
	s.mu.Lock()
	p, waiting := s.pipeline, s.waiting
	s.mu.Unlock()
	r := server.Report{Waiting: waiting, LogRequired: s.source.Mode == config.ModeLog}
	if p != nil {
		r.Health = p.Health()
	}
	return r
}

func (s *supervisor) set(p *pipeline.Pipeline, waiting string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pipeline, s.waiting = p, waiting
}

// check says whether the database is there and has our tables.
func (s *supervisor) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := checkSchema(ctx, s.store, s.source); err != nil {
		return err
	}
	return checkPrivileges(ctx, s.source)
}

// checkPrivileges asks the doctor whether the role has the rights that it needs, so
// that a missing one is no riddle in the log later.
func checkPrivileges(ctx context.Context, s config.Source) error {
	found, err := examineOnly(ctx, s, doctor.CodePrivileges)
	if err != nil {
		return err
	}
	if found.Status != doctor.Fail || len(found.Fix) == 0 {
		return nil
	}
	return &failure{exit: exitDatabase, code: codePrivilege, message: "source " + s.Name + ": " + found.Message,
		try: "run, as the owner of the tables: " + strings.Join(found.Fix, "; ")}
}

// checkSchema turns what the store finds into a failure with its advice.
func checkSchema(ctx context.Context, st tables, s config.Source) error {
	err := st.CheckSchema(ctx)
	if err == nil {
		return nil
	}
	var table schema.Problems
	missing, statement, lacks := lacking(err)
	switch {
	case lacks:
		f := &failure{exit: exitDatabase, code: codeNotMigrated, cause: err, try: "cdc-dispatcher migrate up",
			message: "source " + s.Name + ": schema " + s.Schema + " is not migrated: missing " + list(missing, 3)}
		if statement != "" {
			f.try += "; if that changes nothing: " + statement
		}
		return f
	case errors.As(err, &table):
		return &failure{exit: exitDatabase, code: codeTable, cause: err, message: "source " + s.Name + ": " + err.Error(),
			try: "change sources[].table in the configuration, or the table; cdc-dispatcher doctor shows its columns"}
	}
	if f := databaseFailure(s.Name, err); f != nil {
		return f
	}
	return err
}

// run works until ctx ends, and returns what a stop left behind. A database that is
// away or not migrated is waited for.
func (s *supervisor) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if !s.wait(ctx) {
			return nil
		}
		err := s.work(ctx)
		if ctx.Err() != nil {
			return err
		}
		// Not reached as long as the pipeline keeps its promise to run until ctx ends.
		s.log.Error("the pipeline ended by itself and is started again", slog.Any("err", err))
		s.set(nil, "the pipeline ended by itself and is started again")
		sleep(ctx, lookAgain)
	}
	return nil
}

// wait returns true when the database is ready, false when ctx has ended. A reason is
// logged when it is new.
func (s *supervisor) wait(ctx context.Context) bool {
	last := ""
	for ctx.Err() == nil {
		err := s.check(ctx)
		if err == nil {
			if last != "" {
				s.log.Info("the database is ready")
			}
			return true
		}
		f := classify(err)
		reason := strings.TrimPrefix(f.message, "source "+s.source.Name+": ")
		s.set(nil, reason)
		if reason != last && ctx.Err() == nil {
			s.log.Warn("waiting for the database", slog.String("code", f.code), slog.String("reason", reason), slog.String("try", f.try))
		}
		last = reason
		sleep(ctx, lookAgain)
	}
	return false
}

// work runs one pipeline and records what it does.
func (s *supervisor) work(ctx context.Context) error {
	p, err := pipeline.New(s.wiring.pipeline)
	if err != nil {
		return err
	}
	s.set(p, "")
	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.record(recording, p)
	}()
	err = p.Run(ctx)
	stop()
	<-done
	return err
}

// record stores mode and position in the database until ctx ends, and once more
// then. A failure is no news: the pipeline's own heartbeat tells of it.
func (s *supervisor) record(ctx context.Context, p *pipeline.Pipeline) {
	tick := time.NewTicker(recordEvery)
	defer tick.Stop()
	first := time.NewTimer(time.Second) // by then the mode is known, as a rule
	defer first.Stop()
	for {
		select {
		case <-first.C:
		case <-tick.C:
		case <-ctx.Done():
			s.recordOnce(context.WithoutCancel(ctx), p)
			return
		}
		s.recordOnce(ctx, p)
	}
}

func (s *supervisor) recordOnce(ctx context.Context, p *pipeline.Pipeline) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	h := p.Health()
	var status cdc.Status
	if h.Log != nil {
		status = *h.Log
	}
	status.Mode = server.Report{Health: h}.Mode()
	if !h.Running {
		status.Mode, status.Detail = cdc.ModeStopped, ""
	}
	if err := s.store.RecordSource(ctx, s.source.Name, h.Owner, status); err != nil {
		s.log.Debug("recording the source's state failed", slog.Any("err", err))
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
