package mysql

import (
	"net"
	"strconv"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/faultproxy"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		cdctest.Run(t, func(t *testing.T) cdctest.Database {
			t.Parallel()
			db := newDB(t, kind)
			// The log's connection has no database that tells whose it is, so that a proxy
			// stands for the server's side of it.
			proxy := faultproxy.New(t, net.JoinHostPort(db.Server().Host(), strconv.Itoa(db.Server().Port())))
			keeper := &bank{}
			return cdctest.Database{
				Schema: db.Name(),
				Table:  "events",
				Open: func(t *testing.T) cdc.Source {
					cfg := configOf(db)
					cfg.DSN, cfg.Keeper = through(t, db.DSN(), proxy), keeper
					src, err := New(cfg)
					if err != nil {
						t.Fatal(err)
					}
					return src
				},
				Exec: func(t *testing.T, statements ...string) {
					t.Helper()
					for _, s := range statements {
						db.Exec(s)
					}
				},
				Begin: func(t *testing.T) cdctest.Tx {
					t.Helper()
					s := newSession(t, db.Pool())
					// The default isolation locks the gaps that undone rows leave.
					s.exec("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN")
					return transaction{s}
				},
				Disconnect: func(*testing.T) { proxy.Cut() },
			}
		})
	})
}

// through is the DSN with the proxy in place of the server.
func through(t testing.TB, dsn string, proxy *faultproxy.Proxy) string {
	t.Helper()
	cfg, err := driver.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Addr = proxy.Addr()
	return cfg.FormatDSN()
}

// transaction implements cdctest.Tx.
type transaction struct{ s *session }

func (tx transaction) Exec(sql string) { tx.s.exec(sql) }
func (tx transaction) Commit()         { tx.end("COMMIT") }
func (tx transaction) Rollback()       { tx.end("ROLLBACK") }

func (tx transaction) end(sql string) {
	tx.s.exec(sql)
	_ = tx.s.conn.Close()
}
