package mysql

import (
	"testing"

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
		refused(t, cfg, reasonAuth, "TLS")
		cfg.DSN += "?tls=true"
		refused(t, cfg, reasonTLS, "authority")
	})
}
