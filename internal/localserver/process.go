//go:build unix

package localserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// process is a PostgreSQL server that runs as child processes of this one.
type process struct {
	daemon
	install Install
}

// newProcess makes a cluster and starts it.
func newProcess(ctx context.Context, install Install, o PostgresOptions) (_ *process, err error) {
	acct, err := serverAccount(install.Root, "postgres")
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(postgresPrefix, install.Root, o.Dir, acct)
	if err != nil {
		return nil, err
	}
	p := &process{install: install, daemon: daemon{
		account: acct,
		folder:  dir,
		env: []string{
			"PATH=" + install.BinDir + ":/usr/bin:/bin",
			"HOME=" + dir.inside(), "LC_ALL=C", "TZ=UTC",
		},
		// SIGQUIT makes the postmaster end its children too, which SIGKILL would
		// leave to notice by themselves.
		orphaned: syscall.SIGQUIT,
	}}
	p.serve = func() *exec.Cmd {
		return p.command(filepath.Join(install.BinDir, "postgres"), "-D", p.folder.inside("data"),
			"-p", strconv.Itoa(p.portNo), "-k", p.folder.socketDir())
	}
	p.ready = func(ctx context.Context, died <-chan struct{}) error {
		return waitReady(ctx, func() error { return tryConnect(ctx, p.portNo) }, p.listening, died)
	}
	defer func() {
		if err != nil {
			err = errors.Join(p.withLog(err), p.close())
		}
	}()
	if o.StandbyOf != nil {
		err = p.copyOf(ctx, o)
	} else {
		err = p.initdb(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	return p, p.startFirst(ctx)
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
	cmd := p.command(filepath.Join(p.install.BinDir, "initdb"), "--pgdata="+p.folder.inside("data"), "--username=postgres",
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

// copyOf makes a standby from a copy of its primary, whose configuration comes with it.
func (p *process) copyOf(ctx context.Context, o PostgresOptions) error {
	log, err := p.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the programs' own writes are what matters
	cmd := p.command(filepath.Join(p.install.BinDir, "pg_basebackup"), "--pgdata="+p.folder.inside("data"),
		"--dbname="+o.StandbyOf.DSN("postgres"), "--checkpoint=fast", "--no-sync")
	cmd.Stdout, cmd.Stderr = log, log
	if err := runBound(ctx, cmd); err != nil {
		return fmt.Errorf("pg_basebackup: %w", err)
	}
	settings := map[string]string{"primary_conninfo": o.StandbyOf.DSN("postgres")}
	maps.Copy(settings, o.Settings)
	if err := p.configure(settings); err != nil {
		return err
	}
	signal := p.folder.outside("data", "standby.signal")
	return errors.Join(os.WriteFile(signal, nil, 0o600), p.account.own(signal))
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

func (p *process) stop(ctx context.Context, mode StopMode) error {
	return p.signal(ctx, map[StopMode]syscall.Signal{
		StopFast: syscall.SIGINT, StopImmediate: syscall.SIGQUIT, StopSmart: syscall.SIGTERM,
	}[mode])
}

func (p *process) close() error {
	return p.end(syscall.SIGQUIT, func() { removeSharedMemory(p.folder.outside("data", "postmaster.pid")) })
}
