//go:build !unix

package main

import "time"

// clientCPU is not told here.
func clientCPU() time.Duration { return 0 }
