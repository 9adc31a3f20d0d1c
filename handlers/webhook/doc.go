// Package webhook delivers events as HTTP POST requests.
//
// Promise: a delivery succeeds if, and only if, the receiver answered with a
// 2xx status. A redirect is never followed, a proxy of the environment never
// used, and no error that leaves this package shows the target's path, query
// or password, a header, a secret or the payload.
//
// Every request carries webhook-id (the delivery's idempotency key, the same on
// every attempt) and webhook-timestamp (new on every attempt), and with secrets
// also webhook-signature, after Standard Webhooks 1.0.0. A receiver in Go checks
// them with [Verify]. The signature covers the body as sent, so it goes together
// with every [Format].
//
// What an answer leads to:
//
//	2xx                                  success; the body is not looked at
//	a status in Config.PermanentOn       event.Permanent (DEAD)
//	every other status, 3xx included     tried again, no earlier than its Retry-After asks
//	no answer: name, dial, TLS, timeout  tried again
//	payload is no JSON, format wants it  event.Undecodable (BLOCKED)
//
// A name that does not resolve and an address that the guard refuses are tried
// again too: a name can be mended without touching this process.
//
// [New] starts nothing. Handle runs one request on the caller's goroutine; the
// connections belong to net/http's transport inside the [Webhook], at most
// Config.MaxConns of them, and are kept for reuse until [Webhook.Close].
package webhook
