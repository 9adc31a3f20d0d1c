package pipeline

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// subscriber is one registered handler with its defaults applied. It is
// immutable once the registry is built.
//
// Applied means: Concurrency and Timeout are positive, and Retry has been through
// withDefaults, so that Retry.window() is what package delivery wants.
type subscriber struct {
	Handler
	match matcher
	// cond is the compiled When, nil when the handler takes every event of its types.
	cond *condition
	// names is the canonical name followed by the aliases (A81).
	names []string
}

// job is one delivery that this process holds the lease of: what fan-out and
// claims hand to the workers.
type job struct {
	id, token uuid.UUID
	sub       *subscriber
	// stored is the handler name in the row, which may be an alias.
	stored string
	ev     event.Event
	// attempts counts failed attempts so far, claims the claims including this one.
	attempts, claims int
	// leasedAt was read from the monotonic clock before the statement that leased
	// the row was sent, so that the lease ends here no later than in the database.
	leasedAt time.Time
	// commitTime is the commit of the event, zero when it came from the poller.
	commitTime time.Time
}

// slots is what fan-out and the registry heartbeat ask of handling; *handling
// is the one implementation. All methods may be called from any goroutine, do no I/O
// and, but for breathe, do not block.
type slots interface {
	// reserve takes up to want free worker slots of a handler for deliveries that
	// are about to be created already leased: 0 when paused, stopping or busy.
	reserve(handler string, want int) int
	// release gives back reserved slots that were not used.
	release(handler string, n int)
	// breathe waits, for no longer than a moment, while so many outcomes wait to be written that nothing
	// more would be leased: a delivery that is created without a lease costs a claim later, which
	// keeps the outcomes waiting even longer.
	breathe(ctx context.Context)
	// accept hands over leased deliveries, one reserved slot each. After handling
	// has begun to stop it gives them back to the database.
	accept(jobs []job)
	// wake says that due, unleased deliveries of the handler may exist.
	wake(handler string)
	// setPaused replaces the set of paused handlers, by canonical name.
	setPaused(paused map[string]delivery.Pause)
	// health reports what runs, in order of registration.
	health() handlingHealth
}

// handlingHealth is handling's part of [Health].
type handlingHealth struct {
	handlers []HandlerHealth
	// stale counts outcomes that changed nothing since the start (M32).
	stale int64
	// err and since describe the failure to reach the database that handling is in
	// now; nil and zero when there is none.
	err   error
	since time.Time
}

// HandlerHealth is the state of one handler in this process.
type HandlerHealth struct {
	Name string
	// Running counts attempts in progress, Limit is the handler's concurrency.
	Running, Limit int
	// Paused is nil unless the handler is paused.
	Paused *delivery.Pause
}
