package webhook

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// names is a DNS server that knows one IPv4 address for every name, or none.
type names struct {
	mu   sync.Mutex
	addr netip.Addr
}

func (n *names) set(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addr = netip.MustParseAddr(addr)
}

// use makes w resolve names with n.
func (n *names) use(t *testing.T, w *Webhook) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if _, err := conn.WriteTo(n.answer(buf[:size]), from); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() { conn.Close(); wg.Wait() })
	w.dialer.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// answer builds a DNS response: the question again, and an A record or "no such name".
func (n *names) answer(query []byte) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	isA := query[end+2] == 1
	resp := append([]byte{query[0], query[1], 0x84, 0, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end+5]...)
	switch {
	case !n.addr.IsValid():
		resp[3] = 3 // NXDOMAIN
	case isA:
		resp[7] = 1
		resp = append(resp, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		resp = append(resp, n.addr.AsSlice()...)
	}
	return resp
}

func TestQ40_NameThatDoesNotExistYetIsRetried(t *testing.T) {
	s, got := recorder(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	w := hook(t, "http://hooks.test.:"+port, nil)
	var dns names
	dns.use(t, w)

	e := fails(t, w, "dns")
	wantClass(t, e, event.ClassRetry, 0)
	if !strings.Contains(e.Error(), "no such host") {
		t.Errorf("error %q does not say why", e)
	}
	dns.set("127.0.0.1")
	if err := w.Handle(t.Context(), sample()); err != nil {
		t.Fatalf("the name exists now: %v", err)
	}
	if len(got()) != 1 {
		t.Errorf("%d requests", len(got()))
	}
}

// The name was harmless when it was configured and points at the metadata service now.
func TestGuard_LooksAtTheAddressThatIsDialled(t *testing.T) {
	s, got := recorder(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	w := hook(t, "http://hooks.test.:"+port, nil)
	var dns names
	dns.use(t, w)
	dns.set("127.0.0.1")
	if err := w.Handle(t.Context(), sample()); err != nil {
		t.Fatal(err)
	}
	w.Close()
	dns.set("169.254.169.254")
	e := fails(t, w, "address_refused")
	wantClass(t, e, event.ClassRetry, 0)
	if !strings.Contains(e.Error(), "169.254.169.254") {
		t.Errorf("error %q does not name the address", e)
	}

	public := hook(t, "http://hooks.test.:"+port, func(c *Config) { c.PublicOnly = true })
	dns.use(t, public)
	dns.set("127.0.0.1")
	wantClass(t, fails(t, public, "address_refused"), event.ClassRetry, 0)
	if len(got()) != 1 {
		t.Errorf("%d requests arrived, want the first alone", len(got()))
	}
}
