package pipeline

// Counters of the way from the log to the delivery rows. The handler argument
// of [Observer.Count] is empty unless the comment says otherwise.
const (
	// CountSentinel: rows with a null type, which are never fanned out (A53, M26).
	CountSentinel Counter = "sentinel"
	// CountUnsubscribed: events that no handler listens to (A54).
	CountUnsubscribed Counter = "unsubscribed"
	// CountRowError: rows that could not be read as an event, such as one with a
	// null id. They have no delivery; the log names their place.
	CountRowError Counter = "row_error"
	// CountForeignRow: rows of a table that no trigger watches (A167).
	CountForeignRow Counter = "foreign_row"
	// CountDuplicateID: event ids that more than one row of the table carries.
	CountDuplicateID Counter = "duplicate_id"
	// CountNullPayload: BLOCKED for want of a payload, per handler (A169).
	CountNullPayload Counter = "null_payload"
	// CountOversize: BLOCKED because the payload is too large, per handler.
	CountOversize Counter = "oversize"
	// CountConditionError: conditions that could not be evaluated, per handler or trigger.
	CountConditionError Counter = "condition_error"
	// CountQuarantined: events that the database refused as they were; a reduced
	// BLOCKED delivery stands for each.
	CountQuarantined Counter = "quarantined"
	// CountSetAside: events that could not be fanned out while the database answered.
	// They stay undelivered in their table and are tried again at a slow pace.
	CountSetAside Counter = "set_aside"
	// CountDeferred: events of the log whose rows the table did not show yet. They
	// stay undelivered, and the poller finds them.
	CountDeferred Counter = "deferred"
	// CountSweepAsked: transactions of the log that asked for a look of the poller,
	// because the log does not carry all of their rows.
	CountSweepAsked Counter = "sweep_asked"
	// CountFanOutRetry: fan-out statements that are tried again after an error.
	CountFanOutRetry Counter = "fanout_retry"
	// CountTriggerRetry: trigger callbacks that failed and are tried again; handler
	// is the trigger's name.
	CountTriggerRetry Counter = "trigger_retry"
)

// Counters of the poller: events it found, by the reason why it had to look.
// In steady state the last two do not move (N14).
const (
	CountPolledStartup  Counter = "polled_startup"
	CountPolledGap      Counter = "polled_gap"
	CountPolledPollMode Counter = "polled_poll_mode"
	// CountPolledAsked: the log said that it does not carry all rows.
	CountPolledAsked Counter = "polled_asked"
	// CountPolledBehind: the log is being read, but is far behind.
	CountPolledBehind Counter = "polled_behind"
	// CountPolledLogDown: the log is not being read.
	CountPolledLogDown Counter = "polled_log_down"
	// CountPolledMissed: the log is being read and did not bring them.
	CountPolledMissed Counter = "polled_missed"
	// CountPollError: looks that failed.
	CountPollError Counter = "poll_error"
)

// Counters of the surroundings.
const (
	// CountSourceRun: runs of the source that were begun, the first included.
	CountSourceRun Counter = "source_run"
	// CountGap: stretches of log that were not read.
	CountGap Counter = "gap"
	// CountRegistryError: registry heartbeats, and steps that free or block deliveries or shorten leases, that failed.
	CountRegistryError Counter = "registry_error"
	// CountOrphaned: deliveries BLOCKED because no process serves their handler.
	CountOrphaned Counter = "orphaned"
	// CountForeignHandler: heartbeats that found another process serving a handler that this one does not
	// know, for types that this one marks; handler is its name.
	CountForeignHandler Counter = "foreign_handler"
	// CountLeaseShortened: leases that ended later than any real one could, see [delivery.LongestLease].
	CountLeaseShortened Counter = "lease_shortened"
	// CountUnblocked: deliveries made due again because this process serves them.
	CountUnblocked Counter = "unblocked"
)

// Counters of handling; handler is set unless the comment says otherwise. What
// attempts come to is told by [Observer.Attempted].
const (
	// CountStale: outcomes that changed nothing, because the delivery is leased to
	// another process or was ended by a person (M32).
	CountStale Counter = "stale_outcome"
	// CountUnknown: outcomes whose statement failed without an answer, and which were
	// not confirmed when it was repeated: most had been written the first time.
	CountUnknown Counter = "unknown_outcome"
	// CountUnwritten: outcomes that were given up, because the database refused them
	// in every form or the process ended. Their deliveries are attempted again when the
	// lease ends.
	CountUnwritten Counter = "unwritten_outcome"
	// CountGivenBack: leases given back without an attempt.
	CountGivenBack Counter = "given_back"
	// CountLeaseLost: leases that were lost, or could not be trusted any more, before
	// their delivery had an outcome.
	CountLeaseLost Counter = "lease_lost"
	// CountStuck: handlers that ran on long after their context had ended.
	CountStuck Counter = "stuck"
	// CountPanic: handlers that panicked or ended their goroutine.
	CountPanic Counter = "panic"
	// CountExpiredUnattempted and CountDeadUnattempted: deliveries that a claim ended
	// without an attempt, by age (A101) or because their claims are used up (C64, C65).
	CountExpiredUnattempted Counter = "expired_unattempted"
	CountDeadUnattempted    Counter = "dead_unattempted"
	// CountPostponed: deliveries that a claim did not take, because too many claims of them on end were lost
	// with their process, see [delivery.LostForFree].
	CountPostponed Counter = "postponed"
	// CountClaimError, CountSettleError and CountRenewError: statements that failed
	// and are tried again. No handler.
	CountClaimError  Counter = "claim_error"
	CountSettleError Counter = "settle_error"
	CountRenewError  Counter = "renew_error"
)
