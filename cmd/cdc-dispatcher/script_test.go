package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cdc-dispatcher/cdc-dispatcher/handlers/webhook"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// programName is what the test binary is called when it plays the program.
const programName = "cdc-dispatcher"

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case programName:
		main()
		return
	case "httpget":
		httpGet(os.Args[1])
		return
	}
	testdb.Main(m)
}

// httpGet prints what a URL answers, for scripts.
func httpGet(url string) {
	resp, err := http.Get(url) //nolint:gosec,noctx // a test's own address
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// secret signs what the receiver of the scripts gets.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestScripts runs the sessions that need no database.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script/plain", nil) }

// TestScriptsPostgres runs the sessions with a real server, a database of its own for
// each.
func TestScriptsPostgres(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		runScripts(t, "testdata/script/postgres", func(t testing.TB) map[string]string {
			return map[string]string{"DATABASE_URL": testdb.Postgres(t, major).DSN()}
		})
	})
}

// TestScriptsMySQL runs the sessions with MariaDB and MySQL. A schema is a database there, so
// scripts keep their tables in DATABASE, and what they put into eventlog is dropped at the end.
func TestScriptsMySQL(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		runScripts(t, "testdata/script/mysql", func(t testing.TB) map[string]string {
			db := testdb.MySQL(t, kind)
			t.Cleanup(func() { db.Exec("DROP DATABASE IF EXISTS eventlog") })
			return map[string]string{
				"DATABASE_URL": db.DSN(), "DATABASE": db.Name(), "LISTEN2": freeAddress(t),
				"SERVER": net.JoinHostPort(db.Server().Host(), strconv.Itoa(db.Server().Port())),
			}
		})
	})
}

// TestScriptsMixed runs the sessions in which one process serves databases of different kinds.
func TestScriptsMixed(t *testing.T) {
	runScripts(t, "testdata/script/mixed", func(t testing.TB) map[string]string {
		maria, my := testdb.MySQL(t, testdb.MariaDB118), testdb.MySQL(t, testdb.MySQL97)
		return map[string]string{
			"DATABASE_URL": testdb.Postgres(t, 18).DSN(),
			"MARIADB_URL":  maria.DSN(), "MARIADB_DATABASE": maria.Name(),
			"MYSQL_URL": my.DSN(), "MYSQL_DATABASE": my.Name(),
		}
	})
}

func runScripts(t *testing.T, dir string, database func(testing.TB) map[string]string) {
	files, err := filepath.Glob(dir + "/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", dir, err)
	}
	bin := t.TempDir()
	program(t, bin)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			r := newReceiver(t)
			env := map[string]string{
				"PATH":     bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
				"LISTEN":   freeAddress(t),
				"RECEIVER": r.URL, "SECRET": secret,
				"NO_COLOR": "1", "USER": "tester",
			}
			if database != nil {
				maps.Copy(env, database(t))
				env["SLOT"] = fmt.Sprintf("s_%x", sha256.Sum256([]byte(t.Name())))[:16] // slots belong to the whole server
			}
			testscript.Run(t, testscript.Params{
				Files: []string{file}, RequireExplicitExec: true, RequireUniqueNames: true,
				Setup: func(e *testscript.Env) error {
					for name, value := range env {
						e.Setenv(name, value)
					}
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": cmdExits, "eventually": cmdEventually, "sql": cmdSQL, "fails": r.cmdFails, "received": r.cmdReceived,
				},
			})
		})
	}
}

// program puts the program, and what scripts need beside it, into a folder, and returns
// its path.
func program(t testing.TB, dir string) string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"httpget", programName} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, programName)
}

func writeFile(t testing.TB, path, text string) {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// freeAddress is one that nobody listens on.
func freeAddress(t testing.TB) string {
	port, err := localserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// cmdExits runs a command and checks its exit code: exits 3 cdc-dispatcher validate.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if neg || err != nil || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command args…")
	}
	if got := exitCode(ts, ts.Exec(args[1], args[2:]...)); got != want {
		ts.Fatalf("exit code %d, want %d\n%s%s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

func exitCode(ts *testscript.TestScript, err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	ts.Fatalf("%v", err)
	return -1
}

// cmdEventually runs a command again and again until its output matches:
// eventually SUCCEEDED cdc-dispatcher deliveries list.
func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN command args…")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	deadline := time.Now().Add(time.Minute)
	for {
		err := ts.Exec(args[1], args[2:]...)
		output := ts.ReadFile("stdout") + ts.ReadFile("stderr")
		if want.MatchString(output) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("no match for %s within a minute; last (%v):\n%s", want, err, output)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// cmdSQL runs one statement in the script's database.
func cmdSQL(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sql STATEMENT")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if ts.Getenv("SERVER") != "" {
		ts.Check(mysqlStatement(ctx, ts.Getenv("DATABASE_URL"), args[0]))
		return
	}
	conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
	ts.Check(err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, args[0])
	ts.Check(err)
}

// mysqlStatement runs one statement. A query must find something.
func mysqlStatement(ctx context.Context, dsn, statement string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	if !strings.HasPrefix(statement, "SELECT") {
		_, err = db.ExecContext(ctx, statement)
		return err
	}
	var found string
	return db.QueryRowContext(ctx, statement).Scan(&found)
}

// receiver takes webhooks and checks their signatures.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	bodies []string
	bad    []string
}

func newReceiver(t testing.TB) *receiver {
	r := &receiver{status: http.StatusNoContent}
	released := make(chan struct{})
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/hang" {
			select {
			case <-req.Context().Done():
			case <-released:
			}
			return
		}
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = webhook.Verify(req.Header, body, time.Now(), secret)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			r.bad = append(r.bad, err.Error())
		}
		r.bodies = append(r.bodies, string(body))
		w.WriteHeader(r.status)
	}))
	t.Cleanup(func() {
		close(released)
		r.Close()
	})
	return r
}

// cmdFails makes the receiver answer with a status: fails 503, or fails 0 to end that.
func (r *receiver) cmdFails(ts *testscript.TestScript, neg bool, args []string) {
	status, err := strconv.Atoi(args[0])
	if neg || err != nil {
		ts.Fatalf("usage: fails STATUS")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status = status; status == 0 {
		r.status = http.StatusNoContent
	}
}

// cmdReceived waits until a body that matches has arrived, every one so far rightly
// signed.
func (r *receiver) cmdReceived(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: received PATTERN")
	}
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	deadline := time.Now().Add(time.Minute)
	for {
		r.mu.Lock()
		bodies, bad := strings.Join(r.bodies, "\n"), strings.Join(r.bad, "\n")
		r.mu.Unlock()
		switch {
		case bad != "":
			ts.Fatalf("a request was not as it should be: %s", bad)
		case want.MatchString(bodies):
			return
		case time.Now().After(deadline):
			ts.Fatalf("no match for %s within a minute:\n%s", want, bodies)
		}
		<-time.After(20 * time.Millisecond)
	}
}
