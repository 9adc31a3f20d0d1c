package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-dispatcher/cdc-dispatcher/event"
)

// tlsServer returns a server and the file of the certificate to trust.
func tlsServer(t *testing.T, h http.HandlerFunc, change func(*httptest.Server)) (*httptest.Server, string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{}
	if change != nil {
		change(s)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, file, "CERTIFICATE", s.Certificate().Raw)
	return s, file
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTLS_HTTP2IsKept(t *testing.T) {
	var proto atomic.Value
	s, ca := tlsServer(t, func(_ http.ResponseWriter, r *http.Request) { proto.Store(r.Proto) }, func(s *httptest.Server) { s.EnableHTTP2 = true })
	w := hook(t, s.URL, func(c *Config) { c.CAFile = ca })
	if err := w.Handle(t.Context(), sample()); err != nil {
		t.Fatal(err)
	}
	if proto.Load() != "HTTP/2.0" {
		t.Errorf("request came by %s: the guard's dialer has turned HTTP/2 off", proto.Load())
	}
}

func TestTLS_Failures(t *testing.T) {
	ok := func(http.ResponseWriter, *http.Request) {}
	good, ca := tlsServer(t, ok, nil)
	old, oldCA := tlsServer(t, ok, func(s *httptest.Server) { s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })
	plain := serve(t, ok)
	wantsCert, wantsCA := tlsServer(t, ok, func(s *httptest.Server) {
		s.TLS.ClientAuth = tls.RequireAnyClientCert
		s.TLS.MaxVersion = tls.VersionTLS12 // in 1.3 the client learns of it after its handshake
	})
	silent := rawServer(t, "")

	for _, c := range []struct {
		name, url, ca, text string
	}{
		{"unknown authority", good.URL, "", "unknown authority"},
		{"wrong name", strings.Replace(good.URL, "127.0.0.1", "localhost", 1), ca, "localhost"},
		{"TLS 1.1 at most", old.URL, oldCA, "version"},
		{"server speaks plain HTTP", strings.Replace(plain.URL, "http:", "https:", 1), ca, "TLS"},
		{"server wants a client certificate", wantsCert.URL, wantsCA, "TLS"},
		{"server hangs up in the handshake", "https://" + silent, ca, "TLS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := fails(t, hook(t, c.url, func(cfg *Config) { cfg.CAFile = c.ca }), "tls")
			wantClass(t, e, event.ClassRetry, 0)
			if !strings.Contains(e.Error(), c.text) {
				t.Errorf("error %q does not say %q", e, c.text)
			}
		})
	}
}

func TestTLS_ClientCertificateIsReadAnew(t *testing.T) {
	var serial atomic.Int64
	s, ca := tlsServer(t, func(_ http.ResponseWriter, r *http.Request) {
		serial.Store(r.TLS.PeerCertificates[0].SerialNumber.Int64())
	},
		func(s *httptest.Server) { s.TLS.ClientAuth = tls.RequireAnyClientCert })
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	issue(t, cert, key, 1)
	w := hook(t, s.URL, func(c *Config) { c.CAFile, c.CertFile, c.KeyFile = ca, cert, key })
	for n := int64(1); n <= 2; n++ {
		issue(t, cert, key, n)
		w.Close() // the next attempt has to shake hands
		if err := w.Handle(t.Context(), sample()); err != nil {
			t.Fatal(err)
		}
		if serial.Load() != n {
			t.Errorf("server saw certificate %d, want %d", serial.Load(), n)
		}
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	w.Close()
	wantClass(t, fails(t, w, "tls"), event.ClassRetry, 0)
}

func issue(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "client"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", pkcs8)
}
