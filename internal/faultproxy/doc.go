// Package faultproxy is a TCP proxy for tests that breaks connections in the
// ways that networks do. It is imported by tests only.
//
// A [Proxy] listens on 127.0.0.1 and forwards to one target. Each fault says
// what the two ends notice:
//
//	Cut        both ends see the connection closed at once
//	Refuse     new connections are closed before anything is read
//	Stall      nothing is forwarded, nobody is told; Resume forwards what waited
//	Blackhole  nothing is ever forwarded again, nobody is told, not even of a close
//	Delay      every chunk is held back for a while, in order
//	Redirect   new connections reach another target
//
// The proxy owns one goroutine that accepts and two per connection that pump;
// the cleanup of the test ends them all and waits for them.
package faultproxy
