package postgres

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/localserver"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// guarded starts a server that asks the role app for a SCRAM password, or for
// TLS as hba says.
func guarded(t *testing.T, major int, hba string) *localserver.Postgres {
	t.Helper()
	server, err := localserver.StartPostgres(context.Background(), localserver.PostgresOptions{Major: major, HBA: hba})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	exec(t, server.DSN("postgres"), eventsTable)
	exec(t, server.DSN("postgres"), `CREATE ROLE app LOGIN REPLICATION PASSWORD 'first';
		GRANT CREATE ON DATABASE postgres TO app; ALTER TABLE events OWNER TO app`)
	return server
}

func setPassword(t *testing.T, server *localserver.Postgres, password string) {
	t.Helper()
	exec(t, server.DSN("postgres"), "ALTER ROLE app PASSWORD "+quoteLiteral(password))
}

func TestB39_PasswordsOfAnyCharacter(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		server := guarded(t, major, "host all app all scram-sha-256\nhost all all all trust\nlocal all all trust\n")
		for _, password := range []string{
			"a b", "a+b", "100%", "a%41", "a:b", "a/b", "a@b", "a?b=c&d", "a#b", `a'b\c"d`, "пароль", "pass=word", " edges ",
		} {
			setPassword(t, server, password)
			u, err := url.Parse(server.DSN("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword("app", password)
			quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)
			plain := fmt.Sprintf("host=%s port=%d user=app dbname=postgres sslmode=disable", server.Host(), server.Port())
			for _, tc := range []struct {
				form string
				cfg  Config
				use  purpose
			}{
				{"URL", Config{DSN: u.String()}, forStream},
				{"key=value", Config{DSN: plain + " password='" + quoted + "'"}, forWatch},
				{"apart", Config{DSN: plain, Password: password}, forStream},
			} {
				tc.cfg.Tables = []Table{events}
				src, err := New(tc.cfg)
				if err != nil {
					t.Errorf("%s with password %q: %v", tc.form, password, err)
					continue
				}
				c, err := src.dial(t.Context(), tc.use)
				if err != nil {
					t.Errorf("%s with password %q: %v", tc.form, password, err)
					continue
				}
				c.close()
			}
		}
	})
}

func TestB39_CredentialsAreFetchedForEachConnection(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		server := guarded(t, major, "host all app all scram-sha-256\nhost all all all trust\nlocal all all trust\n")
		admin := server.DSN("postgres")
		var password atomic.Pointer[string]
		store := func(p string) { password.Store(&p) }
		store("first")
		cfg := configFor(fmt.Sprintf("host=%s port=%d user=app dbname=postgres sslmode=disable", server.Host(), server.Port()), "cred")
		cfg.BeforeConnect = func(_ context.Context, c *pgconn.Config) error {
			c.Password = *password.Load()
			return nil
		}
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		setPassword(t, server, "second")
		store("second")
		exec(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
		exec(t, admin, insertEvents, 0, 10)
		r.WaitFor(10)
		setPassword(t, server, "third")
		exec(t, admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
		err := r.Failed()
		if !cdc.IsPermanent(err) || reasonOf(err) != reasonAuth {
			t.Errorf("with an old password: %v", err)
		}
		if log := r.Log.String() + err.Error(); strings.Contains(log, "second") || strings.Contains(log, "third") {
			t.Error("a password was told")
		}
		store("third")
		r.run()
		exec(t, admin, insertEvents, 10, 20)
		r.WaitFor(20)
	})
}

