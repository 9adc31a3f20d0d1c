//go:build !linux

package integration

import "syscall"

// maxrssUnit is the unit of Rusage.Maxrss in bytes on macOS. On the BSDs it is 1024, so
// the bound is loose there.
const maxrssUnit = 1

func dieWithParent() *syscall.SysProcAttr { return nil }
