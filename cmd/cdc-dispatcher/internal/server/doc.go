// Package server is the HTTP face of a running dispatcher: /healthz, /readyz and
// /metrics.
//
// Promise: what it says is true. /healthz answers as long as the process serves
// requests, whatever the databases do, so that nobody restarts a process for
// somebody else's outage. /readyz answers 200 only while every source does its work
// (the database answers, its tables are there, and events come by the log, by the process
// this one stands by for, or by the poller), and otherwise 503 with the reasons. The
// destinations of handlers never count.
//
// There is no login yet, and so nothing here shows or changes an event: reasons name
// hosts and settings, metrics names of handlers. It listens on loopback unless the
// configuration says otherwise.
//
// Ownership: [Server.Run] owns the listener and its goroutines and returns after
// they have ended. [Metrics] starts none; [Metrics.Refresh] blocks until its context
// ends. On failure a scrape or a probe is answered with an error, and nothing else
// is touched.
package server
