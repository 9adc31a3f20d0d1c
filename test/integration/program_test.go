package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/workload"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// program is a life of the real program.
type program struct {
	*testbed.Program
	w       *world
	process string
}

// run starts the program with the handlers of a YAML list, and with further
// settings at the top level of its file.
func (w *world) run(path, handlers, settings string) *program {
	w.t.Helper()
	return w.runIn(path, "auto", handlers, settings)
}

// runIn is run in another mode.
func (w *world) runIn(path, mode, handlers, settings string) *program {
	w.t.Helper()
	o := w.fill(options{})
	schemaName := "eventlog"
	if m, ok := w.db.(*mysql); ok {
		schemaName = m.Name
	}
	text := fmt.Sprintf(`version: 1
log: {level: warn, format: text}
server: {listen: none}
sources:
  - {name: main, dsn: %q, schema: %s, mode: %s, poller: {interval: 1s}}
handlers:
%s
%s
`, w.db.DSN(), schemaName, mode, strings.ReplaceAll(handlers, "PROCESS", o.Process), settings)
	return &program{testbed.Run(w.t, path, text), w, o.Process}
}

// order runs one command of an operator, which must work.
func (p *program) order(args ...string) {
	p.w.t.Helper()
	if err := p.Command(p.w.t.Context(), args...); err != nil {
		p.w.t.Fatal(err)
	}
}

// note keeps what its output says of the run.
func (p *program) note() {
	if s := p.Output(); s != "" {
		p.w.t.Logf("%s: %s", p.process, s)
		p.w.lapsed = p.w.lapsed || strings.Contains(s, "does not hold the delivery any more")
	}
}

func (p *program) kill() {
	p.w.t.Helper()
	if err := p.Kill(); err != nil {
		p.w.t.Fatal(err)
	}
	p.note()
	p.w.fault(p.process)
	// A request that it had sent may reach the receiver, which dates the receipt, after its death.
	last := &p.w.faults[len(p.w.faults)-1]
	last.Until = last.At.Add(10 * time.Second)
	p.w.wrecked = append(p.w.wrecked, "kill -9 of the program")
}

// stop ends the program the polite way.
func (p *program) stop() {
	p.w.t.Helper()
	if err := p.Stop(); err != nil {
		p.w.t.Fatalf("the program did not stop cleanly: %v\n%s", err, p.Output())
	}
	p.note()
}

// receive starts the receiver of steady and moody, of which the second fails like its
// namesake in process.
func (w *world) receive() *testbed.Receiver {
	w.t.Helper()
	w.receiver = testbed.Receive(w.t, func(_ context.Context, p ledger.Pair, attempt int) error {
		if p.Handler == "moody" && attempt == 1 && strings.ContainsAny(p.Event[:1], "07") {
			return errMoody
		}
		return nil
	})
	return w.receiver
}

// The program itself, with webhooks as its handlers, killed under load.
func TestGuarantee_NoLossUnderKill9OfTheProgram(t *testing.T) {
	path := testbed.Build(t)
	eachPostgres(t, func(t *testing.T, w *world) {
		r := w.receive()
		end := w.write(workload.Config{Writers: 16, Rate: 200})
		for range 4 {
			p := w.run(path, r.Webhooks("PROCESS", "", "steady", "moody"), `defaults: {lease: 4s}`)
			w.letPass(50 + w.rng.IntN(200))
			p.kill()
		}
		last := w.run(path, r.Webhooks("PROCESS", "", "steady", "moody"), `defaults: {lease: 4s}`)
		w.letPass(100)
		end()
		w.settle()
		last.stop()
		w.verdict()
	})
}

// A transaction of 200,000 rows is delivered whole, and the program stays below
// 256 MB of resident memory (B24).
func TestGuarantee_200kRowTransactionMemoryBound(t *testing.T) {
	const bound = 256 << 20
	path := testbed.Build(t)
	eachPostgres(t, func(t *testing.T, w *world) {
		w.subscribers = func(string) []string { return []string{"reader"} }
		p := w.run(path, `  - {name: reader, on: ["*"], concurrency: 64, logger: {level: debug, payload: true}}`, ``)
		w.streaming()
		n := testbed.Size(200_000, 2_000_000)
		w.emit(n, "order.imported", `{"filler": "`+filler(400)+`"}`)
		w.progress("every row to be delivered",
			`SELECT count(*) FROM eventlog.event_notifications WHERE state = 'SUCCEEDED'`, int64(n))
		peak := testbed.PeakMemory(t, p.PID())
		p.stop()
		t.Logf("peak of resident memory: %d MB", peak>>20)
		if peak > bound {
			t.Errorf("peak of resident memory = %d MB, want at most %d MB", peak>>20, bound>>20)
		}
		// The logger keeps no receipts: that SUCCEEDED is true is shown elsewhere.
		w.wrecked = append(w.wrecked, fmt.Sprintf("one transaction of %d rows, peak %d MB", n, peak>>20))
		w.verdict(func(r *ledger.Report) { r.Phantom = nil })
	})
}
