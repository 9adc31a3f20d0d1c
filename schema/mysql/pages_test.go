package mysql

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// TestPagesOfEqualDates: the pages of one pass over a table without a mark have every row once, however many rows have
// the same date or none, and in whatever order the server sorts the keys.
func TestPagesOfEqualDates(t *testing.T) {
	const rows = 60
	number := func(n int) any { return n*7919%rows - rows/2 }
	id := func(n int) any { return uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n)).String() }
	cases := []struct {
		name, ddl string
		key       func(n int) any
		mariaDB   bool
	}{
		{"bigint", "id BIGINT PRIMARY KEY", number, false},
		{"char", "id CHAR(36) PRIMARY KEY", id, false},
		{"uuid", "id UUID PRIMARY KEY", func(n int) any {
			// Of the versions whose bytes MariaDB sorts in another order, and of others.
			version := []uuid.UUID{uuid.Must(uuid.NewUUID()), uuid.Must(uuid.NewV7()), uuid.New()}
			return version[n%3].String()
		}, true},
		{"binary", "id BINARY(16) PRIMARY KEY", func(n int) any { u := uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n)); return u[:] }, false},
		{"alike", "id VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, KEY (id)", func(n int) any {
			return fmt.Sprintf("%d%s", n/6, []string{"a", "A", "ä", "á", "Å", "a "}[n%6])
		}, false},
		{"latin1", "id VARCHAR(40) CHARACTER SET latin1 PRIMARY KEY", func(n int) any { return fmt.Sprintf("ü%dß", n) }, false},
	}
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		base := newWorld(t, kind, layouts()[0], Config{})
		for _, tc := range cases {
			if tc.mariaDB && kind == testdb.MySQL97 {
				continue // which has no such type
			}
			for _, columns := range []schema.Columns{{ID: "id", Type: "type", Payload: "payload", Date: "at"}, {ID: "id", Type: "type", Payload: "payload"}} {
				base.db.Exec("DROP TABLE IF EXISTS keyed; CREATE TABLE keyed (type VARCHAR(20), payload JSON, at DATETIME(6), " + tc.ddl + ") CHARACTER SET utf8mb4")
				table := schema.Custom(base.db.Name(), "keyed", columns, schema.Mark{Kind: schema.MarkNone})
				w := world{hooks: base.hooks, store: newStore(t, base.db, base.pool, Config{Table: table})}
				for n := range rows {
					at := any("2026-01-01 10:00:00.000001")
					if n < rows/3 {
						at = nil
					}
					w.exec(t, "INSERT INTO keyed (id, type, payload, at) VALUES (?, 'a', '[1]', ?)", tc.key(n), at)
				}
				seen := map[string]int{}
				q := delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 7}
				for page := 0; page < rows; page++ {
					found, err := w.store.Undelivered(t.Context(), q)
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range found.Events {
						seen[e.ID]++
					}
					if q.After = found.Next; !found.More {
						break
					}
				}
				for id, n := range seen {
					if n != 1 {
						t.Errorf("%s, dates %q: %s came %d times", tc.name, columns.Date, id, n)
					}
				}
				if len(seen) != rows {
					t.Errorf("%s, dates %q: %d of %d rows", tc.name, columns.Date, len(seen), rows)
				}
			}
		}
	})
}
