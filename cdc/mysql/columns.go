package mysql

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// definition is a table as the server's catalog has it now, in the order of its
// columns.
type definition []definedColumn

type definedColumn struct {
	name     string
	dataType string // "binary", "uuid", "enum" …
	fullType string // "bigint(20) unsigned", "enum('a','b')" …
	nullable bool
	charset  string // empty where there is none
}

// find returns the named column, or nil.
func (d definition) find(name string) *definedColumn {
	for i := range d {
		if d[i].name == name {
			return &d[i]
		}
	}
	return nil
}

func (c *definedColumn) unsigned() bool { return strings.Contains(c.fullType, "unsigned") }

// compressed says that MariaDB stores the column in a form that the binlog has too, and
// that no decoder knows.
func (c *definedColumn) compressed() bool {
	return strings.Contains(strings.ToUpper(c.fullType), "COMPRESSED")
}

// layout is how the rows of a table map are read. It is immutable.
type layout struct {
	relation *cdc.Relation
	columns  []column
	// signature is what the layout was made from; another table map needs another one.
	signature []byte
	// named says that the names are the log's own and not the catalog's.
	named bool
}

// kind is how a value becomes the text that a SELECT would give.
type kind int

const (
	asIs    kind = iota // as its type says
	fixed               // BINARY(n): trailing zeros are not in the log
	asUUID              // MariaDB's UUID, and BINARY(16), which is one
	asINET4             // MariaDB's INET4
	asINET6             // MariaDB's INET6
)

type column struct {
	name     string
	typ      byte // of the log
	meta     uint16
	kind     kind
	unsigned bool
	names    []string // of an ENUM or a SET
	width    int      // bytes that a value has at least, or unreadable
	prefix   int      // bytes of them that hold the size of what follows
	padded   int      // bytes of a CHAR or BINARY of its full length
}

// typeBase keeps the type numbers of MySQL apart from those of other databases in
// cdc.Column.Type: 17 is a bytea elsewhere.
const typeBase = 1 << 16

// collationBinary is the collation of bytes, as opposed to text.
const collationBinary = 63

// errColumns says why the rows of a table map cannot be read by name. The table's rows
// are then left to the poller.
type errColumns struct{ why string }

func (e *errColumns) Error() string { return e.why }

// newLayout matches a table map with the catalog. Names come from the log if it has
// them, else from the catalog, which is believed only if count, types and nullability of all
// columns agree (mysql-cdc.md section 3.2). Types that the log does not tell apart, such as
// UUID and BINARY(16), come from the catalog.
func newLayout(table Table, m *replication.TableMapEvent, d definition) (*layout, error) {
	count := int(m.ColumnCount)
	l := &layout{
		relation:  &cdc.Relation{Schema: table.Schema, Table: table.Name, Columns: make([]cdc.Column, count)},
		columns:   make([]column, count),
		signature: appendSignature(nil, m),
		named:     len(m.ColumnName) == count,
	}
	if !l.named {
		if err := agrees(m, d); err != nil {
			return nil, err
		}
	}
	collations, unsigned := m.CollationMap(), m.UnsignedMap()
	enums, sets := m.EnumStrValueMap(), m.SetStrValueMap()
	for i := range l.columns {
		c := column{typ: realType(m, i), meta: m.ColumnMeta[i]}
		var defined *definedColumn
		if l.named {
			c.name = string(m.ColumnName[i])
			defined = d.find(c.name)
			if defined != nil && !sameType(defined, c.typ) {
				defined = nil // of another time
			}
		} else {
			c.name, defined = d[i].name, &d[i]
		}
		collation, charset := collations[i]
		if err := c.resolve(defined, charset && collation == collationBinary, charset); err != nil {
			return nil, err
		}
		if logged, known := unsigned[i]; known {
			c.unsigned = logged
		}
		if names, ok := enums[i]; ok {
			c.names = names
		}
		if names, ok := sets[i]; ok {
			c.names = names
		}
		if (c.typ == gomysql.MYSQL_TYPE_ENUM || c.typ == gomysql.MYSQL_TYPE_SET) && c.names == nil {
			return nil, &errColumns{fmt.Sprintf("the names of column %q are not known", c.name)}
		}
		l.columns[i] = c
		l.relation.Columns[i] = cdc.Column{Name: c.name, Type: typeBase | uint32(c.typ)}
	}
	return l, nil
}

