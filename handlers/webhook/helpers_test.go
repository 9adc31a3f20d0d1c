package webhook

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// hook returns a Webhook that is closed with the test. Its URL carries a secret
// wherever a URL can.
func hook(t *testing.T, url string, change func(*Config)) *Webhook {
	t.Helper()
	cfg := Config{
		URL:     strings.Replace(url, "://", "://user:hunter2@", 1) + "/hunter2?token=hunter2",
		Secrets: []string{vectorSecret},
		Headers: map[string]string{"X-Key": "hunter2"},
	}
	if change != nil {
		change(&cfg)
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// fails runs one attempt and checks everything that must hold for every failure.
func fails(t *testing.T, w *Webhook, code string) *Error {
	t.Helper()
	err := w.Handle(t.Context(), sample())
	if err == nil {
		t.Fatalf("attempt succeeded, want code %s", code)
	}
	if got := event.Code(err); got != code {
		t.Errorf("code = %q (%v), want %q", got, err, code)
	}
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "user") {
		t.Errorf("error %q shows a secret", err)
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error of type %T", err)
	}
	return e
}

func wantClass(t *testing.T, err error, class event.Class, after time.Duration) {
	t.Helper()
	if c, d := event.Classify(err); c != class || d != after {
		t.Errorf("Classify = %v, %v; want %v, %v (%v)", c, d, class, after, err)
	}
}

// The other end may be gone; what the client makes of it is what is tested.
func write(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

func drain(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }

func flush(t *testing.T, rw http.ResponseWriter) {
	if err := http.NewResponseController(rw).Flush(); err != nil {
		t.Error(err)
	}
}

type request struct {
	method, uri, host string
	header            http.Header
	body              []byte
}

// recorder answers 200 and keeps what it got.
func recorder(t *testing.T) (*httptest.Server, func() []request) {
	var mu sync.Mutex
	var got []request
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, request{r.Method, r.RequestURI, r.Host, r.Header, body})
	})
	return s, func() []request { mu.Lock(); defer mu.Unlock(); return got }
}
