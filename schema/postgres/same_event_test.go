package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// sameEventCase is an event table with odd types and rows to read in every way there is.
type sameEventCase struct {
	name                  string
	id, payload, date     string // types
	ids, payloads, values []string
}

func sameEventCases() []sameEventCase {
	uuids := []string{"'0b0e6f9c-3a5b-4b2e-9d0b-0f7e2d6c1a55'", "'7D444840-9DC0-11D1-B245-5FFDCE74FAD2'", "gen_random_uuid()"}
	json := []string{
		`'{"b": 1,   "a": [1.50, 1e3, "ü\u0041"], "a": null}'`, `'[]'`, `'null'`, `'  "text"  '`, `'123456789012345678901234567890.10'`, `NULL`,
	}
	return []sameEventCase{
		{
			name: "jsonb", id: "uuid", payload: "jsonb", date: "timestamp", ids: uuids, payloads: json,
			values: []string{
				"'2026-11-30 10:18:05.123456'", "'2026-11-30 10:18:05.1'", "'infinity'", "'-infinity'", "'0044-03-15 BC'",
				"'294276-12-31 23:59:59.999999'", "NULL",
			},
		},
		{
			name: "json", id: "bigint", payload: "json", date: "timestamptz",
			ids: []string{"1", "-5", "9223372036854775807"}, payloads: json,
			values: []string{
				"'2026-11-30 10:18:05.123456+05:30'", "'1883-11-18 12:00:00 America/New_York'", "'infinity'", "'-infinity'",
				"'0044-03-15 12:00 BC'", "NULL",
			},
		},
		{
			name: "text", id: "text", payload: "text", date: "date",
			ids:      []string{"'order 1'", "'0b0e6f9c-3a5b-4b2e-9d0b-0f7e2d6c1a55'", "'0B0E6F9C-3A5B-4B2E-9D0B-0F7E2D6C1A55'", "' '", `'a\b''c'`},
			payloads: []string{`'<xml/>'`, `''`, `'{"not": json'`, `E'line\nline\t\\'`, `NULL`},
			values:   []string{"'2026-11-30'", "'infinity'", "'0044-03-15 BC'", "NULL"},
		},
		{
			name: "bytea", id: "char(40)", payload: "bytea", date: "timestamp(3)",
			ids:      []string{"'a'", "'0b0e6f9c-3a5b-4b2e-9d0b-0f7e2d6c1a55'"},
			payloads: []string{`'\x00ff27'`, `''`, `convert_to('{"a": "ü"}', 'UTF8')`, `'\x5c785c5c'`, `NULL`},
			values:   []string{"'2026-11-30 10:18:05.9999'", "NULL"},
		},
		{
			name: "odd types", id: "numeric", payload: "boolean", date: "timestamp",
			ids: []string{"1.10", "2.5", "'NaN'", "1e20"}, payloads: []string{"true", "false", "NULL"}, values: []string{"'2026-11-30'"},
		},
		{
			name: "domains", id: "id_domain", payload: "payload_domain", date: "date_domain", ids: uuids, payloads: json,
			values: []string{"'2026-11-30 10:18:05.5+01'", "NULL"},
		},
	}
}

