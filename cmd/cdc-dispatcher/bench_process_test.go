package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// benchProcess is the program itself, in the middle of measuring the latency.
type benchProcess struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr *cue
	// wait is closed when the process has ended.
	wait chan struct{}
}

// startBench runs the program, and returns when the latency is being measured. The database comes from
// $DATABASE_URL: there is no configuration file in the folder.
func startBench(t *testing.T, dsn string) *benchProcess {
	t.Helper()
	dir := t.TempDir()
	measuring := make(chan struct{})
	p := &benchProcess{wait: make(chan struct{}), stderr: &cue{marker: "latency:", at: func() { close(measuring) }}}
	p.cmd = exec.CommandContext(t.Context(), program(t, dir), "bench", "--for", "10m", "--rate", "50")
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), "DATABASE_URL="+dsn)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // when the test has failed before its end
	go func() {
		_ = p.cmd.Wait() // ProcessState tells
		close(p.wait)
	}()
	select {
	case <-measuring:
	case <-p.wait:
		t.Fatalf("the program has ended:\n%s", p.stderr)
	}
	return p
}

// TestBench_Signalled: Ctrl-C in the middle leaves nothing behind, and no figure.
func TestBench_Signalled(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		p := startBench(t, e.dsn)
		if e.scratchName() == "" {
			t.Error("there is no scratch schema while it works")
		}
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		<-p.wait
		if code := p.cmd.ProcessState.ExitCode(); code != exitFailed || p.stdout.Len() > 0 || !strings.Contains(p.stderr.String(), "error CD5005: interrupted; everything that was made is removed\n") {
			t.Errorf("exit code %d\n%s%s", code, p.stdout.String(), p.stderr)
		}
		e.unchanged(t, before)
	})
}

// TestBench_Killed: what a killed run leaves is told by the next one, with statements that remove it.
func TestBench_Killed(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		p := startBench(t, e.dsn)
		if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-p.wait
		name := e.scratchName()
		if name == "" {
			t.Fatal("nothing is left of a killed run, so there is nothing to test")
		}
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		r := runBench(ctx, smallBench(e.dsn), "working in", interrupt)
		_, advice, told := strings.Cut(r.words, "warning: "+name+" is there. If no other bench runs now, it was killed, and this removes what it left: ")
		advice, _, _ = strings.Cut(advice, "\n")
		if !told {
			t.Fatalf("the leftover is not told:\n%s", r.words)
		}
		for statement := range strings.SplitSeq(strings.TrimSuffix(advice, ";"), "; ") {
			testdb.WaitFor(t, statement, func() bool { return e.try(statement) == nil }) // the server takes a moment to see that its client is gone
		}
		e.unchanged(t, before)
	})
}

// TestBench_OfAConfiguration: the database may also be that of a configuration file; its mode counts.
func TestBench_OfAConfiguration(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		file := filepath.Join(t.TempDir(), "two.yaml")
		writeFile(t, file, `{version: 1, sources: [{name: far, dsn: "postgres://app@nowhere/shop"}, {name: shop, dsn: "`+e.dsn+`", mode: poll}]}`)
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		o := smallBench("")
		o.source = "shop"
		r := runBenchOf(ctx, file, o, "latency:", interrupt)
		if !strings.Contains(r.words, "the log is not read, the poller does the work: the configuration says mode: poll\n") {
			t.Errorf("the mode of the configuration does not count:\n%s", r.words)
		}
		e.unchanged(t, before)
		o.source = ""
		if r := runBenchOf(ctx, file, o, "", func() {}); r.exit != exitUsage || !strings.Contains(r.words, "the configuration has 2 sources") {
			t.Errorf("exit code %d\n%s", r.exit, r.words)
		}
	})
}