func TestB39_EverySSLMode(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		dir := t.TempDir()
		authority, cert, key := certificates(t, dir)
		otherAuthority, _, _ := certificates(t, t.TempDir())
		hba := "hostssl all app all scram-sha-256\nhostnossl all app all reject\nhostnossl all plain all trust\nhost all postgres all trust\nlocal all all trust\n"
		server := guarded(t, major, hba)
		admin := server.DSN("postgres")
		exec(t, admin, "CREATE ROLE plain LOGIN REPLICATION")
		enableTLS(t, server, cert, key)
		for _, tc := range []struct {
			user, mode, root, host string
			ok                     bool
		}{
			{"app", "disable", "", "", false},
			{"app", "allow", "", "", true},
			{"app", "prefer", "", "", true},
			{"app", "require", "", "", true},
			{"app", "verify-ca", authority, "", true},
			{"app", "verify-ca", otherAuthority, "", false},
			{"app", "verify-full", authority, "", true},
			{"app", "verify-full", authority, "localhost", false}, // not in the certificate
			{"app", "verify-full", otherAuthority, "", false},
			{"plain", "disable", "", "", true},
			{"plain", "allow", "", "", true},
			{"plain", "prefer", "", "", true}, // falls back to no TLS
			{"plain", "require", "", "", false},
		} {
			host := tc.host
			if host == "" {
				host = server.Host()
			}
			dsn := fmt.Sprintf("host=%s port=%d user=%s password=first dbname=postgres sslmode=%s", host, server.Port(), tc.user, tc.mode)
			if tc.root != "" {
				dsn += " sslrootcert=" + tc.root
			}
			src, err := New(Config{DSN: dsn, Tables: []Table{events}})
			if err != nil {
				t.Fatal(err)
			}
			for _, use := range []purpose{forStream, forWatch} {
				c, err := src.dial(t.Context(), use)
				if (err == nil) != tc.ok {
					t.Errorf("%+v: %v", tc, err)
				}
				if err == nil {
					c.close()
				}
			}
		}
		// And a whole stream over TLS. While something is pending, its read deadline
		// passes every second.
		cfg := configFor(fmt.Sprintf("host=%s port=%d user=app password=first dbname=postgres sslmode=verify-full sslrootcert=%s",
			server.Host(), server.Port(), authority), "tls")
		r := start(t, cfg, noAck)
		r.WaitMode(cdc.ModeStreaming)
		before := r.src.Status().Reconnects
		exec(t, admin, insertEvents, 0, 1000)
		r.WaitFor(1000)
		passed(t, admin, 3*time.Second)
		exec(t, admin, insertEvents, 1000, 2000)
		r.WaitFor(2000)
		if n := r.src.Status().Reconnects - before; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	})
}

// certificates makes an authority and a certificate for 127.0.0.1, and writes the
// authority's to a file.
func certificates(t *testing.T, dir string) (authority string, cert, key []byte) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	make := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		if signer == nil {
			signer = own
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, signer)
		must(err)
		return der, own
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, caKey := make(ca, ca, nil)
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, serverKey := make(server, ca, caKey)
	keyDER, err := x509.MarshalECPrivateKey(serverKey)
	must(err)
	authority = filepath.Join(dir, "ca.pem")
	must(os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o600))
	return authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func enableTLS(t *testing.T, server *localserver.Postgres, cert, key []byte) {
	t.Helper()
	for name, content := range map[string][]byte{"ssl_cert_file": cert, "ssl_key_file": key} {
		path, err := server.WriteFile(name+".pem", content)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, server.DSN("postgres"), fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, path))
	}
	exec(t, server.DSN("postgres"), "ALTER SYSTEM SET ssl = on")
	exec(t, server.DSN("postgres"), "SELECT pg_reload_conf()")
	testdb.WaitFor(t, "TLS", func() bool {
		return query[string](t, server.DSN("postgres"), "SHOW ssl") == "on"
	})
}

func TestB40_Privileges(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		role := "role_" + db.Name()[:12]
		db.Exec(fmt.Sprintf("CREATE ROLE %q LOGIN; GRANT SELECT ON events TO %[1]q", role))
		t.Cleanup(func() {
			db.Exec(fmt.Sprintf("DROP OWNED BY %q; DROP ROLE %[1]q", role))
		})
		u, err := url.Parse(db.DSN())
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(role)
		cfg := testConfig(db)
		cfg.DSN = u.String()
		refused := func(create bool, want string) {
			t.Helper()
			cfg.Create = create
			r := start(t, cfg)
			err := r.Failed()
			if !cdc.IsPermanent(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("Run: %v\nwant a permanent error with %q", err, want)
			}
			if r.src.Status().Detail == "" {
				t.Error("Status has no detail")
			}
		}
		refused(true, fmt.Sprintf("ALTER ROLE %q REPLICATION", role))
		db.Exec(fmt.Sprintf("ALTER ROLE %q REPLICATION; REVOKE CONNECT ON DATABASE %q FROM PUBLIC", role, db.Name()))
		refused(true, fmt.Sprintf("GRANT CONNECT ON DATABASE %q TO %q", db.Name(), role))
		db.Exec(fmt.Sprintf("GRANT CONNECT ON DATABASE %q TO %q", db.Name(), role))
		const create = `FOR TABLE "public"."events" WITH (publish = 'insert', publish_via_partition_root = true)`
		refused(true, create)
		refused(false, create)
		db.Exec("CREATE PUBLICATION " + cfg.Publication + " FOR TABLE events WITH (publish = 'insert', publish_via_partition_root = true)")
		refused(false, "pg_create_logical_replication_slot('"+cfg.Slot+"', 'pgoutput')")
		db.Exec("SELECT pg_create_logical_replication_slot('" + cfg.Slot + "', 'pgoutput')")
		// Everything was made by an admin: the role itself can create nothing.
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
		testdb.WaitFor(t, "the retained bytes", func() bool { return r.src.Status().RetainedBytes >= 0 })
	})
}

