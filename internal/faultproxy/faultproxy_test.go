package faultproxy_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestForwardsBothWays(t *testing.T) {
	p, conn := dialed(t)
	exchange(t, conn, "hello\n")
	if got := p.BytesForwarded(); got != 12 {
		t.Errorf("BytesForwarded = %d, want 6 there and 6 back", got)
	}
	if got := p.Accepted(); got != 1 {
		t.Errorf("Accepted = %d, want 1", got)
	}
}

func TestCutClosesOldConnectionsOnly(t *testing.T) {
	p, conn := dialed(t)
	exchange(t, conn, "a\n")
	p.Cut()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("read succeeded on a cut connection")
	}
	exchange(t, dial(t, p), "b\n")
}

func TestCutAfterPassesThatManyBytes(t *testing.T) {
	p, conn := dialed(t)
	exchange(t, conn, "a\n")
	p.CutAfter(6+3, func() int64 { return 2 * 22 }) // all of the question, and half of the answer
	send(t, conn, "hello\n")
	if got, _ := io.ReadAll(conn); string(got) != "hel" { // how it ends is the system's choice
		t.Errorf("read %q before the cut, want %q", got, "hel")
	}
	conn = dial(t, p)
	exchange(t, conn, "as long as is allowed\n")
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the second cut did not come")
	}
}

func TestRedirectLeadsNewConnectionsElsewhere(t *testing.T) {
	p, conn := dialed(t)
	other, _ := dialed(t)
	p.Redirect(other.Addr())
	before := other.BytesForwarded()
	exchange(t, conn, "old\n")
	if n := other.BytesForwarded() - before; n != 0 {
		t.Errorf("%d bytes of an old connection went to the new target", n)
	}
	exchange(t, dial(t, p), "new\n")
	if n := other.BytesForwarded() - before; n != 8 {
		t.Errorf("%d bytes of a new connection went to the new target, want 4 there and 4 back", n)
	}
}

func TestRefuseTurnsNewConnectionsAway(t *testing.T) {
	p, conn := dialed(t)
	exchange(t, conn, "a\n")
	p.Refuse(true)
	if _, err := dial(t, p).Read(make([]byte, 1)); err == nil {
		t.Fatal("a refused connection gave data")
	}
	exchange(t, conn, "old ones live\n")
	p.Refuse(false)
	exchange(t, dial(t, p), "b\n")
}

func TestStallLosesNothing(t *testing.T) {
	p, conn := dialed(t)
	exchange(t, conn, "a\n")
	p.Stall()
	send(t, conn, "b\n")
	silent(t, conn)
	p.Resume()
	if got := line(t, conn); got != "b\n" {
		t.Fatalf("got %q after the stall", got)
	}
}

func TestBlackholeTellsNobody(t *testing.T) {
	p, conn := dialed(t)
	exchange(t, conn, "a\n")
	p.Blackhole()
	send(t, conn, "lost\n")
	silent(t, conn)
	silent(t, dial(t, p))
	p.Heal()
	exchange(t, dial(t, p), "b\n")
	silent(t, conn)
}

func TestDelayKeepsOrder(t *testing.T) {
	p, conn := dialed(t)
	p.Delay(30 * time.Millisecond)
	start := time.Now()
	exchange(t, conn, "a\n")
	exchange(t, conn, "b\n")
	if took := time.Since(start); took < 120*time.Millisecond {
		t.Errorf("two round trips took %s, want at least four delays", took)
	}
}

// dialed starts an echo server, a proxy before it, and a connection through it.
func dialed(t *testing.T) (*faultproxy.Proxy, net.Conn) {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	p := faultproxy.New(t, listener.Addr().String())
	return p, dial(t, p)
}

func dial(t *testing.T, p *faultproxy.Proxy) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(context.Background(), "tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	patient(t, conn)
	return conn
}

func exchange(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	send(t, conn, text)
	if got := line(t, conn); got != text {
		t.Fatalf("echo = %q, want %q", got, text)
	}
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func line(t *testing.T, conn net.Conn) string {
	t.Helper()
	got, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// silent checks that conn is open and brings nothing.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var netErr net.Error
	if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &netErr) || !netErr.Timeout() {
		t.Fatalf("read = %v, want a timeout", err)
	}
	patient(t, conn)
}

// patient lets conn wait, but not for as long as the test runner would.
func patient(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
}
