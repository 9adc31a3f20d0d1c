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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
)

const (
	postgresProgram = "/usr/local/bin/postgres-entrypoint"
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
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root()
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
	}
	return strings.TrimSpace(stdout.String())
}

// imageID is empty when there is no such image.
func imageID(t *testing.T, name string) string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "docker", "image", "inspect", "--format", "{{.Id}}", name).Output()
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
	if imageID(t, name) == "" {
		importTree(t, tree, script, name)
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

// importTree turns a system tree and the entry point into an image.
func importTree(t *testing.T, tree localserver.Install, script []byte, name string) {
	t.Helper()
	extra := t.TempDir()
	entry := filepath.Join(extra, postgresProgram)
	if err := os.MkdirAll(filepath.Dir(entry), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(entry, script, 0o755); err != nil {
		t.Fatal(err)
	}
	// Two starting folders in one archive; the second names only the file, or
	// its folders would be in the archive twice.
	tar := exec.CommandContext(t.Context(), "tar", "--create", "--numeric-owner",
		"--directory", tree.Root, "--exclude=./var/lib/cdc-dispatcher/*", "--exclude=./proc/*", "--exclude=./sys/*", ".",
		"--directory", extra, "."+postgresProgram)
	load := exec.CommandContext(t.Context(), "docker", "import",
		"--change", "ENV PATH="+tree.BinDir+":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		"--change", "ENV PGDATA=/var/lib/postgresql/data",
		"--change", "ENTRYPOINT ["+`"`+postgresProgram+`"`+"]",
		"--change", "EXPOSE 5432",
		"-", name)
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
