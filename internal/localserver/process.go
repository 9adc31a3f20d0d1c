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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a server that runs as child processes of this one.
//
// Its folder holds the data (data), the log (server.log), the unix socket and
// the lock that tells sweep that the owner lives.
type process struct {
	install Install
	account account
	folder  folder
	portNo  int
	env     []string
	exited  chan struct{} // closed when the running postmaster has ended; nil before the first start
	pid     int           // of the running postmaster
	frozen  bool
}

// newProcess makes a cluster and starts it.
func newProcess(ctx context.Context, install Install, o PostgresOptions) (_ *process, err error) {
	acct, err := serverAccount(install.Root)
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(install.Root, o.Dir, acct)
	if err != nil {
		return nil, err
	}
	p := &process{
		install: install,
		account: acct,
		folder:  dir,
		env: []string{
			"PATH=" + install.BinDir + ":/usr/bin:/bin",
			"HOME=" + dir.inside(), "LC_ALL=C", "TZ=UTC",
		},
	}
	defer func() {
		if err != nil {
			err = errors.Join(p.withLog(err), p.close())
		}
	}()
	if err := p.initdb(ctx, o); err != nil {
		return nil, err
	}
	// The port is free when it is chosen, but nothing reserves it.
	for range 5 {
		if p.portNo, err = freePort(); err != nil {
			return nil, err
		}
		if err = p.startOnce(ctx); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return p, err
}

// initdb makes the cluster and writes its configuration.
func (p *process) initdb(ctx context.Context, o PostgresOptions) error {
	log, err := p.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the programs' own writes are what matters
	// --no-sync: nothing in a new throw-away cluster is worth the wait, and the
	// server itself still syncs what it writes.
	cmd := p.command("initdb", "--pgdata="+p.folder.inside("data"), "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Stdout, cmd.Stderr = log, log
	if err := runBound(ctx, cmd); err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	if err := p.configure(o.Settings); err != nil {
		return err
	}
	if o.HBA != "" {
		if _, err := p.writeFile("pg_hba.conf", []byte(o.HBA+"\n")); err != nil {
			return err
		}
	}
	return nil
}

// configure appends the settings to postgresql.conf, where ALTER SYSTEM can
// still override them. (On the command line it could not.)
func (p *process) configure(settings map[string]string) error {
	all := map[string]string{
		"wal_level":        "logical",
		"listen_addresses": "127.0.0.1",
		"lc_messages":      "C",
		"log_line_prefix":  "%m [%p] %q%u@%d %a ",
	}
	if p.install.Root != "" {
		// A tree has no /dev/shm of its own to clean up after a crash; files
		// in the data folder go with it.
		all["dynamic_shared_memory_type"] = "mmap"
	}
	for key, value := range settings {
		all[key] = value
	}
	keys := make([]string, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var text strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&text, "%s = '%s'\n", key, strings.ReplaceAll(all[key], "'", "''"))
	}
	f, err := os.OpenFile(p.folder.outside("data", "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text.String())
	return errors.Join(err, f.Close())
}

func (p *process) start(ctx context.Context) error {
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

// startOnce starts the postmaster and waits until it accepts. After an error
// nothing runs.
func (p *process) startOnce(ctx context.Context) error {
	if l, err := net.Listen("tcp4", p.address()); err != nil {
		return errors.Join(errPortTaken, err)
	} else if err := l.Close(); err != nil {
		return err
	}
	log, err := p.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	cmd := p.command("postgres", "-D", p.folder.inside("data"),
		"-p", strconv.Itoa(p.portNo), "-k", p.folder.socketDir())
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
	err = waitReady(ctx, p.portNo, p.listening, exited)
	if err != nil {
		err = errors.Join(err, p.kill())
	}
	return err
}

// listening reports whether the postmaster itself says, in its pid file, that
// it accepts connections.
func (p *process) listening() bool {
	text, err := os.ReadFile(p.folder.outside("data", "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 8 || strings.TrimSpace(lines[0]) != strconv.Itoa(p.pid) {
		return false
	}
	state := strings.TrimSpace(lines[7])
	return state == "ready" || state == "standby"
}

func (p *process) running() bool {
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

func (p *process) stop(ctx context.Context, mode StopMode) error {
	if !p.running() {
		return nil
	}
	signal := map[StopMode]syscall.Signal{
		StopFast: syscall.SIGINT, StopImmediate: syscall.SIGQUIT, StopSmart: syscall.SIGTERM,
	}[mode]
	if err := syscall.Kill(p.pid, signal); err != nil && p.running() {
		return fmt.Errorf("signal the postmaster: %w", err)
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the server is still shutting down: %w", context.Cause(ctx))
	}
}

func (p *process) kill() error {
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

func (p *process) freeze() error {
	if !p.running() {
		return errDied
	}
	stopAll(p.pid)
	p.frozen = true
	return nil
}

func (p *process) thaw() error {
	if !p.running() {
		return errDied
	}
	for _, pid := range family(p.pid) {
		_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended meanwhile
	}
	p.frozen = false
	return nil
}

func (p *process) close() error {
	var err error
	if p.running() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if p.frozen || p.stop(ctx, StopImmediate) != nil {
			err = p.kill()
		}
	}
	removeSharedMemory(p.folder.outside("data", "postmaster.pid"))
	return errors.Join(err, p.folder.remove())
}

func (p *process) port() int       { return p.portNo }
func (p *process) logFile() string { return p.folder.outside("server.log") }
func (p *process) address() string { return "127.0.0.1:" + strconv.Itoa(p.portNo) }

func (p *process) writeFile(name string, content []byte) (string, error) {
	if name != filepath.Base(name) {
		return "", fmt.Errorf("%q is not a plain file name", name)
	}
	path := p.folder.outside("data", name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", err
	}
	return p.folder.inside("data", name), p.account.own(path)
}

// openLog opens the log for appending. The server's user need not be able to:
// the open file is inherited.
func (p *process) openLog() (*os.File, error) {
	return os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// command prepares a server program: as the server's user, inside the tree, in
// a process group of its own (so that a Ctrl-C at the terminal reaches only
// us), ended by the kernel when we are.
func (p *process) command(program string, args ...string) *exec.Cmd {
	cmd := &exec.Cmd{
		Path: filepath.Join(p.install.BinDir, program),
		Args: append([]string{program}, args...),
		Env:  p.env,
		Dir:  p.folder.inside(),
	}
	chroot(cmd, p.install.Root)
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Credential = p.account.credential
	dieWithParent(cmd.SysProcAttr)
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

func (p *process) withLog(err error) error { return withLog(err, p.logFile()) }
