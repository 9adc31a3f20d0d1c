package faultproxy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy forwards TCP connections to one target until a fault is asked for. All
// methods may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	bytes    atomic.Int64
	accepted atomic.Int64

	wg   sync.WaitGroup
	done chan struct{} // closed by cleanup

	mu     sync.Mutex
	target string
	links  map[*link]struct{}
	refuse bool
	hole   bool
	delay  time.Duration
	again  func() int64 // of CutAfter
	// cutIn is how many bytes pass until all is cut, counted while it is positive.
	cutIn int64
	// flowing is closed while bytes may pass and replaced by an open channel
	// during a stall.
	flowing chan struct{}
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	// cut says that a cut is due on it. The proxy's mu guards it.
	cut bool
	// swallowed is set for good by Blackhole.
	swallowed atomic.Bool
}

// New starts a proxy to target ("host:port") that the test's cleanup stops.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		target:   target,
		listener: listener,
		done:     make(chan struct{}),
		links:    map[*link]struct{}{},
		flowing:  make(chan struct{}),
	}
	close(p.flowing)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is the "host:port" to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// BytesForwarded counts what was passed on to either end, both directions together.
func (p *Proxy) BytesForwarded() int64 { return p.bytes.Load() }

// Accepted counts the connections that were not refused.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Cut closes every connection on both sides. New ones are not affected.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// CutAfter cuts every connection once n more bytes have been passed on, to either end, and
// not one byte more. A cut that has not come yet is replaced. Then again, when not nil, says
// after how many bytes the next cut comes; 0 ends it.
func (p *Proxy) CutAfter(n int64, again func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again = again
	p.cutIn = n
}

// allow says how many of n bytes may pass on l before a cut that is due. With the last of
// them the next cut is prepared, before any end can learn of this one.
func (p *Proxy) allow(l *link, n int) (allowed int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case l.cut:
		return 0, true
	case p.cutIn <= 0:
		return n, false
	case int64(n) < p.cutIn:
		p.cutIn -= int64(n)
		return n, false
	}
	allowed, p.cutIn = int(p.cutIn), 0
	if p.again != nil {
		p.cutIn = p.again()
	}
	for other := range p.links {
		other.cut = true
	}
	return allowed, true
}

// cutMarked closes the connections that a cut is due on.
func (p *Proxy) cutMarked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.cut {
			l.close()
		}
	}
}

// Redirect sends new connections to another target, as a name does that follows the primary.
func (p *Proxy) Redirect(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Refuse decides whether new connections are turned away.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Stall stops forwarding in both directions. Connections stay open, and new
// ones are accepted and stall as well.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing:
		p.flowing = make(chan struct{})
	default: // stalled already
	}
}

// Resume ends a stall; nothing that was sent meanwhile is lost.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing:
	default:
		close(p.flowing)
	}
}

// Blackhole swallows all existing connections for good, and the new ones until
// [Proxy.Heal]. Neither end learns of it, and neither end learns that the other
// one closed: as when a host loses its power.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = true
	for l := range p.links {
		l.swallowed.Store(true)
	}
}

// Heal lets new connections pass again after [Proxy.Blackhole].
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = false
}

// Delay holds every chunk back for d, in both directions. Zero ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed by cleanup
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve connects one client to the target and pumps until both directions end.
func (p *Proxy) serve(client net.Conn) {
	l := &link{client: client}
	p.mu.Lock()
	if p.refuse || p.closed() {
		p.mu.Unlock()
		_ = client.Close()
		return
	}
	l.swallowed.Store(p.hole)
	p.links[l] = struct{}{}
	target := p.target
	p.mu.Unlock()
	p.accepted.Add(1)
	defer p.forget(l)

	if l.swallowed.Load() {
		p.discard(client)
		return
	}
	var dialer net.Dialer
	server, err := dialer.DialContext(context.Background(), "tcp", target)
	if err != nil {
		return // the client sees a closed connection, as without a proxy
	}
	p.mu.Lock()
	l.server = server
	closed := p.closed()
	p.mu.Unlock()
	if closed {
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(l, server, client) })
	pumps.Go(func() { p.pump(l, client, server) })
	pumps.Wait()
}

// pump forwards one direction until it ends, then ends the other direction,
// unless the link is swallowed: then it holds both ends open.
func (p *Proxy) pump(l *link, dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if err == nil {
			p.hold()
		}
		if l.swallowed.Load() {
			p.discard(src)
			return
		}
		if n > 0 {
			allowed, cut := p.allow(l, n)
			p.bytes.Add(int64(allowed)) // before the other end can answer
			if _, werr := dst.Write(buf[:allowed]); werr != nil {
				err = werr
			}
			if cut {
				p.cutMarked()
				return
			}
		}
		if err != nil {
			l.close()
			return
		}
	}
}

// hold waits while the proxy stalls, and for the delay.
func (p *Proxy) hold() {
	p.mu.Lock()
	flowing, delay := p.flowing, p.delay
	p.mu.Unlock()
	select {
	case <-flowing:
	case <-p.done:
	}
	if delay <= 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.done:
	}
}

// discard reads src to its end and then keeps the link open, so that the other
// end is not told, until the test is over.
func (p *Proxy) discard(src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		if _, err := src.Read(buf); err != nil {
			<-p.done
			return
		}
	}
}

// forget closes and drops a link.
func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.close()
	delete(p.links, l)
}

func (p *Proxy) closed() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// close ends everything and waits for every goroutine.
func (p *Proxy) close() {
	p.mu.Lock()
	close(p.done)
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.wg.Wait()
}

// close closes both ends. An error has no consequence: the ends are gone.
func (l *link) close() {
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}
