package pipeline

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
)

const (
	// maxClaim bounds the rows of one handler in one claim statement.
	maxClaim = 1000
	// lookEvery is how often, give or take a tenth, the claim loop asks when
	// something is due although nothing woke it: for deliveries that other processes
	// left unleased, and for leases of processes that died.
	lookEvery = time.Second
	// lookSoonest bounds how closely two looks follow each other.
	lookSoonest = 20 * time.Millisecond
)

// claimer leases due deliveries: at once for a handler that is known to have
// some waiting, and else when the database says that something is due. Owned by
// one goroutine.
//
// A claim that fails after the server did its work leaves rows leased under a
// token that nobody holds. They are claimed again when that lease ends.
type claimer struct {
	h *handling
	// nextLook is when to ask for due deliveries without having been woken.
	nextLook time.Time
	// notBefore bars every statement until then: after an error.
	notBefore time.Time
	// looked says that the next claim is for what a look found due; barren counts such claims that
	// got nothing, in a row.
	looked bool
	barren int
	errors pause
}

func newClaimer(h *handling) *claimer { return &claimer{h: h, errors: storePause()} }

// run claims until the stop begins. ctx cuts off a statement that hangs then.
func (c *claimer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.h.stopped:
			return
		case <-c.h.claimable:
		case <-timer.C:
		}
		timer.Reset(c.round(ctx))
	}
}

// round claims while there is something known to claim and room for it, looks
// when it is time to, and returns how long to sleep if nothing wakes it.
func (c *claimer) round(ctx context.Context) time.Duration {
	c.nextLook = c.h.earlier(c.nextLook)
	for {
		if wait := time.Until(c.notBefore); wait > 0 {
			return wait
		}
		if claims := c.h.wanted(); len(claims) > 0 {
			c.claim(ctx, claims)
			continue
		}
		if wait := time.Until(c.nextLook); wait > 0 {
			return wait
		}
		c.look(ctx)
	}
}

// claim leases what it can get and puts it to work.
func (c *claimer) claim(ctx context.Context, claims []delivery.Claim) {
	ctx, cancel := context.WithTimeout(ctx, c.h.statement)
	defer cancel()
	looked := c.looked
	c.looked = false
	leasedAt := time.Now()
	lease := delivery.Lease{Token: uuid.New(), Owner: c.h.owner, For: c.h.lease}
	result, err := c.h.store.Claim(ctx, lease, claims)
	if err != nil {
		c.h.unclaimed(claims)
		c.failed(err)
		return
	}
	c.worked()
	if c.h.claimed(claims, result, leasedAt) {
		c.barren = 0
		c.nextLook = time.Time{}
		return
	}
	if !looked {
		// Whoever woke this loop had its deliveries claimed before it said so. That is no reason to let the next ones wait.
		return
	}
	// Something was due and could not be had, because others hold it locked or were
	// faster. Looking again at once would spin.
	c.barren++
	c.nextLook = time.Now().Add(min(lookSoonest<<min(c.barren, 6), lookEvery))
}

// look asks when the next delivery is due, for the handlers that could take one.
func (c *claimer) look(ctx context.Context) {
	names := c.h.lookable()
	every := jittered(lookEvery)
	if len(names) == 0 {
		// There is nothing to claim for, so nothing fails; how long to wait if a claim does is another matter.
		c.h.claims.recovered()
		c.nextLook = time.Now().Add(every)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.h.statement)
	defer cancel()
	in, ok, err := c.h.store.NextDue(ctx, names)
	switch {
	case err != nil:
		c.failed(err)
		return
	case ok && in <= 0:
		c.h.mayClaim(names)
		c.looked = true
		c.nextLook = time.Now().Add(every)
	case ok && in < every:
		c.nextLook = time.Now().Add(max(in, lookSoonest))
	default:
		c.nextLook = time.Now().Add(every)
	}
	c.worked()
}

func (c *claimer) failed(err error) {
	select {
	case <-c.h.stopped:
		// Cut off by the stop, which is no news about the database.
		return
	default:
	}
	c.h.observer.Count(CountClaimError, "", 1)
	c.h.claims.failed(err)
	c.notBefore = time.Now().Add(c.errors.next())
}

func (c *claimer) worked() {
	c.h.claims.recovered()
	c.errors.reset()
}

// wanted reserves room for what is known to wait, and returns the claims for
// it.
func (h *handling) wanted() []delivery.Claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	var claims []delivery.Claim
	for _, l := range h.order {
		if !l.more {
			continue
		}
		room := h.roomFor(l)
		if !l.worthClaiming(room) {
			continue
		}
		l.more = false
		n := min(room, maxClaim)
		h.hold(l, n)
		claims = append(claims, delivery.Claim{
			Handler: l.sub.Name, Names: l.sub.names, Limit: n,
			Window: l.sub.Retry.window(), MaxAttempts: l.sub.Retry.MaxAttempts,
			Base: l.sub.Retry.Base, Cap: l.sub.Retry.Cap,
		})
	}
	return claims
}

// unclaimed takes back what wanted reserved for a claim that failed.
func (h *handling) unclaimed(claims []delivery.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range claims {
		l := h.lanes[c.Handler]
		h.unhold(l, c.Limit)
		l.more = true
	}
}

// claimed puts the result of a claim to work and says whether there was any.
func (h *handling) claimed(claims []delivery.Claim, result delivery.ClaimResult, leasedAt time.Time) bool {
	got := make(map[string]int, len(claims))
	jobs := make([]job, 0, len(result.Claimed))
	for i := range result.Claimed {
		d := &result.Claimed[i]
		got[d.Handler]++
		jobs = append(jobs, job{
			id: d.ID, token: d.Token, sub: h.lanes[d.Handler].sub, stored: d.Stored, ev: d.Event,
			attempts: d.Attempts, claims: d.Claims, leasedAt: leasedAt,
		})
	}
	h.accept(jobs)

	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range claims {
		l := h.lanes[c.Handler]
		h.unhold(l, c.Limit-got[c.Handler])
		ended := result.Ended[c.Handler]
		h.count(CountExpiredUnattempted, c.Handler, ended[delivery.Expired])
		h.count(CountDeadUnattempted, c.Handler, ended[delivery.Dead])
		h.count(CountPostponed, c.Handler, result.Postponed[c.Handler])
		// A full result, or one that ended deliveries on the way, may not have been all.
		if got[c.Handler] >= c.Limit || len(ended) > 0 || result.Postponed[c.Handler] > 0 {
			l.more = true
		}
	}
	return len(result.Claimed) > 0 || len(result.Ended) > 0 || len(result.Postponed) > 0
}

// lookable returns the names of the handlers that could take more and are not
// known to have any.
func (h *handling) lookable() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, l := range h.order {
		if !l.more && l.worthClaiming(h.roomFor(l)) {
			names = append(names, l.sub.names...)
		}
	}
	return names
}

// mayClaim notes that deliveries under some of the names are due.
func (h *handling) mayClaim(names []string) {
	asked := make(map[string]bool, len(names))
	for _, n := range names {
		asked[n] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.order {
		l.more = l.more || asked[l.sub.Name]
	}
}

// earlier returns the earlier of t and the time at which a delivery that this
// process put off is due again.
func (h *handling) earlier(t time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.due.IsZero() && h.due.Before(t) {
		t = h.due
	}
	h.due = time.Time{}
	return t
}

// dueAt notes when a delivery that this process put off is due again, and lets
// the claim loop wake up in time for it. Called with mu held.
func (h *handling) dueAt(at time.Time) {
	if h.due.IsZero() || at.Before(h.due) {
		h.due = at
		signal(h.claimable)
	}
}
