package containers

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"
)

// onContainer are the tests of test/integration that run a second time, on a server in a
// container: those that share a server, one of each kind of fault.
var onContainer = []string{
	"TestGuarantee_NoLossUnderKill9OfDispatcher",
	"TestGuarantee_PoisonEvent",
	"TestGuarantee_SlotDroppedUnderLoad",
	"TestB9_EventsOfADowntimeComeThroughTheLog",
}

// The guarantee tests on a server that testcontainers started. Where no engine answers,
// they have run on local binaries only, and the output says so.
func TestGuaranteesOnAServerInAContainer(t *testing.T) {
	if !engineAnswers() {
		testdb.Note(t, "no container engine answers: test/integration ran on local server binaries only")
		return
	}
	t.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // see containers
	image := postgresImage(t)
	server, err := testcontainers.Run(t.Context(), image,
		testcontainers.WithLogger(tclog.TestLogger(t)),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust"}),
		testcontainers.WithCmd("-c", "wal_level=logical", "-c", "max_connections=200", "-c", "fsync=off"),
		ready(wait.ForExec([]string{"pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres"}).WithStartupTimeout(startTimeout)))
	testcontainers.CleanupContainer(t, server, testcontainers.StopTimeout(0))
	t.Cleanup(func() { logOf(t, "postgres", server) })
	if err != nil {
		t.Fatalf("start %s: %v", image, err)
	}
	address := endpoint(t, server, "5432/tcp")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	name, _, err := openPostgres(t, "postgres://postgres@"+address+"/postgres?sslmode=disable").version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	major := strings.TrimPrefix(name, "PostgreSQL ")
	// With the race detector, because everything is compiled for it already.
	test := exec.CommandContext(t.Context(), "go", "test", "-race", "-count=1", "-v", "-vet=off", "-timeout=15m",
		"-run=^("+strings.Join(onContainer, "|")+")$/^pg"+major+"$", "./test/integration")
	test.Dir = root()
	// Not at the size of a soak: that is what the local binaries are for.
	test.Env = append(os.Environ(), "SOAK=", "CDC_DISPATCHER_TEST_ATTACH="+major+"="+port+"=container by testcontainers, image "+image)
	out, err := test.CombinedOutput()
	if err != nil {
		t.Fatalf("the guarantee tests on a container: %v\n%s", err, out)
	}
	for _, name := range onContainer {
		if !strings.Contains(string(out), "--- PASS: "+name+"/pg"+major) {
			t.Errorf("%s did not run on the container:\n%s", name, out)
		}
	}
}
