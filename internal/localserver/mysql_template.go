//go:build unix

package localserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A server's first filling of its data folder takes seconds, and is the same each
// time: it is done once per version and kept as a template under Cache.

// fill fills the data folder: from the template if there can be one, else with
// the server's program.
func (p *mysqlProcess) fill(ctx context.Context) error {
	template := filepath.Join(Cache(), "templates", strings.ToLower(string(p.install.Family))+"-"+p.install.Version)
	if len(p.fixedSettings()) > 0 || os.MkdirAll(filepath.Dir(template), 0o755) != nil {
		return p.fillFresh(ctx)
	}
	if done, err := p.fillFrom(template); done || err != nil {
		return err
	}
	unlock, err := lockTemplate(ctx, template+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if done, err := p.fillFrom(template); done || err != nil { // made by who had the lock
		return err
	}
	if err := p.fillFresh(ctx); err != nil {
		return err
	}
	return p.keepAs(template)
}

func (p *mysqlProcess) fillFresh(ctx context.Context) error {
	if err := p.ownDir("data"); err != nil {
		return err
	}
	return p.initialise(ctx)
}

// fillFrom copies the template; false means that there is none.
func (p *mysqlProcess) fillFrom(template string) (bool, error) {
	if _, err := os.Stat(template); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return true, copyTree(p.folder.outside("data"), template, p.account)
}

// keepAs makes the filled data folder the template. It gets its name last, so
// that a template is always whole.
func (p *mysqlProcess) keepAs(template string) (err error) {
	building := template + ".new"
	if err := os.RemoveAll(building); err != nil {
		return err
	}
	if err := copyTree(building, p.folder.outside("data"), account{}); err != nil {
		return errors.Join(err, os.RemoveAll(building))
	}
	return os.Rename(building, template)
}

// copyTree copies files and folders, readable for their owner only. The file with
// the server's identity stays behind: each server makes its own.
func copyTree(to, from string, owner account) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case entry.IsDir():
			if err := os.Mkdir(target, 0o700); err != nil {
				return err
			}
		case !entry.Type().IsRegular(), rel == "auto.cnf":
			return nil
		default:
			if err := copyFile(target, path); err != nil {
				return err
			}
		}
		return owner.own(target)
	})
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // read only
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// lockTemplate waits until no other process makes the template. The kernel
// releases the lock of a process that dies.
func lockTemplate(ctx context.Context, path string) (unlock func(), err error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { _ = lock.Close() }, nil // closing releases it
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
			continue
		case <-ctx.Done():
			err = fmt.Errorf("another process is making %s: %w", strings.TrimSuffix(path, ".lock"), context.Cause(ctx))
		}
		break
	}
	return nil, errors.Join(err, lock.Close())
}
