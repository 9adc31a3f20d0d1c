package cdctest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// table is the table's name in statements; the names of the suite need no quotes.
func (db Database) table() string { return db.Schema + "." + db.Table }

// insert makes rows with the ids from to until, exclusive, in one statement.
func (db Database) insert(from, until int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "INSERT INTO %s (id, payload) VALUES ", db.table())
	for i := from; i < until; i++ {
		if i > from {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "(%d, 'payload %d')", i, i)
	}
	return b.String()
}

func commitOrder(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	one, two := db.Begin(t), db.Begin(t)
	one.Exec(db.insert(1, 2))
	two.Exec(db.insert(2, 3))
	one.Exec(db.insert(3, 4))
	db.Exec(t, db.insert(4, 5))
	two.Commit()
	one.Commit()
	c.waitForAll(1, 5)
	if got := strings.Join(c.arrived(), " "); got != "4 2 1 3" {
		t.Errorf("rows came as %q, want commit order %q", got, "4 2 1 3")
	}
	for _, tx := range c.transactions() {
		if tx.Partial || tx.Position == "" || tx.Gap != nil {
			t.Errorf("transaction %+v, want a whole one with a position", tx)
		}
		if tx.CommitTime.IsZero() {
			t.Error("a transaction has no commit time")
		}
	}
	c.stop()
}

func rolledBack(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	open, gone := db.Begin(t), db.Begin(t)
	open.Exec(db.insert(1, 2))
	gone.Exec(db.insert(100, 110))
	open.Exec("SAVEPOINT a")
	open.Exec(db.insert(200, 210))
	open.Exec("ROLLBACK TO SAVEPOINT a")
	open.Exec(db.insert(2, 3))
	gone.Rollback()
	db.Exec(t, db.insert(3, 4))
	c.waitFor("3")
	if got := c.arrived(); len(got) != 1 {
		t.Errorf("%v arrived before its commit", got)
	}
	open.Commit()
	db.Exec(t, db.insert(4, 5))
	c.waitFor("4")
	if got := strings.Join(c.arrived(), " "); got != "3 1 2 4" {
		t.Errorf("rows came as %q, want %q", got, "3 1 2 4")
	}
}

func values(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	const text = "quote ' and ☃ and\ttab"
	literal := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	db.Exec(t,
		fmt.Sprintf("INSERT INTO %s (id, payload) VALUES (1, NULL), (2, ''), (3, %s)", db.table(), literal),
		fmt.Sprintf("INSERT INTO %s (id, payload) SELECT 4, repeat('0123456789', 100000)", db.table()))
	c.waitForAll(1, 5)
	for id, want := range map[string]cdc.Value{
		"1": {Null: true}, "2": {Data: []byte{}}, "3": {Data: []byte(text)}, "4": {Data: []byte(strings.Repeat("0123456789", 100000))},
	} {
		got, ok := c.record(id).Value("payload")
		if !ok || got.Null != want.Null || got.Unchanged || string(got.Data) != string(want.Data) {
			t.Errorf("payload of row %s: null %v, %d bytes, carried %v", id, got.Null, len(got.Data), ok)
		}
	}
	if name := c.record("1").Relation.Name(); name != db.table() {
		t.Errorf("rows are of %s, want %s", name, db.table())
	}
}

func columns(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	db.Exec(t,
		db.insert(1, 2),
		fmt.Sprintf("ALTER TABLE %s ADD COLUMN kind varchar(20)", db.table()),
		fmt.Sprintf("INSERT INTO %s (id, payload, kind) VALUES (2, 'two', 'loud')", db.table()),
		fmt.Sprintf("ALTER TABLE %s DROP COLUMN payload", db.table()),
		fmt.Sprintf("INSERT INTO %s (id, kind) VALUES (3, 'quiet')", db.table()))
	c.waitForAll(1, 4)
	for id, want := range map[string]string{"1": "payload 1/absent", "2": "two/loud", "3": "absent/quiet"} {
		record := c.record(id)
		if got := show(record, "payload") + "/" + show(record, "kind"); got != want {
			t.Errorf("row %s is %s, want %s", id, got, want)
		}
		if len(record.Values) != len(record.Relation.Columns) {
			t.Errorf("row %s has %d values for %d columns", id, len(record.Values), len(record.Relation.Columns))
		}
	}
}

func show(r cdc.Record, column string) string {
	v, ok := r.Value(column)
	switch {
	case !ok:
		return "absent"
	case v.Null:
		return "null"
	}
	return string(v.Data)
}

func unregistered(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	tx := db.Begin(t)
	db.Exec(t, fmt.Sprintf("CREATE TABLE %s.other (id int)", db.Schema))
	tx.Exec(fmt.Sprintf("INSERT INTO %s.other VALUES (77)", db.Schema))
	tx.Exec(db.insert(1, 2))
	tx.Commit()
	db.Exec(t, fmt.Sprintf("INSERT INTO %s.other VALUES (78)", db.Schema), db.insert(2, 3))
	c.waitForAll(1, 3)
	if got := strings.Join(c.arrived(), " "); got != "1 2" {
		t.Errorf("rows %q arrived", got)
	}
}

// large is more rows than one part may hold.
const large = 5000

