//go:build unix

package main

import (
	"syscall"
	"time"
)

// clientCPU is what this process has used so far.
func clientCPU() time.Duration {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return 0
	}
	return time.Duration(self.Utime.Nano() + self.Stime.Nano())
}
