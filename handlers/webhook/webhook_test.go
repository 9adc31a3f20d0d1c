package webhook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

func TestRequest_OnTheWire(t *testing.T) {
	for _, format := range []Format{Raw, Envelope, CloudEvents, CloudEventsStructured} {
		t.Run(string(format), func(t *testing.T) {
			s, got := recorder(t)
			w := hook(t, s.URL, func(c *Config) { c.Format = format })
			if err := w.Handle(t.Context(), sample()); err != nil {
				t.Fatal(err)
			}
			r := got()[0]
			if r.method != "POST" || r.uri != "/hunter2?token=hunter2" {
				t.Errorf("request = %s %s", r.method, r.uri)
			}
			for name, want := range map[string]string{
				"Webhook-Id": sample().IdempotencyKey, "Traceparent": sample().Traceparent, "X-Key": "hunter2",
				"Authorization": "Basic dXNlcjpodW50ZXIy", "User-Agent": "cdc-dispatcher", "Accept-Encoding": "",
			} {
				if r.header.Get(name) != want {
					t.Errorf("%s = %q, want %q", name, r.header.Get(name), want)
				}
			}
			if err := Verify(r.header, r.body, time.Now(), vectorSecret); err != nil {
				t.Errorf("signature and %s do not go together: %v", format, err)
			}
		})
	}
}

