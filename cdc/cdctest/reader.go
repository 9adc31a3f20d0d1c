package cdctest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// readerPatience bounds every wait of a [Reader]. It is far above what anything takes on a machine that is busy with
// other tests.
const readerPatience = 3 * time.Minute

// keptRecords bounds how many records a [Reader] keeps; ids it keeps all.
const keptRecords = 10000

// Reader runs a source and keeps account of what it hands over, for a reader's own tests; the suite has a
// simpler one. Rows are known by the text of their column "id". All methods may be called from any goroutine; those
// that wait, from the test's.
type Reader struct {
	// Log is for the source's lines; the test shows it when it fails.
	Log *LogBuffer

	t    *testing.T
	out  chan cdc.Transaction
	src  cdc.Source
	stop func()

	mu      sync.Mutex
	counts  map[string]int // by id
	ids     []string       // in order of arrival
	records []cdc.Record
	txs     []cdc.Transaction // without records
	queue   []cdc.Transaction // not acknowledged
	durable map[string]int    // ids of transactions that were acknowledged
	held    chan struct{}     // not nil: the consumer waits for its close
	limit   int
	lag     int
	noAck   bool
	runErr  error
	ended   bool
}

// NewReader makes an account that nothing has been handed over to.
func NewReader(t *testing.T) *Reader {
	t.Helper()
	r := &Reader{Log: new(LogBuffer), t: t, out: make(chan cdc.Transaction), counts: map[string]int{}, durable: map[string]int{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the reader:\n%s", r.Log.String())
		}
	})
	return r
}

