// Package docs runs the pages of docs/ that promise to be tests: every fenced
// block is executed as printed, against a real server, with the real program.
//
// Promise: a page whose commands stop working fails this package. Each test
// owns the database it uses, the program it builds once, and every process it starts.
package docs
