package mysql

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cdc-dispatcher/cdc-dispatcher/schema"
)

// quoteName quotes an identifier, in any sql_mode.
func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// quoteText is a literal that means s in any sql_mode and has no question mark, which a driver could take for a
// parameter.
func quoteText(s string) string { return fmt.Sprintf("CONVERT(X'%x' USING utf8mb4)", s) }

func parens(s string) string { return "(" + s + ")" }

// kind is what matters about the type of a column.
type kind int

const (
	kindOther kind = iota
	kindText
	kindUUID       // MariaDB's own type
	kindBinaryUUID // 16 bytes
	kindInt
	kindUnsigned
	kindTime // DATETIME and TIMESTAMP
	kindDate
	kindBytes
	kindJSON // MySQL's own type, which is printed and not kept as written
)

// column is one column as the catalog has it.
type column struct {
	name string
	// typ is the type as SQL spells it.
	typ                string
	kind               kind
	notNull            bool
	charset, collation string
	// listed says that it is an ENUM or a SET, filled that it is a number that is printed with zeros before it.
	listed, filled bool
}

func newColumn(name, dataType, columnType, charset, collation string, notNull bool) column {
	c := column{name: name, typ: columnType, notNull: notNull, charset: charset, collation: collation}
	switch strings.ToLower(dataType) {
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext":
		c.kind = kindText
	case "enum", "set":
		c.kind, c.listed = kindText, true
	case "uuid":
		c.kind = kindUUID
	case "bit":
		c.kind = kindUnsigned
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		c.kind = kindInt
		if strings.Contains(columnType, "unsigned") {
			c.kind, c.filled = kindUnsigned, strings.Contains(columnType, "zerofill")
		}
	case "datetime", "timestamp":
		c.kind = kindTime
	case "date":
		c.kind = kindDate
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		c.kind = kindBytes
		if columnType == "binary(16)" {
			c.kind = kindBinaryUUID
		}
	case "json":
		c.kind = kindJSON
	}
	return c
}

// exact says that the database tells any two different values apart.
func (c column) exact() bool {
	switch c.kind {
	case kindText:
		// A binary collation may still pad with blanks.
		return strings.HasSuffix(c.collation, "_0900_bin") || strings.HasSuffix(c.collation, "_nopad_bin")
	case kindOther:
		return false
	default:
		return true
	}
}

// binary says that the database tells capitals and accents apart. Trailing blanks may still count for
// nothing.
func (c column) binary() bool {
	return c.kind != kindText || strings.HasSuffix(c.collation, "_bin") || c.collation == "binary"
}

// sorted says that an index on the column is in the order in which its values compare with texts. An ENUM
// compares as text, and is sorted by the place of the value in its list.
func (c column) sorted() bool { return c.kind == kindText && !c.listed }

// hyphens writes 32 hex digits as a UUID.
func hyphens(hex string) string {
	return "INSERT(INSERT(INSERT(INSERT(" + hex + ", 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')"
}

// text is the value of ref as text, in utf8mb4; bytes stay what they are. It is what the log's
// decoder makes of the same value, except for JSON.
func (c column) text(ref string) string {
	switch {
	case c.kind == kindBinaryUUID:
		return hyphens("LOWER(HEX(" + ref + "))")
	case c.kind == kindText, c.kind == kindJSON:
		return "CONVERT(" + ref + " USING utf8mb4)"
	case c.kind == kindBytes:
		return ref
	case c.filled:
		return "CAST(CAST(" + ref + " AS UNSIGNED) AS CHAR)"
	default:
		return "CAST(" + ref + " AS CHAR)"
	}
}

// from turns a text expression into a value that an index on the column is used for.
func (c column) from(expr string) string {
	switch c.kind {
	case kindText:
		return "CONVERT(" + expr + " USING " + c.charset + ") COLLATE " + c.collation
	case kindUUID:
		return "CAST(" + expr + " AS UUID)"
	case kindBinaryUUID:
		return "UNHEX(REPLACE(" + expr + ", '-', ''))"
	case kindInt:
		return "CAST(" + expr + " AS SIGNED)"
	case kindUnsigned:
		return "CAST(" + expr + " AS UNSIGNED)"
	case kindBytes:
		return "CAST(" + expr + " AS BINARY)"
	default:
		return expr
	}
}

// arg is the value that a key with this text has as a parameter. It is false when the column
// cannot hold such a key; a comparison with it could be true of another one.
func (c column) arg(key string) (any, bool) {
	switch c.kind {
	case kindUUID:
		_, err := uuid.Parse(key)
		return key, err == nil && len(key) == 36
	case kindBinaryUUID:
		id, err := uuid.Parse(key)
		return id[:], err == nil && len(key) == 36
	case kindInt:
		n, err := strconv.ParseInt(key, 10, 64)
		return n, err == nil
	case kindUnsigned:
		n, err := strconv.ParseUint(key, 10, 64)
		return n, err == nil
	case kindBytes:
		return []byte(key), true
	default:
		return key, true
	}
}

// args are the values of those keys that the column can hold.
func (c column) args(keys []string) []any {
	list := make([]any, 0, len(keys))
	for _, key := range keys {
		if arg, ok := c.arg(key); ok {
			list = append(list, arg)
		}
	}
	return list
}

// uuids are the ids as values of the column.
func (c column) uuids(ids []uuid.UUID) []any {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = c.uuid(id)
	}
	return list
}

func (c column) uuid(id uuid.UUID) any {
	if c.kind == kindBinaryUUID {
		return id[:]
	}
	return id.String()
}

// ids are the texts of UUIDs as values of the column; a text that is none is left out.
func (c column) ids(texts []string) []any {
	list := make([]any, 0, len(texts))
	for _, text := range texts {
		if id, err := uuid.Parse(text); err == nil {
			list = append(list, c.uuid(id))
		}
	}
	return list
}

