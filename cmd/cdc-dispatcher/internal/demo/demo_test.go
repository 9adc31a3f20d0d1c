package demo

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// output is a buffer that the demo's goroutines may write to.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// The demo on a throw-away server, on its own: every kind of end is produced by
// something, every promise is kept, and nothing is left behind.
func TestRun_OnAThrowAwayServer(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out output
	r, err := Run(t.Context(), Config{For: 4 * time.Second, Rate: 200, Out: &out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("%+v", r)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	if r.Mode != "log" || r.Open != 0 || r.Duplicates != 0 {
		t.Errorf("mode %s, open %d, duplicates %d; want log, 0, 0", r.Mode, r.Open, r.Duplicates)
	}
	for what, n := range map[string]int{
		"events": r.Events, "rolled back": r.RolledBack, "succeeded": r.Succeeded, "retried": r.Retried,
		"dead": r.Dead, "blocked": r.Blocked, "expired": r.Expired, "via log": r.EventsViaLog,
	} {
		if n == 0 {
			t.Errorf("%s = 0: nothing produced it", what)
		}
	}
	if got, want := r.Succeeded+r.Dead+r.Blocked+r.Expired+r.Discarded+r.Open, r.Deliveries; got != want {
		t.Errorf("states add up to %d of %d deliveries", got, want)
	}
	if r.LatencyMS.P50 <= 0 || r.LatencyMS.P99 < r.LatencyMS.P50 {
		t.Errorf("latency %+v", r.LatencyMS)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("%s is left behind", e.Name())
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences in output that is not a terminal")
	}
}

// The same on MariaDB and MySQL.
func TestRun_OnAThrowAwayMySQL(t *testing.T) {
	for _, kind := range []testdb.Kind{testdb.MariaDB118, testdb.MySQL97} {
		t.Run(kind.String(), func(t *testing.T) {
			testdb.MySQL(t, kind) // or this machine has none
			t.Setenv("TMPDIR", t.TempDir())
			database := config.DatabaseMySQL
			if kind.IsMariaDB() {
				database = config.DatabaseMariaDB
			}
			var out output
			r, err := Run(t.Context(), Config{Database: database, For: 3 * time.Second, Rate: 100, Out: &out})
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			t.Logf("%+v", r)
			if err := r.Err(); err != nil {
				t.Error(err)
			}
			if r.Mode != "log" || r.Open != 0 || r.Lost != 0 || r.Events == 0 || r.EventsViaLog == 0 || !strings.HasPrefix(r.Database, database.Title()+" ") {
				t.Errorf("result %+v", r)
			}
			if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
				t.Errorf("%v is left behind (%v)", left, err)
			}
		})
	}
}

// As a guest on somebody's MariaDB or MySQL it leaves no database.
func TestRun_AsAGuestOnMySQL(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := testdb.MySQL(t, kind)
		var out output
		r, err := Run(t.Context(), Config{Database: config.DatabaseMySQL, DSN: db.DSN(), For: time.Second, Rate: 50, Out: &out})
		if err != nil || r.Err() != nil || r.Events == 0 {
			t.Errorf("%v, %v, %+v", err, r.Err(), r)
		}
		var n int
		if err := db.Pool().QueryRowContext(t.Context(), `SELECT count(*) FROM information_schema.schemata WHERE schema_name LIKE 'cdc\_dispatcher\_demo\_%'`).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d databases are left behind (%v)", n, err)
		}
	})
}

// The first signal of any kind ends it in order, the second at once.
func TestInterrupts(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		calm, hurry, stop := interrupts(t.Context())
		for _, ctx := range []context.Context{calm, hurry} {
			if ctx.Err() != nil {
				t.Fatalf("ended before %v", s)
			}
			if err := self.Signal(s); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
		}
		stop()
	}
}

// The demo as a guest on somebody's server, live, and interrupted: it ends in order and
// leaves no database and no slot.
func TestRun_AsAGuestInterrupted(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		var out output
		type ended struct {
			Result
			error
		}
		end := make(chan ended, 1)
		go func() {
			r, err := Run(ctx, Config{DSN: db.DSN(), Rate: 100, Out: &out, Live: true, Color: true})
			end <- ended{r, err}
		}()
		count := func(sql string) (n int) {
			if err := db.Pool().QueryRow(t.Context(), sql).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		const databases = `SELECT count(*) FROM pg_database WHERE datname LIKE 'cdc_dispatcher_demo_%'`
		const slots = `SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'cdc_dispatcher_demo_%'`
		testdb.WaitFor(t, "the demo to show deliveries", func() bool {
			return strings.Contains(out.String(), "the application writes") && count(slots) == 1
		})
		interrupt()
		got := <-end
		if got.error != nil {
			t.Fatalf("%v\n%s", got.error, out.String())
		}
		if err := got.Err(); err != nil {
			t.Error(err)
		}
		if n, s := count(databases), count(slots); n != 0 || s != 0 {
			t.Errorf("%d databases and %d slots are left behind", n, s)
		}
		if !strings.HasSuffix(strings.TrimSpace(out.String()), "dropping the demo's database and replication slot") {
			t.Errorf("the last words are not about cleaning up: %q", out.String()[max(0, len(out.String())-80):])
		}
	})
}

// A server that cannot be reached is one clear error without the password.
func TestRun_WrongDSN(t *testing.T) {
	var out output
	_, err := Run(t.Context(), Config{DSN: "postgres://u:secret@127.0.0.1:1/x?sslmode=disable", Out: &out})
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "--dsn") {
		t.Errorf("error = %v; want one about --dsn without the password", err)
	}
}

func TestRun_AnUnreadableDSNIsNotShown(t *testing.T) {
	for _, dsn := range []string{
		"host=db password = s3cret sslmode=bad",
		"postgres://app:s3cret%zz@db/shop",
		"host=db password = s3cret pool_max_conns=many",
	} {
		_, err := Run(t.Context(), Config{DSN: dsn, Out: io.Discard})
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}
