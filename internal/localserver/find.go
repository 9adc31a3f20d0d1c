package localserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"
)

// ErrNotFound means that no usable server binaries of the wanted kind and
// version are on this machine.
var ErrNotFound = errors.New("no such database server found")

// Install is one place a PostgreSQL server can be run from. Exactly one of
// BinDir and Image is set.
type Install struct {
	// Major is the major version, for example 18.
	Major int
	// Version is the full version as the server prints it, for example "18.6".
	// Empty for a container image that has not been started yet.
	Version string
	// BinDir holds initdb, postgres and pg_ctl. With Root it is the path as
	// seen inside the tree.
	BinDir string
	// Root is the system tree to change root into; empty for the machine's own.
	Root string
	// Image is the container image to run instead of binaries.
	Image string
}

// String says where the server comes from, in words for a test's output.
func (i Install) String() string {
	switch {
	case i.Image != "":
		return "container image " + i.Image
	case i.Root != "":
		return "local tree " + i.Root + i.BinDir
	default:
		return "local binaries " + i.BinDir
	}
}

// serverPrograms must all be real programs in a folder that counts. Some
// images put wrapper scripts with these names on PATH.
var serverPrograms = [...]string{"initdb", "postgres", "pg_ctl"}

// binGlobs are the folders where packages put server programs.
var binGlobs = [...]string{
	"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                   // Fedora, RHEL (PGDG)
	"/usr/lib/postgresql*/bin",           // openSUSE
	"/usr/libexec/postgresql*",           // Alpine
	"/opt/homebrew/opt/postgresql@*/bin", // Homebrew, Apple silicon
	"/usr/local/opt/postgresql@*/bin",    // Homebrew, Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Cache is the folder for system trees with servers that this machine's own
// packages do not offer: $CDC_DISPATCHER_SERVERS, else /var/cache/cdc-dispatcher
// for root, else cdc-dispatcher in the user's cache folder.
// scripts/install-servers.sh fills it and follows the same rule.
func Cache() string {
	if dir := os.Getenv("CDC_DISPATCHER_SERVERS"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/cache/cdc-dispatcher"
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "cdc-dispatcher")
}

// FindPostgres lists every usable local PostgreSQL, newest major first; within
// a major the machine's own binaries come before cached trees. An empty list
// is not an error.
func FindPostgres(ctx context.Context) []Install {
	var found []Install
	seen := map[string]bool{}
	add := func(root, dir string) {
		if key := root + dir; seen[key] {
			return
		} else {
			seen[key] = true
		}
		if in, ok := inspect(ctx, root, dir); ok {
			found = append(found, in)
		}
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		// A folder on PATH often holds links; the folder they lead to also has
		// the helper programs that initdb needs next to it.
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, "initdb")); err == nil {
			add("", filepath.Dir(real))
		}
	}
	for _, pattern := range binGlobs {
		dirs, _ := filepath.Glob(pattern) // the only error is a bad pattern
		for _, dir := range dirs {
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				add("", real)
			}
		}
	}
	if canChroot() {
		trees, _ := filepath.Glob(filepath.Join(Cache(), "*", "usr/lib/postgresql/*/bin"))
		for _, dir := range trees {
			inside := filepath.Join("/usr/lib/postgresql", filepath.Base(filepath.Dir(dir)), "bin")
			add(dir[:len(dir)-len(inside)], inside)
		}
	}
	slices.SortStableFunc(found, func(a, b Install) int { return cmp.Compare(b.Major, a.Major) })
	return found
}

// findMajor is the first Install of FindPostgres that has the wanted major
// version; 0 wants the newest.
func findMajor(ctx context.Context, major int) (Install, error) {
	for _, in := range FindPostgres(ctx) {
		if major == 0 || in.Major == major {
			return in, nil
		}
	}
	wanted := "PostgreSQL"
	if major != 0 {
		wanted += " " + strconv.Itoa(major)
	}
	return Install{}, fmt.Errorf("%w (wanted: %s); %s", ErrNotFound, wanted, howToInstall(major))
}

// howToInstall names the one command that helps on this platform.
func howToInstall(major int) string {
	version := strconv.Itoa(cmp.Or(major, 18))
	switch runtime.GOOS {
	case "darwin":
		return "install it with: brew install postgresql@" + version
	case "linux":
		return "run scripts/install-servers.sh as root (Debian, Ubuntu), or install it with one of: " +
			"apt-get install postgresql; dnf install postgresql-server; apk add postgresql" + version
	default:
		return "install PostgreSQL " + version + " and put its bin folder on PATH"
	}
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

// inspect reports what server is in a folder, if it is a usable one.
func inspect(ctx context.Context, root, dir string) (Install, bool) {
	for _, name := range serverPrograms {
		if !isProgram(filepath.Join(root, dir, name)) {
			return Install{}, false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version")
	chroot(cmd, root)
	out, err := cmd.Output()
	if err != nil {
		return Install{}, false
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return Install{}, false
	}
	major, err := strconv.Atoi(string(m[2]))
	if err != nil {
		return Install{}, false
	}
	return Install{Major: major, Version: string(m[1]), BinDir: dir, Root: root}, true
}

// isProgram reports whether path is an executable file and not a script.
func isProgram(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // read only
	head := make([]byte, 2)
	_, err = io.ReadFull(f, head)
	return err == nil && !bytes.Equal(head, []byte("#!"))
}
