package containers

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
)

// ourImages builds the images of our programs, once, with the Dockerfile's target that needs
// no other image.
func ourImages(t *testing.T) {
	t.Helper()
	if err := buildOurImages(); err != nil {
		t.Fatal(err)
	}
}

var buildOurImages = sync.OnceValue(func() error {
	return errors.Join(buildImage("./cmd/cdc-dispatcher", ourImage), buildImage("./examples/receiver", receiverImage))
})

func buildImage(pkg, image string) (err error) {
	// The build's context is the checkout as far as the Dockerfile's target
	// needs it, so that nobody's dist folder is touched.
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, name := range []string{"Dockerfile", "README.md"} {
		text, err := os.ReadFile(filepath.Join(root(), name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	ctx := context.Background()
	if _, err := execute(ctx, nil, "scripts/rootfs.sh", filepath.Join(dir, "dist", "rootfs"), pkg, "test"); err != nil {
		return err
	}
	before := imageID(ctx, image)
	if _, err := execute(ctx, nil, "docker", "build", "--quiet", "--target", "binary", "--tag", image, dir); err != nil {
		return err
	}
	if before != "" && before != imageID(ctx, image) {
		// The image of an older program has lost its name. Another run may still use it.
		_ = exec.CommandContext(ctx, "docker", "rmi", before).Run()
	}
	return nil
}

// containers is the world in containers that testcontainers starts, on a
// network of their own.
func containers(t *testing.T) world {
	t.Helper()
	// The helper that would remove what a killed test leaves is an image that may
	// not be had here; cleanup below does it for all other endings.
	t.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	ourImages(t)
	ctx := t.Context()
	bridge, err := network.New(ctx)
	testcontainers.CleanupNetwork(t, bridge)
	if err != nil {
		t.Fatal(err)
	}
	start := func(image, name string, opts ...testcontainers.ContainerCustomizer) *testcontainers.DockerContainer {
		t.Helper()
		opts = append([]testcontainers.ContainerCustomizer{
			network.WithNetwork([]string{name}, bridge), testcontainers.WithLogger(tclog.TestLogger(t)),
		}, opts...)
		ctr, err := testcontainers.Run(ctx, image, opts...)
		testcontainers.CleanupContainer(t, ctr, testcontainers.StopTimeout(0))
		t.Cleanup(func() { logOf(t, name, ctr) })
		if err != nil {
			t.Fatalf("start %s from %s: %v", name, image, err)
		}
		return ctr
	}

	image := postgresImage(t)
	postgres := start(image, "postgres",
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithEnv(map[string]string{"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "app", "POSTGRES_DB": "shop"}),
		testcontainers.WithCmd("-c", "wal_level=logical"),
		ready(wait.ForExec([]string{"pg_isready", "-q", "-h", "127.0.0.1", "-U", "app", "-d", "shop"}).WithStartupTimeout(startTimeout)))
	receiver := start(receiverImage, "receiver",
		testcontainers.WithExposedPorts("8090/tcp"),
		testcontainers.WithEntrypoint("/receiver"),
		testcontainers.WithCmd(),
		testcontainers.WithEnv(map[string]string{"RECEIVER_SECRET": secret}),
		ready(wait.ForExec([]string{"/receiver", "-health"}).WithStartupTimeout(startTimeout)))
	ours := []testcontainers.ContainerCustomizer{
		testcontainers.WithEnv(map[string]string{
			"DATABASE_URL":    "postgres://app:app@postgres:5432/shop?sslmode=disable",
			"RECEIVER_SECRET": secret,
		}),
		testcontainers.WithFiles(testcontainers.ContainerFile{
			HostFilePath:      filepath.Join(root(), "compose", "cdc-dispatcher.yaml"),
			ContainerFilePath: "/etc/cdc-dispatcher/cdc-dispatcher.yaml", FileMode: 0o644,
		}),
	}
	start(ourImage, "migrate", append(ours, testcontainers.WithCmd("migrate", "up"),
		ready(wait.ForExit().WithExitTimeout(startTimeout)))...)
	dispatcher := start(ourImage, "dispatcher", append(ours,
		// The image's own health check.
		ready(wait.ForHealthCheck().WithStartupTimeout(startTimeout)))...)

	w := world{
		db:       openPostgres(t, "postgres://app:app@"+endpoint(t, postgres, "5432/tcp")+"/shop?sslmode=disable"),
		receiver: "http://" + endpoint(t, receiver, "8090/tcp"),
		kill:     func() { docker(t, "kill", "--signal", "KILL", dispatcher.GetContainerID()) },
		start:    func() { docker(t, "start", dispatcher.GetContainerID()) },
	}
	report(t, w.db, "testcontainers", image)
	w.awaitReceiver(t)
	return w
}

// startTimeout is for a container on a busy machine.
const startTimeout = 5 * time.Minute

// ready waits for a container. WithWaitStrategy would end every wait after a minute.
func ready(strategy wait.Strategy) testcontainers.CustomizeRequestOption {
	return testcontainers.WithWaitStrategyAndDeadline(startTimeout, strategy)
}

// endpoint is where a published port can be reached. An engine on this machine
// publishes here, whatever is concluded from looking like a container oneself.
func endpoint(t *testing.T, ctr *testcontainers.DockerContainer, port string) string {
	t.Helper()
	mapped, err := ctr.MappedPort(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	host, err := ctr.Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address := ""
	testdb.WaitFor(t, "published port "+port, func() bool {
		for _, host := range []string{"127.0.0.1", host} {
			address = net.JoinHostPort(host, mapped.Port())
			if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
				_ = conn.Close()
				return true
			}
		}
		return false
	})
	return address
}

// logOf shows what a container printed, when the test failed.
func logOf(t *testing.T, name string, ctr *testcontainers.DockerContainer) {
	if !t.Failed() || ctr == nil {
		return
	}
	out, _ := exec.Command("docker", "logs", "--tail", "40", ctr.GetContainerID()).CombinedOutput()
	t.Logf("%s:\n%s", name, out)
}
