//go:build unix

package localserver

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

const folderLock = "owner.lock"

// claim marks a folder as owned for as long as this process lives or until the
// file is closed. The lock file gets its name only once it is locked: nobody
// ever sees it free.
func claim(dir string) (*os.File, error) {
	path := filepath.Join(dir, folderLock)
	lock, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// claimAbandoned takes over a folder whose owner died; nil means that the owner
// lives, or that the folder is not one, or not ours.
func claimAbandoned(dir string) *os.File {
	lock, err := os.OpenFile(filepath.Join(dir, folderLock), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		_ = lock.Close()
		return nil
	}
	return lock
}
