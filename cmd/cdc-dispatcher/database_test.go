package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// TestMySQLPoolEncryption: a password, with the server's default way to check one, over an encrypted
// connection and over a plain one, for statements and for the binlog.
func TestMySQLPoolEncryption(t *testing.T) {
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		db := testdb.MySQL(t, kind)
		user := fmt.Sprintf("pool%d", db.Server().Port())
		db.Exec(fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY 'p@:/w'; GRANT ALL ON %s.* TO '%[1]s'@'%%'", user, db.Name()))
		t.Cleanup(func() { db.Exec("DROP USER '" + user + "'@'%'") })
		for _, mode := range []config.TLSMode{config.TLSDisable, config.TLSPreferred, config.TLSRequire, config.TLSVerifyFull} {
			s := config.Source{
				Name: "shop", Database: config.DatabaseMySQL, Password: "p@:/w", MaxConnections: 2, Schema: db.Name(), Table: schema.Eventlog(db.Name()),
				DSN:   fmt.Sprintf("mysql://%s@%s:%d/%s", user, db.Server().Host(), db.Server().Port(), db.Name()),
				MySQL: config.MySQL{TLS: config.TLS{Mode: mode}},
			}
			offered := !kind.IsMariaDB() || kind == testdb.MariaDB118 // 10.11 makes no certificate by itself
			encrypted, err := encryption(t.Context(), s)
			switch {
			case mode == config.TLSVerifyFull || mode == config.TLSRequire && !offered:
				if err == nil {
					t.Errorf("%s connects to a server that has no certificate to show", mode)
				} else if f := databaseFailure("shop", err); f == nil || f.code != codeTLS {
					t.Errorf("%s: %+v of %v", mode, f, err)
				}
				continue
			case err != nil:
				t.Errorf("%s: %v", mode, err)
			case encrypted != (offered && mode != config.TLSDisable):
				t.Errorf("%s: encrypted %v, offered %v", mode, encrypted, offered)
			}
			d, err := openDatabase(s)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.reader("me", slog.New(slog.DiscardHandler)); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
			if err := d.close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestBinlogEncryptionIsOptional: where the pool may go on without TLS, although it has a certificate to show, the
// reader of the log may too.
func TestBinlogEncryptionIsOptional(t *testing.T) {
	cert, key := clientCertificate(t)
	for mode, optional := range map[config.TLSMode]bool{config.TLSPreferred: true, config.TLSRequire: false, config.TLSVerifyFull: false} {
		c, err := binlogConfig(config.Source{
			Name: "shop", Database: config.DatabaseMySQL, DSN: "mysql://app@db/shop",
			MySQL: config.MySQL{TLS: config.TLS{Mode: mode, Cert: cert, Key: key}},
		})
		if err != nil || c.TLS == nil || len(c.TLS.Certificates) != 1 || c.TLSOptional != optional {
			t.Errorf("%s: optional %t, %v", mode, c.TLSOptional, err)
		}
	}
}

// clientCertificate makes the files of a certificate that nobody signed.
func clientCertificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, typ string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", cert), write("key.pem", "PRIVATE KEY", private)
}

// encryption connects, and says whether what is sent is encrypted.
func encryption(ctx context.Context, s config.Source) (bool, error) {
	pool, err := newMySQLPool(s)
	if err != nil {
		return false, err
	}
	defer pool.Close()
	var name, cipher string
	err = pool.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher)
	return cipher != "", err
}
