package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// TestDocs_OutboxTable follows the first part of docs/outbox-table.md to the letter: a table in
// Debezium's layout, filled before and after the start, and never written by us.
func TestDocs_OutboxTable(t *testing.T) {
	bin := buildProgram(t)
	part, _ := readPage(t, "outbox-table.md").cut(t, mysqlPart)
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		r := &reader{t: t, db: postgresDB{db}, dir: t.TempDir(), path: bin}
		// The pages name a server and a password; the rest is taken as it stands.
		r.env = []string{"DATABASE_URL=" + db.DSN()}
		followOutboxTable(t, r, *part, "gen_random_uuid()")
	})
}

// mysqlPart is the heading of the page's second part.
const mysqlPart = "# On MySQL or MariaDB"

// TestDocs_OutboxTableMySQL follows its second part.
func TestDocs_OutboxTableMySQL(t *testing.T) {
	bin := buildProgram(t)
	_, part := readPage(t, "outbox-table.md").cut(t, mysqlPart)
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := testdb.MySQL(t, kind)
		cfg, err := mysql.ParseDSN(db.DSN())
		if err != nil {
			t.Fatal(err)
		}
		// The page's own names of databases.
		cfg.DBName = "shop"
		db.Exec("CREATE DATABASE shop")
		t.Cleanup(func() { db.Exec("DROP DATABASE shop; DROP DATABASE IF EXISTS eventlog") })
		r := &reader{t: t, db: mysqlDB{db}, dir: t.TempDir(), path: bin, env: []string{"DATABASE_URL=" + cfg.FormatDSN()}}
		followOutboxTable(t, r, *part, "UUID()")
	})
}

// followOutboxTable is what both parts have in common. uuid makes a key in SQL.
func followOutboxTable(t *testing.T, r *reader, p page, uuid string) {
	r.sql(p.next(t, "sql")) // 0. The table
	r.sql("INSERT INTO outbox VALUES (" + uuid + ", 'Order', '41', 'OrderPlaced', '{\"total\": 1}')")

	connect := p.next(t, "sh") // 1. Describe it
	url, init, ok := strings.Cut(connect, "\n")
	if !ok || !strings.HasPrefix(url, "export DATABASE_URL=") {
		t.Fatalf("the page no longer begins with the DSN: %q", connect)
	}
	r.shell(init)
	written := r.read("cdc-dispatcher.yaml")
	for _, want := range []string{"debezium", "outbox"} {
		if !strings.Contains(written, want) {
			t.Errorf("init wrote a file without %q:\n%s", want, written)
		}
	}
	r.shell("cdc-dispatcher validate")
	// The page shows what matters; a reader who types that instead is served as well.
	r.write("cdc-dispatcher.yaml", p.next(t, "yaml")+"server: {listen: \"127.0.0.1:0\"}\n")
	r.shell("cdc-dispatcher validate")

	migrate, doctor, ok := strings.Cut(p.next(t, "sh"), "\n") // 2. Create our tables, and look
	if !ok || !strings.Contains(doctor, "doctor") {
		t.Fatal("the page no longer has doctor after migrate")
	}
	r.shell(migrate)
	r.shell(doctor, 0, 6) // a warning about the test server's settings is no failure

	stop := r.background(p.next(t, "sh")) // 3. Run
	testdb.WaitFor(t, "the event that was there before", func() bool { return r.succeeded() == 1 })

	r.validate(p.next(t, "yaml"))
	r.sql(p.next(t, "sql")) // 4. Commit an event
	testdb.WaitFor(t, "the event of the page", func() bool { return r.succeeded() == 2 })
	list := r.shell(p.next(t, "sh"))
	if n := strings.Count(list, "SUCCEEDED"); n != 2 {
		t.Errorf("deliveries list shows %d SUCCEEDED, want 2:\n%s", n, list)
	}

	// What to know: deleted in its own transaction, and a null payload. The page's dispatcher has its place in the log by now;
	// on a busy machine the sweep of its start may have brought all so far.
	testdb.WaitFor(t, "the log to be read", func() bool { return strings.Contains(r.shell("cdc-dispatcher status"), "streaming") })
	r.sql("START TRANSACTION;\n" +
		"INSERT INTO outbox VALUES ('00000000-0000-4000-8000-000000000043', 'Order', '43', 'OrderPlaced', '{\"total\": 2}');\n" +
		"DELETE FROM outbox WHERE aggregateid = '43';\nCOMMIT;\n" +
		"INSERT INTO outbox VALUES (" + uuid + ", 'Order', '44', 'OrderPlaced', NULL);")
	testdb.WaitFor(t, "the row that was deleted at once", func() bool { return r.succeeded() == 3 })
	testdb.WaitFor(t, "the null payload as a BLOCKED delivery", func() bool {
		return r.db.count(t, "SELECT count(*) FROM eventlog.event_notifications WHERE state = 'BLOCKED' AND reason = 'null_payload'") == 1
	})
	stop()
	if n := r.db.count(t, "SELECT count(*) FROM eventlog.event_notifications"); n != 4 {
		t.Errorf("%d deliveries for 4 events and one handler", n)
	}
	if len(p.blocks) > 0 {
		t.Errorf("blocks of the page that no step ran: %q", p.blocks)
	}
}

