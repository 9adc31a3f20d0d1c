package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

const (
	// coverEvery is how often the time of the last complete pass is kept: what is a little old only
	// makes the looks after an outage go a little further back.
	coverEvery = time.Minute
	// restFactor is how much longer than a pass of many pages the pause after it is.
	restFactor = 4
)

// errCrowded says that the table holds more events that stay undelivered than the poller can
// leave out, and that what is behind them is out of its sight.
var errCrowded = fmt.Errorf("more than %d events stay undelivered although they were looked at, and hide those behind them: "+
	"the database refuses them, or does not let their rows be marked; mend or mark the oldest of them", asideLimit)

// sighting is when an event was seen first.
type sighting struct {
	at   time.Time
	pass int
}

// passed is what came of one pass over the table.
type passed struct {
	// at is when it began, by the database's clock.
	at time.Time
	// complete says that it got to the end of the table, covers that everything that it found there is
	// dealt with, or will be found again by any later pass.
	complete, covers bool
}

// look is what one look brought.
type look struct {
	delivery.Found
	// took counts the events that were fanned out, waiting those that are left to the log for now.
	took, waiting int
	// crowded says that the look brought nothing but events that could not even be set aside.
	crowded bool
}

// pass goes through the table, oldest first, until nothing is left, or until something is
// found that is still the log's to bring. Where there is a mark, each look begins at the beginning: what was
// fanned out is gone. Where there is none, events that every condition declines stay for ever; the pass
// then goes on behind the look before, so that they hide nothing. That does not make it "greater than
// the last seen": the next pass begins at the beginning.
func (p *poller) pass(run, work context.Context, v view, sweeping bool) (done passed, err error) {
	p.passes++
	begun, pages := time.Now(), 0
	before := p.seen
	p.seen = make(map[string]sighting)
	lost := p.aside.refusals()
	var l look
	defer func() {
		if !done.complete {
			p.cover.broken()
		}
		if p.rest = 0; pages > 1 && l.Traceless {
			p.rest = restFactor * time.Since(begun)
		}
	}()
	for after := ""; ; after = l.Next {
		if run.Err() != nil {
			return done, run.Err()
		}
		if l, err = p.look(run, work, v, before, after); err != nil {
			return done, err
		}
		if pages++; pages == 1 {
			done.at = l.At
		}
		switch {
		case !l.More:
			if l.waiting == 0 {
				// What could not be fanned out, if anything, is delivered by others, or set aside.
				p.fanOut.viaPoll.recovered()
			}
			done.complete = true
			return done, p.complete(work, &done, l.Found, begun, lost, sweeping)
		case l.waiting > 0:
			return done, nil
		case l.crowded && l.Next == "":
			return done, errCrowded
		case l.took > 0:
			// A look full of what was all to be taken: the log misses many.
			v.grace = 0
		}
	}
}

// complete notes that a pass got to the end.
func (p *poller) complete(work context.Context, done *passed, last delivery.Found, begun time.Time, lost int, sweeping bool) error {
	done.covers = true
	if !last.Traceless || p.nobodyListens() {
		return nil // a look back has no bounds, or nothing was looked for
	}
	if !p.aside.passed(begun) || p.aside.refusals() != lost || last.LeftOut {
		done.covers = false
		p.cover.broken()
		return nil
	}
	at := p.cover.passed(p.passes, done.at, p.seen)
	if at.IsZero() || !sweeping && !p.cover.due() {
		return nil
	}
	ctx, cancel := context.WithTimeout(work, statementTimeout)
	defer cancel()
	if err := p.store.Looked(ctx, p.source, at); err != nil {
		return err
	}
	p.cover.kept()
	return nil
}

// look takes what it finds, but for what is to be left to the log for now.
func (p *poller) look(run, work context.Context, v view, before map[string]sighting, after string) (l look, err error) {
	now := time.Now()
	if l.Found, err = p.undelivered(work, now, after); err != nil {
		return l, err
	}
	p.looked(lookResult{at: now, ended: time.Now(), found: len(l.Events), more: l.More})
	p.resize(l.Found)
	events, suspects := p.route(&l, v, before, now)
	if l.took = len(events) + len(suspects); l.took > 0 {
		p.obs.Captured(viaPoll, l.took, 0)
		p.obs.Count(v.reason, "", l.took)
	}
	for _, batch := range [...][]routed{events, suspects} {
		if len(batch) == 0 {
			continue
		}
		if err := p.fanOut.deliver(run, work, batch, viaPoll, place{}); err != nil {
			p.taken = nil // it is no wonder if they come back
			return l, err
		}
	}
	return l, nil
}

