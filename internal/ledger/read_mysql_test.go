package ledger_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/ledger"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// The same accounts, whatever type the ids have in the table.
func TestReadMySQL_IdsOfEveryColumnType(t *testing.T) {
	const e1, e2 = "0190aaaa-0000-7000-8000-00000000ab00", "0190aaaa-0000-7000-8000-00000000cd00"
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		types := map[string]string{"CHAR(36)": "'?'", "BINARY(16)": "unhex(replace('?', '-', ''))"}
		if kind.IsMariaDB() {
			types["UUID"] = "'?'"
		}
		for column, literal := range types {
			db := testdb.MySQL(t, kind)
			id := func(text string) string { return strings.Replace(literal, "?", text, 1) }
			db.Exec("CREATE TABLE events (id " + column + " PRIMARY KEY);" +
				"INSERT INTO events VALUES (" + id(strings.ToUpper(e1)) + "), (" + id(e2) + ");" +
				"CREATE TABLE event_notifications (event_id " + column + ", handler_name varchar(255), state varchar(24), reason text," +
				" attempts int, claim_count int, lease_until datetime(6));" +
				"INSERT INTO event_notifications VALUES" +
				" (" + id(e1) + ", 'h1', 'SUCCEEDED', NULL, 1, 2, NULL)," +
				" (" + id(e2) + ", 'h1', 'BLOCKED', 'undecodable', 0, NULL, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)," +
				" (" + id(e2) + ", 'h2', 'FAILED', NULL, 1, 2, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)," +
				" (" + id(e2) + ", 'h3', 'PENDING', NULL, 0, 1, UTC_TIMESTAMP(6) - INTERVAL 1 SECOND)")

			rows, err := ledger.ReadRowsMySQL(t.Context(), db.Pool(), db.Name()+".event_notifications")
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(rows, func(a, b ledger.Row) int {
				return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Handler, b.Handler))
			})
			want := []ledger.Row{
				{Pair: pair(e1, "h1"), State: delivery.Succeeded, Attempts: 1, Claims: 2},
				{Pair: pair(e2, "h1"), State: delivery.Blocked, Reason: "undecodable"},
				{Pair: pair(e2, "h2"), State: delivery.Failed, Attempts: 1, Claims: 2, Leased: true},
				{Pair: pair(e2, "h3"), State: delivery.Pending, Claims: 1},
			}
			if diff := gocmp.Diff(want, rows); diff != "" {
				t.Errorf("%s: rows (-want +got):\n%s", column, diff)
			}
			stored, err := ledger.ReadStoredMySQL(t.Context(), db.Pool(), db.Name()+".events")
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(map[string]struct{}{e1: {}, e2: {}}, stored); diff != "" {
				t.Errorf("%s: stored ids (-want +got):\n%s", column, diff)
			}
		}
	})
}