// resolve finds how the column's values are read. isBinary counts if charset is true.
func (c *column) resolve(d *definedColumn, isBinary, charset bool) error {
	if d != nil {
		c.unsigned = d.unsigned()
	}
	c.measure()
	switch c.typ {
	case gomysql.MYSQL_TYPE_STRING:
		return c.resolveString(d, isBinary, charset)
	case gomysql.MYSQL_TYPE_ENUM, gomysql.MYSQL_TYPE_SET:
		if d != nil {
			c.names = quotedNames(d.fullType)
		}
	case typeBlobCompressed, typeVarcharCompressed:
		return &errColumns{fmt.Sprintf("column %q is COMPRESSED, which cannot be read from the binlog", c.name)}
	}
	return nil
}

func (c *column) resolveString(d *definedColumn, isBinary, charset bool) error {
	if d != nil {
		switch d.dataType {
		case "uuid":
			c.kind, c.padded = asUUID, 16
			return nil
		case "inet6":
			c.kind, c.padded = asINET6, 16
			return nil
		case "inet4":
			c.kind, c.padded = asINET4, 4
			return nil
		}
		if !charset {
			isBinary = d.dataType == "binary"
		}
	} else if !charset {
		return &errColumns{fmt.Sprintf("it is not known whether column %q holds text or bytes", c.name)}
	}
	switch {
	case isBinary && c.padded == 16:
		c.kind = asUUID
	case isBinary:
		c.kind = fixed
	}
	return nil
}

// Types that only MariaDB has, and the library does not name.
const (
	typeBlobCompressed    = 140
	typeVarcharCompressed = 141
)

// realType is the type of column i, with ENUM and SET told from CHAR, as which they are
// logged.
func realType(m *replication.TableMapEvent, i int) byte {
	t := m.ColumnType[i]
	if t == gomysql.MYSQL_TYPE_STRING {
		if real := byte(m.ColumnMeta[i] >> 8); real == gomysql.MYSQL_TYPE_ENUM || real == gomysql.MYSQL_TYPE_SET {
			return real
		}
	}
	return t
}

// stringWidth is the declared width of a CHAR or BINARY column in bytes. Two bits of
// widths above 255 are folded into the type.
func stringWidth(meta uint16) int {
	high, low := meta>>8, meta&0xff
	if high != 0 && high&0x30 != 0x30 {
		return int(low | (high&0x30^0x30)<<4)
	}
	return int(low)
}

// agrees says whether the catalog describes the table as it was when the table map was
// written, as far as can be told.
func agrees(m *replication.TableMapEvent, d definition) error {
	if d == nil {
		return &errColumns{"the table is not in the catalog"}
	}
	if len(d) != int(m.ColumnCount) {
		return &errColumns{fmt.Sprintf("the log has %d columns and the catalog %d", m.ColumnCount, len(d))}
	}
	for i := range d {
		if t := realType(m, i); !sameType(&d[i], t) {
			return &errColumns{fmt.Sprintf("column %d is of type %d in the log and %s in the catalog", i+1, t, d[i].dataType)}
		}
		if known, nullable := m.Nullable(i); known && nullable != d[i].nullable {
			return &errColumns{fmt.Sprintf("column %d may be null in the log or in the catalog, but not in both", i+1)}
		}
	}
	return nil
}