func (p *poller) undelivered(work context.Context, now time.Time, after string) (delivery.Found, error) {
	ctx, cancel := context.WithTimeout(work, lookTimeout)
	defer cancel()
	return p.store.Undelivered(ctx, delivery.Undelivered{
		Source: p.source, Types: p.types, Limit: p.limit, MaxBytes: p.bytes, After: after,
		Skip: append(p.aside.skip(now), p.declined.skip(now)...),
	})
}

// resize adapts the next look to the weight of this one. The store keeps to the bound on bytes by
// itself; the fewer rows it has to weigh for that, the better.
func (p *poller) resize(found delivery.Found) {
	bytes := 0
	for i := range found.Events {
		bytes += len(found.Events[i].Payload)
	}
	switch n := len(found.Events); {
	case found.More && n < p.limit:
		p.limit = max(min(2*n, p.limit), 1)
	case found.More && bytes <= p.bytes/2:
		p.limit = min(p.limit*2, p.config.Batch)
	}
}

// ripe says whether an event may be taken: an earlier look, at least grace before, had seen it already. That
// asks no producer's clock, and gives the log the time to bring it itself.
func (p *poller) ripe(id string, v view, before map[string]sighting, now time.Time) bool {
	if v.grace == 0 {
		return true
	}
	first, known := before[id]
	if known && now.Sub(first.at) >= v.grace {
		return true
	}
	if !known {
		first = sighting{now, p.passes}
	}
	p.seen[id] = first
	return false
}

// route finds the targets. Events that were set aside before come apart from the
// others, so that they hold nothing up if they fail again. An event that was taken by the
// look before and is still there, or that nobody takes although the store brings it,
// would fill every look to come: it is set aside for a while.
func (p *poller) route(l *look, v view, before map[string]sighting, now time.Time) (events, suspects []routed) {
	taken := make(map[string]struct{}, len(l.Events))
	room, ripe := false, 0
	for _, ev := range l.Events {
		r, ok := p.router.route(ev)
		if l.Traceless && len(r.fan.Targets) == 0 {
			// To fan it out would change nothing. It is left out while there is room, and passed by otherwise.
			p.declined.put(ev.ID, now)
			continue
		}
		if !p.ripe(ev.ID, v, before, now) {
			l.waiting++
			continue
		}
		ripe++
		_, again := p.taken[ev.ID]
		switch {
		case again || !ok:
			if p.setAside(ev, now) {
				room = true
				continue
			}
			// It comes back at once, and is to be known then.
		case p.aside.known(ev.ID):
			suspects = append(suspects, r)
		default:
			events = append(events, r)
		}
		taken[ev.ID] = struct{}{}
	}
	l.crowded = ripe > 0 && len(events)+len(suspects) == 0 && !room
	p.taken = taken
	return events, suspects
}

func (p *poller) setAside(ev event.Event, now time.Time) (fits bool) {
	fits = p.aside.put(ev.ID, now)
	if held, ok := p.warn.allow("aside"); ok {
		p.log.Warn("an event stays undelivered although it was fanned out; the poller leaves it out for a while",
			slog.String("event", ev.ID), slog.String("type", ev.Type), slog.Int("set_aside", p.aside.size(now)), slog.Bool("room", fits), slog.Int("held_back", held))
	}
	return fits
}

// cover works out which complete pass is the last one that found nothing that is not dealt with by now. It
// is pure but for the time at which that was last kept.
type cover struct {
	// ended are complete passes, oldest first, with nothing but complete ones between them.
	ended []endedPass
	saved time.Time
}

type endedPass struct {
	number int
	at     time.Time
}

// passed adds a complete pass, with what it saw and left to the log, and returns the time of the pass
// that is covered, zero when there is none yet.
func (c *cover) passed(number int, at time.Time, waiting map[string]sighting) (covered time.Time) {
	c.ended = append(c.ended, endedPass{number, at})
	first := number + 1
	for _, s := range waiting {
		first = min(first, s.pass)
	}
	// What an earlier pass saw and this one does not is dealt with.
	for len(c.ended) > 0 && c.ended[0].number < first {
		covered = c.ended[0].at
		c.ended = c.ended[1:]
	}
	return covered
}

// broken notes a pass that did not get to the end: what it did not get to see again may still wait.
func (c *cover) broken() { c.ended = nil }

func (c *cover) due() bool { return time.Since(c.saved) >= coverEvery }

func (c *cover) kept() { c.saved = time.Now() }
