package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func source(t *testing.T, yaml string) Source {
	t.Helper()
	return mustParse(t, "version: 1\nsources:\n  - "+yaml+"\n", Environment{}).Sources[0]
}

// TestMySQLAddresses: the two forms of a connection string, and what a pool makes of them.
func TestMySQLAddresses(t *testing.T) {
	for _, tt := range []struct {
		dsn                            string
		kind                           Database
		network, address, user, pass   string
		database, encryption, rendered string
	}{
		{"mysql://app:p%40ss@db/shop", DatabaseMySQL, "tcp", "db:3306", "app", "p@ss", "shop", "preferred", "app:p@ss@tcp(db:3306)/shop?tls=preferred"},
		{"MariaDB://app@[::1]:3307", DatabaseMariaDB, "tcp", "[::1]:3307", "app", "", "", "preferred", "app@tcp([::1]:3307)/?tls=preferred"},
		{"mysql://app@/shop?socket=/run/mysqld/mysqld.sock", DatabaseMySQL, "unix", "/run/mysqld/mysqld.sock", "app", "", "shop", "", "app@unix(/run/mysqld/mysqld.sock)/shop"},
		{"app:p/a:ss@x@tcp(db:3306)/shop?parseTime=true&loc=Local&tls=true", DatabaseMySQL, "tcp", "db:3306", "app", "p/a:ss@x", "shop", "true", "app:p/a:ss@x@tcp(db:3306)/shop?tls=true"},
		{"app@unix(/run/my.sock)/", DatabaseMySQL, "unix", "/run/my.sock", "app", "", "", "", "app@unix(/run/my.sock)/"},
		{"app@tcp/shop", DatabaseMySQL, "tcp", "127.0.0.1:3306", "app", "", "shop", "preferred", "app@tcp(127.0.0.1:3306)/shop?tls=preferred"},
	} {
		t.Run(tt.dsn, func(t *testing.T) {
			s := source(t, `{name: a, dsn: "`+tt.dsn+`"}`)
			cfg, err := s.MySQLConfig()
			if err != nil {
				t.Fatal(err)
			}
			got := [...]string{string(s.Database), cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName, cfg.TLSConfig, cfg.FormatDSN()}
			want := [...]string{string(tt.kind), tt.network, tt.address, tt.user, tt.pass, tt.database, tt.encryption, tt.rendered}
			if got != want {
				t.Errorf("got %q\nwant %q", got, want)
			}
			if s.Postgres != (Postgres{}) {
				t.Errorf("settings of PostgreSQL: %+v", s.Postgres)
			}
		})
	}
}

func TestMySQLPasswordOfItsOwnAndServerID(t *testing.T) {
	s := source(t, `{name: a, dsn: "mysql://app:old@db/shop", password: "n:e@w/", mysql: {dsn: "mysql://log:old@direct/"}}`)
	for _, get := range []func() (string, string){
		func() (string, string) { c, _ := s.MySQLConfig(); return c.User, c.Passwd },
		func() (string, string) { c, _ := s.MySQLLogConfig(); return c.User, c.Passwd },
	} {
		if user, pass := get(); pass != "n:e@w/" {
			t.Errorf("%s has the password %q", user, pass)
		}
	}
	other := s
	other.Name = "b"
	if again := s; again.ServerID() != s.ServerID() || s.ServerID() == other.ServerID() || s.ServerID() < 1<<31 {
		t.Errorf("server ids %d and %d", s.ServerID(), other.ServerID())
	}
	s.MySQL.ServerID = 7
	if s.ServerID() != 7 {
		t.Error("the configured id does not count")
	}
}

// certificate makes a certificate for a host, signed by itself, and returns its files.
func certificate(t *testing.T, host string) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, pair
}

// handshake returns what the client says of the server, over a real connection.
func handshake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := listener.Accept(); err == nil {
			_ = conn.(*tls.Conn).Handshake() // the client says whether it trusts
			_ = conn.Close()
		}
	}()
	raw, err := net.DialTimeout("tcp", listener.Addr().String(), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	err = tls.Client(raw, client).Handshake()
	_ = raw.Close()
	_ = listener.Close()
	<-done
	return err
}

// TestTLSModes: whom each mode trusts, shown by handshakes.
func TestTLSModes(t *testing.T) {
	cert, key, pair := certificate(t, "db.example")
	other, _, _ := certificate(t, "db.example")
	for _, tt := range []struct {
		mode     TLSMode
		ca, host string
		trusted  bool
	}{
		{TLSRequire, "", "anything", true},
		{TLSVerifyCA, cert, "other.example", true},
		{TLSVerifyCA, other, "db.example", false},
		{TLSVerifyFull, cert, "db.example", true},
		{TLSVerifyFull, cert, "other.example", false},
		{TLSVerifyFull, other, "db.example", false},
	} {
		t.Run(string(tt.mode)+" "+tt.host, func(t *testing.T) {
			s := Source{Database: DatabaseMySQL, DSN: "mysql://app@" + tt.host + "/x", MySQL: MySQL{TLS: TLS{Mode: tt.mode, CA: tt.ca, Cert: cert, Key: key}}}
			cfg, err := s.MySQLConfig()
			if err != nil {
				t.Fatal(err)
			}
			if cfg.AllowFallbackToPlaintext || cfg.TLS == nil {
				t.Fatalf("it may go unencrypted: %+v", cfg)
			}
			err = handshake(t, cfg.TLS, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12})
			if (err == nil) != tt.trusted {
				t.Errorf("handshake: %v, want trusted %v", err, tt.trusted)
			}
		})
	}
	preferred := Source{DSN: "mysql://app@db/x", MySQL: MySQL{TLS: TLS{Mode: TLSPreferred, Cert: cert, Key: key}}}
	if cfg, err := preferred.MySQLConfig(); err != nil || !cfg.AllowFallbackToPlaintext || cfg.TLS == nil {
		t.Errorf("preferred: %+v, %v", cfg, err)
	}
	off := Source{DSN: "mysql://app@db/x", MySQL: MySQL{TLS: TLS{Mode: TLSDisable}}}
	if cfg, err := off.MySQLConfig(); err != nil || cfg.TLS != nil || cfg.TLSConfig != "" {
		t.Errorf("disable: %+v, %v", cfg, err)
	}
	for _, bad := range []TLS{{Mode: TLSVerifyFull, CA: "missing.pem"}, {Mode: TLSVerifyFull, CA: key}, {Mode: TLSRequire, Cert: cert, Key: cert}} {
		s := Source{DSN: "mysql://app:hunter2@db/x", MySQL: MySQL{TLS: bad}}
		if _, err := s.MySQLConfig(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
