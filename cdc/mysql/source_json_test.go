package mysql

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc/cdctest"
	"github.com/cdc-dispatcher/cdc-dispatcher/internal/testdb"
)

// documents are SQL expressions of JSON of all kinds.
func documents() []string {
	docs := []string{
		`'{}'`, `'[]'`, `'null'`, `'true'`, `'false'`, `'""'`, `'0'`, `'[{}, [], "", {"": {"": []}}]'`,
		`'{"zz": 1, "b": [true, false, null], "a": {"nested": {"deeper": [1, [2, [3]]]}}, "aa": "x"}'`,
		`'["Zürich", "日本", "😀", "\\u00e9", "a:b, c", "say \\"x\\"", "back\\\\slash", "sl\\/ash", "\\b\\f\\n\\r\\t\\u0000\\u0001\\u001f\\u007f"]'`,
		`'{"Zü\\"rich\\n": ":", "k,": "\\u2028", "<&>": "<&>"}'`,
		`'[0, -0, 1, -1, 127, 128, 255, 256, 32767, 32768, -32768, -32769, 65535, 65536, 2147483647, 2147483648, -2147483648, -2147483649]'`,
		`'[4294967295, 4294967296, 9223372036854775807, -9223372036854775808, 9223372036854775808, 18446744073709551615, 18446744073709551616]'`,
		`'[0.0, -0.0, 1.0, -1.5, 0.1, 1e300, 1e-300, 1.7976931348623157e308, 4.9e-324, 2.2250738585072014e-308, -1e300]'`,
		`'[100000000000000.0, 123456789012345.6, 999999999999999.0, 1e14, 1e15, 1e16, 123456789012345680.0, 1234567890123456789012.0, 1e21, 1e22]'`,
		`'[0.1e-1, 1e-4, 1.5e-5, 1e-6, 1.25e-7, 1e-13, 1e-14, 1.5e-14, 1e-15, 1.5e-15, 9.99e-15, 1e-16, 123.456e-20, 0.30000000000000004, 5e-10]'`,
		`'[1e5, 1e6, 1e7, 123456.789, 12345678.9, 1e10, 3.141592653589793, 2.718281828459045e2, 299792458.0, 6.02214076e23]'`,
		`JSON_ARRAY(CAST(1.10 AS DECIMAL(5,2)), CAST(-0.05 AS DECIMAL(5,2)), CAST(0 AS DECIMAL(1,0)), CAST(99999999999999999999999999999999999.999999999999999999999999999999 AS DECIMAL(65,30)), CAST(-1234567890123456789 AS DECIMAL(40,0)), 1000000000.000000001, -.5, 10.00)`,
		`JSON_ARRAY(CAST('2026-12-01 03:57:49.123456' AS DATETIME(6)), CAST('2026-12-01 03:57:49' AS DATETIME), CAST('2026-12-01' AS DATE), CAST('9999-12-31' AS DATE), CAST('0001-01-01 00:00:00' AS DATETIME))`,
		`JSON_ARRAY(CAST('-838:59:59' AS TIME), CAST('-00:00:00.5' AS TIME(1)), CAST('00:00:00' AS TIME), CAST('123:04:05.678' AS TIME(3)), CAST('12:00:00.000001' AS TIME(6)), CAST('-12:34:56.999999' AS TIME(6)))`,
		`JSON_ARRAY(b'101', x'00ff10', x'', CAST('abc' AS BINARY(5)), REPEAT(x'e29c93ff', 100), REPEAT(x'01', 56), REPEAT(x'01', 57), REPEAT(x'01', 58), REPEAT(x'01', 114), CAST(x'' AS BINARY))`,
		`JSON_ARRAY(TRUE, FALSE, NULL, 1=1, 1.5e0, 'text', CAST(2026 AS YEAR), UUID_TO_BIN('3e11fa47-71ca-11e1-9e33-c80aa9429562'))`,
		`JSON_ARRAY(TIMESTAMP('2026-12-01 03:57:49.5'), NOW(6), CURRENT_DATE(), UTC_TIME(3), FROM_UNIXTIME(0))`,
		`JSON_OBJECT('d', CAST(1.5 AS DECIMAL(10,5)), 'long key of some length', CAST(x'0102' AS BINARY), 'p', ST_GeomFromText('POINT(1 2)'))`,
		`CAST(1.50 AS JSON)`, `CAST(CAST('2026-12-01' AS DATE) AS JSON)`, `CAST(x'00' AS JSON)`, `CAST(CAST('10:11:12' AS TIME) AS JSON)`, `CAST(1e0 AS JSON)`,
		`JSON_ARRAY(REPEAT('x', 127), REPEAT('y', 128), REPEAT('é', 9000), REPEAT('"', 20000))`,
		`JSON_ARRAY(REPEAT('a', 30000), REPEAT('b', 30000), REPEAT('c', 30000), 1, -1, 70000, -70000, 4294967295, 5000000000, 0.5, NULL, TRUE, JSON_OBJECT('k', 70000))`,
		`JSON_OBJECT('a', REPEAT('a', 70000), 'b', 70000, 'c', -70000, 'd', JSON_ARRAY(70000), 'e', JSON_OBJECT('x', REPEAT('z', 66000)))`,
		`'` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `'`,
		`'` + strings.Repeat(`{"a":`, 99) + "1" + strings.Repeat("}", 99) + `'`,
	}
	numbers := make([]string, 20000)
	for i := range numbers {
		numbers[i] = strconv.Itoa(i * 7919)
	}
	members := make([]string, 3000)
	for i := range members {
		members[i] = fmt.Sprintf(`"key %d": {"n": %d.%d, "s": "value %d"}`, i, i, i%10, i)
	}
	var floats []string
	for e := -30; e <= 30; e++ {
		floats = append(floats, fmt.Sprintf("1e%d, 1.5e%d, -9.87654321e%d, 1.2345678901234567e%d", e, e, e, e))
	}
	return append(docs,
		"'["+strings.Join(numbers, ",")+"]'", "'{"+strings.Join(members, ",")+"}'", "'["+strings.Join(floats, ",")+"]'")
}

