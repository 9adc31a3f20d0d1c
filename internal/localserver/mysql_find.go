package localserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MySQLInstall is one place a MySQL or MariaDB server can be run from.
type MySQLInstall struct {
	Family Family
	// Version is the version without suffixes, for example "10.11.19".
	Version string
	// Server is the path of the server program, mysqld or mariadbd. With Root it
	// is the path as seen inside the tree.
	Server string
	// Root is the system tree to change root into; empty for the machine's own.
	Root string
}

// Series is the first two numbers of the version, for example "10.11".
func (i MySQLInstall) Series() string {
	parts := strings.SplitN(i.Version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// String says where the server comes from, in words for a test's output.
func (i MySQLInstall) String() string {
	if i.Root != "" {
		return "local tree " + i.Root + i.Server
	}
	return "local binaries " + i.Server
}

// mysqlGlobs are the folders where packages put server programs.
var mysqlGlobs = [...]string{
	"/usr/sbin",    // Debian, Ubuntu, Fedora's MySQL, openSUSE
	"/usr/libexec", // Fedora, RHEL
	"/usr/bin",     // Alpine, Arch
	"/usr/local/mysql/bin",
	"/opt/homebrew/opt/mariadb*/bin", "/opt/homebrew/opt/mysql*/bin", // Homebrew, Apple silicon
	"/usr/local/opt/mariadb*/bin", "/usr/local/opt/mysql*/bin", // Homebrew, Intel
}

// FindMySQL lists every usable local MySQL and MariaDB, newest version first;
// within a version the machine's own binaries come before cached trees. An
// empty list is not an error.
func FindMySQL(ctx context.Context) []MySQLInstall {
	var found []MySQLInstall
	seen := map[string]bool{}
	add := func(root, path string) {
		if !seen[root+path] {
			seen[root+path] = true
			if in, ok := inspectMySQL(ctx, root, path); ok {
				found = append(found, in)
			}
		}
	}
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range mysqlGlobs {
		more, _ := filepath.Glob(pattern) // the only error is a bad pattern
		dirs = append(dirs, more...)
	}
	for _, dir := range dirs {
		for _, name := range []string{"mariadbd", "mysqld"} {
			// MariaDB's packages have a link of the name mysqld.
			if real, err := filepath.EvalSymlinks(filepath.Join(dir, name)); err == nil {
				add("", real)
			}
		}
	}
	if canChroot() {
		for _, name := range []string{"mariadbd", "mysqld"} {
			inside := "/usr/sbin/" + name
			paths, _ := filepath.Glob(filepath.Join(Cache(), "*", inside))
			for _, path := range paths {
				if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
					add(strings.TrimSuffix(path, inside), inside)
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b MySQLInstall) int { return compareVersions(b.Version, a.Version) })
	return found
}

// findSeries is the first MySQLInstall of FindMySQL that fits.
func findSeries(ctx context.Context, family Family, series string) (MySQLInstall, error) {
	family = cmp.Or(family, MySQLServer)
	for _, in := range FindMySQL(ctx) {
		if in.Family == family && (series == "" || in.Series() == series) {
			return in, nil
		}
	}
	wanted := strings.TrimSpace(string(family) + " " + series)
	return MySQLInstall{}, fmt.Errorf("%w (wanted: %s); %s", ErrNotFound, wanted, howToInstallMySQL(family))
}

// howToInstallMySQL names the one command that helps on this platform.
func howToInstallMySQL(family Family) string {
	name := strings.ToLower(string(family))
	switch runtime.GOOS {
	case "darwin":
		return "install it with: brew install " + name
	case "linux":
		return "run scripts/install-servers.sh as root (Debian), or install it with one of: " +
			"apt-get install " + name + "-server; dnf install " + name + "-server; apk add " + name
	default:
		return "install " + string(family) + " and put the folder of its server program on PATH"
	}
}

// mysqlVersion finds the version in what --version prints: "mariadbd  Ver
// 10.11.19-MariaDB-0+deb12u1 for ..." or "mysqld  Ver 9.7.4 for Linux ...".
var mysqlVersion = regexp.MustCompile(`\bVer (\d+\.\d+\.\d+)(\S*)`)

// inspectMySQL reports what server a program is, if it is a usable one.
func inspectMySQL(ctx context.Context, root, path string) (MySQLInstall, bool) {
	if !isProgram(filepath.Join(root, path)) {
		return MySQLInstall{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--no-defaults", "--version")
	chroot(cmd, root)
	out, err := cmd.Output()
	if err != nil {
		return MySQLInstall{}, false
	}
	m := mysqlVersion.FindSubmatch(out)
	if m == nil {
		return MySQLInstall{}, false
	}
	in := MySQLInstall{Family: MySQLServer, Version: string(m[1]), Server: path, Root: root}
	if strings.Contains(string(m[2]), "MariaDB") {
		in.Family = MariaDBServer
		if _, err := mariadbInstaller(in); err != nil {
			return MySQLInstall{}, false
		}
	}
	return in, true
}

// mariadbInstaller is the script, as seen inside the tree, that fills a new data
// folder of MariaDB.
func mariadbInstaller(in MySQLInstall) (string, error) {
	base := filepath.Dir(filepath.Dir(in.Server))
	for _, dir := range []string{"bin", "scripts", "sbin"} {
		for _, name := range []string{"mariadb-install-db", "mysql_install_db"} {
			path := filepath.Join(base, dir, name)
			if info, err := os.Stat(filepath.Join(in.Root, path)); err == nil && info.Mode().IsRegular() {
				return path, nil
			}
		}
	}
	return "", errors.New("no mariadb-install-db next to " + in.Server)
}

// compareVersions compares two dotted versions by their numbers.
func compareVersions(a, b string) int {
	numbers := func(s string) []int {
		var out []int
		for part := range strings.SplitSeq(s, ".") {
			n, _ := strconv.Atoi(part) // the pattern lets only numbers through
			out = append(out, n)
		}
		return out
	}
	return slices.Compare(numbers(a), numbers(b))
}