func parts(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	tx := db.Begin(t)
	for i := 0; i < large; i += 500 {
		tx.Exec(db.insert(i, i+500))
	}
	tx.Commit()
	db.Exec(t, db.insert(large, large+1))
	c.waitForAll(0, large+1)
	txs := c.transactions()
	if len(txs) < 3 {
		t.Fatalf("%d rows came in %d pieces", large, len(txs))
	}
	for i, tx := range txs {
		whole := i >= len(txs)-2 // the last part of the large one, and the one after it
		if tx.Partial == whole || (tx.Position != "") != whole {
			t.Errorf("piece %d of %d: partial %v, position %q", i+1, len(txs), tx.Partial, tx.Position)
		}
		if len(tx.Records) == 0 {
			t.Errorf("piece %d is empty", i+1)
		}
	}
	if got := c.arrived(); !slices.Equal(got, numbers(0, large+1)) {
		t.Error("the rows did not come in the order of their insertion, each once")
	}
}

func numbers(from, until int) []string {
	all := make([]string, 0, until-from)
	for i := from; i < until; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func positionsRise(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	for i := range 20 {
		db.Exec(t, db.insert(i, i+1))
	}
	c.waitForAll(0, 20)
	seen := map[cdc.Position]bool{}
	for _, tx := range c.transactions() {
		if seen[tx.Position] {
			t.Errorf("position %s came twice", tx.Position)
		}
		seen[tx.Position] = true
	}
}

func unacknowledged(t *testing.T, db Database) {
	c := consume(t, db.Open(t), false)
	db.Exec(t, db.insert(1, 4), db.insert(4, 5))
	c.waitForAll(1, 5)
	c.stop()
	again := consume(t, db.Open(t), true)
	again.waitForAll(1, 5)
	if got := strings.Join(again.arrived(), " "); got != "1 2 3 4" {
		t.Errorf("rows came again as %q", got)
	}
}

func acknowledged(t *testing.T, db Database) {
	c := consume(t, db.Open(t), false)
	db.Exec(t, db.insert(1, 2), db.insert(2, 3))
	c.waitForAll(1, 3)
	c.src.Ack(c.transactions()[0].Position)
	c.stop()
	again := consume(t, db.Open(t), true)
	db.Exec(t, db.insert(3, 4))
	again.waitFor("3")
	if got := strings.Join(again.arrived(), " "); got != "2 3" {
		t.Errorf("after row 1 was acknowledged came %q, want %q", got, "2 3")
	}
}

func lateAck(t *testing.T, db Database) {
	src := db.Open(t)
	c := consume(t, src, false)
	db.Exec(t, db.insert(1, 2))
	c.waitFor("1")
	c.stop()
	src.Ack(c.last())
	again := consume(t, src, true)
	db.Exec(t, db.insert(2, 3))
	again.waitFor("2")
	again.stop()
	last := consume(t, db.Open(t), true)
	db.Exec(t, db.insert(3, 4))
	last.waitFor("3")
	if got := strings.Join(last.arrived(), " "); got != "3" {
		t.Errorf("%q came, want only what was not acknowledged", got)
	}
}

func worthlessAck(t *testing.T, db Database) {
	c := consume(t, db.Open(t), false)
	db.Exec(t, db.insert(1, 2))
	c.waitFor("1")
	c.src.Ack("")
	c.src.Ack("not a position")
	c.stop()
	again := consume(t, db.Open(t), true)
	again.waitFor("1")
}

func disconnected(t *testing.T, db Database) {
	c := consume(t, db.Open(t), true)
	const rounds, rows = 5, 40
	for round := range rounds {
		for i := range rows {
			if i == rows/2 {
				db.Disconnect(t)
			}
			from := round*rows + i
			db.Exec(t, db.insert(from, from+1))
		}
	}
	c.waitForAll(0, rounds*rows)
	for _, tx := range c.transactions() {
		if tx.Gap != nil {
			t.Errorf("a lost connection made the gap %+v", tx.Gap)
		}
	}
	c.stop()
}

func cutInTheMiddle(t *testing.T, db Database) {
	src := db.Open(t)
	c := consumeUpTo(t, src, true, large/2)
	tx := db.Begin(t)
	for i := 0; i < large; i += 500 {
		tx.Exec(db.insert(i, i+500))
	}
	tx.Commit()
	c.wait("half of a large commit", func() bool { return len(c.ids) >= large/2 })
	db.Disconnect(t)
	c.kill()
	again := consume(t, src, true)
	again.waitForAll(0, large)
	if got := again.arrived(); !slices.Equal(got, numbers(0, large)) {
		t.Errorf("after the cut %d rows came, want all %d from the first on", len(got), large)
	}
	again.stop()
}

func blockedConsumer(t *testing.T, db Database) {
	c := consumeUpTo(t, db.Open(t), true, 1)
	for i := range 50 {
		db.Exec(t, db.insert(i, i+1))
	}
	c.waitFor("0") // it takes nothing after this one
	c.stop()
	again := consume(t, db.Open(t), true)
	again.waitForAll(1, 50)
}

func runAgain(t *testing.T, db Database) {
	src := db.Open(t)
	for i := range 3 {
		c := consume(t, src, true)
		db.Exec(t, db.insert(i, i+1))
		c.waitFor(fmt.Sprint(i))
		if got := c.arrived(); len(got) != 1 {
			t.Errorf("run %d brought %v", i+1, got)
		}
		c.stop()
	}
}
