package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// myRows are the sizes of batches of the bare SQL: those of the dispatcher's defaults, for events that are fanned out and for outcomes.
const myRows = 2000

// all drains on both sides, and offers rates.
func (s *myServer) all(ctx context.Context) error {
	b := s.b
	for round := range b.rounds {
		var ours, bare drained
		err := inTurn(round,
			func() (err error) { ours, err = s.drain(ctx); return err },
			func() (err error) { bare, err = s.drainBare(ctx); return err })
		if err != nil {
			return err
		}
		name := s.name + " drain"
		b.report.show(name, "cdc-dispatcher", "deliveries/s", ours.rate)
		b.report.show(name, "bare SQL, two connections", "deliveries/s", bare.rate)
		b.report.ratio(name+", over bare SQL", "≥ 0.6", ours.rate/bare.rate)
		s.costs("cdc-dispatcher", ours)
		s.costs("bare SQL, two connections", bare)
		for _, rate := range []int{200, 1000} {
			if err := s.latency(ctx, rate); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *myServer) costs(who string, d drained) {
	b := s.b
	b.report.show(s.name+" CPU of the server, per 100,000", who, "s", d.work.server.Seconds()/float64(b.events)*1e5)
	b.report.show(s.name+" CPU of the client, per 100,000", who, "s", d.work.client.Seconds()/float64(b.events)*1e5)
}

// drain commits events and then starts the dispatcher, as the drain on PostgreSQL does.
func (s *myServer) drain(ctx context.Context) (d drained, err error) {
	if err := s.committed(ctx); err != nil {
		return d, err
	}
	r := newReceipts(1, s.b.events)
	d.work, err = s.metered(func() error {
		return s.profiled(ctx, s.name+" drain", func() error {
			begun := time.Now()
			running, err := s.start(noOps(1, r))
			if err != nil {
				return err
			}
			err = r.finished(ctx, s.settled)
			d.rate = float64(r.events) / time.Since(begun).Seconds()
			return errors.Join(err, running.end())
		})
	})
	if err != nil {
		return d, err
	}
	return d, errors.Join(r.check(), s.ledger(ctx, r.events))
}

// committed makes fresh tables with events that nobody has handled. The youngest is as old as in the drain on PostgreSQL.
func (s *myServer) committed(ctx context.Context) error {
	if err := errors.Join(s.fresh(ctx), s.anchored(ctx), s.insertEvents(ctx, s.b.events)); err != nil {
		return err
	}
	newest := time.Now()
	// Statistics as a running system has them.
	if _, err := s.db.ExecContext(ctx, "ANALYZE TABLE eventlog.events, eventlog.event_notifications"); err != nil {
		return err
	}
	if !pause(ctx, time.Until(newest.Add(backlogAge))) {
		return ctx.Err()
	}
	return nil
}

// drainBare is what the server can do with the same rows and no dispatcher: one connection makes the deliveries of two
// thousand events, marks these and commits; another writes the outcomes of those that are committed. Nothing is read, no id
// is sent, and every statement knows where its rows are.
func (s *myServer) drainBare(ctx context.Context) (d drained, err error) {
	if err := s.committed(ctx); err != nil {
		return d, err
	}
	d.work, err = s.metered(func() error {
		return s.profiled(ctx, s.name+" drain bare", func() error {
			begun := time.Now()
			err := s.bare(ctx)
			d.rate = float64(s.b.events) / time.Since(begun).Seconds()
			return err
		})
	})
	if err != nil {
		return d, err
	}
	return d, s.ledger(ctx, s.b.events)
}

func (s *myServer) bare(ctx context.Context) error {
	made := make(chan int, s.b.events/myRows+1)
	g, ctx := errgroup.WithContext(ctx)
	isolation := "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
	g.Go(func() error {
		defer close(made)
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.ExecContext(ctx, isolation); err != nil {
			return err
		}
		for at := 0; at < s.b.events; at += myRows {
			from, to := eventID(at), eventID(at+myRows-1)
			for _, sql := range []string{"START TRANSACTION", myFanOutSQL(from, to), myMarkSQL(from, to), "COMMIT"} {
				if _, err := conn.ExecContext(ctx, sql); err != nil {
					return fmt.Errorf("bare fan-out: %w", err)
				}
			}
			made <- at
		}
		return nil
	})
	g.Go(func() error {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.ExecContext(ctx, isolation); err != nil {
			return err
		}
		for at := range made {
			if _, err := conn.ExecContext(ctx, myOutcomeSQL(eventID(at), eventID(at+myRows-1))); err != nil {
				return fmt.Errorf("bare outcomes: %w", err)
			}
		}
		return nil
	})
	return g.Wait()
}

// settled waits until nothing is to be handled or marked any more.
func (s *myServer) settled(ctx context.Context) error {
	return errors.Join(
		s.gone(ctx, "outcomes that are not written", `SELECT EXISTS (SELECT 1 FROM eventlog.event_notifications WHERE state IN ('PENDING', 'FAILED'))`),
		s.gone(ctx, "events that are not marked", `SELECT EXISTS (SELECT 1 FROM eventlog.events WHERE delivered = 0)`))
}

// ledger compares what was inserted with what the tables say about it.
func (s *myServer) ledger(ctx context.Context, inserted int) error {
	var events, marked, rows, good int
	err := s.db.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM eventlog.events), (SELECT COUNT(*) FROM eventlog.events WHERE delivered = 1),
		COUNT(DISTINCT event_id, handler_name), COALESCE(SUM(state = 'SUCCEEDED' AND attempts = 0 AND claim_count = 1), 0)
		FROM eventlog.event_notifications`).Scan(&events, &marked, &rows, &good)
	if err != nil {
		return err
	}
	if events != inserted || marked != inserted || rows != inserted || good != inserted {
		return fmt.Errorf("ledger: %d events inserted, %d in the table, %d marked; %d deliveries, %d of them SUCCEEDED with one claim",
			inserted, events, marked, rows, good)
	}
	return nil
}

// metered says what fn cost.
func (s *myServer) metered(fn func() error) (c cost, err error) {
	server := s.cpu()
	client, err := clientCPU()
	if err != nil {
		return c, err
	}
	if err := fn(); err != nil {
		return c, err
	}
	c.server = s.cpu() - server
	now, err := clientCPU()
	c.client = now - client
	return c, err
}

// latency is that of the latency on PostgreSQL, from the moment before COMMIT is sent.
func (s *myServer) latency(ctx context.Context, rate int) error {
	n := int(s.b.seconds.Seconds() * float64(rate))
	if err := s.fresh(ctx); err != nil {
		return err
	}
	r := newReceipts(1, n)
	running, err := s.start(noOps(1, r))
	if err != nil {
		return err
	}
	list, commits, err := s.offered(ctx, r, rate)
	if err = errors.Join(err, running.end()); err != nil {
		return err
	}
	if err := errors.Join(r.check(), s.ledger(ctx, n)); err != nil {
		return err
	}
	for _, p := range []struct {
		what string
		q    float64
		most string
	}{{"p50", 0.5, "≤ 3"}, {"p99", 0.99, "≤ 15"}} {
		if rate > 200 {
			p.most = ""
		}
		name := fmt.Sprintf("%s latency at %d/s, %s", s.name, rate, p.what)
		s.b.report.limit(name, "cdc-dispatcher", "ms", p.most, quantile(list, p.q))
		s.b.report.show(name, "the application's COMMIT alone", "ms", quantile(commits, p.q))
	}
	return nil
}

// offered returns how long each event was on its way, and how long the server took to answer each COMMIT, sorted.
func (s *myServer) offered(ctx context.Context, r *receipts, rate int) (list, commits []time.Duration, err error) {
	// The first connections, plans and looks are not what is measured.
	if !pause(ctx, 3*time.Second) {
		return nil, nil, ctx.Err()
	}
	commits = make([]time.Duration, r.events)
	committed := make([]time.Time, r.events)
	err = offer(ctx, rate, r.events, func(ctx context.Context, i int) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, myEventSQL("?"), myEventArgs(i)...); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		committed[i] = time.Now()
		err = tx.Commit()
		commits[i] = time.Since(committed[i])
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if err := r.finished(ctx, s.settled); err != nil {
		return nil, nil, err
	}
	slices.Sort(commits)
	return r.after(committed), commits, nil
}
