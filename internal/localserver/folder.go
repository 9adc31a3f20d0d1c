//go:build unix

package localserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is who the server's processes run as.
type account struct {
	credential *syscall.Credential // nil: the user we are
}

// serverAccount is the current user, or for root, as which servers refuse to run
// or should not, the server's own user or nobody.
func serverAccount(root, own string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	if root != "" {
		return accountInTree(root, own)
	}
	for _, name := range []string{own, "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		return newAccount(u.Uid, u.Gid)
	}
	return account{}, errors.New("running as root, and there is neither the user " + own + " nor nobody to run the server as")
}

// accountInTree reads the tree's own user table: its numbers differ from ours.
func accountInTree(root, own string) (account, error) {
	text, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil {
		return account{}, err
	}
	for _, name := range []string{own, "nobody"} {
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(line, ":"); len(f) >= 4 && f[0] == name {
				return newAccount(f[2], f[3])
			}
		}
	}
	return account{}, fmt.Errorf("neither %s nor nobody in %s", own, filepath.Join(root, "etc/passwd"))
}

func newAccount(uid, gid string) (account, error) {
	u, errU := strconv.ParseUint(uid, 10, 32)
	g, errG := strconv.ParseUint(gid, 10, 32)
	if err := errors.Join(errU, errG); err != nil {
		return account{}, err
	}
	return account{&syscall.Credential{Uid: uint32(u), Gid: uint32(g)}}, nil
}

// own gives a file to the account.
func (a account) own(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// folder is everything one server has on disk.
type folder struct {
	root string   // the tree; empty for none
	path string   // as seen inside the tree
	lock *os.File // held while the owner lives
}

// terminate asks a program to end and clean up.
const terminate = syscall.SIGTERM

const (
	postgresPrefix = "cdc-dispatcher-pg-"
	mysqlPrefix    = "cdc-dispatcher-my-"
	folderInTree   = "/var/lib/cdc-dispatcher"
	socketPathMax  = 100 // of the 104 or 108 bytes that kernels give a socket's path
)

// newFolder makes a folder for the account under parent, or under a fixed place
// of the tree, after removing what dead processes left there.
func newFolder(prefix, root, parent string, acct account) (_ folder, err error) {
	switch {
	case root != "":
		parent = filepath.Join(root, folderInTree)
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return folder{}, err
		}
	case parent == "":
		parent = os.TempDir()
		if acct.credential != nil && blockedAt(parent) != "" {
			parent = "/tmp" // a private TMPDIR of root is of no use to another user
		}
	}
	if parent, err = filepath.Abs(parent); err != nil {
		return folder{}, err
	}
	if acct.credential != nil {
		if at := blockedAt(parent); at != "" {
			return folder{}, fmt.Errorf("the server runs as another user, which cannot enter %s", at)
		}
	}
	sweep(parent, prefix)
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return folder{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	lock, err := claim(dir)
	if err != nil {
		return folder{}, err
	}
	f := folder{root: root, path: dir[len(root):], lock: lock}
	if err := acct.own(dir); err != nil {
		return folder{}, errors.Join(err, lock.Close())
	}
	return f, nil
}

// inside is a path as the server sees it.
func (f folder) inside(elem ...string) string {
	return filepath.Join(append([]string{f.path}, elem...)...)
}

// outside is a path as this process sees it.
func (f folder) outside(elem ...string) string { return filepath.Join(f.root, f.inside(elem...)) }

// socketDir is where the server puts its unix socket; empty means none, because
// the path would be too long for the kernel.
func (f folder) socketDir() string {
	if len(f.inside("data"))+len("/.s.PGSQL.65535.lock") > socketPathMax {
		return ""
	}
	return f.inside("data")
}

func (f folder) remove() error {
	// Files before the lock: an unlocked folder is one that anybody may sweep.
	return errors.Join(os.RemoveAll(f.outside()), f.lock.Close())
}

// blockedAt is the first folder on the way to dir that other users cannot
// enter; empty when there is none.
func blockedAt(dir string) string {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err != nil || info.Mode().Perm()&0o001 == 0 {
			return at
		}
		if at == filepath.Dir(at) {
			return ""
		}
	}
}

// sweep removes server folders whose owner died without Close. It is best
// effort: what cannot be removed now is tried again by the next server.
func sweep(parent, prefix string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, prefix+"*")) // the only error is a bad pattern
	for _, dir := range dirs {
		lock := claimAbandoned(dir)
		if lock == nil {
			continue
		}
		killIn(filepath.Join(dir, "data"))
		removeSharedMemory(filepath.Join(dir, "data", "postmaster.pid"))
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
}
