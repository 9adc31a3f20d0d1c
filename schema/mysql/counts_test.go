package mysql

import (
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/pipeline/storetest"
)

// TestNoDuplicateIsTakenForNew: a fan-out goes by what the server says about its INSERT. A delivery that was there before must not be
// handed out as new, whatever the connection or a trigger makes of the count of rows: its handler would run twice.
func TestNoDuplicateIsTakenForNew(t *testing.T) {
	worlds := map[string]struct {
		change   func(*driver.Config)
		triggers []string
	}{
		"plain":      {},
		"found rows": {change: func(c *driver.Config) { c.ClientFoundRows = true }},
		"prepared":   {change: func(c *driver.Config) { c.InterpolateParams = false }},
		// A duplicate counts as two rows for one handler, and as none for the other.
		"changed": {triggers: []string{"CREATE TRIGGER touch BEFORE UPDATE ON event_notifications FOR EACH ROW " +
			"SET NEW.updated_date = IF(NEW.handler_name = 'billing', UTC_TIMESTAMP(6), OLD.updated_date)"}},
	}
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		for name, c := range worlds {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, kind, layouts()[0], Config{})
				w.store = newStore(t, w.db, poolOf(t, w.db, c.change), Config{Table: w.table})
				for _, sql := range c.triggers {
					w.db.Exec(sql)
				}
				events := someEvents(6)
				w.InsertEvents(t, events...)
				// Somebody has fanned out the third, for one handler, and the fourth for both, and did not mark them.
				before := []delivery.Fan{someFan(events[2], "billing"), someFan(events[3], "billing", "mail")}
				w.fanOut(t, before...)
				w.exec(t, "UPDATE events SET delivered = 0")
				for n := range 2 {
					fans := make([]delivery.Fan, len(events))
					for i, e := range events {
						fans[i] = someFan(e, "billing", "mail")
						for j := range fans[i].Targets {
							fans[i].Targets[j].Lease = true
						}
					}
					before := w.byID(t)
					result := w.fanOut(t, fans...)
					w.isNew(t, before, fans, result.Created)
					if want := (1 - n) * (2*len(events) - 3); len(result.Created) != want {
						t.Errorf("%d are said to be new, want %d", len(result.Created), want)
					}
					w.exec(t, "UPDATE events SET delivered = 0")
				}
				if all := w.Deliveries(t); len(all) != 2*len(events) {
					t.Errorf("%d deliveries", len(all))
				}
			})
		}
	})
}

func (w world) byID(t *testing.T) map[uuid.UUID]storetest.Row {
	t.Helper()
	rows := map[uuid.UUID]storetest.Row{}
	for _, r := range w.Deliveries(t) {
		rows[r.ID] = r
	}
	return rows
}

// isNew holds what a fan-out says it has created against the table before and after it.
func (w world) isNew(t *testing.T, before map[uuid.UUID]storetest.Row, fans []delivery.Fan, created []delivery.Created) {
	t.Helper()
	after := w.byID(t)
	for _, c := range created {
		id := fans[c.Fan].Targets[c.Target].ID
		row, there := after[id]
		_, old := before[id]
		if !there || old || (row.LeaseToken != nil) != c.Leased || !c.Leased {
			t.Errorf("%s is said to be new, leased %t; there %t, there before %t, lease %v", id, c.Leased, there, old, row.LeaseToken)
		}
	}
}