// Run starts the source and the consumer, until [Reader.Stop] or the end of the test; also a second time after Stop.
func (r *Reader) Run(src cdc.Source) {
	ctx, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	r.src, r.ended, r.runErr = src, false, nil
	r.mu.Unlock()
	var group sync.WaitGroup
	group.Go(func() {
		err := src.Run(ctx, r.out)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.runErr, r.ended = err, true
	})
	group.Go(func() { r.consume(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	r.t.Cleanup(r.stop)
}

// Stop ends the source and the consumer, and waits.
func (r *Reader) Stop() { r.stop() }

func (r *Reader) consume(ctx context.Context) {
	for {
		r.mu.Lock()
		held := r.held
		if r.limit > 0 && len(r.ids) >= r.limit {
			held = make(chan struct{})
		}
		r.mu.Unlock()
		if held != nil {
			select {
			case <-held:
			case <-ctx.Done():
				return
			}
		}
		select {
		case tx := <-r.out:
			r.account(tx)
		case <-ctx.Done():
			return
		}
	}
}

func (r *Reader) account(tx cdc.Transaction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range tx.Records {
		id := Text(record, "id")
		r.counts[id]++
		r.ids = append(r.ids, id)
		if len(r.records) < keptRecords {
			r.records = append(r.records, record)
		}
	}
	r.queue = append(r.queue, tx)
	for !r.noAck && len(r.queue) > r.lag {
		for _, record := range r.queue[0].Records {
			r.durable[Text(record, "id")]++
		}
		r.src.Ack(r.queue[0].Position)
		r.queue = r.queue[1:]
	}
	tx.Records = nil
	r.txs = append(r.txs, tx)
}

// locked changes something of the account.
func (r *Reader) locked(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// Hold stops the consumer before its next receive; [Reader.Release] lets it go on.
func (r *Reader) Hold() { r.locked(func() { r.held = make(chan struct{}) }) }

// Release lets a consumer go on that is held; any other does already.
func (r *Reader) Release() {
	r.locked(func() {
		if r.held != nil {
			close(r.held)
			r.held = nil
		}
	})
}

// Limit stops the consumer for good after n rows; 0 means never.
func (r *Reader) Limit(n int) { r.locked(func() { r.limit = n }) }

// Lag acknowledges a transaction only after n more came.
func (r *Reader) Lag(n int) { r.locked(func() { r.lag = n }) }

// Ack says whether transactions that come are acknowledged. They are, unless this says otherwise.
func (r *Reader) Ack(on bool) { r.locked(func() { r.noAck = !on }) }

// Distinct is how many different ids arrived.
func (r *Reader) Distinct() (n int) {
	r.locked(func() { n = len(r.counts) })
	return n
}

// Count is how often an id arrived.
func (r *Reader) Count(id string) (n int) {
	r.locked(func() { n = r.counts[id] })
	return n
}

// Arrived are the ids in order of arrival.
func (r *Reader) Arrived() (ids []string) {
	r.locked(func() { ids = slices.Clone(r.ids) })
	return ids
}

// Durable are the ids of transactions that were acknowledged, each once.
func (r *Reader) Durable() (ids []string) {
	r.locked(func() { ids = slices.Collect(maps.Keys(r.durable)) })
	return ids
}

// Records are the first ten thousand records that arrived.
func (r *Reader) Records() (records []cdc.Record) {
	r.locked(func() { records = slices.Clone(r.records) })
	return records
}

// Record is one that arrived.
func (r *Reader) Record(id string) cdc.Record {
	r.t.Helper()
	for _, record := range r.Records() {
		if Text(record, "id") == id {
			return record
		}
	}
	r.t.Fatalf("row %s did not arrive", id)
	return cdc.Record{}
}

// Transactions are those that arrived, without their records.
func (r *Reader) Transactions() (txs []cdc.Transaction) {
	r.locked(func() { txs = slices.Clone(r.txs) })
	return txs
}

// Positions are those of the transactions that have one.
func (r *Reader) Positions() []cdc.Position {
	var all []cdc.Position
	for _, tx := range r.Transactions() {
		if tx.Position != "" {
			all = append(all, tx.Position)
		}
	}
	return all
}

// Last is the last position that came, empty before the first.
func (r *Reader) Last() cdc.Position {
	all := r.Positions()
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// Gaps are the reasons of the gaps that were announced.
func (r *Reader) Gaps() []string {
	reasons := []string{}
	for _, tx := range r.Transactions() {
		if tx.Gap != nil {
			reasons = append(reasons, tx.Gap.Reason)
		}
	}
	return reasons
}

// Gap is the gap with a number, counted from 0.
func (r *Reader) Gap(i int) cdc.Gap {
	r.t.Helper()
	for _, tx := range r.Transactions() {
		if tx.Gap == nil {
			continue
		}
		if i == 0 {
			return *tx.Gap
		}
		i--
	}
	r.t.Fatal("there is no such gap")
	return cdc.Gap{}
}

// Sweeps are why the poller was asked to look.
func (r *Reader) Sweeps() []string {
	reasons := []string{}
	for _, tx := range r.Transactions() {
		if tx.Sweep != "" {
			reasons = append(reasons, tx.Sweep)
		}
	}
	return reasons
}

// Ended says whether Run has returned, and with what.
func (r *Reader) Ended() (ended bool, err error) {
	r.locked(func() { ended, err = r.ended, r.runErr })
	return ended, err
}

// Wait waits for a condition, and fails at once when Run has ended.
func (r *Reader) Wait(what string, condition func() bool) {
	r.t.Helper()
	r.poll(what, func() bool {
		ended, err := r.Ended() // before the condition, which its end may make true
		if condition() {
			return true
		}
		if ended {
			r.t.Fatalf("Run ended with %v while waiting for %s", err, what)
		}
		return false
	})
}

func (r *Reader) poll(what string, condition func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(readerPatience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			r.t.Fatalf("waited %s for: %s", readerPatience, what)
		}
	}
}

// WaitFor waits until n different ids arrived.
func (r *Reader) WaitFor(n int) {
	r.t.Helper()
	r.Wait(fmt.Sprintf("%d events", n), func() bool { return r.Distinct() >= n })
}

// WaitGap waits for a gap with a reason.
func (r *Reader) WaitGap(reason string) {
	r.t.Helper()
	r.Wait("a gap "+reason, func() bool { return slices.Contains(r.Gaps(), reason) })
}

// WaitMode waits until the source, which must report, is in one of the modes.
func (r *Reader) WaitMode(modes ...cdc.Mode) {
	r.t.Helper()
	r.Wait(fmt.Sprintf("mode %s", modes), func() bool { return slices.Contains(modes, r.src.(cdc.Reporter).Status().Mode) })
}

// Failed waits until Run returns, and gives its error.
func (r *Reader) Failed() error {
	r.t.Helper()
	r.poll("the end of Run", func() bool {
		ended, _ := r.Ended()
		return ended
	})
	_, err := r.Ended()
	return err
}

// Text is a column of a record as text: "null", "unchanged" and "absent" for what has none.
func Text(r cdc.Record, column string) string {
	i := r.Relation.Index(column)
	if i < 0 || i >= len(r.Values) {
		return "absent"
	}
	switch v := r.Values[i]; {
	case v.Null:
		return "null"
	case v.Unchanged:
		return "unchanged"
	default:
		return string(v.Data)
	}
}

// LogBuffer is a log that can be read while it is written.
type LogBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Count is how often a text is in the log.
func (b *LogBuffer) Count(text string) int { return strings.Count(b.String(), text) }

// Crowd lets six tests run at once, however few processors there are, unless the command line says how many:
// most of a reader's tests wait for a server. It is for TestMain, before the tests run.
func Crowd() {
	flag.Parse()
	if given := flag.Lookup("test.parallel"); given.Value.String() != strconv.Itoa(runtime.GOMAXPROCS(0)) {
		return
	}
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err) // the flag is there, and takes numbers
	}
}
