//go:build unix

package localserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// daemon is a server that runs as child processes of this one, whatever server
// it is.
//
// Its folder holds the data (data), the log (server.log), the unix socket and
// the lock that tells sweep that the owner lives.
type daemon struct {
	account account
	folder  folder
	portNo  int
	env     []string
	// serve prepares the command that is the server.
	serve func() *exec.Cmd
	// ready returns when the server accepts, or with an error when died is closed.
	ready func(ctx context.Context, died <-chan struct{}) error
	// orphaned is what the kernel sends the server when this process ends.
	orphaned syscall.Signal

	exited chan struct{} // closed when the running server has ended; nil before the first start
	pid    int           // of the running server
	frozen bool
}

// startFirst chooses a port and starts the server on it. The port is free when
// it is chosen, but nothing reserves it: what is taken until the server binds it is given up for another one.
func (p *daemon) startFirst(ctx context.Context) (err error) {
	for range 5 {
		if p.portNo, err = FreePort(); err != nil {
			return err
		}
		if err = p.startOnce(ctx); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return err
}

func (p *daemon) start(ctx context.Context) error {
	if p.running() {
		return errors.New("the server runs already")
	}
	// Another process may have taken the port while the server was down; a
	// port that must stay the same can only be waited for.
	for {
		err := p.startOnce(ctx)
		if err == nil || !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return p.withLog(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

var errPortTaken = errors.New("the port is taken")

// startOnce starts the server and waits until it accepts. After an error
// nothing runs.
func (p *daemon) startOnce(ctx context.Context) error {
	if err := p.portFree(); err != nil {
		return err
	}
	log, err := p.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	cmd := p.serve()
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error, 1)
	exited := make(chan struct{})
	go func() {
		// The kernel sends Pdeathsig when the *thread* that forked ends, so
		// this thread is kept for as long as its child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log; that it ended is what counts
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		return err
	}
	p.pid, p.exited, p.frozen = cmd.Process.Pid, exited, false
	err = p.ready(ctx, exited)
	if err != nil {
		err = errors.Join(err, p.kill(), p.portFree())
	}
	return err
}

// portFree returns errPortTaken if somebody listens on the port.
func (p *daemon) portFree() error {
	l, err := net.Listen("tcp4", p.address())
	if err != nil {
		return errors.Join(errPortTaken, err)
	}
	return l.Close()
}

func (p *daemon) running() bool {
	if p.exited == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal asks the running server to end, and waits until it has.
func (p *daemon) signal(ctx context.Context, signal syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := syscall.Kill(p.pid, signal); err != nil && p.running() {
		return fmt.Errorf("signal the server: %w", err)
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the server is still shutting down: %w", context.Cause(ctx))
	}
}

func (p *daemon) kill() error {
	if !p.running() {
		return nil
	}
	// Stopped first, so that no process can be forked while they are listed.
	pids := stopAll(p.pid)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
	}
	<-p.exited
	return waitGone(pids, closeTimeout)
}

func (p *daemon) freeze() error {
	if !p.running() {
		return errDied
	}
	stopAll(p.pid)
	p.frozen = true
	return nil
}

func (p *daemon) thaw() error {
	if !p.running() {
		return errDied
	}
	for _, pid := range family(p.pid) {
		_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended meanwhile
	}
	p.frozen = false
	return nil
}

// end ends the server, politely with the signal if that works, and removes its
// folder after last has run.
func (p *daemon) end(signal syscall.Signal, last func()) error {
	var err error
	if p.running() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if p.frozen || p.signal(ctx, signal) != nil {
			err = p.kill()
		}
	}
	last()
	return errors.Join(err, p.folder.remove())
}

func (p *daemon) port() int       { return p.portNo }
func (p *daemon) logFile() string { return p.folder.outside("server.log") }
func (p *daemon) address() string { return "127.0.0.1:" + strconv.Itoa(p.portNo) }

func (p *daemon) writeFile(name string, content []byte) (string, error) {
	if name != filepath.Base(name) {
		return "", fmt.Errorf("%q is not a plain file name", name)
	}
	path := p.folder.outside("data", name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", err
	}
	return p.folder.inside("data", name), p.account.own(path)
}

// ownDir makes a folder for the server next to its log.
func (p *daemon) ownDir(name string) error {
	path := p.folder.outside(name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return p.account.own(path)
}

// openLog opens the log for appending. The server's user need not be able to:
// the open file is inherited.
func (p *daemon) openLog() (*os.File, error) {
	return os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// command prepares a server program, by its path as seen inside the tree: as the server's user, inside the tree, in
// a process group of its own (so that a Ctrl-C at the terminal reaches only
// us), ended by the kernel when we are.
func (p *daemon) command(program string, args ...string) *exec.Cmd {
	cmd := &exec.Cmd{
		Path: program,
		Args: append([]string{filepath.Base(program)}, args...),
		Env:  p.env,
		Dir:  p.folder.inside(),
	}
	chroot(cmd, p.folder.root)
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Credential = p.account.credential
	dieWithParent(cmd.SysProcAttr, p.orphaned)
	return cmd
}

// runBound runs a command to its end, on one thread (see startOnce), and kills
// it when the context ends.
func runBound(ctx context.Context, cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })()
	if err := cmd.Wait(); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

func (p *daemon) withLog(err error) error { return withLog(err, p.logFile()) }
