package mysql

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// An account with caching_sha2_password, which MySQL has by default, reads the log over TLS
// and without it, and an account that must use TLS does.
func TestTLSAndPasswords(t *testing.T) {
	onKind(t, testdb.MySQL97, func(t *testing.T, db *testdb.MyDB) {
		user := "u_" + db.Name()[:8]
		db.Exec("CREATE USER '" + user + "'@'%' IDENTIFIED WITH caching_sha2_password BY 'se-cret' REQUIRE SSL")
		t.Cleanup(func() { db.Exec("DROP USER '" + user + "'@'%'") })
		db.Exec("GRANT SELECT ON " + db.Name() + ".* TO '" + user + "'@'%'")
		db.Exec("GRANT REPLICATION SLAVE ON *.* TO '" + user + "'@'%'")
		cfg := configOf(db)
		for i, mode := range []string{"skip-verify", "preferred"} {
			cfg.DSN = user + ":wrong@tcp(" + addr(db) + ")/" + db.Name() + "?tls=" + mode
			cfg.Password, cfg.Keeper = "se-cret", &bank{}
			r := streaming(t, cfg)
			db.Exec(insert(i, i+1))
			r.WaitFor(1)
			r.ends()
		}
		cfg.DSN = user + "@tcp(" + addr(db) + ")/" + db.Name()
		cfg.TLS = &tls.Config{InsecureSkipVerify: true} // as the server made its certificate itself
		cfg.TLSOptional, cfg.Keeper = true, &bank{}
		r := streaming(t, cfg)
		db.Exec(insert(2, 3))
		r.WaitFor(1)
		r.ends()
		cfg.TLS, cfg.TLSOptional = nil, false
		refused(t, cfg, reasonAuth, "TLS")
		cfg.DSN += "?tls=true"
		refused(t, cfg, reasonTLS, "authority")
	})
}

// A server without TLS is read all the same where TLS is optional, and refused where it is not. A known key of the server
// is not given away: the log's connection would take any key.
func TestAServerWithoutTLS(t *testing.T) {
	t.Parallel()
	s := newServer(t, testdb.MySQL97, map[string]string{"tls_version": ""})
	s.setUp()
	cfg := s.config()
	cfg.TLS, cfg.TLSOptional = &tls.Config{MinVersion: tls.VersionTLS12}, true
	r := streaming(t, cfg)
	s.insert(0, 1)
	r.WaitFor(1)
	r.ends()
	cfg.TLSOptional = false
	refused(t, cfg, reasonTLS, "switch TLS on")
	s.exec("CREATE USER pinned@'%' IDENTIFIED WITH caching_sha2_password BY 'se-cret'", "GRANT ALL ON *.* TO pinned@'%'")
	block, _ := pem.Decode([]byte(query[string](t, s.pool, "SELECT variable_value FROM performance_schema.global_status "+
		"WHERE variable_name = 'Caching_sha2_password_rsa_public_key'")))
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	driver.RegisterServerPubKey("pinned", key.(*rsa.PublicKey))
	t.Cleanup(func() { driver.DeregisterServerPubKey("pinned") })
	cfg.TLS, cfg.DSN, cfg.Password = nil, fmt.Sprintf("pinned@tcp(%s:%d)/app?serverPubKey=pinned", s.Host(), s.Port()), "se-cret"
	refused(t, cfg, reasonTLS, "serverPubKey")
}