func TestSlotOfAnotherPluginIsRefused(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		db.Exec("SELECT pg_create_logical_replication_slot('" + cfg.Slot + "', 'test_decoding')")
		err := start(t, cfg).Failed()
		if !cdc.IsPermanent(err) || !strings.Contains(err.Error(), "test_decoding") {
			t.Errorf("Run: %v", err)
		}
		if n := query[int](t, db.DSN(), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", cfg.Slot); n != 1 {
			t.Error("the foreign slot was dropped")
		}
	})
}

func TestTablesThatTheLogDoesNotCarry(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		db.Exec("CREATE UNLOGGED TABLE fast (id int); CREATE VIEW seen AS SELECT * FROM events")
		for table, want := range map[string]string{
			"missing": "public.missing does not exist",
			"fast":    `ALTER TABLE "public"."fast" SET LOGGED`,
			"seen":    "public.seen is not a table",
		} {
			cfg := testConfig(db)
			cfg.Tables = append(cfg.Tables, Table{"public", table})
			if err := start(t, cfg).Failed(); !cdc.IsPermanent(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("table %s: %v", table, err)
			}
		}
		cfg := testConfig(db)
		cfg.DSN = strings.Replace(cfg.DSN, db.Name(), "no_such_database", 1)
		if err := start(t, cfg).Failed(); !cdc.IsPermanent(err) || reasonOf(err) != reasonDatabase {
			t.Errorf("missing database: %v", err)
		}
	})
}

func TestWALLevelReplicaIsNamed(t *testing.T) {
	eachServer(t, map[string]string{"wal_level": "replica"}, func(t *testing.T, server *localserver.Postgres) {
		err := start(t, configFor(server.DSN("postgres"), "level")).Failed()
		if !cdc.IsPermanent(err) || !strings.Contains(err.Error(), "ALTER SYSTEM SET wal_level = logical") {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestNoFreeSlotOrSender(t *testing.T) {
	eachServer(t, map[string]string{"max_replication_slots": "1", "max_wal_senders": "1"}, func(t *testing.T, server *localserver.Postgres) {
		dsn := server.DSN("postgres")
		first := start(t, configFor(dsn, "first"))
		first.WaitMode(cdc.ModeStreaming)
		second := start(t, configFor(dsn, "second"))
		testdb.WaitFor(t, "the setting to be named", func() bool { return strings.Contains(second.Log.String(), "max_wal_senders") })
		first.Stop() // frees the sender, keeps the slot
		err := second.Failed()
		if !cdc.IsPermanent(err) || !strings.Contains(err.Error(), "max_replication_slots") {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestRunIsNotForTwo(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		r := start(t, testConfig(db))
		r.WaitMode(cdc.ModeStreaming)
		if err := r.src.Run(t.Context(), make(chan cdc.Transaction)); err == nil {
			t.Error("a second Run was allowed")
		}
		db.Exec(insertEvents, 0, 10)
		r.WaitFor(10)
	})
}

func TestOddNames(t *testing.T) {
	eachPostgres(t, func(t *testing.T, db *testdb.DB) {
		cfg := testConfig(db)
		cfg.Publication = `Pub, "x" \y 'z' ☃`
		cfg.Tables = []Table{{`Odd "Schema"`, `Ta'b\le`}}
		name := cfg.Tables[0].quoted()
		db.Exec("CREATE SCHEMA " + quoteIdent(cfg.Tables[0].Schema) + "; CREATE TABLE " + name + " (id int)")
		r := start(t, cfg)
		r.WaitMode(cdc.ModeStreaming)
		db.Exec("INSERT INTO " + name + " VALUES (1), (2)")
		r.WaitFor(2)
	})
}
