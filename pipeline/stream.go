package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// channelLength is how many transactions wait between the source and the
// collector: enough to hand over without a switch for each, few enough that
// memory is bounded by the batches. Each may be a part of a large transaction, which
// has some megabytes.
const channelLength = 4

// stream takes transactions from the source, batches them, hands each batch to
// the triggers, and acknowledges it once all of them have dealt with it.
//
// Two goroutines: one collects the next batch, without any timer, while the
// other has one in flight. An idle stream handles a transaction at once, a busy one
// gathers larger batches because the one in flight takes its time.
type stream struct {
	source   cdc.Source
	name     string
	triggers []trigger
	troubles []*trouble // parallel to triggers
	gaps     GapStore
	limits   FanOutConfig
	log      *slog.Logger
	obs      Observer
	// gapFound is called before a gap is recorded, onGap after that and after its position is
	// acknowledged.
	gapFound, onGap func()
	// sweep asks the poller for a look soon.
	sweep func()

	in    chan cdc.Transaction
	calms chan chan struct{}
	// ready has no buffer: handing a batch over means that the one before is done.
	ready chan *batch

	// Only the collector uses these.
	relation *cdc.Relation
	watching []int // the triggers that watch relation
	foreign  seldom

	gapping, holding *trouble
	// asked is for the one warning per reason of a sweep.
	asked seldom
}

// batch is what the triggers handle together.
type batch struct {
	work           collections // parallel to stream.triggers
	records, bytes int
	// at is where the last complete transaction ends; its position is empty when there is none.
	at place
	// gap ends the batch. Reading went on after it at resumed, which counts only once the gap is on record.
	gap     *cdc.Gap
	resumed cdc.Position
	// sweeps counts transactions that ask for a look of the poller, by reason.
	sweeps map[string]int
	// unreadable says that the transaction after position has rows that cannot be
	// read for a fault of their table. It ends the batch and the reading.
	unreadable error
	// calm, when set, is closed once this batch and all before it are dealt with.
	calm chan struct{}
	// newest is the latest commit time, seen the moment it arrived.
	newest, seen time.Time
}

type collections []collection

// busy says that one of them has something to handle.
func (c collections) busy() bool {
	return slices.ContainsFunc(c, func(w collection) bool { return w.len() > 0 })
}

// place is a position and the epoch that it belongs to.
type place struct {
	position cdc.Position
	epoch    uint64
}

func newStream(p *plan, fan trigger, gapFound, onGap, sweep func()) *stream {
	s := &stream{
		source: p.Log, name: p.Source, gaps: p.Store, limits: p.FanOut, log: p.Logger, obs: p.Observer, gapFound: gapFound, onGap: onGap, sweep: sweep,
		triggers: []trigger{fan},
		in:       make(chan cdc.Transaction, channelLength),
		calms:    make(chan chan struct{}),
		ready:    make(chan *batch),
		foreign:  seldom{every: remindEvery},
		asked:    seldom{every: remindEvery},
		gapping:  newTrouble(p.Logger, "recording a gap of the log"),
		holding:  newTrouble(p.Logger, "reading the event table's rows in the log"),
	}
	for _, t := range p.triggers {
		s.triggers = append(s.triggers, t)
	}
	for _, t := range s.triggers {
		name, _ := t.label()
		s.troubles = append(s.troubles, newTrouble(p.Logger, "trigger "+name))
	}
	return s
}

// run works until run ends; what is in flight then may take until work ends. A
// batch that is not finished is not acknowledged, and the source brings it again.
func (s *stream) run(run, work context.Context) error {
	var g errgroup.Group
	g.Go(func() error {
		defer close(s.ready)
		s.collect(run)
		return nil
	})
	g.Go(func() error {
		for b := range s.ready {
			if !s.finish(run, work, b) {
				// The collector may be offering another batch: run has ended, so it leaves.
				return nil
			}
		}
		return nil
	})
	return g.Wait()
}

