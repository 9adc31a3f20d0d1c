// Package fuzzcorpus keeps the seeds of fuzz targets from going away unnoticed: a target
// without seeds explores nothing, and its run in `go test` shows nothing.
//
// Promise: a package that calls [Check] in a test has, for each of its fuzz targets, a folder of
// seeds in testdata/fuzz that is not empty, that go test can read, and no folder of a target
// that is gone. The package's own test sees to it that every package with a target calls it.
package fuzzcorpus
