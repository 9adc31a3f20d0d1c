package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/testbed"
)

// childVariable carries the life of a child process, as JSON.
const childVariable = "CDC_DISPATCHER_INTEGRATION_CHILD"

var errMoody = errors.New("first attempts of this event fail")

// childLife is what a child process is told.
type childLife struct {
	options
	Receipts string
	// Gate, when not empty, is a file: the handlers do not return before it exists.
	Gate string
}

func isChild() bool { return os.Getenv(childVariable) != "" }

// childMain is the whole child process: the library over the handlers of
// steadyAndMoody, until SIGTERM. Its last line on stdout is its totals.
func childMain() int {
	if err := runChild(); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

func runChild() error {
	var c childLife
	if err := json.Unmarshal([]byte(os.Getenv(childVariable)), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rec, err := ledger.OpenRecorder(c.Receipts, c.Process)
	if err != nil {
		return err
	}
	handlers := steadyAndMoody()
	for i, h := range handlers {
		inner := h.Handler
		if c.Gate != "" {
			inner = gated(c.Gate, inner)
		}
		handlers[i].Handler = rec.Wrap(inner)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	d, err := newDispatcher(ctx, c.options, handlers, rec, logger, hooks{})
	if err != nil {
		return err
	}
	if err := d.run(ctx); err != nil {
		return err
	}
	if err := rec.Close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(d.counts.totals())
}

// gated holds every attempt until the file exists, whatever becomes of its
// context: a handler that does not listen.
func gated(path string, h event.Handler) event.Handler {
	return event.HandlerFunc(func(ctx context.Context, e event.Envelope) error {
		awaitFile(path)
		return h.Handle(ctx, e)
	})
}

// awaitFile returns once a file exists.
func awaitFile(path string) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		<-tick.C
	}
}

// child is a dispatcher in a process of its own.
type child struct {
	w       *world
	process string
	// receipts is the file that the child writes.
	receipts string
	cmd      *exec.Cmd
	out      strings.Builder
	drained  sync.WaitGroup
	ended    bool
}

// spawn starts a child process.
func (w *world) spawn(c childLife) *child {
	w.t.Helper()
	c.options = w.fill(c.options)
	c.Receipts = w.receiptsFile(c.Process)
	life, err := json.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	ch := &child{w: w, process: c.Process, receipts: c.Receipts, cmd: exec.Command(self)}
	w.children = append(w.children, ch)
	ch.cmd.Env = append(os.Environ(), childVariable+"="+string(life))
	ch.cmd.SysProcAttr = testbed.DieWithParent()
	stdout, err := ch.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	stderr, err := ch.cmd.StderrPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := ch.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ch.drained.Go(func() { _, _ = io.Copy(&ch.out, stdout) })
	ch.drained.Go(func() {
		for s := bufio.NewScanner(stderr); s.Scan(); {
			w.t.Logf("%s: %s", c.Process, s.Text())
		}
	})
	w.t.Cleanup(func() {
		if !ch.ended {
			_ = ch.cmd.Process.Kill()
			_ = ch.wait() // reports the signal
		}
	})
	return ch
}

func (c *child) wait() error {
	c.ended = true
	c.drained.Wait()
	return c.cmd.Wait()
}

// kill ends the child with SIGKILL and notes the fault.
func (c *child) kill() {
	c.w.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.w.t.Fatal(err)
	}
	_ = c.wait() // reports the signal
	c.w.fault(c.process)
	c.w.wrecked = append(c.w.wrecked, "kill -9")
}

// signal sends a signal.
func (c *child) signal(sig syscall.Signal) {
	c.w.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.w.t.Fatal(err)
	}
}

// stop ends the child the polite way and returns its totals.
func (c *child) stop() totals {
	c.w.t.Helper()
	testdb.WaitFor(c.w.t, c.process+" to listen for signals, which it does before it opens its receipts", func() bool {
		_, err := os.Stat(c.receipts)
		return err == nil
	})
	c.signal(syscall.SIGTERM)
	if err := c.wait(); err != nil {
		c.w.t.Fatalf("%s did not stop cleanly: %v", c.process, err)
	}
	var t totals
	if err := json.Unmarshal([]byte(c.out.String()), &t); err != nil {
		c.w.t.Fatalf("totals of %s: %v\n%s", c.process, err, c.out.String())
	}
	c.w.lapsed = c.w.lapsed || t.lapsed()
	return t
}

// started counts the attempts of the child.
func (c *child) started() int {
	receipts, err := ledger.ReadReceipts(c.receipts)
	if err != nil {
		return 0 // the file is not there yet
	}
	return len(receipts)
}

// running counts the handlers of the child that have started and not ended.
func (c *child) running() int {
	receipts, err := ledger.ReadReceipts(c.receipts)
	if err != nil {
		return 0 // the file is not there yet
	}
	n := 0
	for _, r := range receipts {
		if r.End.IsZero() {
			n++
		}
	}
	return n
}

// freeze stops the child where it is; thaw lets it go on.
func (c *child) freeze() { c.w.t.Helper(); c.signal(syscall.SIGSTOP) }
func (c *child) thaw()   { c.w.t.Helper(); c.signal(syscall.SIGCONT) }
