//go:build unix

package localserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"
)

// ownerVariable turns the test binary into a program that starts a server of
// the given binaries (tree, a colon, folder), says what it started, and waits to
// be killed.
const ownerVariable = "LOCALSERVER_TEST_OWNER"

func TestMain(m *testing.M) {
	if binaries := os.Getenv(ownerVariable); binaries != "" {
		beOwner(binaries)
	}
	if install := os.Getenv(mysqlOwnerVariable); install != "" {
		beMySQLOwner(install)
	}
	goleak.VerifyTestMain(m)
}

func beOwner(binaries string) {
	root, dir, _ := strings.Cut(binaries, ":")
	server, err := StartPostgres(context.Background(), PostgresOptions{Install: &Install{Root: root, BinDir: dir}})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	p := server.server.(*process)
	fmt.Println(p.pid, p.folder.outside())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func TestStartedServerIsAsPromised(t *testing.T) {
	eachLocal(t, func(t *testing.T, install Install) {
		server := startServer(t, PostgresOptions{
			Install:  &install,
			Settings: map[string]string{"application_name": "it's ok"},
		})
		for sql, want := range map[string]string{
			"SHOW wal_level":        "logical",
			"SHOW fsync":            "on",
			"SHOW server_encoding":  "UTF8",
			"SHOW listen_addresses": "127.0.0.1",
			"SELECT current_user":   "postgres",
			"SHOW application_name": "it's ok",
			"SELECT datcollate FROM pg_database WHERE datname = 'template1'": "C",
			"SHOW server_version": server.Version(),
		} {
			if got := ask(t, server, sql); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %q, want %q", sql, got, want)
			}
		}
		exec1(t, server, "ALTER SYSTEM SET wal_level = 'replica'")
		if err := errors.Join(server.Stop(t.Context(), StopFast), server.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, server, "SHOW wal_level"); got != "replica" {
			t.Errorf("ALTER SYSTEM did not win over the settings: wal_level = %s", got)
		}
		if !strings.Contains(server.Origin(), install.BinDir) {
			t.Errorf("origin %q does not name %s", server.Origin(), install.BinDir)
		}
	})
}

// A standby follows its primary, with the primary's settings but for its own, and can be
// promoted when that is gone.
func TestStandbyFollowsAndCanBePromoted(t *testing.T) {
	eachLocal(t, func(t *testing.T, install Install) {
		primary := startServer(t, PostgresOptions{Install: &install, Settings: map[string]string{"max_connections": "33", "work_mem": "1MB"}})
		exec1(t, primary, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
		standby := startServer(t, PostgresOptions{StandbyOf: primary, Settings: map[string]string{"work_mem": "2MB"}})
		for sql, want := range map[string]string{
			"SELECT pg_is_in_recovery()::text": "true", "SHOW max_connections": "33", "SHOW work_mem": "2MB", "SHOW server_version": primary.Version(),
		} {
			if got := ask(t, standby, sql); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %q, want %q", sql, got, want)
			}
		}
		exec1(t, primary, "INSERT INTO kept VALUES (2)")
		end := ask(t, primary, "SELECT pg_current_wal_lsn()::text")
		for ask(t, standby, "SELECT (pg_last_wal_replay_lsn() >= '"+end+"')::text") != "true" {
			runtime.Gosched() // each question takes a connection: the loop is no load
		}
		if err := primary.Kill(); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, standby, "SELECT pg_promote()::text"); got != "true" {
			t.Fatalf("pg_promote: %s", got)
		}
		exec1(t, standby, "INSERT INTO kept VALUES (3)")
		if got := ask(t, standby, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM kept"); got != "1 2 3" {
			t.Errorf("the promoted server has %s, want 1 2 3", got)
		}
	})
}

func TestCrashedServerRecoversOnTheSamePort(t *testing.T) {
	eachLocal(t, func(t *testing.T, install Install) {
		server := startServer(t, PostgresOptions{Install: &install})
		port := server.Port()
		exec1(t, server, "CREATE TABLE x AS SELECT 7 AS n")
		held := connect(t, server)
		pids := family(server.server.(*process).pid)
		if len(pids) < 5 {
			t.Fatalf("a running server has more processes than %v", pids)
		}
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			if alive(pid) {
				t.Errorf("process %d outlived Kill", pid)
			}
		}
		if err := held.Ping(t.Context()); err == nil {
			t.Error("a session outlived Kill")
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if server.Port() != port {
			t.Errorf("port changed from %d to %d", port, server.Port())
		}
		if got := ask(t, server, "SELECT n::text FROM x"); got != "7" {
			t.Errorf("got %q after recovery", got)
		}
	})
}

func TestEveryStopModeEndsTheServer(t *testing.T) {
	server := startServer(t, PostgresOptions{})
	for _, mode := range []StopMode{StopFast, StopImmediate, StopSmart} {
		if err := server.Stop(t.Context(), mode); err != nil {
			t.Fatalf("mode %d: %v", mode, err)
		}
		if _, err := pgconn.Connect(t.Context(), server.DSN("postgres")); err == nil {
			t.Fatalf("mode %d: the server still accepts", mode)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatalf("mode %d: start: %v", mode, err)
		}
	}
}

