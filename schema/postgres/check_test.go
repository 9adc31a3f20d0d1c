package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-dispatcher/cdc-dispatcher/delivery"
	"github.com/cdc-dispatcher/cdc-dispatcher/event"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// TestMappingIsCheckedAgainstTheCatalog: all mistakes at once, each with its field.
func TestMappingIsCheckedAgainstTheCatalog(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid")
		db := newTestDB(t, major, l)
		db.Exec(`ALTER TABLE public.outbox ADD params text, ADD created bigint`)
		table := l.table
		table.Columns.ActionParams, table.Columns.StartedDate, table.Columns.CompletionDate = "params", "created", "type"
		table.Columns.ModelID, table.Columns.Traceparent, table.Columns.Headers = "no model", "no trace", "params"
		table.Mark.Column = "payload2"
		s := newStore(t, db.Pool(), table)
		_, err := s.FanOut(t.Context(), delivery.FanOut{Fans: []delivery.Fan{{Event: event.Event{ID: uuid.NewString()}}}})
		var problems schema.Problems
		if !errors.As(err, &problems) || s.Rejected(err) {
			t.Fatalf("got %v", err)
		}
		var fields []string
		for _, p := range problems {
			fields = append(fields, p.Field)
		}
		want := []string{
			"columns.action_params", "columns.started_date", "columns.completion_date", "columns.model_id", "columns.headers", "mark.column",
		}
		if diff := cmp.Diff(want, fields); diff != "" {
			t.Errorf("%s\n%v", diff, err)
		}
		table = l.table
		table.Name = "nowhere"
		if err := newStore(t, db.Pool(), table).CheckSchema(t.Context()); !errors.As(err, &problems) || problems[0].Field != "table" {
			t.Errorf("got %v", err)
		}
	})
}

func TestNewReportsMistakes(t *testing.T) {
	for _, c := range []Config{
		{Schema: strings.Repeat("x", 64)},
		{Table: schema.Table{Schema: "s", Name: "t"}},
	} {
		var problems schema.Problems
		if _, err := New(nil, c); !errors.As(err, &problems) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

// TestSchemaDrift: the event table changes while the store is in use.
func TestSchemaDrift(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		l := outbox("uuid PRIMARY KEY")
		l.table.Columns.Traceparent = "trace"
		db := newTestDB(t, major, l)
		s := newStore(t, db.Pool(), l.table)
		insert := func(payload string) {
			t.Helper()
			db.Exec(`INSERT INTO public.outbox (id, type, payload) VALUES (gen_random_uuid(), 'a', '` + payload + `')`)
		}
		deliver := func(want string) {
			t.Helper()
			events := undelivered(t, s)
			if len(events) != 1 || string(events[0].Payload) != want {
				t.Fatalf("got %+v, want payload %s", events, want)
			}
			if result := fanOut(t, s, events, true); result.Fresh != 1 || len(result.Created) != 1 {
				t.Fatalf("got %+v", result)
			}
		}
		insert("1")
		deliver("1")
		for _, ddl := range []string{
			`ALTER TABLE public.outbox ADD trace text`,
			`ALTER TABLE public.outbox DROP trace`,
			`ALTER TABLE public.outbox ALTER at TYPE timestamptz`,
			`ALTER TABLE public.outbox ALTER payload TYPE json`,
			`ALTER TABLE public.outbox ALTER payload TYPE text`,
			`ALTER TABLE public.outbox ALTER type TYPE varchar(300), ADD extra int DEFAULT 7`,
			`DROP TABLE public.outbox; CREATE TABLE public.outbox (payload jsonb, type varchar(20), sent boolean DEFAULT false, at date, id text)`,
		} {
			db.Exec(ddl)
			insert("2")
			deliver("2")
		}
		db.Exec(`ALTER TABLE public.outbox RENAME payload TO body`)
		var problems schema.Problems
		if _, err := s.Undelivered(t.Context(), delivery.Undelivered{Types: delivery.Match{All: true}, Limit: 1}); !errors.As(err, &problems) {
			t.Errorf("got %v", err)
		}
		db.Exec(`ALTER TABLE public.outbox RENAME body TO payload`)
		insert("3")
		deliver("3")
	})
}

