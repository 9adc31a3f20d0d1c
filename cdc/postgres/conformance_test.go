package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		cdctest.Run(t, func(t *testing.T) cdctest.Database {
			t.Parallel()
			db := testdb.Postgres(t, major)
			db.Exec("CREATE TABLE events (id bigint PRIMARY KEY, payload text)")
			return cdctest.Database{
				Schema: "public",
				Table:  "events",
				Open: func(t *testing.T) cdc.Source {
					src, err := New(testConfig(db))
					if err != nil {
						t.Fatal(err)
					}
					return src
				},
				Exec: func(t *testing.T, sql ...string) {
					t.Helper()
					for _, s := range sql {
						db.Exec(s)
					}
				},
				Begin: func(t *testing.T) cdctest.Tx {
					t.Helper()
					conn := connect(t, db.DSN())
					run(t, conn, "BEGIN")
					return transaction{t, conn}
				},
				Disconnect: func(*testing.T) {
					db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
						WHERE datname = current_database() AND application_name LIKE 'cdc-dispatcher%'`)
				},
			}
		})
	})
}

// transaction implements cdctest.Tx.
type transaction struct {
	t    *testing.T
	conn *pgx.Conn
}

func (tx transaction) Exec(sql string) { run(tx.t, tx.conn, sql) }
func (tx transaction) Commit()         { tx.end("COMMIT") }
func (tx transaction) Rollback()       { tx.end("ROLLBACK") }

func (tx transaction) end(sql string) {
	run(tx.t, tx.conn, sql)
	_ = tx.conn.Close(context.Background())
}
