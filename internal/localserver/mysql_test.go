//go:build unix

package localserver

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// mysqlOwnerVariable is ownerVariable for an install of MySQL or MariaDB, as JSON.
const mysqlOwnerVariable = "LOCALSERVER_TEST_MYSQL_OWNER"

func beMySQLOwner(text string) {
	var install MySQLInstall
	err := json.Unmarshal([]byte(text), &install)
	if err == nil {
		var server *MySQL
		if server, err = StartMySQL(context.Background(), MySQLOptions{Install: &install}); err == nil {
			p := server.server.(*mysqlProcess)
			fmt.Println(p.pid, p.folder.outside())
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}
	}
	fmt.Println("error:", err)
	os.Exit(1)
}

// eachMySQL runs fn for every server that this machine has.
func eachMySQL(t *testing.T, fn func(t *testing.T, install MySQLInstall)) {
	found := FindMySQL(t.Context())
	if len(found) == 0 {
		t.Fatalf("%v: run scripts/install-servers.sh", ErrNotFound)
	}
	seen := map[string]bool{}
	for _, install := range found {
		name := strings.ToLower(string(install.Family)) + install.Series()
		if !seen[name] {
			seen[name] = true
			t.Run(name, func(t *testing.T) { fn(t, install) })
		}
	}
}

