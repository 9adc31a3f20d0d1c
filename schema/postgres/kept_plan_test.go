package postgres

import (
	"context"
	"crypto/md5" //nolint:gosec // as the server does
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// literal is a value as text of a statement: EXECUTE takes no parameters. Lists are of words without quotes.
func literal(v any) string {
	switch v := v.(type) {
	case []string:
		return `'{"` + strings.Join(v, `","`) + `"}'`
	case []int64, []bool:
		return "'{" + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(v), "[]")), ",") + "}'"
	default:
		return fmt.Sprintf("'%v'", v)
	}
}

// keptPlan is a statement, prepared on a connection.
type keptPlan struct {
	name string
	with settings
	sql  string
	args []any
	rows int
}

func (k *keptPlan) prepare(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "PREPARE "+k.name+" AS "+k.sql); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
}

// run executes the statement, and takes it back.
func (k *keptPlan) run(t *testing.T, conn *pgx.Conn) plan {
	t.Helper()
	list := make([]string, len(k.args))
	for i, arg := range k.args {
		list[i] = literal(arg)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := tx.Exec(t.Context(), string(k.with)); err != nil {
		t.Fatal(err)
	}
	return explained(t, tx, fmt.Sprintf("EXECUTE %s (%s)", k.name, strings.Join(list, ", ")), pgx.QueryExecModeSimpleProtocol)
}

// TestPlansOfTablesThatGrow: plans for a few rows are made when the first event of a new installation arrives, and kept. They, and those
// for many, look keys up, whatever the statistics said when the plan was made, and before the next ANALYZE as well.
func TestPlansOfTablesThatGrow(t *testing.T) {
	const rows = 5_000
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := newTestDB(t, major, layouts()[0])
		s := newStore(t, db.Pool(), layouts()[0].table)
		events, err := s.eventTable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		db.Exec(`ALTER TABLE eventlog.events SET (autovacuum_enabled = false); ALTER TABLE eventlog.event_notifications SET (autovacuum_enabled = false)`)
		for _, before := range []string{"nothing", "two rows", "statistics of nothing", "statistics of two rows"} {
			t.Run(before, func(t *testing.T) {
				db.Exec(`TRUNCATE eventlog.events, eventlog.event_notifications`)
				if strings.HasPrefix(before, "statistics") {
					if strings.HasSuffix(before, "rows") {
						addPairs(db, "first", 2)
					}
					db.Exec(`VACUUM ANALYZE eventlog.events`)
					db.Exec(`VACUUM ANALYZE eventlog.event_notifications`)
				}
				if strings.HasSuffix(before, "two rows") {
					addPairs(db, "second", 2)
				}
				conn, err := pgx.Connect(t.Context(), db.DSN())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close(context.WithoutCancel(t.Context()))
				var all []keptPlan
				for _, n := range []int{few, 1000} {
					for _, k := range statementsOnRows(t, events, s, n) {
						k.prepare(t, conn)
						k.run(t, conn)
						all = append(all, k)
					}
				}
				addPairs(db, "later", rows)
				for _, k := range all {
					p := k.run(t, conn)
					if blocks := p.Hit + p.Read; blocks > k.rows*60 {
						t.Errorf("%s touched %d blocks", k.name, blocks)
					}
					// Lists are joined with each other as well, those of a few rows as nested loops.
					if pairs := p.compared(); pairs > 2*few*few+float64(k.rows) {
						t.Errorf("%s compared %.0f pairs of rows in vain", k.name, pairs)
					}
				}
			})
		}
	})
}

// statementsOnRows are statements about n of the rows that addPairs inserts later.
func statementsOnRows(t *testing.T, events *eventTable, s *Store, n int) []keptPlan {
	t.Helper()
	ids, deliveries, tokens, targets, numbers := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]int64, n)
	for i := range n {
		ids[i], deliveries[i] = md5ID("later", i+1), md5ID("laterPENDING", i+1)
		tokens[i], targets[i], numbers[i] = uuid.NewString(), uuid.NewString(), int64(i)+1
	}
	fill := func(s string) []string { return slices.Repeat([]string{s}, n) }
	zeros := make([]int64, n)
	statement := func(name string, with settings, sql string, args ...any) keptPlan {
		return keptPlan{name: fmt.Sprintf("%s_of_%d", name, n), with: with, sql: sql, args: args, rows: n}
	}
	return []keptPlan{
		statement("fan_out", durableFor(n), events.fanOut, ids, ids, numbers, targets, numbers, fill("h"), make([]bool, n), zeros, fill(""), fill(""),
			uuid.NewString(), "o", 1, 0),
		statement("unmarked", durableFor(n), events.unmarked, numbers, ids, ids, targets, numbers, fill("h"), make([]bool, n), zeros, fill(""), fill(""),
			uuid.NewString(), "o", 1),
		statement("mark_late", durableFor(n), events.markLate, ids, ids, numbers),
		statement("succeed", fastFor(n), s.sql.succeed, deliveries, tokens),
		statement("settle", fastFor(n), s.sql.settle, deliveries, tokens, zeros, zeros, zeros, zeros, fill(""), fill(""), fill(""), zeros, zeros),
		statement("renew", durable, s.sql.renew, deliveries, tokens, 1),
	}
}

func md5ID(what string, n int) string {
	sum := md5.Sum([]byte(fmt.Sprint(what, n))) //nolint:gosec // as the server does
	id, _ := uuid.FromBytes(sum[:])
	return id.String()
}

// addPairs inserts events that are not marked and open deliveries.
func addPairs(db *testdb.DB, what string, n int) {
	db.Exec(fmt.Sprintf(`INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, started_date, completion_date, event_type, payload, event_date, delivered)
		SELECT md5('%[1]s' || n)::uuid, '', gen_random_uuid(), '', '{}', d, d, 'a', '{}', d, false
		FROM generate_series(1, %[2]d) n, (SELECT timestamp '2031-05-17' AS d) d`, what, n))
	fill(db, what, "PENDING", n)
}
