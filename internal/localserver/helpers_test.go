//go:build unix

package localserver

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
)

// eachLocal runs fn for every major version that this machine has binaries of.
// (Which ones it must have is the business of testdb.)
func eachLocal(t *testing.T, fn func(t *testing.T, install Install)) {
	found := FindPostgres(t.Context())
	if len(found) == 0 {
		t.Fatalf("%v: run scripts/install-servers.sh", ErrNotFound)
	}
	for _, install := range found {
		t.Run("pg"+strconv.Itoa(install.Major), func(t *testing.T) { fn(t, install) })
	}
}

func startServer(t *testing.T, o PostgresOptions) *Postgres {
	t.Helper()
	server, err := StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func connect(t *testing.T, server *Postgres) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, server *Postgres, sql string) {
	t.Helper()
	conn := connect(t, server)
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, server *Postgres, sql string) string {
	t.Helper()
	conn := connect(t, server)
	var answer string
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return answer
}

// shortTempDir is a folder that the server's user can enter.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "localserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// findNative is an install that honours PostgresOptions.Dir.
func findNative(t *testing.T) *Install {
	t.Helper()
	for _, install := range FindPostgres(t.Context()) {
		if install.Root == "" {
			return &install
		}
	}
	t.Fatal("no PostgreSQL outside a tree: run scripts/install-servers.sh")
	return nil
}
