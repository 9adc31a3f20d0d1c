package integration

import "syscall"

// maxrssUnit is the unit of Rusage.Maxrss in bytes.
const maxrssUnit = 1024

// dieWithParent lets no child outlive a test binary that is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
