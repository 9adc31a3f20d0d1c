// Package event holds the nouns that every other package shares: an [Event],
// the [Envelope] that a handler receives, the [Handler] itself and the classes
// of outcome that a handler can ask for.
//
// Promise: a value of this package is plain data. Nothing here opens a
// connection, starts a goroutine or reads a clock, and the package imports the
// standard library only.
//
// What a handler returns decides what happens to its delivery:
//
//	nil                          SUCCEEDED
//	any other error              FAILED, tried again after the retry policy's delay
//	RetryAfter(err, d)           FAILED, tried again no earlier than d
//	Permanent(err)               DEAD
//	Undecodable(err)             BLOCKED, no attempt is used up
//	Snooze(d)                    due again after d, no attempt is used up
//	Cancel(reason)               DISCARDED
//
// The classes are found through wrapping, so a handler may add context with
// fmt.Errorf and %w. A panic, a Goexit and a timeout are failed attempts.
package event
