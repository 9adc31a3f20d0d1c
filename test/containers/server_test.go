package containers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ownerVariable turns the test binary into a program that starts a container of
// the image, says so, and waits to be killed.
const ownerVariable = "CONTAINERS_TEST_OWNER"

func TestMain(m *testing.M) {
	if image := os.Getenv(ownerVariable); image != "" {
		server, err := localserver.StartPostgres(context.Background(),
			localserver.PostgresOptions{Install: &localserver.Install{Image: image}})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(filepath.Base(filepath.Dir(server.LogFile()))) // the container's name
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}
	testdb.Main(m)
}

// install is what a throw-away server is started from here: an image where an
// engine answers, else the newest local binaries.
func install(t *testing.T) localserver.Install {
	t.Helper()
	if engineAnswers() {
		return localserver.Install{Image: postgresImage(t)}
	}
	found := localserver.FindPostgres(t.Context())
	if len(found) == 0 {
		t.Fatal("no container engine answers, and no PostgreSQL is on this machine: run scripts/install-servers.sh")
	}
	return found[0]
}

// A server in a container is as good a throw-away server as local binaries:
// it crashes, freezes, stops and goes away the same.
func TestThrowAwayServer(t *testing.T) {
	in := install(t)
	server, err := localserver.StartPostgres(t.Context(), localserver.PostgresOptions{
		Install: &in, Settings: map[string]string{"max_wal_senders": "3"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	testdb.Report(t, fmt.Sprintf("PostgreSQL %d", server.Major()), server.Version()+", "+server.Origin())

	session := func() *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	execute := func(sql string) {
		t.Helper()
		conn := session()
		defer func() { _ = conn.Close(context.Background()) }()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	query := func(sql string) string {
		t.Helper()
		conn := session()
		defer func() { _ = conn.Close(context.Background()) }()
		var answer string
		if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return answer
	}
	for sql, want := range map[string]string{
		"SHOW wal_level": "logical", "SHOW max_wal_senders": "3", "SHOW fsync": "on",
		"SELECT current_user": "postgres", "SHOW server_encoding": "UTF8",
	} {
		if got := query(sql); got != want {
			t.Errorf("%s: got %q, want %q", sql, got, want)
		}
	}

	execute("CREATE TABLE x AS SELECT 7 AS n")
	port := server.Port()
	for what, down := range map[string]func() error{
		"crash": server.Kill,
		"stop":  func() error { return server.Stop(t.Context(), localserver.StopFast) },
		"quit":  func() error { return server.Stop(t.Context(), localserver.StopImmediate) },
	} {
		if err := errors.Join(down(), server.Start(t.Context())); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := query("SELECT n::text FROM x"); got != "7" || server.Port() != port {
			t.Errorf("after %s: row %q, port %d (was %d)", what, got, server.Port(), port)
		}
	}

	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	if conn, err := pgconn.Connect(ctx, server.DSN("postgres")); err == nil {
		_ = conn.Close(ctx)
		t.Error("a frozen server accepted a session")
	}
	cancel()
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}

	path, err := server.WriteFile("note.txt", []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got := query("SELECT pg_read_file('" + path + "')"); got != "hello" {
		t.Errorf("the server reads %q", got)
	}
	log, err := os.ReadFile(server.LogFile())
	if err != nil || !strings.Contains(string(log), "ready to accept connections") {
		t.Errorf("log: %q, %v", log, err)
	}
}

// The container of a test binary that was killed goes with the next start.
func TestKilledOwnersContainerIsRemoved(t *testing.T) {
	if !engineAnswers() {
		return // see TestKilledOwnerLeavesNoServer of localserver
	}
	in := install(t)
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+in.Image)
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
	line, err := bufio.NewReader(stdout).ReadString('\n')
	name := strings.TrimSpace(line)
	if err != nil || imageOf(name) != in.Image {
		t.Fatalf("owner said %q, %v", line, err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	if imageOf(name) == "" {
		t.Fatal("the killed owner's container is not there to be removed")
	}
	server, err := localserver.StartPostgres(t.Context(), localserver.PostgresOptions{Install: &in})
	if err != nil {
		t.Fatal(err)
	}
	if imageOf(name) != "" {
		t.Errorf("container %s of a dead owner is left", name)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
}

// imageOf is the image of a container, empty when there is no such container.
func imageOf(container string) string {
	out, _ := exec.Command("docker", "inspect", "--format", "{{.Config.Image}}", container).Output()
	return strings.TrimSpace(string(out))
}
