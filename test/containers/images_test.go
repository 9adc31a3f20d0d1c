package containers

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
)

const (
	programDir      = "/usr/local/bin" // of the entry points, in the images
	postgresProgram = programDir + "/postgres-entrypoint"
	mysqlProgram    = programDir + "/mysql-entrypoint"
	ourImage        = "cdc-dispatcher-test/dispatcher:local"
	receiverImage   = "cdc-dispatcher-test/receiver:local"
)

// engineAnswers reports, once, whether docker has an engine to talk to.
var engineAnswers = sync.OnceValue(func() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").Run() == nil
})

// root is the folder of the checkout.
var root = sync.OnceValue(func() string {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return ".."
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
})

// docker runs the docker program in the checkout and fails the test when it
// fails.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	return command(t, nil, "docker", args...)
}

func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := execute(t.Context(), env, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// execute runs a program in the checkout and returns what it printed.
func execute(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root()
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// imageID is empty when there is no such image.
func imageID(ctx context.Context, name string) string {
	out, _ := exec.CommandContext(ctx, "docker", "image", "inspect", "--format", "{{.Id}}", name).Output()
	return strings.TrimSpace(string(out))
}

// postgresImage is an image with a PostgreSQL server: the one the environment
// names, else one made from a system tree of this machine and kept under a name
// that changes with its content, else the official one.
func postgresImage(t *testing.T) string {
	t.Helper()
	if name := os.Getenv(localserver.ImageVariable); name != "" {
		return name
	}
	tree, ok := postgresTree(t)
	if !ok {
		return "postgres:18"
	}
	script, err := os.ReadFile("testdata/postgres-entrypoint.sh")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(script)
	name := fmt.Sprintf("cdc-dispatcher-test/postgres:%s-%x", tree.Version, sum[:6])
	if imageID(t.Context(), name) == "" {
		extra := t.TempDir()
		writeProgram(t, filepath.Join(extra, postgresProgram), script)
		importTree(t, tree.Root, extra, name,
			"ENV PATH="+tree.BinDir+":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
			"ENV PGDATA=/var/lib/postgresql/data",
			"ENTRYPOINT ["+`"`+postgresProgram+`"`+"]",
			"EXPOSE 5432")
	}
	return name
}

func postgresTree(t *testing.T) (localserver.Install, bool) {
	t.Helper()
	for _, install := range localserver.FindPostgres(t.Context()) {
		if install.Root != "" {
			return install, true
		}
	}
	return localserver.Install{}, false
}

// mysqlImage is the same for MySQL and MariaDB.
func mysqlImage(t *testing.T, family localserver.Family) string {
	t.Helper()
	lower := strings.ToLower(string(family))
	if name := os.Getenv("CDC_DISPATCHER_" + strings.ToUpper(lower) + "_IMAGE"); name != "" {
		return name
	}
	found := localserver.FindMySQL(t.Context())
	at := slices.IndexFunc(found, func(in localserver.MySQLInstall) bool { return in.Family == family && in.Root != "" })
	if at < 0 {
		return map[localserver.Family]string{localserver.MySQLServer: "mysql:9", localserver.MariaDBServer: "mariadb:11.8"}[family]
	}
	tree := found[at]
	extra := t.TempDir()
	entry := filepath.Join(extra, mysqlProgram)
	command(t, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", entry, "./test/containers/mysqlimage")
	program, err := os.ReadFile(entry)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	name := fmt.Sprintf("cdc-dispatcher-test/%s:%s-%x", lower, tree.Version, sum[:6])
	if imageID(t.Context(), name) == "" {
		for _, alias := range []string{"mysqladmin", "mariadb-admin"} {
			if err := os.Symlink(mysqlProgram, filepath.Join(filepath.Dir(entry), alias)); err != nil {
				t.Fatal(err)
			}
		}
		importTree(t, tree.Root, extra, name,
			"ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
			"ENTRYPOINT ["+`"`+mysqlProgram+`"`+"]",
			"EXPOSE 3306")
	}
	return name
}

func writeProgram(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

// importTree turns a system tree, and what the folder extra has in usr/local/bin, into an
// image with these instructions of a Dockerfile.
func importTree(t *testing.T, tree, extra, name string, instructions ...string) {
	t.Helper()
	// Two starting folders in one archive; the second names only the files, or
	// their folders would be in the archive twice.
	archive := []string{"--create", "--numeric-owner", "--directory", tree,
		"--exclude=./var/lib/cdc-dispatcher/*", "--exclude=./proc/*", "--exclude=./sys/*", ".", "--directory", extra}
	programs, err := os.ReadDir(filepath.Join(extra, programDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range programs {
		archive = append(archive, "."+programDir+"/"+program.Name())
	}
	tar := exec.CommandContext(t.Context(), "tar", archive...)
	args := []string{"import"}
	for _, instruction := range instructions {
		args = append(args, "--change", instruction)
	}
	load := exec.CommandContext(t.Context(), "docker", append(args, "-", name)...)
	pipe, err := tar.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var tarErr, loadErr bytes.Buffer
	tar.Stderr, load.Stderr, load.Stdin = &tarErr, &loadErr, pipe
	if err := tar.Start(); err != nil {
		t.Fatal(err)
	}
	errLoad := load.Run()
	_ = pipe.Close() // a load that ended early must not leave tar writing to nobody
	errTar := tar.Wait()
	if err := cmp.Or(errLoad, errTar); err != nil {
		t.Fatalf("make image %s: %v\n%s%s", name, err, tarErr.Bytes(), loadErr.Bytes())
	}
}
