package mysql

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// valueColumns are columns of every kind that an event table may have, with values of
// all forms.
var valueColumns = []struct{ name, typ, value string }{
	{"c_char", "char(36)", "'AAAAAAAA-BBBB-cccc-dddd-eeeeeeeeeeee'"},
	{"c_bin16", "binary(16)", "X'0123456789ABCDEF0123456789ABCD00'"},
	{"c_bin16z", "binary(16)", "X'00000000000000000000000000000000'"},
	{"c_bin4", "binary(4)", "X'61620000'"},
	{"c_varbin", "varbinary(20)", "X'6100FF00'"},
	{"c_blob", "blob", "X'00FF'"},
	{"c_text", "text", "'ü ☃ and\\ttab'"},
	{"c_empty", "varchar(10)", "''"},
	{"c_null", "varchar(10)", "NULL"},
	{"c_ascii", "varchar(10) CHARACTER SET ascii", "'plain'"},
	{"c_tiny", "tinyint unsigned", "255"},
	{"c_small", "smallint", "-32768"},
	{"c_smallu", "smallint unsigned", "65535"},
	{"c_medium", "mediumint unsigned", "16777215"},
	{"c_int", "int unsigned", "4294967295"},
	{"c_big", "bigint unsigned", "18446744073709551615"},
	{"c_bigs", "bigint", "-9223372036854775808"},
	{"c_zerofill", "int(6) zerofill", "42"},
	{"c_dec", "decimal(20,5)", "-12345.67"},
	{"c_double", "double", "1.5"},
	{"c_float", "float", "0.25"},
	{"c_bool", "boolean", "true"},
	{"c_year", "year", "1999"},
	{"c_date", "date", "'1969-12-31'"},
	{"c_zero", "date", "'0000-00-00'"},
	{"c_time", "time(3)", "'-01:02:03.456'"},
	{"c_dt", "datetime(6)", "'1969-07-20 20:17:40.000001'"},
	{"c_dt0", "datetime", "'9999-12-31 23:59:59'"},
	{"c_dtz", "datetime(6)", "'0000-00-00 00:00:00'"},
	{"c_dty", "datetime(6)", "'2026-00-10 01:02:03'"},
	{"c_dayless", "date", "'2026-05-00'"},
	{"c_ts", "timestamp(6) NULL", "'2026-11-30 10:18:05.123456'"},
	{"c_enum", "enum('it''s','two')", "'it''s'"},
	{"c_set", "set('a','b','c')", "'a,c'"},
	{"c_bit", "bit(12)", "b'101000000001'"},
	{"c_bit1", "bit(1)", "b'1'"},
	{"c_bit64", "bit(64)", "X'8000000000000001'"},
	{"c_double7", "double", "1234567.5"},
	{"c_double_5", "double", "-1.5e-5"},
	{"c_double14", "double", "123456789012345"},
	{"c_double15", "double", "1e15"},
	{"c_double16", "double", "1234567890123456.75"},
	{"c_double300", "double", "-1e-300"},
	{"c_double0", "double", "0"},
	{"c_float6", "float", "123456"},
	{"c_float20", "float", "-1e20"},
	{"c_time0", "time", "'-838:59:59'"},
	{"c_time1", "time(1)", "'-00:00:00.5'"},
	{"c_time2", "time(2)", "'-00:00:59.01'"},
	{"c_time4", "time(4)", "'123:00:00.0001'"},
	{"c_time6", "time(6)", "'10:11:12'"},
	{"c_time6n", "time(6)", "'-10:11:12.000001'"},
	{"c_timez", "time(6)", "'00:00:00'"},
	{"c_dt1", "datetime(1)", "'2026-12-01 03:57:49.5'"},
	{"c_dt4", "datetime(4)", "'0001-01-01 00:00:00.0123'"},
	{"c_ts0", "timestamp NULL", "'1970-01-01 00:00:01'"},
	{"c_tsz", "timestamp(2) NULL", "'0000-00-00 00:00:00'"},
	{"c_tinys", "tinyint", "-1"},
	{"c_mediums", "mediumint", "-8388608"},
	{"c_ints", "int", "-2147483648"},
	{"c_intu", "int unsigned", "2147483648"},
	{"c_dec65", "decimal(65,30)", "-12345678901234567890123456789012345.000000000000000000000000000001"},
	{"c_dec5", "decimal(5,5)", "0.01234"},
	{"c_dec9", "decimal(9,0)", "999999999"},
	{"c_dec10", "decimal(10,9)", "-1.000000001"},
	{"c_dec18", "decimal(18,9)", "1.5"},
	{"c_dec0", "decimal(10,2)", "0"},
	{"c_vc300", "varchar(300)", "REPEAT('é', 300)"},
	{"c_vc255", "varchar(255) CHARACTER SET ascii", "REPEAT('x', 255)"},
	{"c_char100", "char(100) CHARACTER SET utf8mb4", "REPEAT('😀', 100)"},
	{"c_bin200", "binary(200)", "X'01'"},
	{"c_tinyblob", "tinyblob", "REPEAT(X'00', 255)"},
	{"c_mediumtext", "mediumtext", "REPEAT('m', 70000)"},
	{"c_longblob", "longblob", "''"},
	{"c_set10", "set('1','2','3','4','5','6','7','8','9','ten')", "'2,9,ten'"},
	{"c_set0", "set('a')", "''"},
	{"c_enum0", "enum('a')", "'no such'"},
	{"c_year0", "year", "0"},
	{"c_point", "point", "ST_GeomFromText('POINT(1 2)')"},
}