// calm waits until everything that the source has handed over is dealt with and
// acknowledged. The source must not be running. false means that ctx ended first.
//
// It is called between two runs of the source, so that a position never crosses
// from one to the next: after a failover the same number may mean another place.
func (s *stream) calm(ctx context.Context) bool {
	done := make(chan struct{})
	select {
	case s.calms <- done:
	case <-ctx.Done():
		return false
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// collect gathers batches until ctx ends.
func (s *stream) collect(ctx context.Context) {
	var calm chan struct{}
	for b := s.begin(); ; {
		in, ready, calms := s.in, s.ready, s.calms
		if s.full(b) {
			in = nil
		}
		if b.empty() {
			ready = nil
		}
		if calm != nil {
			calms = nil
		}
		// What has already arrived belongs into this batch before it is offered.
		select {
		case tx := <-in:
			s.add(b, tx)
			continue
		default:
		}
		if calm != nil && in != nil {
			b.calm, calm = calm, nil
			continue
		}
		select {
		case tx := <-in:
			s.add(b, tx)
		case ready <- b:
			b = s.begin()
		case calm = <-calms:
		case <-ctx.Done():
			return
		}
	}
}

func (s *stream) begin() *batch {
	b := &batch{work: make(collections, len(s.triggers))}
	for i, t := range s.triggers {
		b.work[i] = t.begin()
	}
	return b
}

func (b *batch) empty() bool {
	return b.records == 0 && b.at.position == "" && b.sweeps == nil && b.gap == nil && b.calm == nil && b.unreadable == nil
}

// full says that nothing more may join the batch. A gap and a calm end one,
// because what follows must not be mixed with what came before; so does a transaction that
// cannot be read.
func (s *stream) full(b *batch) bool {
	return b.unreadable != nil || b.records >= s.limits.BatchEvents || b.bytes >= s.limits.BatchBytes || b.gap != nil || b.calm != nil
}

// add puts the transaction, or a part of one, into the batch.
func (s *stream) add(b *batch, tx cdc.Transaction) {
	for i := range tx.Records {
		s.addRecord(b, RecordCreated{Record: tx.Records[i], CommitTime: tx.CommitTime})
	}
	if tx.CommitTime.After(b.newest) && len(tx.Records) > 0 {
		b.newest, b.seen = tx.CommitTime, time.Now()
	}
	for _, w := range b.work {
		if b.unreadable = w.unreadable(); b.unreadable != nil {
			return // its position is not for us to take
		}
	}
	switch {
	case tx.Gap != nil:
		b.resumed = tx.Position
	case !tx.Partial && tx.Position != "":
		b.at = place{tx.Position, tx.Epoch}
	}
	if tx.Sweep != "" {
		if b.sweeps == nil {
			b.sweeps = make(map[string]int)
		}
		b.sweeps[tx.Sweep]++
	}
	b.gap = tx.Gap
}

func (s *stream) addRecord(b *batch, r RecordCreated) {
	if rel := r.Record.Relation; rel != s.relation {
		s.relation, s.watching = rel, s.watching[:0]
		for i, t := range s.triggers {
			if _, table := t.label(); table == rel.Name() {
				s.watching = append(s.watching, i)
			}
		}
	}
	if len(s.watching) == 0 {
		s.obs.Count(CountForeignRow, "", 1)
		if held, ok := s.foreign.allow(s.relation.Name()); ok {
			s.log.Warn("the log brings rows of a table that no trigger watches; take it out of the publication, or configure it",
				slog.String("table", s.relation.Name()), slog.Int("held_back", held))
		}
		return
	}
	for _, i := range s.watching {
		b.work[i].add(r)
	}
	b.records++
	for i := range r.Record.Values {
		b.bytes += len(r.Record.Values[i].Data)
	}
}

// finish hands the batch to each trigger until it has succeeded, and then
// acknowledges. A trigger that has succeeded is not called again for this batch. false means
// that run ended before all had.
func (s *stream) finish(run, work context.Context, b *batch) bool {
	if n := b.work[0].len(); n > 0 {
		s.obs.Captured(viaLog, n, lag(b))
	}
	for i, w := range b.work {
		if w.len() == 0 {
			continue
		}
		name, _ := s.triggers[i].label()
		end := b.at
		if b.work[i+1:].busy() {
			// A store that keeps positions would keep this one before those are done. The source keeps
			// it once it is acknowledged.
			end = place{}
		}
		ok := s.persist(run, s.troubles[i], func() error { return w.handle(run, work, end) },
			func() { s.obs.Count(CountTriggerRetry, name, 1) })
		if !ok {
			return false
		}
	}
	if b.gap != nil && !s.recordGap(run, work, *b.gap) {
		return false
	}
	// Only now is everything up to here durable. A gap may have the position of what came before it.
	for _, position := range []cdc.Position{b.at.position, b.resumed} {
		if position != "" {
			s.source.Ack(position)
		}
	}
	s.askForSweep(b.sweeps)
	if b.gap != nil {
		s.onGap()
	}
	if b.unreadable != nil {
		s.hold(run, b.unreadable)
		return false
	}
	if b.calm != nil {
		close(b.calm)
	}
	return true
}

// askForSweep has the poller look soon. It is for the sake of latency: what the stream does
// not carry is undelivered in its table, and the poller's next look finds it anyway.
func (s *stream) askForSweep(sweeps map[string]int) {
	for reason, n := range sweeps {
		s.obs.Count(CountSweepAsked, "", n)
		if held, ok := s.asked.allow(reason); ok {
			s.log.Warn("the log does not carry all rows of the event table; the poller looks for them",
				slog.String("source", s.name), slog.String("reason", reason), slog.Int("held_back", held))
		}
	}
	if len(sweeps) > 0 {
		s.sweep()
	}
}

// hold waits for the end of run. Nothing that this process could try again makes rows
// readable that lack a column: they are in the log as they were written, and so is the layout that their
// table had. The position stays before them, and the next start, with the columns that the
// rows have, goes on there. The poller and the handlers go on meanwhile.
func (s *stream) hold(run context.Context, err error) {
	s.holding.failedForGood(fmt.Errorf("the log stays where it is, as these rows may be nowhere else; "+
		"configure the columns that they have and start again, or drop the slot to leave them to the poller: %w", err))
	<-run.Done()
}

// persist tries until it succeeds; false means that run ended first.
func (s *stream) persist(run context.Context, t *trouble, do func() error, again func()) bool {
	wait := pause{base: 100 * time.Millisecond, cap: 10 * time.Second}
	for {
		err := do()
		if err == nil {
			t.recovered()
			return true
		}
		if run.Err() != nil {
			return false
		}
		t.failed(err)
		again()
		if !sleep(run, wait.next()) {
			return false
		}
	}
}

// recordGap makes the gap durable, so that the sweep that closes it survives a crash.
func (s *stream) recordGap(run, work context.Context, gap cdc.Gap) bool {
	s.obs.Count(CountGap, "", 1)
	s.log.Warn("a stretch of the log was not read; the poller sweeps the table for what it held",
		slog.String("reason", gap.Reason), slog.String("detail", gap.Detail), slog.String("from", string(gap.From)), slog.String("to", string(gap.To)))
	s.gapFound()
	return s.persist(run, s.gapping, func() error {
		ctx, cancel := context.WithTimeout(work, statementTimeout)
		defer cancel()
		return s.gaps.RecordGap(ctx, s.name, gap)
	}, func() {})
}

// lag is commit to arrival of the newest transaction of the batch. The clocks are
// those of two machines, so it may come out negative, which says nothing.
func lag(b *batch) time.Duration {
	if b.newest.IsZero() {
		return 0
	}
	return max(b.seen.Sub(b.newest), 0)
}