// JSON comes in the bytes that a SELECT gives, whatever is in it, also after an update in place left holes
// in what is stored.
func TestJSONIsThatOfASelect(t *testing.T) {
	onKind(t, testdb.MySQL97, func(t *testing.T, db *testdb.MyDB) {
		db.Exec("ALTER TABLE events ADD COLUMN doc json NOT NULL; CREATE TABLE other LIKE events")
		r := streaming(t, configOf(db))
		s := newSession(t, db.Pool())
		s.exec("SET SESSION sql_mode = ''", "SET time_zone = '+00:00'")
		docs := documents()
		for i, doc := range docs {
			s.exec(fmt.Sprintf("INSERT INTO events (id, doc) VALUES (%d, %s)", i, doc))
		}
		n := len(docs)
		s.exec(
			fmt.Sprintf("INSERT IGNORE INTO events (id, doc) VALUES (%d, NULL), (%d, '1')", n, n+1),
			`INSERT INTO other (id, doc) VALUES (1, '{"a": "some long text", "b": [1, 2, "three"], "c": 1.5}')`,
			`UPDATE other SET doc = JSON_SET(doc, '$.a', 'short', '$.b[2]', 3)`,
			`UPDATE other SET doc = JSON_REMOVE(doc, '$.b[0]')`,
			fmt.Sprintf("INSERT INTO events (id, doc) SELECT %d, doc FROM other", n+2),
		)
		r.WaitFor(n + 3)
		for i := range n + 3 {
			var selected string
			query := fmt.Sprintf("SELECT CAST(doc AS CHAR) FROM %s.events WHERE id = ?", db.Name())
			if err := s.conn.QueryRowContext(t.Context(), query, i).Scan(&selected); err != nil {
				t.Fatal(err)
			}
			if got := cdctest.Text(r.Record(fmt.Sprint(i)), "doc"); got != selected {
				at := 0
				for at < min(len(got), len(selected)) && got[at] == selected[at] {
					at++
				}
				from := max(0, at-20)
				t.Errorf("document %d: %d bytes in the log and %d in a SELECT\nlog    %.100q\nselect %.100q", i, len(got), len(selected), got[min(from, len(got)):], selected[from:])
			}
		}
	})
}