// Each value comes as a SELECT prints it, except that a binary(16) is a UUID, that a number is filled with no zeros, and
// that a float has all of its digits, where the server rounds to six
// (mysql-cdc.md tests 34, 35 and 40).
func TestM34_M35_M40_ValuesAreThoseOfASelect(t *testing.T) {
	for _, metadata := range []string{"FULL", "MINIMAL"} {
		t.Run(metadata, func(t *testing.T) {
			t.Parallel()
			testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
				t.Parallel()
				var own *ownServer
				if metadata != "FULL" {
					own = newServer(t, kind, map[string]string{"binlog_row_metadata": "MINIMAL"})
					own.setUp()
				}
				testValues(t, kind, own)
			})
		})
	}
}

func testValues(t *testing.T, kind testdb.Kind, own *ownServer) {
	columns := slices.Clone(valueColumns)
	if kind.IsMariaDB() {
		columns = append(columns,
			struct{ name, typ, value string }{"c_uuid", "uuid", "'01234567-89AB-CDEF-0123-456789ABCD00'"},
			struct{ name, typ, value string }{"c_uuid7", "uuid", "'0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4000'"},
			struct{ name, typ, value string }{"c_inet4", "inet4", "'10.0.0.0'"},
			struct{ name, typ, value string }{"c_inet6", "inet6", "'2001:db8::'"},
			struct{ name, typ, value string }{"c_json", "json", `'{"b": 1.0,  "a": [1,2]}'`})
	} else {
		columns = append(columns, struct{ name, typ, value string }{"c_json", "json", `'{"b": 1.0,  "a": [1,2, "x"], "n": null}'`})
	}
	ddl, names, values := "CREATE TABLE events (id bigint PRIMARY KEY", "id", "%d"
	for _, c := range columns {
		ddl += ", " + c.name + " " + c.typ
		names += ", " + c.name
		values += ", " + c.value
	}
	var cfg Config
	var s *session
	database := "app"
	if own != nil {
		cfg, s = own.config(), newSession(t, own.pool)
		s.exec("USE app", "DROP TABLE events")
	} else {
		db := testdb.MySQL(t, kind)
		cfg, s, database = configOf(db), newSession(t, db.Pool()), db.Name()
	}
	s.exec("SET SESSION sql_mode = ''", "SET time_zone = '+00:00'", ddl+")")
	r := streaming(t, cfg)
	s.exec(fmt.Sprintf("INSERT INTO events ("+names+") VALUES ("+values+")", 1))
	want := 1
	if !kind.IsMariaDB() {
		s.exec("SET SESSION binlog_transaction_compression = ON", fmt.Sprintf("INSERT INTO events ("+names+") VALUES ("+values+")", 2))
		want = 2
	}
	r.WaitFor(want)
	for i := 1; i <= want; i++ {
		record := r.Record(fmt.Sprint(i))
		for _, c := range columns {
			expression := c.name
			switch c.typ {
			case "double", "float", "year":
				expression = "CONCAT(" + c.name + ")" // the driver makes numbers of them
			case "int(6) zerofill":
				expression = "CAST(CAST(" + c.name + " AS UNSIGNED) AS CHAR)"
			case "binary(16)":
				expression = "LOWER(INSERT(INSERT(INSERT(INSERT(HEX(" + c.name + "), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))"
			}
			var selected []byte
			row := s.conn.QueryRowContext(t.Context(), fmt.Sprintf("SELECT "+expression+" FROM %s.events WHERE id = ?", database), i)
			if err := row.Scan(&selected); err != nil {
				t.Fatal(err)
			}
			got, ok := record.Value(c.name)
			if !ok || got.Null != (selected == nil) {
				t.Errorf("%s: there %v, null %v", c.name, ok, got.Null)
				continue
			}
			if diff := cmp.Diff(string(selected), string(got.Data)); diff != "" {
				t.Errorf("%s of row %d (-select +log):\n%s", c.name, i, diff)
			}
		}
	}
}