func TestSmartStopWaitsForClients(t *testing.T) {
	server := startServer(t, PostgresOptions{})
	held := connect(t, server)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := server.Stop(ctx, StopSmart); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v while a client is connected", err)
	}
	if err := held.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(t.Context(), StopSmart); err != nil {
		t.Fatal(err)
	}
}

func TestFrozenServerKeepsConnectionsAndAnswersAfterThaw(t *testing.T) {
	server := startServer(t, PostgresOptions{})
	held := connect(t, server)
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- held.Ping(context.Background()) }()
	select {
	case err := <-answer:
		t.Fatalf("a frozen server answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("after Thaw: %v", err)
	}
	if err := server.Freeze(); err != nil { // Close must cope with it
		t.Fatal(err)
	}
}

func TestCloseLeavesNothingAndMayBeRepeated(t *testing.T) {
	eachLocal(t, func(t *testing.T, install Install) {
		server := startServer(t, PostgresOptions{Install: &install})
		p := server.server.(*process)
		pids, dir := family(p.pid), p.folder.outside()
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := server.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
		for _, pid := range pids {
			if alive(pid) {
				t.Errorf("process %d is left", pid)
			}
		}
		if err := server.Start(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("Start after Close: %v", err)
		}
	})
}

// A test binary that is killed takes its server along, and the next one removes
// the folder: also when the server was frozen at that moment.
func TestKilledOwnerLeavesNoServer(t *testing.T) {
	eachLocal(t, func(t *testing.T, install Install) {
		pids, dir := killedOwner(t, install, func(int) {})
		if err := waitGone(pids, time.Minute); err != nil {
			t.Error(err)
		}
		startServer(t, PostgresOptions{Install: &install})
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the next start left the folder %s: %v", dir, err)
		}
	})
	eachLocal(t, func(t *testing.T, install Install) {
		pids, dir := killedOwner(t, install, func(pid int) { stopAll(pid) })
		startServer(t, PostgresOptions{Install: &install})
		if err := waitGone(pids, time.Minute); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the next start left the folder %s: %v", dir, err)
		}
	})
}

// killedOwner lets another process start a server, does something to it, and
// kills that process. It returns the server's processes and folder.
func killedOwner(t *testing.T, install Install, before func(pid int)) (pids []int, dir string) {
	t.Helper()
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+install.Root+":"+install.BinDir)
	stdin, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if _, scanErr := fmt.Sscan(line, &pid, &dir); err != nil || scanErr != nil {
		t.Fatalf("owner said %q: %v, %v", line, err, scanErr)
	}
	before(pid)
	pids = family(pid)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	return pids, dir
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	dir := shortTempDir(t)
	_, err := StartPostgres(t.Context(), PostgresOptions{
		Install: findNative(t), Dir: dir, Settings: map[string]string{"shared_buffers": "many"},
	})
	if err == nil {
		t.Fatal("a server with a senseless setting started")
	}
	if !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers"`) {
		t.Errorf("the error does not show the log: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOwnHBAIsUsed(t *testing.T) {
	server := startServer(t, PostgresOptions{HBA: "host all all 127.0.0.1/32 reject"})
	_, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "28000" {
		t.Errorf("got %v, want a refusal by pg_hba.conf", err)
	}
}

func TestWriteFileIsReadableByTheServerOnly(t *testing.T) {
	eachLocal(t, func(t *testing.T, install Install) {
		server := startServer(t, PostgresOptions{Install: &install})
		path, err := server.WriteFile("note.txt", []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(t, server, "SELECT pg_read_file('"+path+"')"); got != "hello" {
			t.Errorf("the server reads %q", got)
		}
		if _, err := server.WriteFile("../note.txt", nil); err == nil {
			t.Error("a path out of the data folder was accepted")
		}
	})
}

func TestStartWaitsForItsPort(t *testing.T) {
	server := startServer(t, PostgresOptions{})
	if err := server.Stop(t.Context(), StopFast); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", server.server.(*process).address())
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- server.Start(context.Background()) }()
	select {
	case err := <-started:
		t.Fatalf("started on a taken port: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	dir := shortTempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := StartPostgres(ctx, PostgresOptions{Dir: dir, Install: findNative(t)}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRootsFolderOfOthersIsRefusedWithItsName(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root runs servers as somebody else
	}
	dir := filepath.Join(shortTempDir(t), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir, Install: findNative(t)})
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want an error that names %s", err, dir)
	}
}

func TestScriptsAreNotServers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range serverPrograms {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) 99.1'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, install := range FindPostgres(t.Context()) {
		if install.Major == 99 {
			t.Errorf("took wrapper scripts for %+v", install)
		}
	}
}

func TestMissingMajorSaysHowToInstall(t *testing.T) {
	_, err := StartPostgres(t.Context(), PostgresOptions{Major: 9})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "install") {
		t.Errorf("got %v", err)
	}
}

func TestSignalsReachOnlyOurGroup(t *testing.T) {
	server := startServer(t, PostgresOptions{})
	group, err := syscall.Getpgid(server.server.(*process).pid)
	if err != nil {
		t.Fatal(err)
	}
	if group == syscall.Getpgrp() {
		t.Error("the server is in our process group: Ctrl-C at the terminal would reach it")
	}
}
