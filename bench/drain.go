package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// backlogAge is how old the youngest event is when a drain begins. From 5 s on, a log that is behind counts as such,
// and the dispatcher leaves what is in it to it; it is what a backlog is as a rule, when somebody restarts a program.
const backlogAge = 6 * time.Second

// drained is one drain.
type drained struct {
	rate float64
	// insert is what it cost to insert the events, work what it cost to deliver them.
	insert, work cost
}

// drainAll compares 1, 3 and 10 handlers with River.
func drainAll(ctx context.Context, b *bench) error {
	b.report.Setup["drained"] = fmt.Sprintf("%d events or jobs, inserted before the clock starts", b.events)
	for round := range b.rounds {
		var ours, river drained
		err := inTurn(round,
			func() (err error) { ours, err = b.drain(ctx, 1, payloadPad); return err },
			func() (err error) { river, err = b.drainRiver(ctx, jobPad); return err })
		if err != nil {
			return err
		}
		b.report.show("drain, 1 handler", "cdc-dispatcher", "deliveries/s", ours.rate)
		b.report.show("drain, 1 handler", "river", "jobs/s", river.rate)
		b.report.ratio("drain, 1 handler, over River", "≥ 2.0", ours.rate/river.rate)
		b.costs("cdc-dispatcher", ours)
		b.costs("river", river)
		bare, err := b.drainBare(ctx)
		if err != nil {
			return err
		}
		b.report.show("drain, 1 handler", "bare SQL, two connections", "deliveries/s", bare.rate)
		b.report.ratio("drain, 1 handler, over bare SQL", "", ours.rate/bare.rate)
		b.report.ratio("drain, 1 handler, bare SQL over River", "", bare.rate/river.rate)
		b.costs("bare SQL, two connections", bare)
		for _, handlers := range []int{3, 10} {
			many, err := b.drain(ctx, handlers, payloadPad)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("drain, %d handlers", handlers)
			b.report.show(name, "cdc-dispatcher", "deliveries/s", many.rate)
			b.report.ratio(name+", over 1 handler", "≥ 1.0", many.rate/ours.rate)
		}
	}
	return nil
}

// payloadAll compares the log that an event and a job of River with payloads of one size leave behind.
func payloadAll(ctx context.Context, b *bench) error {
	for round := range b.rounds {
		var ours, river drained
		err := inTurn(round,
			func() (err error) { ours, err = b.drain(ctx, 1, jobPad); return err },
			func() (err error) { river, err = b.drainRiver(ctx, jobPad); return err })
		if err != nil {
			return err
		}
		const insert, work = "WAL of the insert, payload of 300 bytes", "WAL of the delivery, payload of 300 bytes"
		n := float64(b.events)
		b.report.show(insert, "cdc-dispatcher", "bytes", float64(ours.insert.wal)/n)
		b.report.show(insert, "river", "bytes", float64(river.insert.wal)/n)
		b.report.show(work, "cdc-dispatcher", "bytes", float64(ours.work.wal)/n)
		b.report.show(work, "river", "bytes", float64(river.work.wal)/n)
		b.report.ratio(work+", over River", "≤ 1.0", float64(ours.work.wal)/float64(river.work.wal))
	}
	return nil
}

// costs shows what one event, or job, has cost from its insert to its outcome.
func (b *bench) costs(who string, d drained) {
	n := float64(b.events)
	b.report.show("WAL of the insert", who, "bytes", float64(d.insert.wal)/n)
	b.report.show("WAL of the delivery", who, "bytes", float64(d.work.wal)/n)
	b.report.show("statements per 1,000 deliveries", who, "", float64(d.work.statements)/n*1000)
	b.report.show("commits per 1,000 deliveries", who, "", float64(d.work.commits)/n*1000)
	b.report.show("CPU of the server, per 100,000", who, "s", d.work.server.Seconds()/n*1e5)
	b.report.show("CPU of the client, per 100,000", who, "s", d.work.client.Seconds()/n*1e5)
}

// inTurn runs a before b, or b before a.
func inTurn(round int, a, b func() error) error {
	if round%2 == 1 {
		a, b = b, a
	}
	if err := a(); err != nil {
		return err
	}
	return b()
}

