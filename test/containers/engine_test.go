package containers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
)

// ourImages builds the images of our programs with the Dockerfile's target that
// needs no other image.
func ourImages(t *testing.T) {
	t.Helper()
	for _, one := range []struct{ pkg, image string }{
		{"./cmd/cdc-dispatcher", ourImage}, {"./examples/receiver", receiverImage},
	} {
		// The build's context is the checkout as far as the Dockerfile's target
		// needs it, so that nobody's dist folder is touched.
		dir := t.TempDir()
		for _, name := range []string{"Dockerfile", "README.md"} {
			text, err := os.ReadFile(filepath.Join(root(), name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		command(t, nil, "scripts/rootfs.sh", filepath.Join(dir, "dist", "rootfs"), one.pkg, "test")
		before := imageID(t, one.image)
		docker(t, "build", "--quiet", "--target", "binary", "--tag", one.image, dir)
		if before != "" && before != imageID(t, one.image) {
			// The image of an older program has lost its name. Another run may still use it.
			_ = exec.CommandContext(t.Context(), "docker", "rmi", before).Run()
		}
	}
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

	postgres := start(postgresImage(t), "postgres",
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithEnv(map[string]string{"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "app", "POSTGRES_DB": "shop"}),
		testcontainers.WithCmd("-c", "wal_level=logical"),
		testcontainers.WithWaitStrategy(wait.ForExec([]string{"pg_isready", "-q", "-h", "127.0.0.1", "-U", "app", "-d", "shop"}).
			WithStartupTimeout(2*time.Minute)))
	receiver := start(receiverImage, "receiver",
		testcontainers.WithExposedPorts("8090/tcp"),
		testcontainers.WithEntrypoint("/receiver"),
		testcontainers.WithCmd(),
		testcontainers.WithEnv(map[string]string{"RECEIVER_SECRET": secret}),
		testcontainers.WithWaitStrategy(wait.ForExec([]string{"/receiver", "-health"})))
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
		testcontainers.WithWaitStrategy(wait.ForExit().WithExitTimeout(2*time.Minute)))...)
	dispatcher := start(ourImage, "dispatcher", append(ours,
		// The image's own health check.
		testcontainers.WithWaitStrategy(wait.ForHealthCheck().WithStartupTimeout(2*time.Minute)))...)

	dsn := "postgres://app:app@" + endpoint(t, postgres, "5432/tcp") + "/shop?sslmode=disable"
	report(t, dsn, "testcontainers")
	w := world{
		dsn: dsn, receiver: "http://" + endpoint(t, receiver, "8090/tcp"),
		kill:  func() { docker(t, "kill", "--signal", "KILL", dispatcher.GetContainerID()) },
		start: func() { docker(t, "start", dispatcher.GetContainerID()) },
	}
	w.awaitReceiver(t)
	return w
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

// report records which server the test runs on.
func report(t *testing.T, dsn, by string) {
	t.Helper()
	major, version := versionOf(t, dsn)
	testdb.Report(t, "PostgreSQL "+major, version+", container by "+by+", image "+postgresImage(t))
}

func majorOf(t *testing.T, dsn string) string {
	t.Helper()
	major, _ := versionOf(t, dsn)
	return major
}

func versionOf(t *testing.T, dsn string) (major, version string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(t.Context(), `SELECT split_part(current_setting('server_version'), '.', 1),
		split_part(current_setting('server_version'), ' ', 1)`).Scan(&major, &version); err != nil {
		t.Fatal(err)
	}
	return major, version
}

// composeTool is the compose program of this machine, nil when there is none.
func composeTool() []string {
	for _, tool := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(tool[0], append(tool[1:], "version")...).Run() == nil {
			return tool
		}
	}
	return nil
}

// compose is the world of the compose file.
func compose(t *testing.T, tool []string) world {
	t.Helper()
	ourImages(t)
	postgresPort, receiverPort := freePort(t), freePort(t)
	env := []string{
		"CDC_DISPATCHER_POSTGRES_IMAGE=" + postgresImage(t),
		"CDC_DISPATCHER_IMAGE=" + ourImage,
		"CDC_DISPATCHER_RECEIVER_IMAGE=" + receiverImage,
		"POSTGRES_PORT=" + postgresPort, "RECEIVER_PORT=" + receiverPort, "DISPATCHER_PORT=" + freePort(t),
		"RECEIVER_SECRET=" + secret,
	}
	project := fmt.Sprintf("cdcdispatchertest%d", os.Getpid())
	do := func(args ...string) string {
		t.Helper()
		return command(t, env, tool[0], append(append(tool[1:len(tool):len(tool)], "--project-name", project), args...)...)
	}
	t.Cleanup(func() {
		down := exec.Command(tool[0], append(tool[1:len(tool):len(tool)], "--project-name", project, "down", "--volumes", "--timeout", "0")...)
		down.Dir, down.Env = root(), append(os.Environ(), env...)
		if t.Failed() {
			logs := exec.Command(tool[0], append(tool[1:len(tool):len(tool)], "--project-name", project, "logs", "--no-color", "--tail", "40")...)
			logs.Dir, logs.Env = root(), down.Env
			out, _ := logs.CombinedOutput()
			t.Logf("%s", out)
		}
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("compose down: %v\n%s", err, out)
		}
	})
	do("up", "--detach", "--no-build")
	testdb.WaitFor(t, "the image's health check of the dispatcher", func() bool {
		id := do("ps", "--quiet", "dispatcher")
		return id != "" && docker(t, "inspect", "--format", "{{.State.Health.Status}}", id) == "healthy"
	})
	dsn := "postgres://app:app@127.0.0.1:" + postgresPort + "/shop?sslmode=disable"
	report(t, dsn, strings.Join(tool, " "))
	w := world{
		dsn: dsn, receiver: "http://127.0.0.1:" + receiverPort,
		kill:  func() { do("kill", "-s", "SIGKILL", "dispatcher") },
		start: func() { do("start", "dispatcher") },
	}
	w.awaitReceiver(t)
	return w
}
