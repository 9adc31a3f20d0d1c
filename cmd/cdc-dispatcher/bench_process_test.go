package main

import (
	"bufio"
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
	measuring := make(chan struct{})
	p := &benchProcess{cmd: benchCommandLine(t, dsn, "10m"), wait: make(chan struct{}), stderr: &cue{marker: "latency:", at: func() { close(measuring) }}}
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

// benchCommandLine is the program, not started yet.
func benchCommandLine(t *testing.T, dsn, length string) *exec.Cmd {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program(t, dir), "bench", "--for", length, "--rate", "50")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "DATABASE_URL="+dsn)
	return cmd
}

// TestBench_Signalled: neither Ctrl-C nor a terminal that goes away leaves anything behind, and there is no figure.
func TestBench_Signalled(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
			p := startBench(t, e.dsn)
			if e.scratchName() == "" {
				t.Error("there is no scratch schema while it works")
			}
			if err := p.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			<-p.wait
			if code := p.cmd.ProcessState.ExitCode(); code != exitFailed || p.stdout.Len() > 0 || !strings.Contains(p.stderr.String(), "error CD5005: interrupted; everything that was made is removed\n") {
				t.Errorf("%v: exit code %d\n%s%s", signal, code, p.stdout.String(), p.stderr)
			}
			e.unchanged(t, before)
		}
	})
}

// TestBench_NobodyListens: words that nobody reads any more, as in "bench 2>&1 | head", end it in order.
func TestBench_NobodyListens(t *testing.T) {
	eachEstate(t, func(t *testing.T, e *estate) {
		before := e.inventory()
		cmd := benchCommandLine(t, e.dsn, "1s")
		words, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		heard := bufio.NewScanner(words)
		for heard.Scan() && !strings.HasPrefix(heard.Text(), "latency:") {
		}
		if e.scratchName() == "" {
			t.Error("there is no scratch schema while it works")
		}
		_ = words.Close()
		_ = cmd.Wait()                  // ProcessState tells
		if cmd.ProcessState.Success() { // its very last words may still end it, as they end every program
			t.Error("it went on to its end")
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
