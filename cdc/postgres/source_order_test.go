package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// TestT21_EveryOrderOfTablePublicationAndSlot makes the three in each order, by hand, with rows after each step, and
// then starts the reader. Either every row that was committed after the slot was made has come through the log, or a gap is announced,
// or (where the slot is not the reader's to replace) the error names the statement. Silence is no outcome.
func TestT21_EveryOrderOfTablePublicationAndSlot(t *testing.T) {
	t.Parallel()
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		t.Parallel()
		for _, order := range []string{"table publication slot", "table slot publication", "slot table publication",
			"publication table slot", "publication slot table", "slot publication table"} {
			for _, create := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, create %v", order, create), func(t *testing.T) { tablePublicationAndSlot(t, major, order, create) })
			}
		}
	})
}

func tablePublicationAndSlot(t *testing.T, major int, order string, create bool) {
	db := testdb.Postgres(t, major)
	cfg := testConfig(db)
	cfg.Create = create
	rows, table, logged := 0, false, -1 // rows from logged on are after the slot
	for step := range strings.FieldsSeq(order) {
		switch step {
		case "table":
			db.Exec(eventsTable)
			table = true
		case "publication":
			what := "ALL TABLES"
			if table {
				what = "TABLE events"
			}
			db.Exec("CREATE PUBLICATION " + cfg.Publication + " FOR " + what + " WITH (publish = 'insert', publish_via_partition_root)")
		case "slot":
			db.Exec("SELECT pg_create_logical_replication_slot('" + cfg.Slot + "', 'pgoutput')")
			logged = rows
		}
		if table {
			db.Exec(insertEvents, rows, rows+10)
			rows += 10
		}
	}
	r := start(t, cfg)
	probe, ended := 1000, false
	testdb.WaitFor(t, "rows of now to arrive, or the reader to give up", func() bool {
		db.Exec(insertEvents, probe, probe+1) // into a gap, perhaps, as long as there is one to be found
		probe++
		ended, _ = r.Ended()
		ids := r.Arrived()
		return ended || len(ids) > 0 && len(ids[len(ids)-1]) > 3
	})
	if ended {
		if err := r.Failed(); create || !cdc.IsPermanent(err) || !strings.Contains(err.Error(), "pg_drop_replication_slot") {
			t.Errorf("Run: %v", err)
		}
		return
	}
	missing := 0
	for id := logged; id < rows; id++ {
		if r.Count(fmt.Sprint(id)) == 0 {
			missing++
		}
	}
	if gaps := r.Gaps(); (missing > 0) != (len(gaps) > 0) {
		t.Errorf("%d of %d rows that were committed after the slot was made are missing; gaps: %v", missing, rows-logged, gaps)
	}
}
