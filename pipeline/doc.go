// Package pipeline carries the events of one source to their handlers: it turns
// committed inserts into recordCreatedTrigger callbacks, fans events out to one
// delivery per subscribed handler, runs the deliveries, and looks for what the log did
// not bring. [New] and [Pipeline.Run] are the whole of it; a library user needs a [Config],
// a [Store] (package schema/postgres) and a [cdc.Source] (package cdc/postgres).
//
// # Promise
//
//   - The position of the log is acknowledged only after everything up to it is
//     durable: every trigger has returned nil for the records, and fan-out is one of
//     them. A crash at any point repeats work and loses none.
//   - For each event and each handler subscribed when it is fanned out there is one
//     delivery row, however often the event arrives (M14).
//   - At least once, and never two live attempts of one delivery within its lease.
//   - Nothing disappears. An event that cannot be handled has a BLOCKED delivery with
//     a reason; one that cannot even be written stays undelivered in its table, is counted,
//     logged, and tried again.
//   - One bad part stops nothing else: a refused or locked row, a condition without an
//     answer, a trigger that fails, a handler that hangs, a log that cannot be read.
//
// # The way of one row
//
//	source ──▶ stream ──▶ fan-out ──▶ delivery rows ──▶ handling ──▶ handlers
//	  ▲          │ Ack       ▲             (leased)         │
//	  └──────────┘           └── poller ◀── event table     └──▶ outcomes
//
// A [Trigger] is a recordCreatedTrigger: a table, an optional condition, a
// callback. Fan-out is the pipeline's own trigger on the event table, and the first to be
// called. The stream keeps one batch in flight and one building; no timer is involved, so
// an idle pipeline adds no latency and a busy one batches by itself.
//
// As many new deliveries as there are free workers are created already leased to this
// process, and start without another query. The rest are claimed, by any process.
//
// # Conditions
//
// Handler.When is a CEL expression over `event`, with the fields id, type,
// namespace, model_id, model_type, payload, headers, event_date, started_date,
// completion_date, action_id, action_name, action_params and traceparent:
//
//	event.payload.total > 100 && event.headers.tenant == "acme"
//
// Whole numbers in JSON are int (uint above 2^63−1), so ids keep all their digits;
// others are double; the two compare as numbers. Calculating needs one kind:
// double(event.payload.total) * 1.2. Absent fields of a document are an error unless
// asked for with has(event.payload.total).
//
// Trigger.When is one over `record`, a map of the row's columns in the
// database's text form: int(record.amount) > 100.
//
// A condition that has no answer for an event is not "no". The event gets a
// BLOCKED delivery for that handler, with the reason; a trigger's callback gets the record
// with the error. Evaluation is bounded by cost.
//
// # Handling
//
// A handler has at most Concurrency attempts running in this process, and a short queue
// of leased deliveries behind them: a quarter of a second's work by its own pace, so that a
// fast handler takes whole batches and a slow one leaves them to other processes. What it
// becomes too slow for is given back.
//
// A slot is free when the handler returns; the delivery stays in the in-flight set, and
// its lease is renewed, until the outcome is written. Outcomes are written as soon as the
// one writer is free, so batches grow with the load. When 10,000 wait, workers wait too: a
// database that cannot acknowledge slows handlers down and loses nothing.
//
// A lease is trusted until nine tenths of its length after the moment before it was
// asked for. Then, or when a renewal says that it is lost, the attempt's context ends with
// [ErrLeaseLost], and the database's fence decides what its outcome still means. A delivery
// whose lease may have run out is not started. A handler that ignores its context is
// reported; its slot stays taken and its lease renewed, because it does run.
//
// Due deliveries are claimed in one statement for all handlers with room: at once when they
// are known to wait, at the next due time, and about once a second when nothing is known.
//
// # The poller
//
// It finds events that are in the table and not fanned out, oldest first, by
// state and never by "greater than the last seen". While the log is read it only takes
// what it has seen twice, a grace apart, and finds nothing in steady state. It sweeps the whole
// table at the start, once the source has found its place, and after a gap, each time
// twice. Without a log, or while it cannot be read, it takes everything at once.
//
// A table without a mark keeps no trace of events that every condition declines: a pass reads on behind
// them, and the next one begins at the beginning. Where such a table bounds its looks (look_back), they
// go back from the last complete pass that left nothing undone, whose time the store keeps, or from
// the oldest open gap: however long an outage lasts, nothing falls out of sight unseen. The processes of one
// source are expected to serve the same handlers; others are warned of.
//
// # Goroutines and connections
//
// Run owns all goroutines and returns after each has ended: the source's
// supervisor and its watcher, the stream's collector and its flusher, the poller, the registry
// heartbeat, its chores, and handling with its workers. Connections are the store's and the source's;
// the pipeline has at most one fan-out of the log, one of the poller, one claim, one
// settling or renewing statement, one heartbeat and one chore under way at a time. Several sources are several
// pipelines, which share nothing.
//
// # What happens on failure
//
//	database away             every loop waits with backoff, logs once, and once when it is over
//	database refuses a row    the batch is halved until the row stands alone; a reduced
//	                          BLOCKED delivery takes its place
//	row locked by a session   the log's image makes its deliveries; the poller marks it later; a
//	                          delivery that is locked is left out of what is freed or blocked
//	refused in every form     it stays in its table, in sight of the poller; one that is nowhere
//	                          but in the log holds the log, and nothing else
//	answer to a fan-out lost  it is repeated, which changes nothing; leases that nobody
//	                          heard of are given back
//	answer to a claim lost    its rows wait until that lease ends, and the claim is counted
//	outcomes not confirmed    they are sent again; the fence makes that harmless
//	outcome refused           it is halved out of its batch, then written without its text,
//	                          then given up: the lease ends, and the delivery is tried again
//	handler panics, hangs     that attempt has failed; the others go on
//	trigger fails             it alone is called again with the same records; the position
//	                          waits, the poller and the handlers go on; one that ignores the
//	                          end of its context at the stop is left behind
//	source fails              it is run again after what it handed over is dealt with;
//	                          one that needs a person once a minute
//	process stops             what is in flight finishes and is acknowledged, the source
//	                          confirms, running handlers are waited for, the rest is given back
//	process dies              leases run out, the log repeats what was not acknowledged; a
//	                          delivery that was in every one of several deaths waits longer each
//	                          time, and is DEAD ("crashes") after the tenth
package pipeline
