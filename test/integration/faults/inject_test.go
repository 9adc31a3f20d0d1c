package faults

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/test/integration/internal/nemesis"
)

// inject makes one fault, lets it last, and heals it.
func (a *arena) inject(ctx context.Context, f nemesis.Fault) error {
	a.mu.Lock()
	a.injected = append(a.injected, string(f.Kind))
	a.mu.Unlock()
	switch f.Kind {
	case nemesis.Kill, nemesis.Terminate, nemesis.Freeze:
		return a.process(a.processes[f.Process], f)
	case nemesis.Cut, nemesis.Stall, nemesis.BlackHole, nemesis.Delay:
		a.connections(a.processes[f.Process], f)
		return nil
	case nemesis.Pause:
		return a.pause(ctx, f)
	case nemesis.Refuse, nemesis.Hang:
		a.destination(f)
		return nil
	default:
		return a.server(ctx, f)
	}
}

// lasts is how long a fault lasts.
func lasts(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// outage notes that the named lives, or with none all processes, could not write an outcome
// from a moment until now, and for the time that it takes to notice that it is over.
func (a *arena) outage(began time.Time, notice time.Duration, lives ...string) {
	if len(lives) == 0 {
		lives = []string{""}
	}
	for _, life := range lives {
		a.note(ledger.Fault{Process: life, At: began, Until: time.Now().Add(notice), Window: window})
	}
}

func (a *arena) process(p *process, f nemesis.Fault) error {
	began := time.Now()
	switch f.Kind {
	case nemesis.Kill:
		if err := p.program.Kill(); err != nil {
			return err
		}
		a.killed(p)
	case nemesis.Terminate:
		var unclean *exec.ExitError
		if err := a.stop(p); err != nil && (!errors.As(err, &unclean) || unclean.ExitCode() != 1) {
			return err // 1 says that outcomes could not be written, which another fault may be the reason for
		}
		a.note(ledger.Fault{Process: p.name(), At: began, Until: time.Now(), Window: window})
	case nemesis.Freeze:
		if err := p.program.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		lasts(f.For)
		if err := p.program.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		a.note(ledger.Fault{Process: p.name(), At: began, Until: time.Now(), Window: window, Frozen: true})
		return nil
	}
	lasts(f.For)
	a.start(p)
	return nil
}

// killed notes that a life was ended just now.
func (a *arena) killed(p *process) {
	// A request that it had sent may reach the receiver, which dates the receipt, after its death.
	a.note(ledger.Fault{Process: p.name(), At: time.Now(), Until: time.Now().Add(reconnect), Window: window})
	a.say(p)
}

// ways are the connections of a process that a fault concerns.
func (p *process) ways(path nemesis.Path) (ways []*faultproxy.Proxy) {
	if path != nemesis.Log {
		ways = append(ways, p.pool)
	}
	if path != nemesis.Pool {
		ways = append(ways, p.log)
	}
	return ways
}

func (a *arena) connections(p *process, f nemesis.Fault) {
	ways := p.ways(f.Path)
	began := time.Now()
	for _, way := range ways {
		switch f.Kind {
		case nemesis.Cut:
			way.Cut()
		case nemesis.Stall:
			way.Stall()
		case nemesis.BlackHole:
			way.Blackhole()
		case nemesis.Delay:
			way.Delay(10 * time.Millisecond)
		}
	}
	lasts(f.For)
	for _, way := range ways {
		way.Resume()
		way.Heal()
		way.Delay(0)
	}
	if f.Path == nemesis.Log || f.Kind == nemesis.Cut || f.Kind == nemesis.Delay {
		return // no reason to repeat anything
	}
	notice := reconnect
	if f.Kind == nemesis.BlackHole {
		notice += statement
	}
	a.outage(began, notice, a.lives(p)...)
}

func (a *arena) destination(f nemesis.Fault) {
	m := a.modes[handlers[f.Handler]]
	if f.Kind == nemesis.Refuse {
		m.refuse.Store(true)
		lasts(f.For)
		m.refuse.Store(false)
		return
	}
	awake := make(chan struct{})
	m.hang.Store(&awake)
	lasts(f.For)
	m.hang.Store(nil)
	close(awake)
}

// pause uses the program's own command, as soon as a dispatcher has announced its handlers.
func (a *arena) pause(ctx context.Context, f nemesis.Fault) error {
	name := handlers[f.Handler]
	if err := await(ctx, func() error {
		return a.command(ctx, "handlers", "pause", name, "--reason", "the nemesis", "--yes")
	}); err != nil {
		return err
	}
	lasts(f.For)
	return a.command(ctx, "handlers", "resume", name, "--yes")
}

func (a *arena) command(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, a.binary, append(args, "--config", a.operator)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return nil
}

func (a *arena) server(ctx context.Context, f nemesis.Fault) error {
	began := time.Now()
	switch f.Kind {
	case nemesis.Crash, nemesis.Restart, nemesis.Lock, nemesis.Exhaust:
		defer func() { a.outage(began, reconnect) }()
	}
	switch f.Kind {
	case nemesis.Crash:
		if err := a.db.Crash(); err != nil {
			return err
		}
		lasts(f.For)
		return a.db.Start(ctx)
	case nemesis.Restart:
		stop, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := a.db.Stop(stop); err != nil {
			return fmt.Errorf("the clean shutdown is held up: %w", err)
		}
		lasts(f.For)
		return a.db.Start(ctx)
	case nemesis.Lock:
		unlock, err := a.db.LockDeliveries(ctx, true)
		if err != nil {
			return err
		}
		lasts(f.For)
		return unlock()
	case nemesis.Exhaust:
		a.exhaust(ctx, f.For)
		return nil
	case nemesis.Alter:
		a.columns++
		return a.db.Exec(ctx, fmt.Sprintf("ALTER TABLE eventlog.events ADD COLUMN nemesis_%d int", a.columns))
	case nemesis.ForgetLog:
		return a.forget(ctx)
	default:
		return fmt.Errorf("nobody knows how to make a %s", f.Kind)
	}
}

// exhaust cuts all dispatchers off and takes every connection that becomes free.
func (a *arena) exhaust(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for _, p := range a.processes {
		p.pool.Cut()
	}
	var mu sync.Mutex
	var taken []func()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				if release, err := a.db.occupy(ctx); err == nil {
					mu.Lock()
					taken = append(taken, release)
					mu.Unlock()
					continue
				}
				<-tick.C
			}
		})
	}
	wg.Wait()
	for _, release := range taken {
		release()
	}
}

// forget takes log away that nobody has read, and waits until the loss is recorded. Before
// somebody reads there is nothing to lose.
func (a *arena) forget(ctx context.Context) error {
	if err := await(ctx, func() error {
		if !a.db.Streaming(ctx) {
			return errNotReading
		}
		return nil
	}); err != nil {
		return err
	}
	down := a.db.readersKeepLog()
	for _, p := range a.processes {
		if !down {
			break // a reader that is cut off loses no outcome
		}
		if err := p.program.Kill(); err != nil {
			return err
		}
		a.killed(p)
	}
	a.pass(20)
	gaps := a.number(countGaps)
	if err := await(ctx, func() error { return a.db.forgetLog(ctx) }); err != nil {
		return err
	}
	for _, p := range a.processes {
		if down {
			a.start(p)
		}
	}
	return await(ctx, func() error {
		if n := a.number(countGaps); n <= gaps {
			return fmt.Errorf("%d gaps are recorded after %d", n, gaps)
		}
		return nil
	})
}

const countGaps = `SELECT count(*) FROM eventlog.gaps`

var errNotReading = errors.New("nobody reads the log")

// await tries until something succeeds, or is out of patience.
func await(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, for %s", err, patience)
		case <-tick.C:
		}
	}
}