// TestAnExistingEkbatanTableHasNoTraceColumns: and needs none.
func TestAnExistingEkbatanTableHasNoTraceColumns(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := newTestDB(t, major, layouts()[0])
		db.Exec(`ALTER TABLE eventlog.events DROP traceparent, DROP headers`)
		s := newStore(t, db.Pool(), schema.Table{})
		if err := s.CheckSchema(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Exec(`INSERT INTO eventlog.events VALUES (gen_random_uuid(), 'n', gen_random_uuid(), 'a', '{}', now(), now(), '1', 'M', 'E', '{}', now(), false)`)
		if result := fanOut(t, s, undelivered(t, s), false); result.Fresh != 1 {
			t.Errorf("got %+v", result)
		}
	})
}

// In a database of another encoding, connections have that encoding until they are told otherwise.
func TestRefusesConnectionsThatAreNotUTF8(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.PostgresEncoded(t, major, "LATIN1")
		migrateUp(t, db, schema.Table{})
		pool, err := pgxpool.New(t.Context(), db.DSN())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if err := newStore(t, pool, schema.Table{}).CheckSchema(t.Context()); err == nil || !strings.Contains(err.Error(), "client_encoding LATIN1") {
			t.Errorf("got %v", err)
		}
		if err := newStore(t, db.Pool(), schema.Table{}).CheckSchema(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCheckSchema: each missing piece is named, and the statement that is printed mends it.
func TestCheckSchema(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := newTestDB(t, major, layouts()[0])
		s := newStore(t, db.Pool(), schema.Table{})
		if err := s.CheckSchema(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Exec(`ALTER TABLE eventlog.event_notifications DROP lease_token, DROP payload_raw, DROP lost_claims;
ALTER TABLE eventlog.sources DROP looked_date;
DROP INDEX eventlog.event_notifications_claim;
ALTER TABLE eventlog.event_notifications DROP CONSTRAINT event_notifications_event_id_handler_name_key`)
		var lacks *SchemaError
		if err := s.CheckSchema(t.Context()); !errors.As(err, &lacks) || lacks.Statement == "" {
			t.Fatalf("got %v", err)
		}
		want := []string{
			"column event_notifications.lease_token", "column event_notifications.lost_claims", "column event_notifications.payload_raw",
			"column sources.looked_date",
			"unique index event_notifications (event_id, handler_name)", "index event_notifications (handler_name, next_retry_at)",
		}
		if diff := cmp.Diff(want, lacks.Missing); diff != "" {
			t.Error(diff)
		}
		for statement := range strings.SplitSeq(strings.TrimSuffix(lacks.Statement, ";"), "; ") {
			db.Exec(statement)
		}
		if err := s.CheckSchema(t.Context()); err != nil {
			t.Error(err)
		}
		db.Exec(`ALTER TABLE eventlog.handlers ALTER generation TYPE int; DROP TABLE eventlog.gaps`)
		if err := s.CheckSchema(t.Context()); !errors.As(err, &lacks) || lacks.Statement != "" || len(lacks.Missing) != 2 {
			t.Errorf("got %v", err)
		}
		if err := newStore(t, db.Pool(), schema.Eventlog("other")).CheckSchema(t.Context()); err == nil {
			t.Error("a missing event table passed")
		}
	})
}

// TestCheckSchemaKnowsEveryColumn: a column that a migration adds is looked for too, or a new binary would
// start on tables that nobody has migrated.
func TestCheckSchemaKnowsEveryColumn(t *testing.T) {
	testdb.EachPostgres(t, func(t *testing.T, major int) {
		db := testdb.Postgres(t, major)
		migrateUp(t, db, schema.Table{})
		have, err := newStore(t, db.Pool(), schema.Table{}).catalog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, notOurs := range []string{"events", "cdc_dispatcher_migrations"} {
			delete(have, notOurs)
		}
		want := map[string]map[string]string{}
		for _, table := range ourColumns() {
			want[table.table] = map[string]string{}
			for column := range strings.SplitSeq(table.columns, ",") {
				name, typ, _ := strings.Cut(strings.TrimSpace(column), " ")
				want[table.table][name] = typ
			}
		}
		if diff := cmp.Diff(have, want); diff != "" {
			t.Errorf("the migrations (-) and the check (+) differ:\n%s", diff)
		}
	})
}