// Metadata that becomes poorer while the stream runs never leads to wrong columns.
func TestM37_M38_M39_Schema(t *testing.T) {
	t.Parallel()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		s := newServer(t, kind, nil)
		s.setUp()
		cfg := s.config()
		patient := cfg
		patient.ReadTimeout = time.Minute // a machine that is held up for seconds is not a reconnect
		r := streaming(t, patient)
		s.insert(1, 2)
		r.WaitFor(1)
		for i, metadata := range []string{"MINIMAL", "FULL", "MINIMAL"} {
			s.exec("SET GLOBAL binlog_row_metadata = " + metadata)
			s.insert(10+i, 11+i)
			r.WaitFor(2 + i)
			if got := cdctest.Text(r.Record(fmt.Sprint(10+i)), "payload"); got != fmt.Sprintf("payload %d", 10+i) {
				t.Errorf("under %s: payload %q", metadata, got)
			}
		}
		// 36, 37: columns are found by name also when they are moved, now from the catalog.
		s.exec("ALTER TABLE app.events ADD COLUMN kind varchar(10) FIRST")
		s.exec("INSERT INTO app.events (id, payload, kind) VALUES (20, 'twenty', 'k')")
		r.Wait("row 20 or a sweep for it", func() bool { return r.Count("20") == 1 || slices.Contains(r.Sweeps(), sweepColumns) })
		if r.Count("20") == 1 {
			if record := r.Record("20"); cdctest.Text(record, "payload") != "twenty" || cdctest.Text(record, "kind") != "k" {
				t.Error("columns were mixed up")
			}
		}
		// A row image without all columns.
		conn := newSession(t, s.pool)
		conn.exec("USE app", "SET SESSION binlog_row_image = 'MINIMAL'", "INSERT INTO events (id) VALUES (30)")
		r.waitSweep(sweepRowImage)
		if !kind.IsMariaDB() {
			// 38: partial updates of JSON.
			conn.exec("SET SESSION binlog_row_image = 'FULL'", "ALTER TABLE events ADD COLUMN doc json",
				"SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
				"INSERT INTO events (id, doc) VALUES (40, '{\"a\": \"a long enough text\", \"b\": 2}')",
				"UPDATE events SET doc = JSON_SET(doc, '$.b', 3) WHERE id = 40")
		}
		s.exec("INSERT INTO app.events (id, payload) VALUES (50, 'fifty')")
		r.Wait("what came after", func() bool { return r.Count("50") == 1 })
		if n := r.src.Status().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
		r.ends()
		// 39: text that would come untranslated is refused, with the statement.
		s.exec("ALTER TABLE app.events MODIFY payload text CHARACTER SET latin1")
		refused(t, cfg, reasonCharset, "CONVERT TO CHARACTER SET utf8mb4")
		s.exec("ALTER TABLE app.events MODIFY payload text CHARACTER SET utf8mb4")
		if kind.IsMariaDB() {
			s.exec("ALTER TABLE app.events MODIFY payload text COMPRESSED")
			refused(t, cfg, reasonTable, "without COMPRESSED")
			s.exec("ALTER TABLE app.events MODIFY payload text")
		}
		testProbe(t, s, cfg)
	})
}