// database is the reader's database client.
type database interface {
	Exec(sql string, args ...any)
	count(t *testing.T, query string) int
}

type postgresDB struct{ *testdb.DB }

func (db postgresDB) count(t *testing.T, query string) (n int) {
	t.Helper()
	if err := db.Pool().QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

type mysqlDB struct{ *testdb.MyDB }

// Exec works in the page's database.
func (db mysqlDB) Exec(sql string, args ...any) { db.MyDB.Exec("USE shop;\n"+sql, args...) }

func (db mysqlDB) count(t *testing.T, query string) (n int) {
	t.Helper()
	if err := db.Pool().QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// reader is a person who follows a page.
type reader struct {
	t    *testing.T
	db   database
	dir  string
	path string
	env  []string
}

// shell runs a block as printed and returns its output. It fails the test on an exit
// code that is not wanted (0 when none is named).
func (r *reader) shell(script string, codes ...int) string {
	r.t.Helper()
	var out bytes.Buffer
	cmd := r.command(r.t.Context(), script)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	code := cmd.ProcessState.ExitCode()
	for _, want := range codes {
		if code == want {
			return out.String()
		}
	}
	if err != nil {
		r.t.Fatalf("%s\nended with %d:\n%s", script, code, &out)
	}
	return out.String()
}

func (r *reader) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-ec", "exec 2>&1\n"+script)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), append(r.env, "PATH="+r.path+string(os.PathListSeparator)+os.Getenv("PATH"))...)
	return cmd
}

// background starts a block that goes on, and returns what stops it, as Ctrl-C would.
func (r *reader) background(script string) (stop func()) {
	r.t.Helper()
	var out bytes.Buffer
	cmd := r.command(context.Background(), "exec "+strings.TrimSpace(script))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			r.t.Errorf("interrupt %q: %v", script, err)
		}
		if err := cmd.Wait(); err != nil {
			r.t.Errorf("%q ended with %v:\n%s", script, err, &out)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *reader) sql(script string) { r.t.Helper(); r.db.Exec(script) }

func (r *reader) succeeded() int {
	return r.db.count(r.t, "SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'")
}

func (r *reader) read(name string) string {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(content)
}

func (r *reader) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// validate checks a fragment, a table that is indented as in its source.
func (r *reader) validate(fragment string) {
	r.t.Helper()
	r.write("fragment.yaml", "version: 1\nsources:\n  - name: shop\n    dsn: ${DATABASE_URL}\n"+fragment+
		"handlers:\n  - {name: h, on: [\"*\"], logger: {}}\n")
	r.shell("cdc-dispatcher validate fragment.yaml")
}

// page is the fenced blocks of a page that are left, in order.
type page struct {
	text   string
	blocks []block
}

type block struct{ language, text string }

func (b block) String() string { return fmt.Sprintf("%s: %s", b.language, b.text) }

// next takes the next block, which must be of the given language.
func (p *page) next(t *testing.T, language string) string {
	t.Helper()
	if len(p.blocks) == 0 {
		t.Fatalf("the page has no further block; want %s", language)
	}
	b := p.blocks[0]
	p.blocks = p.blocks[1:]
	if b.language != language {
		t.Fatalf("next block of the page is %s, want %s:\n%s", b.language, language, b.text)
	}
	return b.text
}

// cut divides the page before a heading.
func (p *page) cut(t *testing.T, heading string) (before, after *page) {
	t.Helper()
	first, second, ok := strings.Cut(p.text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the page has no heading %q", heading)
	}
	return parsePage(first), parsePage(second)
}

func parsePage(text string) *page {
	p := &page{text: text}
	parts := strings.Split(text, "\n```")
	for i := 1; i < len(parts); i += 2 {
		language, code, _ := strings.Cut(parts[i], "\n")
		p.blocks = append(p.blocks, block{language, code + "\n"})
	}
	return p
}

func readPage(t *testing.T, name string) *page {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	p := parsePage(string(content))
	if len(p.blocks) == 0 {
		t.Fatalf("%s has no fenced blocks", name)
	}
	return p
}

func buildProgram(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "cdc-dispatcher"), "../../cmd/cdc-dispatcher")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return dir
}