// drain commits events and then starts the dispatcher: the clock runs from its start until the last
// outcome is in the table.
func (b *bench) drain(ctx context.Context, handlers, pad int) (d drained, err error) {
	// The total of deliveries stays near that of one handler.
	events := max(b.events*2/(handlers+1), 1)
	if handlers == 1 {
		events = b.events
	}
	err = b.with(ctx, func(w *world) error {
		w.pad = pad
		if err := w.migrateEvents(ctx); err != nil {
			return err
		}
		d, err = w.drainEvents(ctx, fmt.Sprintf("drain %d", handlers), handlers, 0, events)
		return err
	})
	return d, err
}

// drainEvents commits events from number first on and drains them.
func (w *world) drainEvents(ctx context.Context, name string, handlers, first, events int) (d drained, err error) {
	d.insert, err = w.metered(ctx, func() error { return w.insertEvents(ctx, first, first+events, w.b.perTx) })
	if err != nil {
		return d, err
	}
	newest := time.Now()
	rows := "events"
	if w.pad != payloadPad {
		rows = "events with a larger payload"
	}
	if err := w.sizes(ctx, rows, "eventlog.events", "payload"); err != nil {
		return d, err
	}
	if err := w.settle(ctx); err != nil {
		return d, err
	}
	if !pause(ctx, time.Until(newest.Add(backlogAge))) {
		return d, ctx.Err()
	}
	r := newReceipts(handlers, events)
	r.base = first
	d.work, err = w.metered(ctx, func() error {
		return w.profiled(ctx, name, func() error {
			d.rate, err = w.drainRate(ctx, name, handlers, r)
			return err
		})
	})
	if err != nil {
		return d, err
	}
	return d, w.ledger(ctx, handlers, r)
}

func (w *world) drainRate(ctx context.Context, name string, handlers int, r *receipts) (float64, error) {
	begun := time.Now()
	running, err := startDispatcher(w.dsn(), noOps(handlers, r))
	if err != nil {
		return 0, err
	}
	if err := w.finished(ctx, r, openDeliveries); err != nil {
		_ = running.end()
		return 0, err
	}
	took := time.Since(begun)
	busy := w.busy(ctx, name)
	return float64(r.events*handlers) / took.Seconds(), errors.Join(busy, w.marked(ctx), running.end())
}

// finished waits until every handler has been started for every event, and then until every
// outcome is in the table.
func (w *world) finished(ctx context.Context, r *receipts, open string) error {
	return r.finished(ctx, func(ctx context.Context) error { return w.gone(ctx, "outcomes that are not written", open) })
}

func (b *bench) drainRiver(ctx context.Context, pad int) (d drained, err error) {
	err = b.with(ctx, func(w *world) error {
		if err := w.migrateRiver(ctx); err != nil {
			return err
		}
		r := newReceipts(1, b.events)
		side, err := newRiver(w.dsn(), r)
		if err != nil {
			return err
		}
		defer side.pool.Close()
		d.insert, err = w.metered(ctx, func() error { return w.insertJobs(ctx, side, b.events, pad) })
		if err != nil {
			return err
		}
		if err := w.sizes(ctx, "river jobs", "river_job", "args"); err != nil {
			return err
		}
		if err := w.settle(ctx); err != nil {
			return err
		}
		d.work, err = w.metered(ctx, func() error {
			return w.profiled(ctx, "drain river", func() error {
				begun := time.Now()
				if err := side.client.Start(ctx); err != nil {
					return err
				}
				if err := w.finished(ctx, r, openJobs); err != nil {
					return err
				}
				d.rate = float64(b.events) / time.Since(begun).Seconds()
				return errors.Join(w.busy(ctx, "drain river"), side.end())
			})
		})
		if err != nil {
			return err
		}
		return w.riverLedger(ctx, r)
	})
	return d, err
}

// with runs fn on a fresh database and drops it.
func (b *bench) with(ctx context.Context, fn func(*world) error) error {
	w, err := b.fresh(ctx)
	if err != nil {
		return err
	}
	err = fn(w)
	if dropped := w.drop(); err == nil {
		err = dropped
	}
	return err
}

// metered says what fn cost.
func (w *world) metered(ctx context.Context, fn func() error) (cost, error) {
	before, err := w.cost(ctx)
	if err != nil {
		return cost{}, err
	}
	if err := fn(); err != nil {
		return cost{}, err
	}
	after, err := w.cost(ctx)
	return after.since(before), err
}