// TestSameEvent_LogPollerAndDelivery: what the log's decoder makes of a row is, field by field and byte
// by byte, what the poller reads, what an INSERT … SELECT copies into a delivery, and what is
// copied from the log's image; for sessions with any settings.
func TestSameEvent_LogPollerAndDelivery(t *testing.T) {
	sessions := []struct {
		name     string
		mode     pgx.QueryExecMode
		settings map[string]string
	}{
		{name: "default", mode: pgx.QueryExecModeCacheStatement},
		{
			name: "odd settings", mode: pgx.QueryExecModeCacheStatement,
			settings: map[string]string{
				"timezone": "Asia/Kolkata", "datestyle": "German", "bytea_output": "escape", "standard_conforming_strings": "off",
			},
		},
		{
			name: "simple protocol", mode: pgx.QueryExecModeSimpleProtocol,
			settings: map[string]string{"timezone": "America/St_Johns"},
		},
	}
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		for _, tc := range sameEventCases() {
			t.Run(tc.name, func(t *testing.T) {
				table := schema.Custom("public", "outbox", schema.Columns{
					ID: "id", Type: "type", Payload: "payload", Date: "at", StartedDate: "at2", ModelID: "model", ActionID: "id",
				}, schema.Mark{Kind: schema.MarkBoolean, Column: "sent"})
				db := newTestDB(t, major, layout{table: table, ddl: tc.ddl()})
				db.Exec(`CREATE PUBLICATION pub FOR TABLE public.outbox WITH (publish = 'insert')`)
				db.Exec(`SELECT pg_create_logical_replication_slot('slot_' || current_database(), 'pgoutput')`)
				for i, value := range tc.rows() {
					db.Exec(fmt.Sprintf(`INSERT INTO public.outbox (type, model, id, payload, at, at2) VALUES ('type %d', %d.50, %s)`, i, i, value))
				}
				logged := decodeLog(t, db, table)
				if want := len(tc.rows()); len(logged) != want {
					t.Fatalf("the log has %d events, want %d", len(logged), want)
				}
				for _, session := range sessions {
					t.Run(session.name, func(t *testing.T) {
						cfg, err := pgxpool.ParseConfig(db.DSN())
						if err != nil {
							t.Fatal(err)
						}
						for name, value := range session.settings {
							cfg.ConnConfig.RuntimeParams[name] = value
						}
						cfg.ConnConfig.DefaultQueryExecMode = session.mode
						pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
						if err != nil {
							t.Fatal(err)
						}
						defer pool.Close()
						s := newStore(t, pool, table)
						sameEvents(t, db, s, logged)
					})
				}
			})
		}
	})
}

func (tc sameEventCase) ddl() string {
	return fmt.Sprintf(`
CREATE DOMAIN id_base AS uuid; CREATE DOMAIN id_domain AS id_base; CREATE DOMAIN payload_domain AS jsonb; CREATE DOMAIN date_domain AS timestamptz;
CREATE TABLE public.outbox (sent boolean NOT NULL DEFAULT false, type text, model numeric, id %s, payload %s, at %s, at2 %s)`,
		tc.id, tc.payload, tc.date, tc.date)
}

// rows are the values of id, payload, at and at2; each id, payload and date is in some row.
func (tc sameEventCase) rows() []string {
	var rows []string
	for i := range max(len(tc.payloads), len(tc.values), len(tc.ids)) {
		at := func(list []string, i int) string { return list[i%len(list)] }
		id := tc.ids[i%len(tc.ids)]
		switch {
		case i < len(tc.ids):
		case strings.Contains(tc.id, "id"):
			id = "'" + uuid.NewString() + "'"
		case tc.id == "bigint", tc.id == "numeric":
			id = fmt.Sprint(1000 + i)
		default:
			id = fmt.Sprintf("'row %d'", i)
		}
		rows = append(rows, strings.Join([]string{id, at(tc.payloads, i), at(tc.values, i), at(tc.values, i+1)}, ", "))
	}
	return rows
}

