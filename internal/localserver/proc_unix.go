//go:build unix

package localserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// canChroot reports whether this process may run servers from a system tree.
func canChroot() bool { return os.Geteuid() == 0 }

// chroot makes a command run inside a tree; root empty means it does not.
func chroot(cmd *exec.Cmd, root string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if root != "" && cmd.Dir == "" {
		cmd.Dir = "/"
	}
}

// family is a process and all its descendants, parents first.
func family(pid int) []int {
	children := childrenByParent()
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// stopAll sends SIGSTOP to a process and its descendants until no new one
// appears, and returns them.
func stopAll(pid int) []int {
	stopped := map[int]bool{}
	for {
		all := family(pid)
		fresh := false
		for _, member := range all {
			if !stopped[member] {
				stopped[member], fresh = true, true
				_ = syscall.Kill(member, syscall.SIGSTOP) // it may have ended meanwhile
			}
		}
		if !fresh {
			return all
		}
	}
}

// waitGone returns when none of the processes exists any more. They are not our
// own children (the postmaster is, and has been waited for), so there is
// nothing to wait on but the process table.
func waitGone(pids []int, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for _, pid := range pids {
		for alive(pid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d does not go away", pid)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}

// alive reports whether a process exists and is more than an entry that waits
// for its parent.
func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) && !isZombie(pid)
}
