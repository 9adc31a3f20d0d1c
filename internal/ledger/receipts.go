package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// Receipt is one start of a handler: what it received, and how it ended.
type Receipt struct {
	Pair
	// Process names the process life that ran it; a restarted process is another.
	Process string
	Attempt int
	Start   time.Time
	// End is zero when the handler never returned.
	End time.Time
	// Outcome is what the handler returned: "ok", "stopped" when its context had been
	// cancelled, else the outcome class of package event. Empty while End is zero.
	Outcome string
	// Settled says that the outcome was written before the process died; only a
	// recorder that is told ([Recorder.Settled]) knows.
	Settled bool
}

// Outcomes that are not a class of package event.
const (
	OutcomeOK      = "ok"
	OutcomeStopped = "stopped"
)

// Recorder keeps the receipts of one process. Make it with [NewRecorder] or
// [OpenRecorder].
type Recorder struct {
	process string

	mu       sync.Mutex
	file     *os.File // nil: in memory only
	next     int
	receipts []Receipt      // in memory only
	running  map[string]int // by delivery id: its latest start, until it is settled
}

// NewRecorder returns a recorder that keeps its receipts in memory.
func NewRecorder(process string) *Recorder {
	return &Recorder{process: process, running: map[string]int{}}
}

// OpenRecorder returns a recorder that appends its receipts to a file, for a
// process that is going to be killed. [ReadReceipts] reads them back.
func OpenRecorder(path, process string) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open receipts: %w", err)
	}
	r := NewRecorder(process)
	r.file = f
	return r, nil
}

// Close closes the file, if there is one.
func (r *Recorder) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Wrap returns a handler that records every start and end of h. A start that
// cannot be written down fails the attempt before h runs, so that no effect is
// without its receipt.
func (r *Recorder) Wrap(h event.Handler) event.Handler {
	return event.HandlerFunc(func(ctx context.Context, e event.Envelope) (err error) {
		n, rerr := r.start(e)
		if rerr != nil {
			return rerr
		}
		outcome := "panic"
		defer func() {
			if eerr := r.end(n, outcome); eerr != nil {
				err = errors.Join(err, eerr)
			}
		}()
		err = h.Handle(ctx, e)
		outcome = outcomeOf(ctx, err)
		return err
	})
}

func outcomeOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return OutcomeOK
	case errors.Is(ctx.Err(), context.Canceled):
		return OutcomeStopped
	default:
		class, _ := event.Classify(err)
		return class.String()
	}
}

// Receipts returns what was recorded in memory so far, in order of start.
func (r *Recorder) Receipts() []Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.receipts)
}

// Settled records that the outcomes of the latest attempts of these deliveries have
// been written. An error means that the file could not be.
func (r *Recorder) Settled(deliveryIDs ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range deliveryIDs {
		n, ok := r.running[id]
		if !ok {
			continue // ended before its handler was called
		}
		delete(r.running, id)
		if r.file == nil {
			r.receipts[n].Settled = true
		} else if err := r.write(line{N: n, At: time.Now().UnixNano(), Settled: true}); err != nil {
			return err
		}
	}
	return nil
}

// line is one line of a receipts file: a start has Event set, an end Outcome, the
// news that the outcome was written Settled.
type line struct {
	N       int    `json:"n"`
	At      int64  `json:"at"` // nanoseconds since 1970
	Event   string `json:"event,omitempty"`
	Handler string `json:"handler,omitempty"`
	Process string `json:"process,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Settled bool   `json:"settled,omitempty"`
}

func (r *Recorder) start(e event.Envelope) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	n := r.next
	r.next++
	r.running[e.DeliveryID] = n
	if r.file != nil {
		return n, r.write(line{N: n, At: now.UnixNano(), Event: e.ID, Handler: e.Handler, Process: r.process, Attempt: e.Attempt})
	}
	r.receipts = append(r.receipts, Receipt{
		Pair: Pair{Event: e.ID, Handler: e.Handler}, Process: r.process, Attempt: e.Attempt, Start: now,
	})
	return n, nil
}

func (r *Recorder) end(n int, outcome string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.file != nil {
		return r.write(line{N: n, At: now.UnixNano(), Outcome: outcome})
	}
	r.receipts[n].End, r.receipts[n].Outcome = now, outcome
	return nil
}

// write hands one line to the kernel in one call, so that it survives the
// process and is never interleaved.
func (r *Recorder) write(l line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode receipt: %w", err)
	}
	if _, err := r.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write receipt: %w", err)
	}
	return nil
}

// ReadReceipts reads the file of one process, in order of start. A last line
// that was cut by the death of the process is left out; damage anywhere else is an error.
func ReadReceipts(path string) ([]Receipt, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	defer func() { _ = f.Close() }()
	var out []Receipt
	var torn error
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		if torn != nil {
			return nil, fmt.Errorf("read receipts of %s: %w", path, torn)
		}
		var l line
		if err := json.Unmarshal(scan.Bytes(), &l); err != nil {
			torn = err
			continue
		}
		switch at := time.Unix(0, l.At); {
		case l.Event != "" && l.N == len(out):
			out = append(out, Receipt{
				Pair: Pair{Event: l.Event, Handler: l.Handler}, Process: l.Process, Attempt: l.Attempt, Start: at,
			})
		case l.Outcome != "" && l.N < len(out):
			out[l.N].End, out[l.N].Outcome = at, l.Outcome
		case l.Settled && l.N < len(out):
			out[l.N].Settled = true
		default:
			return nil, fmt.Errorf("read receipts of %s: line for start %d after %d starts", path, l.N, len(out))
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("read receipts of %s: %w", path, err)
	}
	return out, nil
}
