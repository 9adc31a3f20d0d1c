package postgres

import (
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

func TestReadsWhatIsCommitted(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		db.Exec(eventsTable)
		cfg := testConfig(db)
		r := start(t, cfg)
		r.waitMode(cdc.ModeStreaming)
		db.Exec(insertEvents, 0, 10)
		r.waitFor(10)
		testdb.WaitFor(t, "the confirmation", func() bool {
			return confirmedLSN(t, db.DSN(), cfg.Slot) >= point(t, r.lastPosition())
		})
		r.stop()
		if err := r.failed(); err != nil {
			t.Fatal(err)
		}
		t.Log(r.log.String())
	})
}
