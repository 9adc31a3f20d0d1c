package containers

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// secret signs the webhooks of all worlds.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// world is the product between an application's database and a webhook
// receiver, in whatever way they run.
type world struct {
	db       database
	receiver string // its URL, as the test reaches it
	kill     func() // ends the dispatcher with SIGKILL
	start    func() // starts it again
}

// processes is the world without containers: the same programs, the same
// configuration file, beside a server from local binaries.
func processes(t *testing.T, major int) world {
	t.Helper()
	server := testdb.Dedicated(t, major, nil)
	dispatcher, receiver := build(t, "./cmd/cdc-dispatcher"), build(t, "./examples/receiver")
	listen := freeAddress(t)
	env := append(os.Environ(),
		"RECEIVER_SECRET="+secret,
		"RECEIVER_LISTEN="+listen,
		"RECEIVER_URL=http://"+listen+"/billing",
		"DISPATCHER_LISTEN=127.0.0.1:0",
		"DATABASE_URL="+server.DSN("postgres"),
		"CDC_DISPATCHER_CONFIG="+filepath.Join(root(), "compose", "cdc-dispatcher.yaml"))
	run(t, env, receiver)
	command(t, env, dispatcher, "migrate", "up")
	w := world{db: openPostgres(t, server.DSN("postgres")), receiver: "http://" + listen}
	w.start = func() { w.kill = run(t, env, dispatcher, "run") }
	w.start()
	w.awaitReceiver(t)
	return w
}

// build compiles one of our programs, just as it is compiled for the image.
func build(t *testing.T, pkg string) string {
	t.Helper()
	dir := t.TempDir()
	command(t, nil, "scripts/rootfs.sh", dir, pkg, "test")
	return filepath.Join(dir, filepath.Base(pkg))
}

// run starts a program until the test ends. The returned function kills it.
func run(t *testing.T, env []string, name string, args ...string) (kill func()) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	kill = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	}
	t.Cleanup(func() {
		kill()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", filepath.Base(name), text)
		}
	})
	return kill
}

// awaitReceiver waits until the receiver answers.
func (w world) awaitReceiver(t *testing.T) {
	t.Helper()
	testdb.WaitFor(t, "the receiver at "+w.receiver, func() bool {
		_, err := get(t.Context(), w.receiver+"/healthz")
		return err == nil
	})
}

// get returns the body of a page.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end or of no use
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// freeAddress is an address on this machine that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := localserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return port
}