func startMySQL(t *testing.T, o MySQLOptions) *MySQL {
	t.Helper()
	server, err := StartMySQL(t.Context(), o)
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

// session is one connection, closed by cleanup. Several statements may be in a text.
func session(t *testing.T, server *MySQL) *sql.Conn {
	t.Helper()
	cfg := server.Config("")
	cfg.MultiStatements = true
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { _ = pool.Close() })
	conn, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func execMySQL(t *testing.T, server *MySQL, text string) {
	t.Helper()
	conn := session(t, server)
	if _, err := conn.ExecContext(t.Context(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func askMySQL(t *testing.T, server *MySQL, query string) string {
	t.Helper()
	var answer string
	if err := session(t, server).QueryRowContext(t.Context(), query).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return answer
}

func TestStartedMySQLIsAsPromised(t *testing.T) {
	eachMySQL(t, func(t *testing.T, install MySQLInstall) {
		server := startMySQL(t, MySQLOptions{Install: &install, Settings: map[string]string{
			"max-connections": "77", "binlog_row_metadata": "FULL", "init_connect": "SET @it = 'is ok'",
		}})
		want := map[string]string{
			"SELECT @@log_bin":                        "1",
			"SELECT @@binlog_format":                  "ROW",
			"SELECT @@binlog_row_metadata":            "FULL",
			"SELECT @@server_id":                      strconv.Itoa(server.Port()),
			"SELECT @@bind_address":                   "127.0.0.1",
			"SELECT @@character_set_server":           "utf8mb4",
			"SELECT @@max_connections":                "77",
			"SELECT @@init_connect":                   "SET @it = 'is ok'",
			"SELECT current_user()":                   "root@localhost",
			"SELECT version()":                        install.Version,
			"SELECT @@innodb_flush_log_at_trx_commit": "1",
		}
		if install.Family == MySQLServer {
			want["SELECT @@gtid_mode"] = "ON"
			want["SELECT @@sync_binlog"] = "1"
		}
		for query, want := range want {
			if got := askMySQL(t, server, query); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %q, want %q", query, got, want)
			}
		}
		checkFile(t, server)
		checkFreeze(t, server)
		if server.Version() != install.Version || !strings.Contains(server.Origin(), install.Server) {
			t.Errorf("version %s from %q, want %s from %s", server.Version(), server.Origin(), install.Version, install.Server)
		}
	})
}

// What a crashed server had committed is there again, on the same port and in the
// same binary log.
func TestCrashedMySQLRecovers(t *testing.T) {
	eachMySQL(t, func(t *testing.T, install MySQLInstall) {
		server := startMySQL(t, MySQLOptions{Install: &install, Settings: map[string]string{"performance_schema": "OFF"}})
		port := server.Port()
		execMySQL(t, server, "CREATE DATABASE d; CREATE TABLE d.x (n int PRIMARY KEY); INSERT INTO d.x VALUES (7)")
		held := session(t, server)
		pid := server.server.(*mysqlProcess).pid
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if alive(pid) {
			t.Errorf("process %d outlived Kill", pid)
		}
		if err := held.PingContext(t.Context()); err == nil {
			t.Error("a session outlived Kill")
		}
		if err := server.Configure(map[string]string{"max_connections": "55"}); err != nil {
			t.Fatal(err)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if server.Port() != port {
			t.Errorf("port changed from %d to %d", port, server.Port())
		}
		if got := askMySQL(t, server, "SELECT n FROM d.x"); got != "7" {
			t.Errorf("got %q after recovery", got)
		}
		if got := askMySQL(t, server, "SELECT @@max_connections"); got != "55" {
			t.Errorf("max_connections = %s after Configure", got)
		}
		if err := server.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if conn, err := net.Dial("tcp4", net.JoinHostPort(server.Host(), strconv.Itoa(port))); err == nil {
			_ = conn.Close()
			t.Error("the server listens after Stop")
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := askMySQL(t, server, "SELECT n FROM d.x"); got != "7" {
			t.Errorf("got %q after a clean stop", got)
		}
	})
}

// Two servers of one version share a template and nothing else.
func TestTwoMySQLServersAreStrangers(t *testing.T) {
	eachMySQL(t, func(t *testing.T, install MySQLInstall) {
		a := startMySQL(t, MySQLOptions{Install: &install})
		b := startMySQL(t, MySQLOptions{Install: &install})
		identity := "SELECT @@server_id"
		if install.Family == MySQLServer {
			identity = "SELECT @@server_uuid"
		}
		if x, y := askMySQL(t, a, identity), askMySQL(t, b, identity); x == y {
			t.Errorf("%s: both answer %s", identity, x)
		}
		execMySQL(t, a, "CREATE DATABASE only_a")
		if got := askMySQL(t, b, "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'only_a'"); got != "0" {
			t.Error("a database of one server is seen in the other")
		}
	})
}

func TestSettingsThatTheTemplateLacks(t *testing.T) {
	eachMySQL(t, func(t *testing.T, install MySQLInstall) {
		server := startMySQL(t, MySQLOptions{Install: &install, Settings: map[string]string{"innodb-page-size": "8192"}})
		if got := askMySQL(t, server, "SELECT @@innodb_page_size"); got != "8192" {
			t.Errorf("page size %s", got)
		}
	})
}

// checkFreeze leaves the server frozen: Close must cope with it.
func checkFreeze(t *testing.T, server *MySQL) {
	t.Helper()
	held := session(t, server)
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- held.PingContext(context.Background()) }()
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
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
}

func TestClosedMySQLLeavesNothing(t *testing.T) {
	eachMySQL(t, func(t *testing.T, install MySQLInstall) {
		server := startMySQL(t, MySQLOptions{Install: &install})
		p := server.server.(*mysqlProcess)
		for range 2 {
			if err := server.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(p.folder.outside()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", p.folder.outside(), err)
		}
		if alive(p.pid) {
			t.Errorf("process %d is left", p.pid)
		}
		if err := server.Start(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("Start after Close: %v", err)
		}
	})
}

// A test binary that is killed takes its server along, frozen or not, and the next
// start removes the folder.
func TestKilledOwnerLeavesNoMySQL(t *testing.T) {
	eachMySQL(t, func(t *testing.T, install MySQLInstall) {
		var pids []int
		var dirs []string
		for _, frozen := range []bool{false, true} {
			pid, dir := killedMySQLOwner(t, install, frozen)
			pids, dirs = append(pids, pid), append(dirs, dir)
		}
		if err := waitGone(pids, time.Minute); err != nil {
			t.Error(err)
		}
		startMySQL(t, MySQLOptions{Install: &install})
		for _, dir := range dirs {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the next start left the folder %s: %v", dir, err)
			}
		}
	})
}

func killedMySQLOwner(t *testing.T, install MySQLInstall, frozen bool) (pid int, dir string) {
	t.Helper()
	text, err := json.Marshal(install)
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), mysqlOwnerVariable+"="+string(text))
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
	if _, scanErr := fmt.Sscan(line, &pid, &dir); err != nil || scanErr != nil {
		t.Fatalf("owner said %q: %v, %v", line, err, scanErr)
	}
	if frozen {
		stopAll(pid)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	return pid, dir
}

func TestFailedMySQLStartShowsTheLogAndLeavesNothing(t *testing.T) {
	eachMySQL(t, func(t *testing.T, install MySQLInstall) {
		dir := shortTempDir(t)
		if install.Root != "" {
			dir = install.Root + folderInTree
		}
		before := folders(t, dir)
		_, err := StartMySQL(t.Context(), MySQLOptions{
			Install: &install, Dir: dir, Settings: map[string]string{"no_such_setting": "1"},
		})
		if err == nil {
			t.Fatal("a server with an unknown setting started")
		}
		if !strings.Contains(err.Error(), "no_such_setting") {
			t.Errorf("the error does not show the log: %v", err)
		}
		if install.Root == "" { // in a tree, others start servers too
			if after := folders(t, dir); after > before {
				t.Errorf("%d folders are left", after-before)
			}
		}
	})
}

func folders(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(entries)
}

// checkFile: what WriteFile writes belongs to the server's user, and to no other.
func checkFile(t *testing.T, server *MySQL) {
	t.Helper()
	path, err := server.WriteFile("note.txt", []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	p := server.server.(*mysqlProcess)
	info, err := os.Stat(p.folder.root + path)
	if err != nil {
		t.Fatal(err)
	}
	uid := uint32(os.Geteuid())
	if p.account.credential != nil {
		uid = p.account.credential.Uid
	}
	if stat := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o600 || stat.Uid != uid {
		t.Errorf("mode %v of user %d, the server runs as user %d", info.Mode(), stat.Uid, uid)
	}
	if _, err := server.WriteFile("../note.txt", nil); err == nil {
		t.Error("a path out of the data folder was accepted")
	}
}

func TestMissingMySQLSaysHowToInstall(t *testing.T) {
	_, err := StartMySQL(t.Context(), MySQLOptions{Family: MariaDBServer, Series: "5.5"})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "MariaDB 5.5") || !strings.Contains(err.Error(), "install") {
		t.Errorf("got %v", err)
	}
}

func TestVersionsAreComparedByNumber(t *testing.T) {
	for _, pair := range [][2]string{{"10.11.19", "10.6.30"}, {"11.8.9", "10.11.19"}, {"9.10.0", "9.7.4"}} {
		if compareVersions(pair[0], pair[1]) <= 0 || compareVersions(pair[1], pair[0]) >= 0 {
			t.Errorf("%s is not newer than %s", pair[0], pair[1])
		}
	}
}
