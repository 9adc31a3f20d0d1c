package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline"
)

// childArg makes this program a dispatcher and nothing else, for figures about a process.
const childArg = "child"

// childJob is what such a process is told, on standard input. The end of standard input stops it softly.
type childJob struct {
	DSN string
	// Events is how many there will be.
	Events int
	// Took is how long the handler takes, Workers how many of it run at once; 0 is the default.
	Took    time.Duration
	Workers int
}

// childReport is what it says in the end, on standard output.
type childReport struct {
	// Starts says how often the handler was started for each event.
	Starts []byte
	// First is when it was first started, as nanoseconds of the wall clock; 0 if never.
	First int64
}

// childMain is the process. What it keeps for its report is a byte for each event.
func childMain(in io.Reader, out io.Writer) error {
	var job childJob
	if err := json.NewDecoder(in).Decode(&job); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	// Two workers never start on the same event at the same time without a fault that the ledger shows; a count that is
	// lost to that would hide it, so that the words are atomic and four counts share one.
	starts := make([]atomic.Uint32, job.Events/4+1)
	var first atomic.Int64
	d, err := startDispatcher(job.DSN, []pipeline.Handler{{
		Name: "handler-0", On: []string{eventType}, Concurrency: job.Workers,
		Handler: event.HandlerFunc(func(ctx context.Context, e event.Envelope) error {
			first.CompareAndSwap(0, time.Now().UnixNano())
			if n := eventNumber(e.ID); n >= 0 && n < job.Events {
				starts[n/4].Add(1 << (n % 4 * 8))
			}
			if job.Took > 0 && !pause(ctx, job.Took) {
				return ctx.Err()
			}
			return nil
		}),
	}})
	if err != nil {
		return err
	}
	told := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		told <- err
	}()
	select {
	case err = <-d.done:
		return errors.Join(errors.New("the dispatcher ended by itself"), err)
	case err = <-told:
	}
	if err = errors.Join(err, d.end()); err != nil {
		return err
	}
	r := childReport{Starts: make([]byte, job.Events), First: first.Load()}
	for n := range r.Starts {
		r.Starts[n] = byte(starts[n/4].Load() >> (n % 4 * 8))
	}
	return json.NewEncoder(out).Encode(r)
}

// child is a dispatcher in a process of its own.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	report chan childReport
	failed chan error
}

// startChild starts one. It ends with end, or with this process.
func startChild(job childJob) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, childArg), report: make(chan childReport, 1), failed: make(chan error, 1)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		var r childReport
		err := json.NewDecoder(out).Decode(&r)
		if err = errors.Join(err, c.cmd.Wait()); err != nil {
			c.failed <- fmt.Errorf("a dispatcher's process: %w", err)
			return
		}
		c.report <- r
	}()
	if err := json.NewEncoder(c.in).Encode(job); err != nil {
		return nil, errors.Join(err, c.cmd.Process.Kill())
	}
	return c, nil
}

// end stops it softly and returns its report.
func (c *child) end() (r childReport, err error) {
	if err := c.in.Close(); err != nil {
		return r, errors.Join(err, c.cmd.Process.Kill())
	}
	select {
	case r = <-c.report:
		return r, nil
	case err = <-c.failed:
		return r, err
	case <-time.After(2 * time.Minute):
		return r, errors.Join(errors.New("a dispatcher's process does not stop"), c.cmd.Process.Kill())
	}
}

// checkReports says whether every event reached the handler once, in any of the processes.
func checkReports(events int, reports ...childReport) error {
	missing, repeated := 0, 0
	for n := range events {
		sum := 0
		for _, r := range reports {
			sum += int(r.Starts[n])
		}
		switch {
		case sum == 0:
			missing++
		case sum > 1:
			repeated++
		}
	}
	if missing+repeated > 0 {
		return fmt.Errorf("%d deliveries never reached their handler, %d reached it more than once", missing, repeated)
	}
	return nil
}

// peakMemory is the most that the process had in memory, in bytes, since its program began. Linux only.
func (c *child) peakMemory() (int64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb * 1024, err
		}
	}
	return 0, errors.New("the kernel does not tell the peak of resident memory")
}