// testProbe takes one thing after the other away from the reader.
func testProbe(t *testing.T, s *ownServer, cfg Config) {
	t.Helper()
	s.exec("SET GLOBAL binlog_format = 'MIXED'")
	refused(t, cfg, reasonFormat, "SET GLOBAL binlog_format")
	s.exec("SET GLOBAL binlog_format = 'ROW'")

	missing := cfg
	missing.Tables = []Table{{"app", "nothing"}}
	refused(t, missing, reasonTable, "GRANT SELECT")

	s.exec("CREATE USER 'weak'@'%' IDENTIFIED BY 'se-cret'", "GRANT SELECT ON app.* TO 'weak'@'%'")
	weak := cfg
	weak.DSN = fmt.Sprintf("weak:se-cret@tcp(%s:%d)/app", s.Host(), s.Port())
	refused(t, weak, reasonReplication, "GRANT REPLICATION SLAVE")
	s.exec("GRANT REPLICATION SLAVE ON *.* TO 'weak'@'%'")
	weak.Keeper = &bank{}
	r := streaming(t, weak)
	s.exec("INSERT INTO app.events (id) VALUES (60)")
	r.WaitFor(1)
	r.ends()
	weak.DSN = fmt.Sprintf("weak:wrong@tcp(%s:%d)/app", s.Host(), s.Port())
	refused(t, weak, reasonAuth, "password")
	weak.DSN = fmt.Sprintf("weak:se-cret@tcp(%s:%d)/nowhere", s.Host(), s.Port())
	refused(t, weak, reasonDatabase, "nowhere")
}

// refused checks that Run ends with a permanent error with this reason and hint, which
// tells no secret.
func refused(t *testing.T, cfg Config, reason, hint string) {
	t.Helper()
	r := start(t, cfg)
	err := r.Failed()
	r.Stop()
	if !cdc.IsPermanent(err) || reasonOf(err) != reason {
		t.Fatalf("Run returned %v (%s), want a permanent error with reason %s", err, reasonOf(err), reason)
	}
	for _, shown := range []string{err.Error(), r.src.Status().Detail, r.Log.String()} {
		if containsAny(shown, "se-cret", ":wrong@") {
			t.Errorf("a password is shown: %s", shown)
		}
	}
	if !containsAny(err.Error(), hint) {
		t.Errorf("error %v lacks the hint %q", err, hint)
	}
}

// A server that does not tell capitals apart logs small letters, whatever the configuration has.
func TestNamesOnAServerWithoutCapitals(t *testing.T) {
	t.Parallel()
	testdb.EachMySQL(t, func(t *testing.T, kind testdb.Kind) {
		t.Parallel()
		s := newServer(t, kind, map[string]string{"lower_case_table_names": "1"})
		s.setUp()
		cfg := s.config()
		cfg.Tables = []Table{{"App", "Events"}}
		r := streaming(t, cfg)
		s.insert(1, 3)
		r.WaitFor(2)
		if name := r.Record("1").Relation.Name(); name != "App.Events" || r.src.Status().ForeignRows != 0 {
			t.Errorf("relation %s, %d foreign rows", name, r.src.Status().ForeignRows)
		}
	})
}