// sameType says whether a column of the catalog can be of this type in the log.
func sameType(d *definedColumn, t byte) bool {
	switch d.dataType {
	case "tinyint":
		return t == gomysql.MYSQL_TYPE_TINY
	case "smallint":
		return t == gomysql.MYSQL_TYPE_SHORT
	case "mediumint":
		return t == gomysql.MYSQL_TYPE_INT24
	case "int":
		return t == gomysql.MYSQL_TYPE_LONG
	case "bigint":
		return t == gomysql.MYSQL_TYPE_LONGLONG
	case "float":
		return t == gomysql.MYSQL_TYPE_FLOAT
	case "double":
		return t == gomysql.MYSQL_TYPE_DOUBLE
	case "decimal":
		return t == gomysql.MYSQL_TYPE_NEWDECIMAL
	case "bit":
		return t == gomysql.MYSQL_TYPE_BIT
	case "year":
		return t == gomysql.MYSQL_TYPE_YEAR
	case "date":
		return t == gomysql.MYSQL_TYPE_DATE || t == gomysql.MYSQL_TYPE_NEWDATE
	case "time":
		return t == gomysql.MYSQL_TYPE_TIME || t == gomysql.MYSQL_TYPE_TIME2
	case "datetime":
		return t == gomysql.MYSQL_TYPE_DATETIME || t == gomysql.MYSQL_TYPE_DATETIME2
	case "timestamp":
		return t == gomysql.MYSQL_TYPE_TIMESTAMP || t == gomysql.MYSQL_TYPE_TIMESTAMP2
	case "char", "binary", "uuid", "inet4", "inet6":
		return t == gomysql.MYSQL_TYPE_STRING
	case "varchar", "varbinary":
		return t == gomysql.MYSQL_TYPE_VARCHAR || t == gomysql.MYSQL_TYPE_VAR_STRING || t == typeVarcharCompressed
	case "enum":
		return t == gomysql.MYSQL_TYPE_ENUM
	case "set":
		return t == gomysql.MYSQL_TYPE_SET
	case "json":
		return t == gomysql.MYSQL_TYPE_JSON
	case "vector":
		return t == gomysql.MYSQL_TYPE_VECTOR || t == gomysql.MYSQL_TYPE_VARCHAR
	}
	if strings.HasSuffix(d.dataType, "text") || strings.HasSuffix(d.dataType, "blob") {
		return t == gomysql.MYSQL_TYPE_BLOB || t == typeBlobCompressed
	}
	return t == gomysql.MYSQL_TYPE_GEOMETRY // point, polygon …
}

// appendSignature adds everything of a table map that a layout depends on.
func appendSignature(s []byte, m *replication.TableMapEvent) []byte {
	s = binary.AppendUvarint(s, m.ColumnCount)
	s = append(s, m.ColumnType...)
	for _, meta := range m.ColumnMeta {
		s = binary.LittleEndian.AppendUint16(s, meta)
	}
	s = append(s, m.NullBitmap...)
	s = append(s, 0)
	s = append(s, m.SignednessBitmap...)
	for _, name := range m.ColumnName {
		s = binary.AppendUvarint(s, uint64(len(name)))
		s = append(s, name...)
	}
	for _, list := range [...][]uint64{m.DefaultCharset, m.ColumnCharset} {
		s = append(s, 0)
		for _, collation := range list {
			s = binary.AppendUvarint(s, collation)
		}
	}
	for _, list := range [...][][][]byte{m.EnumStrValue, m.SetStrValue} {
		s = append(s, 0)
		for _, values := range list {
			s = binary.AppendUvarint(s, uint64(len(values)))
			for _, value := range values {
				s = append(binary.AppendUvarint(s, uint64(len(value))), value...)
			}
		}
	}
	return s
}

// quotedNames reads the names out of "enum('a','it”s')".
func quotedNames(fullType string) []string {
	names := []string{}
	_, rest, _ := strings.Cut(fullType, "(")
	for {
		start := strings.IndexByte(rest, '\'')
		if start < 0 {
			return names
		}
		var name strings.Builder
		rest = rest[start+1:]
		for {
			end := strings.IndexByte(rest, '\'')
			if end < 0 {
				return names
			}
			name.WriteString(rest[:end])
			rest = rest[end+1:]
			if !strings.HasPrefix(rest, "'") {
				break
			}
			name.WriteByte('\'')
			rest = rest[1:]
		}
		names = append(names, name.String())
	}
}

// problems are what keeps the table's rows from being read from the log at all; hint
// names the statement.
func (d definition) problems(table Table) (reason, hint string, err error) {
	for i := range d {
		c := &d[i]
		if c.compressed() {
			return reasonTable, fmt.Sprintf("ALTER TABLE %s MODIFY %s without COMPRESSED", quoteTable(table), quoteIdent(c.name)),
				fmt.Errorf("column %q of %s is COMPRESSED, which cannot be read from the binlog", c.name, table)
		}
		if !slices.Contains(readableCharsets[:], c.charset) {
			return reasonCharset, fmt.Sprintf("ALTER TABLE %s CONVERT TO CHARACTER SET utf8mb4", quoteTable(table)),
				fmt.Errorf("column %q of %s is in character set %s; the binlog has its text untranslated", c.name, table, c.charset)
		}
	}
	return "", "", nil
}

// readableCharsets are those whose text is UTF-8, or bytes. The empty one stands for
// columns without text.
var readableCharsets = [...]string{"", "utf8mb4", "utf8mb3", "utf8", "ascii", "binary"}

func quoteIdent(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func quoteTable(t Table) string { return quoteIdent(t.Schema) + "." + quoteIdent(t.Name) }
