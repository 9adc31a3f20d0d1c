package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// hba asks everybody for a password, except the superuser who sets the test up.
const hba = `
host all         postgres 127.0.0.1/32 trust
host all         all      127.0.0.1/32 scram-sha-256
host replication all      127.0.0.1/32 scram-sha-256
`

// TestPasswordsWithAnyCharacter: a password needs no encoding where it is given apart, for
// SQL and for replication, and is in no output.
func TestPasswordsWithAnyCharacter(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		const password = `p@ss/w#rd:?&%41 [x]{}'"\ü$$`
		server, err := localserver.StartPostgres(t.Context(), localserver.PostgresOptions{
			Major: major, HBA: hba, Settings: map[string]string{"wal_level": "logical", "fsync": "off"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		})
		testdb.Report(t, fmt.Sprintf("PostgreSQL %d", major), server.Origin())
		conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		for _, sql := range []string{
			`CREATE ROLE app LOGIN REPLICATION PASSWORD '` + strings.ReplaceAll(password, "'", "''") + `'`,
			`CREATE DATABASE shop OWNER app`,
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}

		dir := t.TempDir()
		bin := program(t, dir)
		writeFile(t, filepath.Join(dir, "password"), password+"\n")
		writeFile(t, filepath.Join(dir, "wrong"), "hunter2-wrong")
		for _, name := range []string{"password", "wrong"} {
			writeFile(t, filepath.Join(dir, name+".yaml"), fmt.Sprintf(`version: 1
sources: [{name: shop, dsn: "postgres://app@%s:%d/shop?sslmode=disable", password: "${file:%s}"}]
handlers: [{name: log, on: ["*"], logger: {}}]
server: {listen: none}
`, server.Host(), server.Port(), name))
		}
		// call runs the program and returns what it printed.
		call := func(exit int, args ...string) string {
			t.Helper()
			var out bytes.Buffer
			cmd := exec.CommandContext(t.Context(), bin, args...)
			cmd.Stdout, cmd.Stderr = &out, &out
			var failed *exec.ExitError
			if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != exit {
				t.Fatalf("%v: exit code %d, want %d:\n%s", args, got, exit, out.String())
			}
			for _, secret := range []string{"p@ss", "w#rd", "hunter2"} {
				if strings.Contains(out.String(), secret) {
					t.Errorf("%v shows the password:\n%s", args, out.String())
				}
			}
			return out.String()
		}
		config := filepath.Join(dir, "password.yaml")
		if out := call(exitDatabase, "status", "-c", filepath.Join(dir, "wrong.yaml")); !strings.Contains(out, "error CD4002: source shop: the database refuses the login") {
			t.Errorf("wrong password:\n%s", out)
		}
		call(exitOK, "migrate", "up", "-c", config)
		call(exitWarning, "doctor", "-c", config)
		call(exitOK, "events", "emit", "--type", "a", "-c", config)

		run := exec.CommandContext(t.Context(), bin, "run", "-c", config)
		var log bytes.Buffer
		run.Stderr = &log
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		testdb.WaitFor(t, "delivery and a log that is read", func() bool {
			return strings.Contains(call(exitOK, "deliveries", "list", "-c", config), "SUCCEEDED") &&
				strings.Contains(call(exitOK, "status", "-c", config), "shop: streaming")
		})
		if err := run.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := run.Wait(); err != nil {
			t.Error(err)
		}
		if strings.Contains(log.String(), "p@ss") {
			t.Errorf("the log shows the password:\n%s", log.String())
		}
	})
}