func TestRequest_BrokenTraceparentStopsNothing(t *testing.T) {
	s, got := recorder(t)
	e := sample()
	e.Traceparent = "junk\r\nX-Injected: 1"
	if err := hook(t, s.URL, nil).Handle(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if h := got()[0].header; h.Values("Traceparent") != nil || h.Values("X-Injected") != nil {
		t.Errorf("headers = %v", h)
	}
}

// Three attempts by one process, one by another, and a manual retry.
func TestQ37_SameIDNewTimestampsEachSignatureVerifies(t *testing.T) {
	s, got := recorder(t)
	start := time.Now().Truncate(time.Second)
	oldSecret := secret(1)
	first := hook(t, s.URL, func(c *Config) { c.Secrets = []string{vectorSecret, oldSecret} })
	second := hook(t, s.URL, func(c *Config) { c.Secrets = []string{vectorSecret, oldSecret} })
	for i, w := range []*Webhook{first, first, first, second, second} {
		w.now = func() time.Time { return start.Add(time.Duration(i) * time.Second) }
		e := sample()
		e.Attempt = i + 1
		if err := w.Handle(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range got() {
		if id := r.header.Get("webhook-id"); id != sample().IdempotencyKey || strings.Contains(id, ".") {
			t.Errorf("attempt %d has the id %q", i+1, id)
		}
		if ts := r.header.Get("webhook-timestamp"); ts != strconv.FormatInt(start.Unix()+int64(i), 10) {
			t.Errorf("attempt %d has the timestamp %s", i+1, ts)
		}
		for _, sec := range []string{vectorSecret, oldSecret} {
			if err := Verify(r.header, r.body, start, sec); err != nil {
				t.Errorf("attempt %d: %v", i+1, err)
			}
		}
		if diff := cmp.Diff(string(got()[0].body), string(r.body)); diff != "" {
			t.Errorf("attempt %d has another body:\n%s", i+1, diff)
		}
	}
	if len(got()) != 5 {
		t.Errorf("%d requests", len(got()))
	}
}

func TestStatus_OnlySuccessIsSuccess(t *testing.T) {
	for _, c := range []struct {
		status     int
		retryAfter string
		permanent  []int
		ok         bool
		class      event.Class
		after      time.Duration
	}{
		{200, "", nil, true, 0, 0},
		{201, "", nil, true, 0, 0},
		{202, "60", nil, true, 0, 0},
		{204, "", nil, true, 0, 0},
		{299, "", nil, true, 0, 0},
		{300, "", nil, false, event.ClassRetry, 0},
		{301, "", nil, false, event.ClassRetry, 0},
		{302, "", nil, false, event.ClassRetry, 0},
		{303, "", nil, false, event.ClassRetry, 0},
		{304, "", nil, false, event.ClassRetry, 0},
		{307, "", nil, false, event.ClassRetry, 0},
		{308, "5", nil, false, event.ClassRetry, 5 * time.Second},
		{400, "", nil, false, event.ClassRetry, 0},
		{401, "", nil, false, event.ClassRetry, 0},
		{404, "", nil, false, event.ClassRetry, 0},
		{408, "", nil, false, event.ClassRetry, 0},
		{410, "60", nil, false, event.ClassPermanent, 0},
		{410, "", []int{}, false, event.ClassRetry, 0},
		{422, "", []int{400, 422}, false, event.ClassPermanent, 0},
		{410, "", []int{400, 422}, false, event.ClassRetry, 0},
		{429, "120", nil, false, event.ClassRetry, 2 * time.Minute},
		{429, "", nil, false, event.ClassRetry, 0},
		{429, "-1", nil, false, event.ClassRetry, 0},
		{429, "soon", nil, false, event.ClassRetry, 0},
		{429, "315360000", nil, false, event.ClassRetry, 24 * time.Hour},
		{500, "", nil, false, event.ClassRetry, 0},
		{502, "1", nil, false, event.ClassRetry, time.Second},
		{503, "7", nil, false, event.ClassRetry, 7 * time.Second},
		{504, "9", nil, false, event.ClassRetry, 9 * time.Second},
		{599, "", nil, false, event.ClassRetry, 0},
	} {
		t.Run(fmt.Sprint(c.status, c.retryAfter, c.permanent), func(t *testing.T) {
			s := serve(t, func(rw http.ResponseWriter, _ *http.Request) {
				if c.retryAfter != "" {
					rw.Header().Set("Retry-After", c.retryAfter)
				}
				rw.WriteHeader(c.status)
			})
			w := hook(t, s.URL, func(cfg *Config) { cfg.PermanentOn = c.permanent })
			if c.ok {
				if err := w.Handle(t.Context(), sample()); err != nil {
					t.Fatal(err)
				}
				return
			}
			err := w.Handle(t.Context(), sample())
			wantClass(t, err, c.class, c.after)
			if e := fails(t, w, fmt.Sprintf("http_%d", c.status)); e.Status != c.status {
				t.Errorf("Status = %d", e.Status)
			}
		})
	}
}

func TestRedirect_IsNeverFollowed(t *testing.T) {
	var followed atomic.Int32
	other := serve(t, func(http.ResponseWriter, *http.Request) { followed.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := serve(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				followed.Add(1)
				return
			}
			target := other.URL
			if status%2 == 0 {
				target = "/elsewhere"
			}
			http.Redirect(rw, r, target, status)
		})
		e := fails(t, hook(t, s.URL, nil), fmt.Sprintf("http_%d", status))
		if !strings.Contains(e.Error(), "redirects are not followed") {
			t.Errorf("error %q does not say why", e)
		}
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestAnswer_Body(t *testing.T) {
	huge := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		name, body, want string
	}{
		{"short", "invalid signature\n", "invalid signature\n"},
		{"empty", "", ""},
		{"control characters", "a\x1b[31mb\x00\r\n", "a\uFFFD[31mb\uFFFD\uFFFD\n"},
		{"no UTF-8", "caf\xe9", "caf\uFFFD"},
		{"exactly the limit", huge[:100], huge[:100]},
		{"one byte more", huge[:101], "(answer longer than 100 bytes)"},
		{"a megabyte", huge, "(answer longer than 100 bytes)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var status atomic.Int32
			s := serve(t, func(rw http.ResponseWriter, _ *http.Request) {
				rw.WriteHeader(int(status.Load()))
				write(rw, c.body)
			})
			w := hook(t, s.URL, func(c *Config) { c.MaxResponse = 100 })
			status.Store(200)
			if err := w.Handle(t.Context(), sample()); err != nil {
				t.Fatalf("a 2xx failed for its body: %v", err)
			}
			status.Store(500)
			e := fails(t, w, "http_500")
			if e.Response != c.want {
				t.Errorf("Response = %q, want %q", e.Response, c.want)
			}
			if c.body != "" && strings.Contains(e.Error(), c.body) {
				t.Errorf("error %q repeats the answer", e)
			}
		})
	}
}

func TestAnswer_ShortBodiesKeepTheConnection(t *testing.T) {
	var conns atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(500)
		write(rw, strings.Repeat("x", 10_000))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	w := hook(t, s.URL, nil)
	for range 5 {
		wantClass(t, fails(t, w, "http_500"), event.ClassRetry, 0)
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for five attempts", n)
	}
}

// A 2xx is a success however its body goes on; the attempt ends although the body does not.
func TestAnswer_SlowBodyDoesNotHoldTheAttempt(t *testing.T) {
	for status, code := range map[int]string{200: "", 500: "http_500"} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(rw http.ResponseWriter, r *http.Request) {
				rw.WriteHeader(status)
				write(rw, "first")
				flush(t, rw)
				<-r.Context().Done()
			})
			w := hook(t, s.URL, func(c *Config) { c.Timeout = time.Hour })
			if code != "" {
				if e := fails(t, w, code); e.Response != "first" {
					t.Errorf("Response = %q", e.Response)
				}
			} else if err := w.Handle(t.Context(), sample()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAnswer_CutOff(t *testing.T) {
	const (
		success = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut"
		failure = "HTTP/1.1 503 Busy\r\nRetry-After: 9\r\nContent-Length: 100\r\n\r\ncut"
	)
	for _, c := range []struct {
		name, answer, code string
	}{
		{"nothing", "", "connection"},
		{"in the status line", "HTTP/1.1 200", "connection"},
		{"in the header", "HTTP/1.1 200 OK\r\nContent-Le", "connection"},
		{"no HTTP", "SSH-2.0-hunter2\r\n", "connection"},
		{"header without end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20), "connection"},
		{"in the body of a success", success, ""},
		{"in the body of a failure", failure, "http_503"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := hook(t, "http://"+rawServer(t, c.answer), nil)
			if c.code == "" {
				if err := w.Handle(t.Context(), sample()); err != nil {
					t.Fatal(err)
				}
				return
			}
			e := fails(t, w, c.code)
			if c.code == "http_503" {
				err := w.Handle(t.Context(), sample())
				wantClass(t, err, event.ClassRetry, 9*time.Second)
				if e.Response != "cut" {
					t.Errorf("Response = %q", e.Response)
				}
			}
		})
	}
}

// rawServer reads one request per connection, writes answer and closes.
func rawServer(t *testing.T, answer string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				r, err := http.ReadRequest(bufio.NewReader(conn))
				if err == nil {
					drain(r)
				}
				write(conn, answer)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestNoAnswer_SlowHeaderTimesOut(t *testing.T) {
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		drain(r)
		<-r.Context().Done()
	})
	w := hook(t, s.URL, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	e := fails(t, w, "timeout")
	wantClass(t, e, event.ClassRetry, 0)

	// The deadline of the pipeline counts as well.
	w = hook(t, s.URL, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Handle(ctx, sample()); event.Code(err) != "timeout" {
		t.Errorf("code = %q (%v)", event.Code(err), err)
	}
}

func TestNoAnswer_CanceledIsNoTimeout(t *testing.T) {
	arrived := make(chan struct{})
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		drain(r)
		close(arrived)
		<-r.Context().Done()
	})
	w := hook(t, s.URL, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	err := w.Handle(ctx, sample())
	if event.Code(err) != "canceled" || !errors.Is(err, context.Canceled) {
		t.Errorf("code = %q (%v)", event.Code(err), err)
	}
}

func TestNoAnswer_NobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	e := fails(t, hook(t, "http://"+l.Addr().String(), nil), "dial")
	wantClass(t, e, event.ClassRetry, 0)
	if !strings.Contains(e.Error(), "refused") {
		t.Errorf("error %q does not say why", e)
	}
}

func TestNoAnswer_RemoteAlertAfterTheHandshakeIsTLS(t *testing.T) {
	alert := &net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}
	if e := transportError(t.Context(), "h:443", alert, nil); e.Code() != "tls" || !strings.Contains(e.Error(), "certificate required") {
		t.Errorf("code = %q (%v)", e.Code(), e)
	}
}

func TestMaxConns(t *testing.T) {
	var open, most atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			for n := open.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					return
				}
			}
		case http.StateClosed:
			open.Add(-1)
		}
	}
	s.Start()
	defer s.Close()
	w := hook(t, s.URL, func(c *Config) { c.MaxConns = 2 })
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := w.Handle(t.Context(), sample()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > 2 {
		t.Errorf("%d connections were open at once", n)
	}
}

func TestProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:1")
	proxy, got := recorder(t)
	w := hook(t, "http://hooks.example", func(c *Config) { c.ProxyURL = proxy.URL })
	if err := w.Handle(t.Context(), sample()); err != nil {
		t.Fatal(err)
	}
	if r := got()[0]; r.uri != "http://hooks.example/hunter2?token=hunter2" {
		t.Errorf("proxy was asked for %s", r.uri)
	}
	if hook(t, "http://hooks.example", nil).transport.Proxy != nil {
		t.Error("a proxy is used that is not configured")
	}
}

// After a 101 the connection is the receiver's, and would be read for ever: an attempt does not touch it.
func TestSwitchingProtocolsIsAFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			closed <- err
			return
		}
		defer conn.Close()
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err == nil {
			drain(r)
		}
		write(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		// A client that reads on gets nothing until this side gives up.
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = conn.Read(make([]byte, 1))
		closed <- err
	}()
	t.Cleanup(func() { l.Close() })
	w := hook(t, "http://"+l.Addr().String(), nil)
	e := fails(t, w, "http_101")
	wantClass(t, e, event.ClassRetry, 0)
	if err := <-closed; !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v", err)
	}
}