func sameEvents(t *testing.T, db *testdb.DB, s *Store, logged []event.Event) {
	t.Helper()
	db.Exec(`TRUNCATE eventlog.event_notifications`)
	db.Exec(`UPDATE public.outbox SET sent = false`)
	byType := func(events []event.Event) []event.Event {
		return slices.SortedFunc(slices.Values(events), func(a, b event.Event) int { return strings.Compare(a.Type, b.Type) })
	}
	polled, err := s.Undelivered(t.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(logged, byType(polled.Events)); diff != "" {
		t.Errorf("the poller reads something else (-log +poller):\n%s", diff)
	}
	// Deliveries have a date in any case, and an action.
	filled := func(events []event.Event, now time.Time) []event.Event {
		list := slices.Clone(events)
		for i := range list {
			e := &list[i]
			e.Key, e.ActionParams = "", []byte("{}")
			if e.Date.IsZero() {
				e.Date = now
			}
			if e.StartedDate.IsZero() {
				e.StartedDate = e.Date
			}
			e.CompletionDate = e.Date
		}
		return byType(list)
	}
	now := time.Date(2031, 5, 17, 12, 0, 0, 0, time.UTC)
	for name, insert := range map[string]func(){
		"copied from the table": func() {
			db.Exec(`UPDATE public.outbox SET sent = false`)
		},
		"copied from the log": func() {
			db.Exec(`ALTER TABLE public.outbox RENAME TO kept; CREATE TABLE public.outbox (LIKE public.kept INCLUDING DEFAULTS)`)
		},
	} {
		db.Exec(`TRUNCATE eventlog.event_notifications`)
		insert()
		s := newStore(t, s.pool, s.table) // one that remembers nothing
		s.sql = render(s.schema, frozenClock)
		fans := make([]delivery.Fan, len(logged))
		for i, e := range logged {
			fans[i] = delivery.Fan{Event: e, FromLog: true, Targets: []delivery.Target{{ID: uuid.New(), Handler: "h"}}}
		}
		result, err := s.FanOut(t.Context(), delivery.FanOut{Lease: delivery.Lease{Token: uuid.New(), For: time.Minute}, Fans: fans})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(result.Created) != len(logged) {
			t.Errorf("%s: created %d of %d: %+v", name, len(result.Created), len(logged), result)
		}
		claimed, err := s.Claim(t.Context(), delivery.Lease{Token: uuid.New(), For: time.Minute},
			[]delivery.Claim{{Handler: "h", Names: []string{"h"}, Limit: 100}})
		if err != nil {
			t.Fatal(err)
		}
		var got []event.Event
		for _, c := range claimed.Claimed {
			got = append(got, c.Event)
		}
		if diff := cmp.Diff(filled(logged, now), byType(got)); diff != "" {
			t.Errorf("%s: something else is delivered (-log +delivery):\n%s", name, diff)
		}
		db.Exec(`DO $$ BEGIN IF to_regclass('public.kept') IS NOT NULL THEN
			DROP TABLE public.outbox; ALTER TABLE public.kept RENAME TO outbox; END IF; END $$`)
	}
}

// decodeLog reads what the log has about the table through the server's own output plug-in,
// and decodes it, sorted by type.
func decodeLog(t *testing.T, db *testdb.DB, table schema.Table) []event.Event {
	t.Helper()
	rows, err := db.Pool().Query(t.Context(), `SELECT data FROM pg_logical_slot_get_binary_changes('slot_' || current_database(), NULL, NULL,
		'proto_version', '1', 'publication_names', 'pub')`)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	var (
		relation *cdc.Relation
		events   []event.Event
		decode   = table.Decoder()
	)
	for _, m := range messages {
		switch p := (wire{m[1:]}); m[0] {
		case 'R':
			relation = p.relation()
		case 'I':
			e, err := decode(cdc.Record{Relation: relation, Values: p.insert()})
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, e)
		}
	}
	slices.SortFunc(events, func(a, b event.Event) int { return strings.Compare(a.Type, b.Type) })
	return events
}

// wire reads pgoutput messages.
type wire struct{ b []byte }

func (w *wire) int(n int) int {
	v := 0
	switch n {
	case 1:
		v = int(w.b[0])
	case 2:
		v = int(binary.BigEndian.Uint16(w.b))
	case 4:
		v = int(binary.BigEndian.Uint32(w.b))
	}
	w.b = w.b[n:]
	return v
}

func (w *wire) text() string {
	s, rest, _ := bytes.Cut(w.b, []byte{0})
	w.b = rest
	return string(s)
}

func (w *wire) relation() *cdc.Relation {
	w.int(4)
	r := &cdc.Relation{Schema: w.text(), Table: w.text()}
	w.int(1)
	for range w.int(2) {
		w.int(1)
		c := cdc.Column{Name: w.text()}
		c.Type = uint32(w.int(4))
		w.int(4)
		r.Columns = append(r.Columns, c)
	}
	return r
}

func (w *wire) insert() []cdc.Value {
	w.int(4)
	w.int(1)
	var values []cdc.Value
	for range w.int(2) {
		switch w.int(1) {
		case 'n':
			values = append(values, cdc.Value{Null: true})
		case 't':
			n := w.int(4)
			values = append(values, cdc.Value{Data: w.b[:n]})
			w.b = w.b[n:]
		}
	}
	return values
}
