package localserver

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent lets the kernel end the process with a signal when the thread
// that started it ends.
func dieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// childrenByParent reads the process table.
func childrenByParent() map[int][]int {
	children := map[int][]int{}
	for _, pid := range processes() {
		if _, parent, ok := stat(pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	return children
}

func isZombie(pid int) bool {
	state, _, ok := stat(pid)
	return ok && (state == 'Z' || state == 'X')
}

func processes() []int {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stat is the state letter and the parent of a process. The name before them
// may hold any character, so fields are counted from its closing parenthesis.
func stat(pid int) (state byte, parent int, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, false
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent, err == nil
}

// killIn ends every process that works in a folder: the processes of all servers
// work in their data folder, so this finds those that lost their postmaster.
func killIn(dir string) {
	var found []int
	for _, pid := range processes() {
		cwd, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
		if err == nil && cwd == dir {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
			found = append(found, pid)
		}
	}
	_ = waitGone(found, closeTimeout) // best effort, as all of sweep
}

// removeSharedMemory removes the System V segment that a crashed postmaster
// left behind. Its identifier is the second number in line 7 of the pid file; a
// clean shutdown removes the file and the segment.
func removeSharedMemory(pidFile string) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	if f := strings.Fields(lines[6]); len(f) == 2 {
		if id, err := strconv.Atoi(f[1]); err == nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // gone already, or not ours
		}
	}
}
