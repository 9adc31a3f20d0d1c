//go:build unix && !linux

package localserver

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing: this kernel cannot. The next start sweeps.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// childrenByParent asks ps, which every such system has.
func childrenByParent() map[int][]int {
	children := map[int][]int{}
	for _, f := range ps("pid=,ppid=") {
		pid, errPid := strconv.Atoi(f[0])
		parent, errParent := strconv.Atoi(f[1])
		if errPid == nil && errParent == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return children
}

func isZombie(pid int) bool {
	for _, f := range ps("pid=,state=") {
		if f[0] == strconv.Itoa(pid) {
			return strings.HasPrefix(f[1], "Z")
		}
	}
	return false
}

func ps(columns string) [][]string {
	out, err := exec.Command("ps", "-axo", columns).Output()
	if err != nil {
		return nil
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 {
			rows = append(rows, f)
		}
	}
	return rows
}

// killIn leaves it to the postmaster: one that finds its folder gone, which it
// looks at every minute, ends itself and its children.
func killIn(string) {}

// removeSharedMemory does nothing: what a crashed server leaves is a few bytes.
func removeSharedMemory(string) {}