// ref names a column of the alias t.
func (t *eventTable) ref(name string) string { return "t." + quoteName(name) }

// text is the value of a column as text.
func (t *eventTable) text(name string) string { return t.columns[name].text(t.ref(name)) }

// direct says that every key of the table is the id of its event.
func (t *eventTable) direct() bool {
	k := t.key().kind
	return k == kindUUID || k == kindBinaryUUID
}

// alike says that the database may take several keys for one.
func (t *eventTable) alike() bool { return !t.uniqueID && !t.key().exact() }

// directID is the event's id where the key is one, and null where it has to be derived from the key. The
// derivation is not done in SQL: servers have given up the function for it.
func (t *eventTable) directID() string {
	text := t.text(t.Columns.ID)
	switch t.key().kind {
	case kindUUID, kindBinaryUUID:
		return text
	case kindText:
		return fmt.Sprintf("CASE WHEN CHAR_LENGTH(%[1]s) = 36 AND %[1]s COLLATE utf8mb4_bin "+
			"REGEXP '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN %[1]s END", text)
	default:
		return "NULL"
	}
}

// The range of times that every consumer of an event can hold, see package schema.
const (
	earliestSQL = "TIMESTAMP'0001-01-01 00:00:00.000001'"
	earliest    = "0001-01-01 00:00:00.000001"
)

// timestamp is the value of a column as a DATETIME in UTC. A date that is zero, or zero in part, becomes the
// earliest time: servers may store one, and cannot count with it.
func (t *eventTable) timestamp(name string) string {
	ref := t.ref(name)
	at := ref
	if t.columns[name].kind == kindDate {
		at = "CAST(" + ref + " AS DATETIME(6))"
	}
	return fmt.Sprintf("CASE WHEN MONTH(%[2]s) = 0 OR DAYOFMONTH(%[2]s) = 0 OR %[1]s < %[3]s THEN %[3]s ELSE %[1]s END", at, ref, earliestSQL)
}

// since is how many microseconds ago a time was. Of one that is zero in part, and that no server can count with, it is since the
// earliest time.
func (s *Store) since(at string) string {
	age := func(from string) string { return "TIMESTAMPDIFF(MICROSECOND, " + from + ", " + s.now + ")" }
	return "COALESCE(" + age(at) + ", " + age(earliestSQL) + ")"
}

// windowRunsSince is for how many microseconds the expiry of the delivery d has been running.
func (s *Store) windowRunsSince() string {
	return s.since("GREATEST(d.event_date, COALESCE(d.retried_date, d.event_date))")
}

// orElse is expr(column), or the default when the column is not mapped or null.
func orElse(name string, expr func(string) string, def string) string {
	if name == "" {
		return def
	}
	return "COALESCE(" + expr(name) + ", " + def + ")"
}

// pending is the condition for a row that no path has fanned out, by the alias t. A row whose mark was left
// null is one of them.
func (t *eventTable) pending() string {
	ref, c := t.ref(t.Mark.Column), t.columns[t.Mark.Column]
	condition := ""
	switch t.Mark.Kind {
	case schema.MarkNone:
		// Keys that are not their events' ids are looked at afterwards, see look.undelivered.
		return "NOT EXISTS (SELECT 1 FROM " + t.deliveries + " AS p WHERE p.event_id = " + t.eventID.from(parens(t.directID())) + ")"
	case schema.MarkStatus:
		condition = ref + " = " + c.from(quoteText(t.Mark.Pending))
	default:
		condition = ref + " = 0"
	}
	if c.notNull {
		return condition
	}
	return parens(condition + " OR " + ref + " IS NULL")
}

// typed is the condition for a row that is an event and no sentinel.
func (t *eventTable) typed() string {
	if ref := t.ref(t.Columns.Type); t.columns[t.Columns.Type].kind != kindText {
		return ref + " IS NOT NULL"
	} else {
		return ref + " <> ''"
	}
}

// nameless is the condition for a row without a usable key.
func (t *eventTable) nameless() string {
	ref := t.ref(t.Columns.ID)
	if k := t.columns[t.Columns.ID].kind; k == kindText || k == kindBytes {
		return parens(ref + " IS NULL OR LENGTH(" + ref + ") = 0")
	}
	return ref + " IS NULL"
}

// named is the opposite of nameless.
func (t *eventTable) named() string { return "NOT " + parens(t.nameless()) }

// bytesOf is a text expression as bytes, for comparisons that no collation has a say in.
func bytesOf(text string) string { return "CAST(" + text + " AS BINARY)" }

// payloadValues are what goes into the columns payload and payload_raw of a delivery, of
// a payload that is in the expression ref of the column c. The JSON column is for what it keeps as it is;
// everything else keeps its bytes in payload_raw.
func payloadValues(c column, ref string, mariaDB bool) (payload, raw string) {
	text := "CONVERT(" + ref + " USING utf8mb4)"
	switch {
	case c.kind == kindJSON:
		return ref, "NULL"
	case c.kind != kindText:
		return "NULL", bytesOf(c.text(ref))
	case mariaDB: // whose JSON is a text
		return fmt.Sprintf("CASE WHEN JSON_VALID(%s) THEN %s END", ref, text),
			fmt.Sprintf("CASE WHEN JSON_VALID(%s) THEN NULL ELSE %s END", ref, bytesOf(text))
	default:
		return "NULL", bytesOf(text)
	}
}

// sortedUUIDs returns the ids in the order in which a database sorts them as text.
func sortedUUIDs(ids []uuid.UUID) []uuid.UUID {
	sorted := slices.Clone(ids)
	slices.SortFunc(sorted, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return sorted
}
