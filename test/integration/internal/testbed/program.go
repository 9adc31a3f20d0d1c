package testbed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Build builds the real program, without the race detector.
func Build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cdc-dispatcher")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

// WriteConfig writes a configuration file and returns its path.
func WriteConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cdc-dispatcher.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Program is the real program, running with a configuration file. One goroutine uses it.
type Program struct {
	path, config string
	cmd          *exec.Cmd
	out          strings.Builder
	ended        bool
}

// Run starts the program; the cleanup of the test kills it if it still runs then.
func Run(t testing.TB, path, config string) *Program {
	t.Helper()
	p := &Program{path: path, config: WriteConfig(t, config)}
	p.cmd = exec.Command(path, "run", "--config", p.config)
	p.cmd.SysProcAttr = DieWithParent()
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !p.ended {
			_ = p.Kill() // it is gone one way or the other
		}
	})
	return p
}

// Command runs one command of an operator with the same configuration file.
func (p *Program) Command(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, p.path, append(args, "--config", p.config)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return nil
}

// PID is its process id.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Program) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill ends it with SIGKILL and waits until it is gone.
func (p *Program) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = p.Wait() // reports the signal
	return nil
}

// Wait waits until it has ended, and returns how.
func (p *Program) Wait() error {
	p.ended = true
	return p.cmd.Wait()
}

// Stop ends it the polite way.
func (p *Program) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait()
}

// Output is what it printed, to be asked for after it has ended.
func (p *Program) Output() string { return p.out.String() }
