package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"go.uber.org/goleak"
)

// startTimeout bounds the start of a server. It is far above what a start
// takes, because many test binaries may start servers on two cores at once.
const startTimeout = 5 * time.Minute

// majors are the PostgreSQL versions that every promise is tested on: the
// oldest and the newest supported.
var majors = [...]int{15, 18}

// Main runs a package's tests, stops the shared servers, and fails the package
// when goroutines are left. Call it from TestMain; it does not return.
func Main(m *testing.M) {
	code := m.Run()
	if err := errors.Join(shared.close(), sharedMySQL.close()); err != nil {
		fmt.Fprintln(os.Stderr, "testdb: stop shared servers:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testdb: goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// EachPostgres runs fn as one subtest per PostgreSQL major version, one after
// the other.
func EachPostgres(t *testing.T, fn func(t *testing.T, major int)) {
	t.Helper()
	for _, major := range majors {
		t.Run("pg"+strconv.Itoa(major), func(t *testing.T) {
			require(t, major)
			fn(t, major)
		})
	}
}

// Dedicated starts a server for this test alone, closed by cleanup. Settings go
// on top of wal_level=logical; fsync stays on unless set.
func Dedicated(t testing.TB, major int, settings map[string]string) *localserver.Postgres {
	t.Helper()
	require(t, major)
	server, err := start(major, settings)
	if err != nil {
		t.Fatal(err)
	}
	announce(t, "own server", server)
	return server
}

// Standby starts a physical standby of a test's own server, closed by cleanup. Settings go
// on top of those of its primary.
func Standby(t testing.TB, primary *localserver.Postgres, settings map[string]string) *localserver.Postgres {
	t.Helper()
	server, err := localserver.StartPostgres(context.Background(), localserver.PostgresOptions{StandbyOf: primary, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	announce(t, "own standby", server)
	return server
}

// announce reports a server of a test's own, and closes it at the test's end.
func announce(t testing.TB, whose string, server *localserver.Postgres) {
	t.Helper()
	t.Logf("PostgreSQL %s: %s from %s", server.Version(), whose, server.Origin())
	report(t, "server", postgresName(server.Major()), server.Version()+", "+server.Origin())
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close PostgreSQL %d: %v", server.Major(), err)
		}
	})
}

// waitLimit is far above what anything takes on a machine that is busy with other tests.
const waitLimit = 3 * time.Minute

// WaitFor polls every 10 ms until cond holds, and fails the test, naming what,
// when it does not within three minutes. The limit is there for a broken program, not
// for a slow machine.
func WaitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(waitLimit)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %s for: %s", waitLimit, what)
		}
	}
}

// attachVariable makes the tests of a package share a server that is already there, such as one in a
// container: "major=port=where it comes from". Tests that want a server of their own, to break it, still start
// one of local binaries.
const attachVariable = "CDC_DISPATCHER_TEST_ATTACH"

// attachment reads attachVariable.
func attachment(major int) (port int, origin string, ok bool) {
	version, rest, _ := strings.Cut(os.Getenv(attachVariable), "=")
	number, origin, _ := strings.Cut(rest, "=")
	port, err := strconv.Atoi(number)
	return port, origin, err == nil && version == strconv.Itoa(major)
}

// require ends the test when the machine has no server of this major version.
func require(t testing.TB, major int) {
	t.Helper()
	_, _, found := attachment(major)
	for _, install := range installs() {
		found = found || install.Major == major
	}
	if found {
		report(t, "test", postgresName(major), t.Name())
		return
	}
	missing(t, postgresName(major))
}

// missing ends the test: this machine has no such server.
func missing(t testing.TB, server string) {
	t.Helper()
	const hint = "run scripts/install-servers.sh"
	report(t, "missing", server, t.Name())
	if os.Getenv("CI") != "" {
		t.Fatalf("no %s on this machine, and CI is set: %s", server, hint)
	}
	t.Skipf("no %s on this machine: %s", server, hint)
}

// installs looks once for what the machine has.
var installs = sync.OnceValue(func() []localserver.Install {
	return localserver.FindPostgres(context.Background())
})

func start(major int, settings map[string]string) (*localserver.Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return localserver.StartPostgres(ctx, localserver.PostgresOptions{Major: major, Settings: settings})
}

// servers that tests share, by version, started when first wanted.
type servers[K comparable, S interface{ Close() error }] struct {
	mu sync.Mutex
	by map[K]S
}

// get starts the server unless it runs.
func (s *servers[K, S]) get(key K, start func() (S, error)) (S, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if server, ok := s.by[key]; ok {
		return server, nil
	}
	server, err := start()
	if err == nil {
		s.by[key] = server
	}
	return server, err
}

func (s *servers[K, S]) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for key, server := range s.by {
		errs = append(errs, server.Close())
		delete(s.by, key)
	}
	return errors.Join(errs...)
}

// shared belongs to the test binary: its servers live from the first test that
// wants one to the end of Main.
var shared = servers[int, *localserver.Postgres]{by: map[int]*localserver.Postgres{}}

// sharedSettings make room for many tests at once and trade durability, which a
// shared server never has to show, for speed.
var sharedSettings = map[string]string{
	"fsync":                     "off",
	"full_page_writes":          "off",
	"max_connections":           "200",
	"max_prepared_transactions": "20",
	"max_replication_slots":     "64",
	"max_wal_senders":           "64",
	"shared_buffers":            "64MB",
	"max_wal_size":              "512MB",
}

// shareable is a server that tests may share.
func shareable(major int) (*localserver.Postgres, error) {
	if port, origin, ok := attachment(major); ok {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		return localserver.Attach(ctx, port, origin)
	}
	return start(major, sharedSettings)
}

func sharedServer(t testing.TB, major int) *localserver.Postgres {
	t.Helper()
	require(t, major)
	server, err := shared.get(major, func() (*localserver.Postgres, error) {
		server, err := shareable(major)
		if err == nil {
			t.Logf("PostgreSQL %s: shared server from %s", server.Version(), server.Origin())
			report(t, "server", postgresName(major), server.Version()+", "+server.Origin())
		}
		return server, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// plainName turns a test's name into a short part of a database name.
func plainName(test string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '_'
		}
	}, test)
	return name[:min(len(name), 40)]
}
